"""What the daemon refuses, and what is asked again."""

from __future__ import annotations

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_refusal_names_reason_field_and_value(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail(
        "Infer",
        status(
            grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "wrong width", field="inputs[0].shape", value="[2, 5]"
        ),
    )
    with pytest.raises(penstock.PenstockError, match="INVALID_ARGUMENT / TENSOR_SIGNATURE: wrong width") as raised:
        pipeline.infer(ROWS)
    assert raised.value.values == {"field": "inputs[0].shape", "value": "[2, 5]"}
    assert raised.value.violations == [("inputs[0].shape", "wrong width")]
    assert len(daemon.requests["Infer"]) == 1, "a refusal was repeated"


def test_unavailable_is_repeated_under_the_same_request_id(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail(
        "TrainStep",
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        status(grpc.StatusCode.UNAVAILABLE, "DRAINING", "going down", retry_delay=0.01),
    )
    assert pipeline.train_step(ROWS, ROWS).step == 1
    ids = [request.request_id for request in daemon.requests["TrainStep"]]
    assert len(ids) == 4 and len(set(ids)) == 1
    pipeline.train_step(ROWS, ROWS)
    assert daemon.requests["TrainStep"][-1].request_id not in ids


def test_cancelled_work_is_not_repeated(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail("Infer", status(grpc.StatusCode.CANCELLED, "WORK_CANCELLED", "somebody cancelled it"))
    with pytest.raises(penstock.PenstockError, match="WORK_CANCELLED"):
        pipeline.infer(ROWS)
    assert len(daemon.requests["Infer"]) == 1


@pytest.mark.parametrize("call", ["list", "create", "plan"])
def test_where_no_daemon_answers_a_call_without_a_time_ends_with_patience_and_names_the_address(call: str) -> None:
    spec = penstock.pipeline_spec(model="mlp")
    with penstock.Client("127.0.0.1:1", retry_for=0.2) as client:
        calls = {
            "list": client.list_pipelines,
            "create": lambda: client.create_pipeline_from("demo", spec),
            "plan": lambda: client.plan(spec),
        }
        with pytest.raises(penstock.PenstockError, match="^UNAVAILABLE: no daemon answers at 127.0.0.1:1 [(]") as raised:
            calls[call]()
    assert not isinstance(raised.value, penstock.DeadlineError) and raised.value.in_doubt


def test_unavailable_is_told_when_patience_ends(daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address, retry_for=0.0) as impatient:
        daemon.fail("GetServerInfo", status(grpc.StatusCode.UNAVAILABLE, "STARTING", "not yet"))
        with pytest.raises(penstock.PenstockError) as raised:
            impatient.server_info()
        assert raised.value.reason == "STARTING"
        assert impatient.server_info().version == "0.1.0"
