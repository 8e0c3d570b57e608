"""The caller's time, and calls that get no answer."""

from __future__ import annotations

import asyncio
import math
import socket
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status
from penstock.deadline import Deadline
from penstock.errors import DeadlineError
from penstock.patience import Patience

from penstock.v1 import pipeline_pb2, tensor_pb2

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
LARGE = np.ones((1 << 20, 1), np.float32)  # 4 MiB: uploaded, and too large to come with a reply


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# --- the rules, by a clock that stands still --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_times_that_no_message_can_carry_are_refused_by_name(pipeline: penstock.Pipeline, value: float) -> None:
    with pytest.raises(ValueError, match="^lease: must be a finite number of seconds, got "):
        pipeline.train_step(ROWS, ROWS, lease=value)
    with pytest.raises(ValueError, match="^accumulation_lease: must be a finite number of seconds, got "):
        pipeline.forward_backward(ROWS, ROWS, accumulation_lease=value)


def test_a_timeout_that_is_no_number_or_negative_is_refused_and_nothing_is_sent(
    pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    with pytest.raises(ValueError, match="^timeout: must be a number of seconds, got nan"):
        pipeline.train_step(ROWS, ROWS, timeout=math.nan)
    with pytest.raises(ValueError, match="^timeout: must be at least 0 seconds, got -1"):
        pipeline.train_step(ROWS, ROWS, timeout=-1)
    assert not daemon.requests["TrainStep"]


def test_all_parts_take_from_the_same_seconds() -> None:
    clock = Clock()
    deadline = Deadline(2.0, clock=clock)
    assert deadline.left() == 2.0 and deadline.hold() == pytest.approx(1.8)
    clock.now += 1.5
    assert deadline.left() == 0.5
    clock.now += 1.0
    assert deadline.left() == 0.0
    assert Deadline(None).left() == float("inf") and Deadline(None).hold() == 30.0


def test_a_cancelled_deadline_is_over_and_ends_what_is_under_way() -> None:
    ended: list[str] = []
    deadline = Deadline(None)
    with deadline.cancels(lambda: ended.append("done before")):
        pass
    with deadline.cancels(lambda: ended.append("under way")):
        deadline.cancel()
    with deadline.cancels(lambda: ended.append("late")):
        pass
    assert deadline.left() == 0.0 and ended == ["under way", "late"]


UNREACHABLE = penstock.PenstockError(grpc.StatusCode.UNAVAILABLE, "", "nobody there")
OVERDUE = penstock.PenstockError(grpc.StatusCode.DEADLINE_EXCEEDED, "", "too late")


def test_a_call_with_a_time_of_its_own_is_repeated_until_it_is_over() -> None:
    clock = Clock()
    patience = Patience("A/B", 10.0, Deadline(60.0, clock=clock), "id-1")
    for _ in range(59):
        patience.wait_after(UNREACHABLE)
        clock.now += 1.0
    clock.now = 160.0
    with pytest.raises(DeadlineError, match=r"A/B: no answer in 60 s \(last: UNAVAILABLE.*request_id='id-1'") as raised:
        patience.wait_after(UNREACHABLE)
    assert raised.value.request_id == "id-1" and raised.value.reason == "CALL_DEADLINE" and raised.value.in_doubt
    assert raised.value.code == grpc.StatusCode.DEADLINE_EXCEEDED and isinstance(raised.value, TimeoutError)


def test_without_one_it_is_repeated_from_the_first_failure_on() -> None:
    clock = Clock()
    patience = Patience("A/B", 10.0, Deadline(None, clock=clock), "id-1")
    clock.now += 1000.0  # the call has long been waiting when the connection breaks
    patience.wait_after(UNREACHABLE)
    clock.now += 9.0
    patience.wait_after(OVERDUE)  # the daemon can be reached
    clock.now += 9.0
    patience.wait_after(UNREACHABLE)
    clock.now += 10.1
    with pytest.raises(penstock.PenstockError) as raised:
        patience.wait_after(UNREACHABLE)
    assert raised.value is UNREACHABLE and raised.value.request_id == "id-1"


def test_what_the_daemon_says_is_not_repeated() -> None:
    for code, reason in (("DEADLINE_EXCEEDED", "WORK_DEADLINE"), ("CANCELLED", "WORK_CANCELLED"), ("INTERNAL", "")):
        said = penstock.PenstockError(grpc.StatusCode[code], reason, "no")
        with pytest.raises(penstock.PenstockError) as raised:
            Patience("A/B", 10.0, Deadline(60.0), "id-1").wait_after(said)
        assert raised.value is said


def test_a_client_without_patience_repeats_nothing() -> None:
    for deadline in (Deadline(None), Deadline(60.0)):
        with pytest.raises(penstock.PenstockError) as raised:
            Patience("A/B", 0.0, deadline, "id-1").wait_after(UNREACHABLE)
        assert raised.value is UNREACHABLE


def test_a_call_that_was_given_up_is_not_repeated() -> None:
    deadline = Deadline(None)
    deadline.cancel()
    with pytest.raises(penstock.PenstockError) as raised:
        Patience("A/B", 10.0, deadline, "id-1").wait_after(UNREACHABLE)
    assert raised.value is UNREACHABLE


def test_a_hint_of_the_transport_is_in_milliseconds() -> None:
    class Refused:
        def trailing_metadata(self) -> list[tuple[str, str]]:
            return [("grpc-retry-pushback-ms", "250")]

        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return "busy"

    assert penstock.PenstockError.from_call(Refused()).retry_delay == 0.25


def test_the_daemon_says_when_to_ask_again() -> None:
    patience = Patience("A/B", 10.0, Deadline(60.0), "id-1")
    busy = penstock.PenstockError(grpc.StatusCode.UNAVAILABLE, "STARTING", "not yet", retry_delay=7.5)
    assert patience.wait_after(busy) == 7.5 and patience.wait_after(UNREACHABLE) < 1.0


# --- a daemon that never answers --------------------------------------------------------------------------------------


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of one who takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


SIGNATURE = pipeline_pb2.ModelSignature(
    inputs=[tensor_pb2.TensorSignature(name="input")], outputs=[tensor_pb2.TensorSignature(name="output")]
)
MESSAGE = pipeline_pb2.Pipeline(name="pipelines/demo", signature=SIGNATURE)
CALLS: dict[str, Callable[[Any, Any, float], Any]] = {
    "infer": lambda client, pipeline, t: pipeline.infer(ROWS, timeout=t),
    "infer large": lambda client, pipeline, t: pipeline.infer(LARGE, timeout=t),
    "train_step": lambda client, pipeline, t: pipeline.train_step(ROWS, ROWS, timeout=t),
    "a handle's step": lambda client, pipeline, t: pipeline.submit_train_step(ROWS, ROWS, timeout=t),
    "forward_backward": lambda client, pipeline, t: pipeline.forward_backward(ROWS, ROWS, timeout=t),
    "forward": lambda client, pipeline, t: pipeline.forward(ROWS, timeout=t),
    "optimizer_step": lambda client, pipeline, t: pipeline.optimizer_step(timeout=t),
    "put": lambda client, pipeline, t: pipeline.put({"a": ROWS}, timeout=t),
    "save_checkpoint": lambda client, pipeline, t: pipeline.save_checkpoint(timeout=t),
    "restore_checkpoint": lambda client, pipeline, t: pipeline.restore_checkpoint("step-1", timeout=t),
    "delete_checkpoint": lambda client, pipeline, t: pipeline.delete_checkpoint("step-1", timeout=t),
    "read_parameters": lambda client, pipeline, t: pipeline.read_parameters(timeout=t),
    "write_parameters": lambda client, pipeline, t: pipeline.write_parameters({"0.weight": ROWS}, timeout=t),
    "state_arrays": lambda client, pipeline, t: pipeline.state_arrays(timeout=t),
    "load_state_dict": lambda client, pipeline, t: pipeline.load_state_dict({"0.weight": ROWS}, timeout=t),
    "delete": lambda client, pipeline, t: pipeline.delete(timeout=t),
    "create": lambda client, pipeline, t: client.create_pipeline("demo", timeout=t),
    "plan": lambda client, pipeline, t: client.plan(penstock.pipeline_spec(), timeout=t),
}
# Their first call has none of the caller's.
WITHOUT_ID = (
    "infer large",
    "put",
    "plan",
    "read_parameters",
    "write_parameters",
    "state_arrays",
    "load_state_dict",
)


@pytest.mark.parametrize("name", CALLS)
def test_nobody_is_waited_for_longer_than_the_caller_said(nobody: str, name: str) -> None:
    with penstock.Client(nobody) as client:
        with pytest.raises(DeadlineError, match="no answer in 0.2 s") as raised:
            CALLS[name](client, penstock.Pipeline(client._connection, MESSAGE), 0.2)
    assert bool(raised.value.request_id) == (name not in WITHOUT_ID)


@pytest.mark.parametrize("name", CALLS)
def test_nor_with_asyncio(nobody: str, name: str) -> None:
    async def main() -> None:
        async with penstock.aio.Client(nobody) as client:
            await CALLS[name](client, penstock.aio.Pipeline(client._connection, MESSAGE), 0.2)

    with pytest.raises(DeadlineError, match="no answer in 0.2 s") as raised:
        asyncio.run(main())
    assert bool(raised.value.request_id) == (name not in WITHOUT_ID)


# --- one deadline over all parts --------------------------------------------------------------------------------------

PARTS = ("PutTensors", "Infer", "WaitHandles", "FetchHandle")


def check_parts(daemon: FakeDaemon) -> None:
    # The wire rounds; without a deadline of all parts these have no end, or a minute more.
    assert all(0 < left < 51.0 for part in PARTS for left in daemon.time_left[part]), daemon.time_left
    assert all(daemon.time_left[part] for part in PARTS)


def test_each_part_gets_what_is_left(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 1
    assert np.array_equal(pipeline.infer(LARGE, timeout=50.0)["output"], 2 * LARGE)
    check_parts(daemon)


def test_each_part_gets_what_is_left_with_asyncio(daemon: FakeDaemon) -> None:
    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as client:
            pipeline = await client.create_pipeline("demo", timeout=40.0)
            daemon.settle_after = 1
            await pipeline.infer(LARGE, timeout=50.0)

    asyncio.run(main())
    check_parts(daemon)
    assert daemon.time_left["CreatePipeline"][0] < 41.0 and daemon.time_left["GetPipeline"][0] < 41.0


@pytest.mark.parametrize("part", PARTS)
def test_whichever_part_stands_still(pipeline: penstock.Pipeline, daemon: FakeDaemon, part: str) -> None:
    daemon.settle_after = 1
    daemon.silent = {part}
    with pytest.raises(DeadlineError):
        pipeline.infer(LARGE, timeout=0.5)


def test_a_request_id_that_is_none_is_named(pipeline: penstock.Pipeline) -> None:
    with pytest.raises(ValueError, match="^request_id: must be a UUID, got 'mine'"):
        pipeline.infer(LARGE, request_id="mine")


# --- nothing is applied twice -----------------------------------------------------------------------------------------


def test_an_answer_that_was_lost_is_asked_for_again(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.lose_answers = 2
    assert pipeline.train_step(ROWS, ROWS).step == 1
    ids = [request.request_id for request in daemon.requests["TrainStep"]]
    assert len(ids) == 3 and len(set(ids)) == 1 and len(daemon.trained) == 1


def test_an_answer_that_is_overdue_is_asked_for_again(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address, timeout=0.2) as client:
        pipeline = client.create_pipeline("demo")
        daemon.fail("SaveCheckpoint", grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.DEADLINE_EXCEEDED)
        assert pipeline.save_checkpoint("mine").name.endswith("mine")
    assert len({request.request_id for request in daemon.requests["SaveCheckpoint"]}) == 1


@pytest.mark.parametrize("rows", [ROWS, LARGE], ids=["small", "uploaded"])
def test_a_step_in_doubt_is_asked_for_by_its_id(
    pipeline: penstock.Pipeline, daemon: FakeDaemon, rows: np.ndarray
) -> None:
    daemon.answer_together = 10**6  # made, and not answered
    with pytest.raises(DeadlineError) as raised:
        pipeline.train_step(rows, ROWS, timeout=1.0)
    assert raised.value.reason == "CALL_DEADLINE" and str(uuid.UUID(raised.value.request_id)) == raised.value.request_id
    daemon.answer_together = 0
    assert pipeline.train_step(rows, ROWS, request_id=raised.value.request_id).step == 1
    first, *_, again = daemon.requests["TrainStep"]
    first.reply.Clear()
    again.reply.Clear()
    assert first == again and len(daemon.trained) == 1


def test_a_step_in_doubt_is_asked_for_when_its_upload_has_expired(
    pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    daemon.answer_together = 10**6
    timeout = 1.0
    while not daemon.requests["TrainStep"]:  # on a busy machine the upload alone may take a second
        with pytest.raises(DeadlineError) as raised:
            pipeline.train_step(LARGE, ROWS, timeout=timeout)
        timeout *= 2
    daemon.answer_together = 0
    upload = daemon.requests["TrainStep"][0].inputs[0].handle.handle
    daemon.fail("PutTensors", status(grpc.StatusCode.NOT_FOUND, "HANDLE_EXPIRED", "its lease has ended", handle=upload))
    assert pipeline.train_step(LARGE, ROWS, request_id=raised.value.request_id).step == 1
    assert len(daemon.trained) == 1


def test_a_step_that_has_not_settled_is_asked_for_by_its_id(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 10**6
    with pytest.raises(DeadlineError, match="HANDLE_PENDING.*has not settled in 0.2 s") as raised:
        pipeline.train_step(ROWS, ROWS, timeout=0.2)
    daemon.settle_after = 0
    assert pipeline.train_step(ROWS, ROWS, request_id=raised.value.request_id).step == 1
    assert len(daemon.trained) == 1


def test_a_refusal_is_no_doubt(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail("TrainStep", status(grpc.StatusCode.DEADLINE_EXCEEDED, "WORK_DEADLINE", "the work's own time"))
    with pytest.raises(penstock.PenstockError, match="WORK_DEADLINE") as raised:
        pipeline.train_step(ROWS, ROWS, timeout=5.0)
    assert not raised.value.in_doubt and len(daemon.requests["TrainStep"]) == 1


def test_a_handle_that_has_not_settled_is_pending_whenever_the_time_ends(
    pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    """Also in the middle of the last question: that the daemon has the call is known."""
    handle = pipeline.submit_infer(ROWS)
    daemon.silent.add("WaitHandles")
    with pytest.raises(DeadlineError, match="HANDLE_PENDING.*has not settled in 0.1 s"):
        handle.wait(0.1)


def test_a_pipeline_that_is_not_ready_is_called_so_whenever_the_time_ends(
    client: penstock.Client, daemon: FakeDaemon
) -> None:
    daemon.silent.add("GetPipeline")
    with pytest.raises(DeadlineError, match="PIPELINE_NOT_READY.*pipelines/demo is not ready in 0.2 s"):
        client.create_pipeline("demo", timeout=0.2)


def test_a_trace_that_takes_too_long_is_a_deadline(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.silent.add("ExportTrace")
    with pytest.raises(DeadlineError, match="CALL_DEADLINE.*InsightService/ExportTrace: no answer in 0.2 s"):
        pipeline.trace(steps=1, timeout=0.2)


def test_statistics_and_traces_are_repeated_as_other_calls_are(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    for method in ("WatchStatistics", "ExportTrace"):
        daemon.fail(method, grpc.StatusCode.UNAVAILABLE)
    assert pipeline.statistics().step == 0
    assert pipeline.trace() == b'{"traceEvents":[]}'
