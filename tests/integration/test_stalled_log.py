"""Nobody reads the daemon's log, and the daemon goes on."""

from __future__ import annotations

import contextlib
import os
import pathlib

import grpc
import penstock
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock.v1 import pipeline_pb2

from conftest import WITHOUT_JOURNAL, StartDaemon
from raw_calls import request_id
from small_models import create_mlp, fresh_name, mlp_batch


AT_ONCE = 8


def fill(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x")


def refuse(channel: grpc.Channel, times: int) -> None:
    """Calls whose refusal is logged, several at once: quicker than the log's rate also on a machine with other work."""
    spec = pipeline_pb2.PipelineSpec(model=pipeline_pb2.ModelSpec(layers=[pipeline_pb2.LayerSpec(kind="teleport")]))
    spec.loss.name = "mean_squared_error"
    create = channel.unary_unary(
        "/penstock.v1.PipelineService/CreatePipeline", pipeline_pb2.CreatePipelineRequest.SerializeToString
    )

    def refused() -> grpc.Future:
        name = fresh_name("refused")
        request = pipeline_pb2.CreatePipelineRequest(pipeline_id=name, spec=spec, request_id=request_id())
        return create.future(request, timeout=30)

    for _ in range(0, times, AT_ONCE):
        for call in [refused() for _ in range(AT_ONCE)]:
            assert penstock.PenstockError.from_call(call.exception()).reason == "SPEC_INVALID"


def test_a_log_that_nobody_reads_stops_nothing(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    """Its pipe is full: calls whose refusal is logged, health, training and inference are served, and the end comes. What
    was dropped is counted."""
    path = tmp_path / "log"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    daemon = start_daemon(*WITHOUT_JOURNAL, prefix=("bash", "-c", f'exec "$@" 2>>"{path}"', "log"))
    fill(pipe)
    with penstock.Client(daemon.address, timeout=30) as client, grpc.insecure_channel(daemon.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        refuse(channel, 1024)
        answer = health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        pipeline = create_mlp(client)
        assert pipeline.train_step(*mlp_batch(0)).applied
        pipeline.infer(mlp_batch(0)[0])
        metrics = daemon.metrics()
        assert metrics.sum("penstock_log_messages_total", level="warning") >= 1024
        assert metrics.sum("penstock_log_dropped_total", cause="rate") > 0
    daemon.stop()
    os.close(pipe)
