"""Pipelines, and what is told of them."""

from __future__ import annotations

from typing import Any

from penstock.v1 import admin_pb2, insight_pb2, pipeline_pb2, tensor_pb2

from fake_daemon.server import Server


class Pipelines(Server):
    def __init__(self) -> None:
        super().__init__()
        self.progress: list[pipeline_pb2.CreateProgress] = []  # what the next creation tells before it is answered
        self.log_level = admin_pb2.LOG_LEVEL_INFO
        self.deleting = False  # a pipeline of which nothing is left but its name

    def GetServerInfo(self, request: Any, context: Any) -> Any:
        return admin_pb2.ServerInfo(version="0.1.0", models=["mlp", "gpt"])

    def SetLogLevel(self, request: Any, context: Any) -> Any:
        before = self.log_level
        self.log_level = request.level or before
        return admin_pb2.SetLogLevelResponse(before=before, now=self.log_level)

    def CreatePipeline(self, request: Any, context: Any) -> Any:
        while self.progress and not self.stopping.wait(0.001):  # until all of it was seen
            pass
        signature = pipeline_pb2.ModelSignature(
            inputs=[tensor_pb2.TensorSignature(name="input", type="DATA_TYPE_FP32", shape=[-1, 4])],
            outputs=[tensor_pb2.TensorSignature(name="output", type="DATA_TYPE_FP32", shape=[-1, 4])],
            targets=[tensor_pb2.TensorSignature(name="target", type="DATA_TYPE_FP32", shape=[-1, 4])],
        )
        self.pipeline = pipeline_pb2.Pipeline(
            name=f"pipelines/{request.pipeline_id}",
            spec=request.spec,
            state="PIPELINE_STATE_CREATING",
            signature=signature,
        )
        return self.pipeline

    def PlanPipeline(self, request: Any, context: Any) -> Any:
        schedule = pipeline_pb2.ScheduleSpec(kind="zb-h1", micro_batches=8, chunks=1)
        candidate = pipeline_pb2.PlanCandidate(schedule=schedule, balance=[2, 1], makespan_seconds=0.5)
        return pipeline_pb2.PlanPipelineResponse(candidates=[candidate], considered=1, complete=True)

    def GetPipeline(self, request: Any, context: Any) -> Any:
        if self.progress:
            now = self.progress.pop(0)
            return pipeline_pb2.Pipeline(name=request.name, state="PIPELINE_STATE_CREATING", progress=now)
        if self.deleting:
            return pipeline_pb2.Pipeline(name=request.name, state="PIPELINE_STATE_DELETING")
        self.pipeline.state = pipeline_pb2.PIPELINE_STATE_READY
        self.pipeline.step = self.step
        return self.pipeline

    def ListPipelines(self, request: Any, context: Any) -> Any:
        if not request.page_token:
            return pipeline_pb2.ListPipelinesResponse(
                pipelines=[pipeline_pb2.Pipeline(name="pipelines/a")], next_page_token="more"
            )
        return pipeline_pb2.ListPipelinesResponse(pipelines=[pipeline_pb2.Pipeline(name="pipelines/b")])

    def UpdateOptimizer(self, request: Any, context: Any) -> Any:
        self.pipeline.spec.optimizer.CopyFrom(request.optimizer)
        return self.pipeline

    def UpdatePipeline(self, request: Any, context: Any) -> Any:
        self.pipeline.spec.MergeFrom(request.spec)
        self.pipeline.etag = "1-2"
        return self.pipeline

    def UnloadPipeline(self, request: Any, context: Any) -> Any:
        self.pipeline.state = pipeline_pb2.PIPELINE_STATE_UNLOADED
        return self.pipeline

    def LoadPipeline(self, request: Any, context: Any) -> Any:
        self.pipeline.state = pipeline_pb2.PIPELINE_STATE_READY
        return self.pipeline

    def DeletePipeline(self, request: Any, context: Any) -> Any:
        return pipeline_pb2.DeletePipelineResponse()

    def WatchStatistics(self, request: Any, context: Any) -> Any:
        for _ in range(request.max_updates):
            yield insight_pb2.PipelineStatistics(step=self.step)

    def GetSchedule(self, request: Any, context: Any) -> Any:
        """Four actions, three to a page."""
        first = int(request.page_token or 0)
        page = insight_pb2.GetScheduleResponse(kind="1f1b", step=request.step or self.step)
        page.actions.extend(
            insight_pb2.ScheduledAction(action=action) for action in ["0F0", "0B0", "1F0", "1B0"][first : first + 3]
        )
        page.next_page_token = "3" if first == 0 else ""
        return page

    def ExportTrace(self, request: Any, context: Any) -> Any:
        yield insight_pb2.ExportTraceResponse(summary=insight_pb2.TraceSummary(steps=request.steps or 2, lanes=2))
        for piece in (b'{"traceEvents":', b"[]}"):
            yield insight_pb2.ExportTraceResponse(data=piece)
