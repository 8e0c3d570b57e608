"""Nobody reads the daemon's log, and the daemon goes on."""

from __future__ import annotations

import contextlib
import os
import pathlib

import grpc
import penstock
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from conftest import StartDaemon
from small_models import create_mlp, mlp_batch


def fill(pipe: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x")


def refuse(client: penstock.Client) -> None:
    """A call whose refusal is logged."""
    with pytest.raises(penstock.PenstockError) as raised:
        client.create_pipeline("refused", model=[penstock.Layer("teleport")], stages=1, loss="mean_squared_error")
    assert raised.value.reason == "SPEC_INVALID"


def test_a_log_that_nobody_reads_stops_nothing(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    """Its pipe is full: calls whose refusal is logged, health, training and inference are served, and the end comes. What
    was dropped is counted."""
    path = tmp_path / "log"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    daemon = start_daemon("--drain-announce=0s", prefix=("bash", "-c", f'exec "$@" 2>>"{path}"', "log"))
    fill(pipe)
    with penstock.Client(daemon.address, timeout=30) as client, grpc.insecure_channel(daemon.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for _ in range(300):
            refuse(client)
        answer = health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        pipeline = create_mlp(client)
        assert pipeline.train_step(*mlp_batch(0)).applied
        pipeline.infer(mlp_batch(0)[0])
        metrics = daemon.metrics()
        assert metrics.sum("penstock_log_messages_total", level="warning") >= 300
        assert metrics.sum("penstock_log_dropped_total", cause="rate") > 0
    daemon.stop()
    os.close(pipe)
