"""Pipelines in the making, and lists of those that are there."""

from __future__ import annotations

import io

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status
from penstock import creation
from penstock.v1 import pipeline_pb2


def _news(*shares: tuple[str, float]) -> list[pipeline_pb2.CreateProgress]:
    return [pipeline_pb2.CreateProgress(phase=phase, done=done, elapsed_seconds=40 * done) for phase, done in shares]


def test_a_creation_tells_how_far_it_is(client: penstock.Client, daemon: FakeDaemon) -> None:
    news = _news(("measuring", 0.1), ("confirming", 0.5))
    daemon.progress = list(news)
    seen: list[pipeline_pb2.CreateProgress] = []
    pipeline = client.create_pipeline("demo", model="mlp", planning_seconds=7.5, progress=seen.append)
    assert pipeline.name == "pipelines/demo" and seen == news
    assert daemon.requests["CreatePipeline"][0].spec.planning_seconds == 7.5


def test_an_error_of_who_looks_ends_the_call(client: penstock.Client, daemon: FakeDaemon) -> None:
    daemon.progress = _news(("measuring", 0.1)) + _news(("measuring", 0.2)) * 1000

    def fail(progress: pipeline_pb2.CreateProgress) -> None:
        raise KeyError(progress.phase)

    with pytest.raises(KeyError, match="measuring"):
        client.create_pipeline("demo", model="mlp", progress=fail)
    daemon.progress.clear()


def test_a_refused_creation_is_an_error_whoever_looks(client: penstock.Client, daemon: FakeDaemon) -> None:
    daemon.fail("CreatePipeline", status(grpc.StatusCode.INVALID_ARGUMENT, "SPEC_INVALID", "no"))
    with pytest.raises(penstock.PenstockError, match="SPEC_INVALID"):
        client.create_pipeline("demo", model="mlp", progress=lambda _: None)


def test_a_callers_time_follows_the_planners(client: penstock.Client, daemon: FakeDaemon) -> None:
    client.create_pipeline("demo", model="mlp")
    client.create_pipeline("demo", model="mlp", planning_seconds=500.0)
    client.create_pipeline("demo", model="mlp", planning_seconds=500.0, timeout=50.0)
    usual, longer, given = daemon.time_left["CreatePipeline"]
    assert 60 < usual < 130 < 500 < longer and given < 60


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_drawn_as_a_bar(terminal: bool) -> None:
    stream = _Terminal() if terminal else io.StringIO()
    with creation.shown("demo", True, stream) as show:
        assert show is not None
        for one in _news(("measuring", 0.1), ("measuring", 0.2), ("confirming", 0.5)):
            show(one)
    lines = [
        "creating demo: measuring  [==>                 ]  10%, 4 s",
        "creating demo: measuring  [====>               ]  20%, 8 s",
        "creating demo: confirming [==========>         ]  50%, 20 s",
    ]
    if terminal:
        assert stream.getvalue() == "".join(f"\r{line}\x1b[K" for line in lines) + "\r\x1b[K"
    else:
        assert stream.getvalue() == f"{lines[0]}\n{lines[2]}\n", "a line for each phase"
    with creation.shown("demo", False) as nobody:
        assert nobody is None


def test_create_waits_until_ready(client: penstock.Client, daemon: FakeDaemon) -> None:
    assert client.create_pipeline("demo").state == "READY"
    assert daemon.requests["GetPipeline"]


def test_lists_follow_their_pages(client: penstock.Client) -> None:
    assert [pipeline.name for pipeline in client.list_pipelines()] == ["pipelines/a", "pipelines/b"]


def test_work_of_a_pipeline_in_the_making_is_the_daemons_refusal_and_goes_once_it_is_ready(
    client: penstock.Client, daemon: FakeDaemon
) -> None:
    client.create_pipeline("demo", model="mlp")
    daemon.progress = _news(("measuring", 0.1), ("measuring", 0.2), ("measuring", 0.3))
    found = client.pipeline("demo")
    assert found.state == "CREATING"
    rows = np.zeros((2, 4), np.float32)
    for work in (lambda: found.infer(rows), lambda: found.train_step(rows, rows)):
        with pytest.raises(penstock.PenstockError) as refused:
            work()
        assert (refused.value.code, refused.value.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "PIPELINE_NOT_READY",
        )
        assert refused.value.values["pipeline"] == "demo"
    assert found.train_step(rows, rows).step == 1
    assert found.state == "READY"


def test_work_of_a_pipeline_that_is_being_deleted_is_the_daemons_refusal(
    client: penstock.Client, daemon: FakeDaemon
) -> None:
    client.create_pipeline("demo", model="mlp")
    daemon.deleting = True
    found = client.pipeline("demo")
    assert found.state == "DELETING"
    rows = np.zeros((2, 4), np.float32)
    for work in (lambda: found.infer(rows), lambda: found.train_step(rows, rows)):
        with pytest.raises(penstock.PenstockError, match="pipelines/demo is being deleted") as refused:
            work()
        assert (refused.value.code, refused.value.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "PIPELINE_NOT_READY",
        )
