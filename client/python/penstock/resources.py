"""A pipeline as a thing of the daemon: its state, handles, checkpoints, parameters and statistics."""

from __future__ import annotations

import gzip
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from penstock import tensors, uploads
from penstock.checksum import crc32c
from penstock.chunks import Chunk
from penstock.connection import Connection
from penstock.deadline import LONGEST_WAIT, Deadline
from penstock.errors import PenstockError
from penstock.handles import Handle, ValueHandle, release_all, seconds
from penstock.requests import checkpoint_name, new_request_id
from penstock.tensors import Array
from penstock.v1 import handle_pb2, insight_pb2, pipeline_pb2, state_pb2


class Parameters(dict[str, Array]):
    """Arrays by name, in model order.

    Attributes:
        step: finished optimizer steps of the snapshot.
    """

    step: int = 0

    def accept(self, answer: state_pb2.ReadParametersResponse | Chunk) -> None:
        """Takes one answer of the stream, in order.

        Raises:
            PenstockError: CHUNK_CHECKSUM.
        """
        if not isinstance(answer, Chunk):
            self.step = answer.start.step
            self._arrays = [tensors.empty(header) for header in answer.start.tensors]
            self.update(zip((header.name for header in answer.start.tensors), self._arrays))
            return
        chunk, data = answer, answer.data
        if crc32c(data) != chunk.crc32c:
            raise PenstockError(grpc.StatusCode.DATA_LOSS, "CHUNK_CHECKSUM", "parameters arrived damaged")
        tensors.bytes_of(self._arrays[chunk.tensor])[chunk.offset : chunk.offset + len(data)] = data


class Trace(bytes):
    """A file for trace viewers.

    Attributes:
        summary: steps, lanes, records and seconds in it; ``incomplete`` if older records were overwritten.
    """

    summary: insight_pb2.TraceSummary = insight_pb2.TraceSummary()

    @classmethod
    def of(cls, answers: Iterable[insight_pb2.ExportTraceResponse]) -> Trace:
        """Out of the pieces of a stream."""
        pieces: list[bytes] = []
        summary = insight_pb2.TraceSummary()
        for answer in answers:
            if answer.HasField("summary"):
                summary = answer.summary
            pieces.append(answer.data)
        trace = cls(b"".join(pieces))
        trace.summary = summary
        return trace


class PipelineFacts:
    """What was last heard of a pipeline.

    Attributes:
        name: ``pipelines/{pipeline}``.
        message: the daemon's last word on it.
    """

    def __init__(self, message: pipeline_pb2.Pipeline) -> None:
        self.message = message
        self.name = message.name

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {self.state}, step {self.message.step})"

    @property
    def state(self) -> str:
        """``CREATING``, ``READY``, ``DRAINING``, ``DELETING`` or ``FAILED`` (PIPELINE_BROKEN), as last seen."""
        return pipeline_pb2.PipelineState.Name(self.message.state).replace("PIPELINE_STATE_", "")

    @property
    def signature(self) -> pipeline_pb2.ModelSignature:
        """Names, types and shapes of inputs, outputs and targets; -1 is the batch."""
        return self.message.signature

    @property
    def plan(self) -> pipeline_pb2.Plan:
        """Stages with their devices and layers, and what is predicted of a step."""
        return self.message.plan


class PipelineResource(PipelineFacts):
    """What a pipeline is and has; :class:`Pipeline` adds what it does."""

    def __init__(self, connection: Connection, message: pipeline_pb2.Pipeline) -> None:
        super().__init__(message)
        self._connection = connection

    def refresh(self) -> pipeline_pb2.Pipeline:
        """Asks for the present state, step and plan."""
        return self.refresh_until(None)

    def refresh_until(self, deadline: Deadline | None) -> pipeline_pb2.Pipeline:
        """As :meth:`refresh`, for a part of a longer call."""
        request = pipeline_pb2.GetPipelineRequest(name=self.name)
        self.message = self._connection.unary("PipelineService/GetPipeline", request, pipeline_pb2.Pipeline, deadline)
        return self.message

    # --- handles ------------------------------------------------------------------------------------------------------

    def put(self, values: Mapping[str, Any], *, timeout: float | None = None, lease: float = 0.0) -> ValueHandle:
        """Uploads arrays, or tensors of PyTorch, once, to be inputs of several calls.

        Raises:
            DeadlineError: it took more than ``timeout`` seconds.
        """
        return uploads.put(self._connection, self.name, values, lease, Deadline(timeout))

    def handles(self) -> list[handle_pb2.Handle]:
        """The caller's live handles of this pipeline."""
        found: list[handle_pb2.Handle] = []
        request = handle_pb2.ListHandlesRequest(parent=self.name, page_size=1000)
        while True:
            response = self._connection.unary("HandleService/ListHandles", request, handle_pb2.ListHandlesResponse)
            found.extend(response.handles)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    def release(self, handles: Sequence[Handle]) -> None:
        """Releases many handles at once."""
        release_all(self._connection, [handle.name for handle in handles])

    # --- state --------------------------------------------------------------------------------------------------------

    def save_checkpoint(self, checkpoint_id: str = "", *, timeout: float | None = None) -> state_pb2.Checkpoint:
        """Saves weights and optimizer state after the last finished step. Without a name it is called ``step-{n}``.

        Args:
            timeout: seconds for all of the call; ``None``: as long as it takes. A save that the daemon has accepted
                goes on after it.

        Raises:
            PenstockError: also CHECKPOINT_EXISTS and STORAGE_FULL.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = state_pb2.SaveCheckpointRequest(
            pipeline=self.name, checkpoint_id=checkpoint_id, request_id=new_request_id()
        )
        return self._connection.unary(
            "StateService/SaveCheckpoint", request, state_pb2.Checkpoint, Deadline(timeout), LONGEST_WAIT
        )

    def restore_checkpoint(
        self, checkpoint_id: str, *, force: bool = False, timeout: float | None = None
    ) -> state_pb2.RestoreCheckpointResponse:
        """Takes weights, optimizer state and step from a checkpoint, all or nothing.

        Args:
            checkpoint_id: its name, short (``step-10``) or full.
            force: discards open contributions, which are an error otherwise.
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            ValueError: it is a checkpoint of another pipeline.
            PenstockError: also CHECKPOINT_NOT_FOUND, CHECKPOINT_CORRUPT, MODEL_MISMATCH and ACCUMULATION_OPEN.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = state_pb2.RestoreCheckpointRequest(
            name=checkpoint_name(self.name, checkpoint_id),
            pipeline=self.name,
            force=force,
            request_id=new_request_id(),
        )
        return self._connection.unary(
            "StateService/RestoreCheckpoint",
            request,
            state_pb2.RestoreCheckpointResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )

    def delete_checkpoint(self, checkpoint_id: str, *, timeout: float | None = None) -> None:
        """Deletes a checkpoint of this pipeline, in the order of training calls.

        Args:
            checkpoint_id: its name, short (``step-10``) or full.
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            ValueError: it is a checkpoint of another pipeline.
            PenstockError: also CHECKPOINT_NOT_FOUND.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = state_pb2.DeleteCheckpointRequest(
            name=checkpoint_name(self.name, checkpoint_id), pipeline=self.name, request_id=new_request_id()
        )
        self._connection.unary(
            "StateService/DeleteCheckpoint",
            request,
            state_pb2.DeleteCheckpointResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )

    def list_checkpoints(self) -> list[state_pb2.Checkpoint]:
        """All checkpoints of this pipeline."""
        found: list[state_pb2.Checkpoint] = []
        request = state_pb2.ListCheckpointsRequest(parent=self.name, page_size=1000)
        while True:
            response = self._connection.unary(
                "StateService/ListCheckpoints", request, state_pb2.ListCheckpointsResponse
            )
            found.extend(response.checkpoints)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    def read_parameters(
        self, names: Sequence[str] = (), *, include_optimizer_state: bool = False, timeout: float | None = None
    ) -> Parameters:
        """Parameters and buffers of one step, by name.

        Args:
            timeout: seconds for all of the call; ``None``: as long as it takes.

        Raises:
            ImportError: one is of bfloat16, and ``ml_dtypes`` is not installed.
            PenstockError: also PARAMETER_NOT_FOUND.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        return tensors.shown(self._read_parameters(names, include_optimizer_state, Deadline(timeout)))

    def _read_parameters(
        self, names: Sequence[str] = (), include_optimizer_state: bool = False, deadline: Deadline | None = None
    ) -> Parameters:
        request = state_pb2.ReadParametersRequest(
            pipeline=self.name, names=names, include_optimizer_state=include_optimizer_state
        )
        result = Parameters()

        def attempt() -> state_pb2.ReadParametersResponse:
            result.clear()
            for answer in self._connection.stream(
                "StateService/ReadParameters", request, state_pb2.ReadParametersResponse, deadline
            ):
                result.accept(answer)
            return state_pb2.ReadParametersResponse()

        self._connection.retry(attempt, "StateService/ReadParameters", deadline)
        return result

    # --- insight ------------------------------------------------------------------------------------------------------

    def statistics(self) -> insight_pb2.PipelineStatistics:
        """Where the time of each stage went, bubbles, queues and handles, now."""
        return next(self.watch_statistics(max_updates=1))

    def watch_statistics(self, interval: float = 1.0, max_updates: int = 0) -> Iterator[insight_pb2.PipelineStatistics]:
        """Statistics at once and every ``interval`` seconds (at least 0.1), ``max_updates`` times or until closed."""
        request = watch_request(self.name, interval, max_updates)
        return self._connection.stream("InsightService/WatchStatistics", request, insight_pb2.PipelineStatistics)

    def schedule(
        self, *, measured: bool = False, step: int = 0, micro_batches: int = 0
    ) -> insight_pb2.GetScheduleResponse:
        """Every action of a training step with its planned times and, if ``measured``, those of a step that ran:
        makespan and bubble of both, and where they differ most.

        Args:
            step: measured: which one, as ``Outcome.step`` counts; 0 is the last.
            micro_batches: planned: of the mini-batch; 0 is as the pipeline says.

        Raises:
            PenstockError: also STEP_NOT_RETAINED, if that step has not run, or its records were overwritten.
        """
        request = schedule_request(self.name, measured, step, micro_batches)
        whole = self._connection.unary("InsightService/GetSchedule", request, insight_pb2.GetScheduleResponse)
        while whole.next_page_token:
            request.page_token = whole.next_page_token
            page = self._connection.unary("InsightService/GetSchedule", request, insight_pb2.GetScheduleResponse)
            whole.actions.extend(page.actions)
            whole.next_page_token = page.next_page_token
        return whole

    def trace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        steps: int = 0,
        first_step: int = 0,
        last_step: int = 0,
        format: str = "chrome",
        timeout: float | None = None,
    ) -> Trace:
        """What every stage did and waited for, as a file for ``ui.perfetto.dev`` or ``chrome://tracing``.

        Args:
            path: written too, if given; compressed if its name ends in ``.gz``.
            steps: records so many of the next optimizer steps, which somebody else must run; 0: what the daemon has
                kept.
            first_step, last_step: only these steps out of what was kept; without ``last_step``, the first alone.
            format: ``"chrome"``, JSON, or ``"perfetto"``, protobuf and much smaller.
            timeout: seconds until a recording is given up.

        Raises:
            PenstockError: also STEP_NOT_RETAINED.
        """
        request = trace_request(self.name, format, steps, first_step, last_step)
        trace = Trace.of(
            self._connection.stream(
                "InsightService/ExportTrace", request, insight_pb2.ExportTraceResponse, Deadline(timeout)
            )
        )
        if path is not None:
            write_trace(path, trace)
        return trace

    # --- the end ------------------------------------------------------------------------------------------------------

    def delete(self, *, force: bool = False, purge: bool = False, timeout: float | None = None) -> None:
        """Finishes accepted work and frees the pipeline.

        Args:
            force: cancels work that has not started, and gives up open graphs and contributions.
            purge: removes the checkpoints too.
            timeout: seconds for all of the call; ``None``: as long as it takes. A deletion that the daemon has accepted
                goes on after it.

        Raises:
            PenstockError: PIPELINE_IN_USE, if graphs or contributions are open and ``force`` is not set.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = pipeline_pb2.DeletePipelineRequest(
            name=self.name, force=force, purge=purge, request_id=new_request_id()
        )
        self._connection.unary(
            "PipelineService/DeletePipeline",
            request,
            pipeline_pb2.DeletePipelineResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )


def write_trace(path: str | os.PathLike[str], trace: bytes) -> None:
    to = pathlib.Path(path)
    to.write_bytes(gzip.compress(trace) if to.suffix == ".gz" else trace)


def trace_request(
    pipeline: str, format: str, steps: int, first_step: int, last_step: int
) -> insight_pb2.ExportTraceRequest:
    """Raises ValueError: the format is unknown."""
    formats = {
        "chrome": insight_pb2.ExportTraceRequest.FORMAT_CHROME,
        "perfetto": insight_pb2.ExportTraceRequest.FORMAT_PERFETTO,
    }
    if format not in formats:
        raise ValueError(f"format is one of {', '.join(formats)}, not {format!r}")
    return insight_pb2.ExportTraceRequest(
        pipeline=pipeline, format=formats[format], steps=steps, first_step=first_step, last_step=last_step
    )


def schedule_request(pipeline: str, measured: bool, step: int, micro_batches: int) -> insight_pb2.GetScheduleRequest:
    kind = insight_pb2.GetScheduleRequest.SOURCE_MEASURED if measured else insight_pb2.GetScheduleRequest.SOURCE_PLANNED
    return insight_pb2.GetScheduleRequest(
        pipeline=pipeline, source=kind, step=step, micro_batches=micro_batches, page_size=1000
    )


def watch_request(pipeline: str, interval: float, max_updates: int) -> insight_pb2.WatchStatisticsRequest:
    return insight_pb2.WatchStatisticsRequest(pipeline=pipeline, interval=seconds(interval, "interval"), max_updates=max_updates)
