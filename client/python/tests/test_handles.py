"""Handles: waiting for them, their life, and the errors of the work behind them."""

from __future__ import annotations

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status
from penstock import results
from penstock.v1 import handle_pb2

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_pending_handle_is_waited_for(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 3
    handle = pipeline.submit_train_step(ROWS, ROWS)
    assert handle.state == "PENDING" and not handle.done()
    assert handle.result(timeout=10).step == 1
    assert handle.done() and handle.state == "READY"


def test_waiting_ends_at_its_timeout(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 10**6
    handle = pipeline.submit_infer(ROWS)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.02)


def test_failed_work_raises_its_own_error(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.result_error = status(
        grpc.StatusCode.RESOURCE_EXHAUSTED, "DEVICE_MEMORY", "no memory", stage="1", micro_batch="2", action="F2"
    )
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.infer(ROWS)
    assert raised.value.reason == "DEVICE_MEMORY"
    assert raised.value.values == {"stage": "1", "micro_batch": "2", "action": "F2"}


def test_the_life_of_a_handle(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    with pipeline.submit_infer(ROWS) as handle:
        assert len(pipeline.handles()) == 1
        handle.renew(30)
        assert daemon.requests["RenewHandles"][0].lease.seconds == 30
        assert handle.cancel() == "NOT_CANCELLABLE"
    assert daemon.wait_until_released()
    handle.release()
    for gone in (handle.wait, handle.renew, handle.refresh):
        handle.message.state = 1
        with pytest.raises(penstock.PenstockError) as raised:
            gone()
        assert raised.value.reason == "HANDLE_RELEASED"


def test_a_handle_is_shared_once_it_is_ready(
    client: penstock.Client, pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    daemon.settle_after = 2
    handle = pipeline.submit_infer(ROWS)
    name = handle.share("bob", lease=30)
    (request,) = daemon.requests["ShareHandle"]
    assert (request.name, request.recipient, request.lease.seconds) == (handle.name, "bob", 30)
    assert len(request.request_id) == 36
    assert name != handle.name
    handle.release()
    shared = client.handle(name)
    np.testing.assert_array_equal(shared.fetch()["output"], 2 * ROWS)
    with pytest.raises(penstock.PenstockError) as gone:
        client.handle(handle.name)
    assert gone.value.reason == "HANDLE_RELEASED"
    outcome = pipeline.submit_train_step(ROWS, ROWS)
    with pytest.raises(ValueError, match="must be of a handle of values"):
        client.handle(outcome.name)


def test_what_is_ready_failed_or_cancelled_has_settled() -> None:
    def settled(state: int) -> bool:
        return results.Remote(handle_pb2.Result(handle=handle_pb2.Handle(state=state))).settled

    names = [name for name, state in handle_pb2.HandleState.items() if settled(state)]
    assert names == ["HANDLE_STATE_READY", "HANDLE_STATE_FAILED", "HANDLE_STATE_CANCELLED"]


def test_a_wait_names_a_thousand_handles_at_most() -> None:
    pending = [results.Remote(handle_pb2.Result(handle=handle_pb2.Handle(name=str(i)))) for i in range(1001)]
    assert list(results.wait_request(pending, 1.0).names) == [str(i) for i in range(1000)]
