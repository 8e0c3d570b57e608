"""What is given back to the daemon, and when: results that nobody needs, and none that somebody may ask for again."""

from __future__ import annotations

import asyncio
from concurrent import futures

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status
from penstock.errors import DeadlineError
from penstock.releases import Releases

from penstock.v1 import handle_pb2

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
LARGE = np.ones((1 << 20, 1), np.float32)  # 4 MiB: uploaded
REFUSED = status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "no")


def test_closing_waits_for_what_is_being_given_back(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address) as client:
        client.create_pipeline("demo").infer(ROWS)
    assert not daemon.handles


def test_closing_waits_for_what_is_being_given_back_with_asyncio(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as client:
            await (await client.create_pipeline("demo")).infer(ROWS)

    asyncio.run(main())
    assert not daemon.handles


def test_more_names_than_a_call_takes_are_several_calls(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    result = handle_pb2.Result()
    handles = []
    for _ in range(1001):
        result.handle.CopyFrom(daemon.new_handle(handle_pb2.HANDLE_KIND_OUTCOME))
        handles.append(penstock.OutcomeHandle(pipeline._connection, result))
    pipeline.release(handles)
    assert not daemon.handles
    assert [len(request.names) for request in daemon.requests["ReleaseHandles"]] == [1000, 1]


def test_an_upload_of_a_call_in_doubt_stays(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address) as client:
        pipeline = client.create_pipeline("demo")
        daemon.answer_together = 10**6  # accepted, and not answered
        with pytest.raises(DeadlineError, match="CALL_DEADLINE"):
            pipeline.train_step(LARGE, ROWS, timeout=1.0)
        upload = daemon.requests["TrainStep"][0].inputs[0].handle.handle
    assert upload in daemon.handles


def test_an_upload_of_a_refused_call_goes(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address) as client:
        pipeline = client.create_pipeline("demo")
        daemon.fail("TrainStep", REFUSED)
        with pytest.raises(penstock.PenstockError, match="TENSOR_SIGNATURE"):
            pipeline.train_step(LARGE, ROWS)
    assert daemon.requests["PutStart"] and not daemon.handles


def test_an_outcome_in_doubt_stays(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address, retry_for=0.0) as client:
        pipeline = client.create_pipeline("demo")
        daemon.settle_after = 10**6
        daemon.fail("WaitHandles", grpc.StatusCode.UNAVAILABLE)
        with pytest.raises(penstock.PenstockError, match="UNAVAILABLE") as raised:
            pipeline.train_step(ROWS, ROWS)
    assert raised.value.in_doubt and len(daemon.handles) == 1


def test_an_outcome_that_failed_goes(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address) as client:
        pipeline = client.create_pipeline("demo")
        daemon.result_error = status(grpc.StatusCode.INTERNAL, "STAGE_FAILED", "broken")
        with pytest.raises(penstock.PenstockError, match="STAGE_FAILED"):
            pipeline.train_step(ROWS, ROWS)
    assert not daemon.handles


def test_a_wait_of_no_time_names_the_handle_and_asks_nobody(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 10**6
    handle = pipeline.submit_infer(ROWS)
    with pytest.raises(DeadlineError, match="HANDLE_PENDING") as raised:
        handle.wait(0.0)
    assert raised.value.values == {"handle": handle.name} and not daemon.requests["WaitHandles"]


def test_a_call_that_failed_keeps_nothing(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    rows = np.ones((2, 4), np.float32)
    graph = pipeline.forward(rows, input_gradients=True).graph
    daemon.result_error = status(grpc.StatusCode.INTERNAL, "STAGE_FAILED", "broken")
    with pytest.raises(penstock.PenstockError, match="STAGE_FAILED"):
        pipeline.train_step(rows, rows, outputs=["output"])
    with pytest.raises(penstock.PenstockError, match="STAGE_FAILED"):
        pipeline.backward(graph, rows, input_gradients=True)
    daemon.handles = {name: handle for name, handle in daemon.handles.items() if handle.error.code}
    assert daemon.wait_until_released(), daemon.handles


def test_a_call_that_could_not_be_sent_does_not_end_what_comes_after_it() -> None:
    """As where the function that is asked for a trace raises."""
    sent: list[list[str]] = []

    def send(request: handle_pb2.ReleaseHandlesRequest) -> futures.Future[None]:
        if not sent:
            sent.append([])
            raise RuntimeError("no trace here")
        sent.append(list(request.names))
        made: futures.Future[None] = futures.Future()
        made.set_result(None)
        return made

    releases = Releases(send)
    releases.add(["a"])
    releases.add(["b"])
    assert releases.finish(0.0) and sent == [[], ["b"]]
