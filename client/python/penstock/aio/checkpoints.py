"""Checkpoints as they lie on the daemon's disk, of pipelines that live and of deleted ones."""

from __future__ import annotations

import os
from collections.abc import Sequence

from penstock import tensors
from penstock.aio.connection import Connection
from penstock.aio.off_loop import off_loop
from penstock.aio.reading import read_parameters, tied_names
from penstock.aio.resources import PipelineResource
from penstock.deadline import LONGEST_WAIT, Deadline
from penstock.distributed import write_distributed
from penstock.parameters import with_tied_names
from penstock.requests import new_request_id
from penstock.specifications import names_of
from penstock.tensors import Array
from penstock.v1 import state_pb2


class Checkpoint:
    """One checkpoint, as it was when it was listed.

    Attributes:
        message: what the daemon tells of it: ``state``, ``byte_size``, ``create_time``, ``model``, ``pipeline_exists`` ...
        name: ``pipelines/{pipeline}/checkpoints/{checkpoint}``.
        pipeline: the short name of its pipeline, which may be deleted.
        step: finished optimizer steps.
    """

    def __init__(self, connection: Connection, message: state_pb2.Checkpoint) -> None:
        self._connection = connection
        self.message = message
        self.name = message.name
        self.pipeline = message.name.split("/")[1]
        self.step = message.step

    def __repr__(self) -> str:
        return f"Checkpoint({self.name!r}, {self.state}, step {self.step})"

    @property
    def state(self) -> str:
        """``COMPLETE`` or ``DAMAGED``."""
        return state_pb2.CheckpointState.Name(self.message.state).replace("CHECKPOINT_STATE_", "")

    async def copy_to(
        self, pipeline: PipelineResource, checkpoint_id: str = "", *, timeout: float | None = None
    ) -> Checkpoint:
        """Copies it to a pipeline of the same model, which may then restore it.

        Args:
            checkpoint_id: short name of the copy; empty: as this one.
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            PenstockError: MODEL_MISMATCH, naming what differs; CHECKPOINT_EXISTS, CHECKPOINT_NOT_FOUND,
                CHECKPOINT_CORRUPT, STORAGE_FULL.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = state_pb2.CopyCheckpointRequest(
            source=self.name, destination=pipeline.name, checkpoint_id=checkpoint_id, request_id=new_request_id()
        )
        message = await self._connection.unary(
            "StateService/CopyCheckpoint", request, state_pb2.Checkpoint, Deadline(timeout), LONGEST_WAIT
        )
        return Checkpoint(self._connection, message)

    async def read_parameters(
        self, names: Sequence[str] = (), *, include_optimizer_state: bool = False, timeout: float | None = None
    ) -> dict[str, Array]:
        """What it holds, by name, without a pipeline: as :meth:`Pipeline.read_parameters`.

        Args:
            names: only these parameters and buffers; empty: all, in model order.
            include_optimizer_state: also ``optimizer/{parameter}/{slot}``.
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            ImportError: one is of bfloat16, and ``ml_dtypes`` is not installed.
            PenstockError: CHECKPOINT_NOT_FOUND, CHECKPOINT_CORRUPT, PARAMETER_NOT_FOUND; HOST_MEMORY: the daemon has
                no room to read it.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = self._read_request(names, include_optimizer_state)
        return tensors.shown(await read_parameters(self._connection, request, Deadline(timeout)))

    async def save_distributed(
        self,
        path: str | os.PathLike[str],
        *,
        include_optimizer_state: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Writes it to a new folder of this machine, as :meth:`Pipeline.save_distributed`.

        Returns:
            The step that it is of.

        Raises:
            ImportError: PyTorch is not installed.
            FileExistsError: there is something of that name.
            PenstockError: as :meth:`read_parameters`; MODEL_NOT_FOUND: the exported program, which has the names of
                tied parameters, is deleted.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        deadline = Deadline(timeout)
        program = self.message.model if self.message.program_digest else ""
        tied = await tied_names(self._connection, program, deadline)
        parameters = await read_parameters(self._connection, self._read_request((), include_optimizer_state), deadline)
        await off_loop(write_distributed, path, with_tied_names(parameters, tied))
        return parameters.step

    async def delete(self, *, timeout: float | None = None) -> None:
        """Deletes it, also where its pipeline is deleted.

        Raises:
            PenstockError: CHECKPOINT_NOT_FOUND.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = state_pb2.DeleteCheckpointRequest(name=self.name, request_id=new_request_id())
        await self._connection.unary(
            "StateService/DeleteCheckpoint",
            request,
            state_pb2.DeleteCheckpointResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )

    def _read_request(self, names: Sequence[str], include_optimizer_state: bool) -> state_pb2.ReadParametersRequest:
        return state_pb2.ReadParametersRequest(
            checkpoint=self.name, names=names_of(names), include_optimizer_state=include_optimizer_state
        )
