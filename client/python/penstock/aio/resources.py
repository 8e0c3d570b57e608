"""A pipeline as a thing of the daemon, for asyncio; see :mod:`penstock.resources` and :mod:`penstock.state`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock import safetensors, tensors
from penstock.aio import uploads
from penstock.aio.connection import Connection, collect
from penstock.aio.handles import Handle, ValueHandle, release_all
from penstock.deadline import LONGEST_WAIT, Deadline
from penstock.requests import checkpoint_name, new_request_id
from penstock.resources import (
    Parameters,
    PipelineFacts,
    Trace,
    schedule_request,
    trace_request,
    watch_request,
    write_trace,
)
from penstock.state import (
    daemons_slots,
    parts_of,
    slots_of,
    with_tied_names,
    without_tied_names,
    write_request,
)
from penstock.tensors import as_array, as_tensor
from penstock.v1 import handle_pb2, insight_pb2, model_pb2, pipeline_pb2, state_pb2

if TYPE_CHECKING:
    import torch


class PipelineResource(PipelineFacts):
    """What a pipeline is and has; :class:`penstock.aio.Pipeline` adds what it does."""

    def __init__(self, connection: Connection, message: pipeline_pb2.Pipeline) -> None:
        super().__init__(message)
        self._connection = connection

    async def refresh(self) -> pipeline_pb2.Pipeline:
        """Asks for the present state, step and plan."""
        return await self.refresh_until(None)

    async def refresh_until(self, deadline: Deadline | None) -> pipeline_pb2.Pipeline:
        """As :meth:`refresh`, for a part of a longer call."""
        request = pipeline_pb2.GetPipelineRequest(name=self.name)
        self.message = await self._connection.unary(
            "PipelineService/GetPipeline", request, pipeline_pb2.Pipeline, deadline
        )
        return self.message

    # --- handles ------------------------------------------------------------------------------------------------------

    async def put(self, values: Mapping[str, Any], *, timeout: float | None = None, lease: float = 0.0) -> ValueHandle:
        """Uploads arrays, or tensors of PyTorch, once, to be inputs of several calls."""
        return await uploads.put(self._connection, self.name, values, lease, Deadline(timeout))

    async def handles(self) -> list[handle_pb2.Handle]:
        """The caller's live handles of this pipeline."""
        found: list[handle_pb2.Handle] = []
        request = handle_pb2.ListHandlesRequest(parent=self.name, page_size=1000)
        while True:
            response = await self._connection.unary(
                "HandleService/ListHandles", request, handle_pb2.ListHandlesResponse
            )
            found.extend(response.handles)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    async def release(self, handles: Sequence[Handle]) -> None:
        """Releases many handles at once."""
        await release_all(self._connection, [handle.name for handle in handles])

    # --- checkpoints --------------------------------------------------------------------------------------------------

    async def save_checkpoint(self, checkpoint_id: str = "", *, timeout: float | None = None) -> state_pb2.Checkpoint:
        """Saves weights and optimizer state; see :meth:`penstock.Pipeline.save_checkpoint`."""
        request = state_pb2.SaveCheckpointRequest(
            pipeline=self.name, checkpoint_id=checkpoint_id, request_id=new_request_id()
        )
        return await self._connection.unary(
            "StateService/SaveCheckpoint", request, state_pb2.Checkpoint, Deadline(timeout), LONGEST_WAIT
        )

    async def restore_checkpoint(
        self, checkpoint_id: str, *, force: bool = False, timeout: float | None = None
    ) -> state_pb2.RestoreCheckpointResponse:
        """Takes weights, optimizer state and step from a checkpoint, all or nothing; see
        :meth:`penstock.Pipeline.restore_checkpoint`."""
        request = state_pb2.RestoreCheckpointRequest(
            name=checkpoint_name(self.name, checkpoint_id),
            pipeline=self.name,
            force=force,
            request_id=new_request_id(),
        )
        return await self._connection.unary(
            "StateService/RestoreCheckpoint",
            request,
            state_pb2.RestoreCheckpointResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )

    async def delete_checkpoint(self, checkpoint_id: str, *, timeout: float | None = None) -> None:
        """Deletes a checkpoint of this pipeline; see :meth:`penstock.Pipeline.delete_checkpoint`."""
        request = state_pb2.DeleteCheckpointRequest(
            name=checkpoint_name(self.name, checkpoint_id), pipeline=self.name, request_id=new_request_id()
        )
        await self._connection.unary(
            "StateService/DeleteCheckpoint",
            request,
            state_pb2.DeleteCheckpointResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )

    async def list_checkpoints(self) -> list[state_pb2.Checkpoint]:
        """All checkpoints of this pipeline."""
        found: list[state_pb2.Checkpoint] = []
        request = state_pb2.ListCheckpointsRequest(parent=self.name, page_size=1000)
        while True:
            response = await self._connection.unary(
                "StateService/ListCheckpoints", request, state_pb2.ListCheckpointsResponse
            )
            found.extend(response.checkpoints)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    # --- weights ------------------------------------------------------------------------------------------------------

    async def read_parameters(
        self, names: Sequence[str] = (), *, include_optimizer_state: bool = False, timeout: float | None = None
    ) -> Parameters:
        """Parameters and buffers of one step, by name; see :meth:`penstock.Pipeline.read_parameters`."""
        return tensors.shown(await self._read_parameters(names, include_optimizer_state, Deadline(timeout)))

    async def _read_parameters(
        self, names: Sequence[str] = (), include_optimizer_state: bool = False, deadline: Deadline | None = None
    ) -> Parameters:
        request = state_pb2.ReadParametersRequest(
            pipeline=self.name, names=names, include_optimizer_state=include_optimizer_state
        )
        result = Parameters()

        async def attempt() -> None:
            result.clear()
            await collect(
                self._connection.stream(
                    "StateService/ReadParameters", request, state_pb2.ReadParametersResponse, deadline
                ),
                result.accept,
            )

        await self._connection.retry(attempt, "StateService/ReadParameters", deadline)
        return result

    async def write_parameters(
        self,
        arrays: Mapping[str, Any],
        *,
        step: int | None = None,
        force: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Replaces parameters, buffers and optimizer state; see :meth:`penstock.Pipeline.write_parameters`."""
        return await self._write_parameters(arrays, step, force, Deadline(timeout))

    async def _write_parameters(
        self, arrays: Mapping[str, Any], step: int | None, force: bool, deadline: Deadline
    ) -> int:
        handles: list[ValueHandle] = []
        try:
            for part in parts_of({name: as_array(value) for name, value in arrays.items()}):
                handles.append(await uploads.put(self._connection, self.name, part, deadline=deadline))
            request = write_request(self.name, [handle.name for handle in handles], step, force)
            answer = await self._connection.unary(
                "StateService/WriteParameters", request, state_pb2.WriteParametersResponse, deadline, LONGEST_WAIT
            )
            return answer.step
        finally:
            self._connection.release_later(handle.name for handle in handles)

    async def state_dict(self, *, timeout: float | None = None) -> dict[str, torch.Tensor]:
        """As PyTorch's tensors; see :meth:`penstock.Pipeline.state_dict`."""
        return {name: as_tensor(array) for name, array in (await self._state(Deadline(timeout))).items()}

    async def state_arrays(self, *, timeout: float | None = None) -> Parameters:
        """The same as arrays."""
        return tensors.shown(await self._state(Deadline(timeout)))

    async def _state(self, deadline: Deadline) -> Parameters:
        return with_tied_names(await self._read_parameters(deadline=deadline), await self._tied_names(deadline))

    async def load_state_dict(
        self,
        state: Mapping[str, Any],
        *,
        strict: bool = True,
        step: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Puts parameters and buffers into the pipeline; see :meth:`penstock.Pipeline.load_state_dict`."""
        deadline = Deadline(timeout)
        names = list(await self._read_parameters(deadline=deadline)) if strict else None
        arrays = without_tied_names(state, await self._tied_names(deadline), names)
        await self._write_parameters(arrays, step, False, deadline)

    async def optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """By parameter and slot, as PyTorch calls them; see :meth:`penstock.Pipeline.optimizer_state`."""
        state: dict[str, dict[str, torch.Tensor]] = {}
        for name, slot, array in slots_of(await self._read_parameters((), True)):
            state.setdefault(name, {})[slot] = as_tensor(array)
        return state

    async def load_optimizer_state(self, state: Mapping[str, Mapping[str, Any]], *, step: int | None = None) -> None:
        """The way back of :meth:`optimizer_state`."""
        await self.write_parameters(daemons_slots(state), step=step)

    async def save_safetensors(self, path: str | os.PathLike[str], *, include_optimizer_state: bool = False) -> int:
        """Writes a file of this machine; see :meth:`penstock.Pipeline.save_safetensors`."""
        parameters = await self._read_parameters((), include_optimizer_state)
        metadata = {"format": "pt", "penstock_step": str(parameters.step)}
        safetensors.write_safetensors(path, with_tied_names(parameters, await self._tied_names()), metadata)
        return parameters.step

    async def load_safetensors(
        self, path: str | os.PathLike[str], *, strict: bool = True, step: int | None = None
    ) -> None:
        """Puts the content of such a file into the pipeline, all or nothing."""
        state = safetensors.arrays_of(path)
        slots = {name: array for name, array in state.items() if name.startswith("optimizer/")}
        weights = {name: array for name, array in state.items() if name not in slots}
        names = list(await self._read_parameters()) if strict else None
        await self.write_parameters(without_tied_names(weights, await self._tied_names(), names) | slots, step=step)

    async def _tied_names(self, deadline: Deadline | None = None) -> Mapping[str, str]:
        program = self.message.spec.model.program
        if not program:
            return {}
        request = model_pb2.GetModelRequest(name=f"models/{program}")
        return (await self._connection.unary("ModelService/GetModel", request, model_pb2.Model, deadline)).tied_names

    # --- insight ------------------------------------------------------------------------------------------------------

    async def statistics(self) -> insight_pb2.PipelineStatistics:
        """Where the time of each stage went, bubbles, queues and handles, now."""
        found: list[insight_pb2.PipelineStatistics] = []
        await collect(self.watch_statistics(max_updates=1), found.append)
        return found[0]

    def watch_statistics(
        self, interval: float = 1.0, max_updates: int = 0
    ) -> AsyncIterator[insight_pb2.PipelineStatistics]:
        """Statistics at once and every ``interval`` seconds (at least 0.1), ``max_updates`` times or until closed."""
        request = watch_request(self.name, interval, max_updates)
        return self._connection.stream("InsightService/WatchStatistics", request, insight_pb2.PipelineStatistics)

    async def schedule(
        self, *, measured: bool = False, step: int = 0, micro_batches: int = 0
    ) -> insight_pb2.GetScheduleResponse:
        """Every action of a training step; see :meth:`penstock.Pipeline.schedule`."""
        request = schedule_request(self.name, measured, step, micro_batches)
        whole = await self._connection.unary("InsightService/GetSchedule", request, insight_pb2.GetScheduleResponse)
        while whole.next_page_token:
            request.page_token = whole.next_page_token
            page = await self._connection.unary("InsightService/GetSchedule", request, insight_pb2.GetScheduleResponse)
            whole.actions.extend(page.actions)
            whole.next_page_token = page.next_page_token
        return whole

    async def trace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        steps: int = 0,
        first_step: int = 0,
        last_step: int = 0,
        format: str = "chrome",
        timeout: float | None = None,
    ) -> Trace:
        """What every stage did, as a file for trace viewers; see :meth:`penstock.Pipeline.trace`."""
        request = trace_request(self.name, format, steps, first_step, last_step)
        answers: list[insight_pb2.ExportTraceResponse] = []
        await collect(
            self._connection.stream(
                "InsightService/ExportTrace", request, insight_pb2.ExportTraceResponse, Deadline(timeout)
            ),
            answers.append,
        )
        trace = Trace.of(answers)
        if path is not None:
            write_trace(path, trace)
        return trace

    # --- the end ------------------------------------------------------------------------------------------------------

    async def delete(self, *, force: bool = False, purge: bool = False, timeout: float | None = None) -> None:
        """Finishes accepted work and frees the pipeline; see :meth:`penstock.Pipeline.delete`."""
        request = pipeline_pb2.DeletePipelineRequest(
            name=self.name, force=force, purge=purge, request_id=new_request_id()
        )
        await self._connection.unary(
            "PipelineService/DeletePipeline",
            request,
            pipeline_pb2.DeletePipelineResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )
