"""A pipeline of the daemon: its state, handles, checkpoints, parameters and statistics."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from penstock import tensors
from penstock.aio import uploads
from penstock.aio.attempts import collect
from penstock.aio.connection import Connection
from penstock.aio.handles import Handle, ValueHandle, release_all
from penstock.aio.off_loop import off_loop
from penstock.aio.reading import read_parameters
from penstock.deadline import LONGEST_WAIT, Deadline
from penstock.facts import PipelineFacts
from penstock.insight import Trace, schedule_request, trace_request, watch_request, write_trace
from penstock.parameters import Parameters
from penstock.requests import checkpoint_name, new_request_id
from penstock.specifications import names_of
from penstock.v1 import handle_pb2, insight_pb2, pipeline_pb2, state_pb2


class PipelineResource(PipelineFacts):
    """What a pipeline is and has; :class:`Pipeline` adds what it does."""

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
        """Uploads arrays, or tensors of PyTorch, once, to be inputs of several calls.

        Raises:
            DeadlineError: it took more than ``timeout`` seconds.
        """
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

    # --- state --------------------------------------------------------------------------------------------------------

    async def save_checkpoint(
        self, checkpoint_id: str = "", *, replace: bool = False, keep: int = 0, timeout: float | None = None
    ) -> state_pb2.Checkpoint:
        """Saves weights and optimizer state after the last finished step. Without a name it is called ``step-{n}``.

        Args:
            replace: a checkpoint of this name is replaced; at any moment the old one or the new one is whole.
            keep: after success, of this pipeline's checkpoints that were saved with ``keep`` the newest so many stay, and
                older ones are deleted; but never the one that was last restored from. 0: nothing is deleted, and no
                later save deletes this one.
            timeout: seconds for all of the call; ``None``: as long as it takes. A save that the daemon has accepted
                goes on after it.

        Raises:
            PenstockError: also CHECKPOINT_EXISTS and STORAGE_FULL.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = state_pb2.SaveCheckpointRequest(
            pipeline=self.name, checkpoint_id=checkpoint_id, replace=replace, keep=keep, request_id=new_request_id()
        )
        return await self._connection.unary(
            "StateService/SaveCheckpoint", request, state_pb2.Checkpoint, Deadline(timeout), LONGEST_WAIT
        )

    async def restore_checkpoint(
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
        return await self._connection.unary(
            "StateService/RestoreCheckpoint",
            request,
            state_pb2.RestoreCheckpointResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )

    async def publish(self, checkpoint_id: str | None, *, timeout: float | None = None) -> pipeline_pb2.Pipeline:
        """Answers inference, also over the Open Inference Protocol, from the weights of a checkpoint from now on, until
        the next publication. Training, :meth:`forward` and :meth:`evaluate` go on with the live weights::

            pipeline.save_checkpoint("good")
            pipeline.publish("good")
            pipeline.publish(None)  # back to the live weights

        The weights are loaded beside the live ones. Inference that runs ends on what it began with, and no call waits or
        fails by it. With a journal it outlives a restart; a published checkpoint is neither deleted nor replaced.

        Args:
            checkpoint_id: a checkpoint of this pipeline, short (``step-10``) or full; ``None``: the live weights.
            timeout: seconds for all of the call; ``None``: as long as it takes. A publication that the daemon has
                accepted goes on after it.

        Returns:
            The pipeline as it is then; its ``published`` has checkpoint, step and version.

        Raises:
            ValueError: it is a checkpoint of another pipeline.
            PenstockError: also CHECKPOINT_NOT_FOUND, CHECKPOINT_CORRUPT, MODEL_MISMATCH; HOST_MEMORY where both do not
                fit at once; PIPELINE_NOT_READY while another publication or :meth:`replan` goes on; FEATURE_DISABLED for
                stages on several ranks.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        name = "" if checkpoint_id is None else checkpoint_name(self.name, checkpoint_id)
        request = state_pb2.PublishCheckpointRequest(
            pipeline=self.name, checkpoint_id=name.rpartition("/")[2], request_id=new_request_id()
        )
        self.message = await self._connection.unary(
            "StateService/PublishCheckpoint", request, pipeline_pb2.Pipeline, Deadline(timeout), LONGEST_WAIT
        )
        return self.message

    async def delete_checkpoint(self, checkpoint_id: str, *, timeout: float | None = None) -> None:
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
        await self._connection.unary(
            "StateService/DeleteCheckpoint",
            request,
            state_pb2.DeleteCheckpointResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )

    async def list_checkpoints(self, *, automatic: bool = False) -> list[state_pb2.Checkpoint]:
        """All checkpoints of this pipeline; with ``automatic``, those that the daemon made for its journal, too."""
        found: list[state_pb2.Checkpoint] = []
        request = state_pb2.ListCheckpointsRequest(parent=self.name, page_size=1000, automatic=automatic)
        while True:
            response = await self._connection.unary(
                "StateService/ListCheckpoints", request, state_pb2.ListCheckpointsResponse
            )
            found.extend(response.checkpoints)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    async def read_parameters(
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
        return tensors.shown(await self._read_parameters(names, include_optimizer_state, Deadline(timeout)))

    async def _read_parameters(
        self,
        names: Sequence[str] = (),
        include_optimizer_state: bool = False,
        deadline: Deadline | None = None,
        gradients: bool = False,
    ) -> Parameters:
        request = state_pb2.ReadParametersRequest(
            pipeline=self.name,
            names=names_of(names),
            include_optimizer_state=include_optimizer_state,
            gradients=gradients,
        )
        return await read_parameters(self._connection, request, deadline)

    # --- insight ------------------------------------------------------------------------------------------------------

    async def statistics(self) -> insight_pb2.PipelineStatistics:
        """Where the time of each stage went, bubbles, queues and handles, now."""
        method, deadline = "InsightService/WatchStatistics", Deadline(self._connection.timeout, given=False)
        request = watch_request(self.name, interval=1.0, max_updates=1)

        async def attempt() -> insight_pb2.PipelineStatistics:
            found: list[insight_pb2.PipelineStatistics] = []
            await collect(
                self._connection.stream(method, request, insight_pb2.PipelineStatistics, deadline), found.append
            )
            return found[0]

        return await self._connection.retry(attempt, method, deadline)

    def watch_statistics(
        self, interval: float = 1.0, max_updates: int = 0
    ) -> AsyncGenerator[insight_pb2.PipelineStatistics]:
        """Statistics at once and every ``interval`` seconds (at least 0.1), ``max_updates`` times or until closed."""
        request = watch_request(self.name, interval, max_updates)
        return self._connection.stream("InsightService/WatchStatistics", request, insight_pb2.PipelineStatistics)

    async def schedule(
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
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = trace_request(self.name, format, steps, first_step, last_step)
        method, deadline = "InsightService/ExportTrace", Deadline(timeout)

        async def attempt() -> Trace:
            answers: list[insight_pb2.ExportTraceResponse] = []
            await collect(
                self._connection.stream(method, request, insight_pb2.ExportTraceResponse, deadline), answers.append
            )
            return Trace.of(answers)

        trace = await self._connection.retry(attempt, method, deadline)
        if path is not None:
            await off_loop(write_trace, path, trace)
        return trace

    # --- the end ------------------------------------------------------------------------------------------------------

    async def unload(self, *, timeout: float | None = None) -> pipeline_pb2.Pipeline:
        """Gives the pipeline's devices and memory back, and keeps its state on disk, until :meth:`load`.

        Accepted work ends first. Results that the pipeline has given stay; new work fails with PIPELINE_NOT_READY. A
        restart of the daemon changes nothing. Of one that is unloaded, nothing is to do.

        Args:
            timeout: seconds for all of the call; ``None``: as long as it takes. It goes on after it.

        Raises:
            PenstockError: also GRAPH_OPEN; PIPELINE_NOT_READY while it is made, updated or deleted; FEATURE_DISABLED
                where the daemon keeps no journal, and for stages on several ranks. Then it serves on.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = pipeline_pb2.UnloadPipelineRequest(name=self.name, request_id=new_request_id())
        self.message = await self._connection.unary(
            "PipelineService/UnloadPipeline", request, pipeline_pb2.Pipeline, Deadline(timeout), LONGEST_WAIT
        )
        return self.message

    async def load(self, *, timeout: float | None = None) -> pipeline_pb2.Pipeline:
        """Makes a pipeline that is unloaded again: with the same state, bit for bit, on the devices of its plan.

        Args:
            timeout: seconds for all of the call; ``None``: as long as it takes. It goes on after it.

        Raises:
            PenstockError: also HOST_MEMORY and PLAN_DOES_NOT_FIT where it has no room. Then it stays unloaded.
            DeadlineError: it took more than ``timeout`` seconds.
        """
        request = pipeline_pb2.LoadPipelineRequest(name=self.name, request_id=new_request_id())
        self.message = await self._connection.unary(
            "PipelineService/LoadPipeline", request, pipeline_pb2.Pipeline, Deadline(timeout), LONGEST_WAIT
        )
        return self.message

    async def delete(self, *, force: bool = False, purge: bool = False, timeout: float | None = None) -> None:
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
        await self._connection.unary(
            "PipelineService/DeletePipeline",
            request,
            pipeline_pb2.DeletePipelineResponse,
            Deadline(timeout),
            LONGEST_WAIT,
        )
