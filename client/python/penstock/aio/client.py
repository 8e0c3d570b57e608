"""The daemon as seen by a program of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from penstock.aio.connection import Connection
from penstock.aio.models import Models
from penstock.aio.pipelines import Pipeline
from penstock.client import POLL_SECONDS, create_request, not_ready, plan_request
from penstock.connection import Traceparent
from penstock.creation import PATIENCE_SECONDS, PROGRESS_SECONDS, Progress, planning_timeout, shown
from penstock.deadline import Deadline
from penstock.errors import PenstockError
from penstock.specifications import pipeline_spec
from penstock.v1 import admin_pb2, pipeline_pb2


class Client:
    """A connection to one daemon; see :class:`penstock.Client`. Make and use it inside one event loop."""

    def __init__(
        self,
        address: str = "127.0.0.1:8470",
        caller: str | None = None,
        *,
        timeout: float = 60.0,
        retry_for: float = 10.0,
        traceparent: Traceparent = None,
    ) -> None:
        self._connection = Connection(address, caller, timeout, retry_for, traceparent)
        self.models = Models(self._connection)

    async def close(self) -> None:
        """Ends the connection. Accepted training goes on; handles live until their leases end."""
        await self._connection.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def server_info(self) -> admin_pb2.ServerInfo:
        """Version, epoch, devices, limits, and the names of layers, models, schedules, optimizers and losses."""
        return await self._connection.unary(
            "AdminService/GetServerInfo", admin_pb2.GetServerInfoRequest(), admin_pb2.ServerInfo
        )

    async def create_pipeline(
        self, name: str, *, progress: bool | Progress = False, timeout: float | None = None, **arguments: Any
    ) -> Pipeline:
        """Makes a pipeline and waits until it is ready: the arguments are those of
        :meth:`penstock.Client.create_pipeline`; a function ``progress`` is called in the event loop."""
        return await self.create_pipeline_from(name, pipeline_spec(**arguments), progress=progress, timeout=timeout)

    async def create_pipeline_from(
        self,
        name: str,
        spec: pipeline_pb2.PipelineSpec,
        *,
        progress: bool | Progress = False,
        timeout: float | None = None,
    ) -> Pipeline:
        """As :meth:`create_pipeline`, from a whole specification (see :func:`penstock.pipeline_spec`)."""
        timeout = planning_timeout(spec) if timeout is None else timeout
        deadline = Deadline(timeout)
        with shown(name, progress) as show:
            if show is None:
                message = await self._create(name, spec, False, deadline)
            else:
                message = await self._create_and_show(name, spec, deadline, show)
        pipeline = Pipeline(self._connection, message)
        while pipeline.message.state == pipeline_pb2.PIPELINE_STATE_CREATING:
            if deadline.left() <= 0:
                raise not_ready(pipeline.name, timeout)
            await asyncio.sleep(min(POLL_SECONDS, deadline.left()))
            await pipeline.refresh_until(deadline)
        if pipeline.message.state == pipeline_pb2.PIPELINE_STATE_FAILED:
            raise PenstockError.from_status(pipeline.message.error)
        return pipeline

    async def plan_pipeline(
        self, name: str, spec: pipeline_pb2.PipelineSpec, *, timeout: float | None = None
    ) -> pipeline_pb2.Plan:
        """What the daemon would make of a specification; creates nothing. ``timeout`` as in :meth:`plan`."""
        deadline = Deadline(planning_timeout(spec) if timeout is None else timeout)
        return (await self._create(name, spec, True, deadline)).plan

    async def plan(
        self,
        spec: pipeline_pb2.PipelineSpec,
        *,
        kinds: Sequence[str] = (),
        max_chunks: int = 0,
        micro_batches: Sequence[int] = (),
        mini_batch_rows: int = 0,
        timeout: float | None = None,
    ) -> pipeline_pb2.PlanPipelineResponse:
        """What the planner can choose from; see :meth:`penstock.Client.plan`."""
        timeout = planning_timeout(spec) if timeout is None else timeout
        request = plan_request(spec, kinds, max_chunks, micro_batches, mini_batch_rows)
        return await self._connection.unary(
            "PipelineService/PlanPipeline", request, pipeline_pb2.PlanPipelineResponse, Deadline(timeout), timeout
        )

    async def _create(
        self, name: str, spec: pipeline_pb2.PipelineSpec, validate_only: bool, deadline: Deadline
    ) -> pipeline_pb2.Pipeline:
        request = create_request(name, spec, validate_only)
        wait = deadline.left()  # an answer may take all of it
        return await self._connection.unary(
            "PipelineService/CreatePipeline", request, pipeline_pb2.Pipeline, deadline, wait
        )

    async def _create_and_show(
        self, name: str, spec: pipeline_pb2.PipelineSpec, deadline: Deadline, show: Progress
    ) -> pipeline_pb2.Pipeline:
        request = pipeline_pb2.GetPipelineRequest(name=f"pipelines/{name}")
        under_way = asyncio.ensure_future(self._create(name, spec, False, deadline))
        try:
            while not (await asyncio.wait([under_way], timeout=PROGRESS_SECONDS))[0]:
                if (now := await self._progress_of(request)) is not None:
                    show(now)
            return under_way.result()
        finally:
            under_way.cancel()

    async def _progress_of(self, request: pipeline_pb2.GetPipelineRequest) -> pipeline_pb2.CreateProgress | None:
        try:
            now = await self._connection.unary(
                "PipelineService/GetPipeline", request, pipeline_pb2.Pipeline, Deadline(PATIENCE_SECONDS)
            )
        except PenstockError:
            return None  # it is not there yet, or no more
        return now.progress if now.HasField("progress") else None

    async def pipeline(self, name: str) -> Pipeline:
        """A pipeline that exists, by its short or full name."""
        request = pipeline_pb2.GetPipelineRequest(name=name if "/" in name else f"pipelines/{name}")
        message = await self._connection.unary("PipelineService/GetPipeline", request, pipeline_pb2.Pipeline)
        return Pipeline(self._connection, message)

    async def list_pipelines(self) -> list[Pipeline]:
        """All pipelines."""
        found: list[Pipeline] = []
        request = pipeline_pb2.ListPipelinesRequest(page_size=1000)
        while True:
            response = await self._connection.unary(
                "PipelineService/ListPipelines", request, pipeline_pb2.ListPipelinesResponse
            )
            found.extend(Pipeline(self._connection, message) for message in response.pipelines)
            request.page_token = response.next_page_token
            if not request.page_token:
                return found

    async def delete_pipeline(self, name: str, *, force: bool = False, purge: bool = False) -> None:
        """See :meth:`Pipeline.delete`."""
        full_name = name if "/" in name else f"pipelines/{name}"
        await Pipeline(self._connection, pipeline_pb2.Pipeline(name=full_name)).delete(force=force, purge=purge)
