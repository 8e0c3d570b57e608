"""Fields, graphs and steps out of place.

Each is a named error with field and value; the daemon lives, and the next good request is answered.
"""

from __future__ import annotations

import math
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import pipeline_pb2, tensor_pb2, work_pb2

from daemon_process import Daemon
from raw_calls import INVALID, Raw, duration, given, infer, refused, train, waiting
from small_models import WIDTH, create_mlp, mlp_batch, request_id

pytestmark = pytest.mark.usefixtures("next_request_is_served")
Code = grpc.StatusCode


def _reply(**fields: Any) -> work_pb2.ReplyOptions:
    return work_pb2.ReplyOptions(**fields)


BAD_INFER_FIELDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "no micro-batches": ({"micro_batches": 0}, "micro_batches", "0"),
    "minus one micro-batch": ({"micro_batches": -1}, "micro_batches", "-1"),
    "too many micro-batches": ({"micro_batches": 2**31 - 1}, "micro_batches", str(2**31 - 1)),
    "a negative wait": ({"reply": _reply(wait_for=duration(-1))}, "wait_for", "-1"),
    "a wait above a minute": ({"reply": _reply(wait_for=duration(61))}, "wait_for", "61"),
    "a wait without end": ({"reply": _reply(wait_for=duration(2**63 - 1))}, "wait_for", ""),
    "a wait that is not normal": ({"reply": _reply(wait_for=duration(1, 2**31 - 1))}, "wait_for", ""),
    "negative inline bytes": ({"reply": _reply(inline_bytes=-1)}, "inline_bytes", "-1"),
    "too many inline bytes": ({"reply": _reply(inline_bytes=2**20 + 1)}, "inline_bytes", str(2**20 + 1)),
    "a lease too short": ({"reply": _reply(lease=duration(1))}, "lease", "1"),
    "a lease too long": ({"reply": _reply(lease=duration(3601))}, "lease", ""),
    "a negative timeout": ({"reply": _reply(work_timeout=duration(-1))}, "work_timeout", "-1"),
    "a request id that is none": ({"request_id": "once"}, "request_id", "once"),
    "a request id in capitals": ({"request_id": request_id().upper()}, "request_id", ""),
    "a request id with a newline": ({"request_id": request_id()[:-1] + "\n"}, "request_id", ""),
}


@pytest.mark.parametrize("case", BAD_INFER_FIELDS)
def test_a_bad_field_of_infer(raw: Raw, pipeline: penstock.Pipeline, case: str) -> None:
    changes, field, value = BAD_INFER_FIELDS[case]
    refused(lambda: raw.call("Infer", infer(pipeline.name, **changes)), INVALID, "FIELD_INVALID", field, value)


def test_the_most_micro_batches_of_a_call_are_taken_and_one_more_is_refused(raw: Raw, client: penstock.Client) -> None:
    most = 4096
    own = create_mlp(client)
    rows, target = np.ones((most, WIDTH), np.float32), np.zeros((most, WIDTH), np.float32)
    assert own.infer(rows, micro_batches=most)["output"].shape == (most, WIDTH)
    assert own.train_step(rows, target, micro_batches=most).step == 1
    for method, request in (
        ("Infer", infer(own.name, micro_batches=most + 1)),
        ("TrainStep", train(own.name, micro_batches=most + 1)),
    ):
        refused(lambda: raw.call(method, request), INVALID, "FIELD_INVALID", "micro_batches", str(most + 1))
    assert own.train_step(rows, target).step == 2


@pytest.mark.parametrize("seconds", [-1, 1, 3601, 2**40])
def test_every_lease_is_refused_with_the_same_range(raw: Raw, pipeline: penstock.Pipeline, seconds: int) -> None:
    request = infer(pipeline.name, reply=_reply(lease=duration(seconds)))
    error = refused(lambda: raw.call("Infer", request), INVALID, "FIELD_INVALID", "lease")
    assert "must be between 5s and 1h" in error.message


def _weights(values: list[float]) -> tensor_pb2.Input:
    return given("weights", np.array(values, np.float32))


BAD_TRAIN_FIELDS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no request id": ({"request_id": ""}, "REQUEST_ID_MISSING", "request_id", ""),
    "an unknown loss": ({"loss": pipeline_pb2.LossSpec(name="hinge")}, "LOSS_UNKNOWN", "loss", "hinge"),
    "an unknown option of the loss": (
        {"loss": pipeline_pb2.LossSpec(name="mean_squared_error", options={"p": pipeline_pb2.Option(int_value=3)})},
        "SPEC_INVALID",
        "p",
        "3",
    ),
    "a rate that is no number": ({"learning_rate": math.nan}, "FIELD_INVALID", "learning_rate", "nan"),
    "a negative rate": ({"learning_rate": -1.0}, "FIELD_INVALID", "learning_rate", "-1"),
    "an infinite clip norm": ({"clip_norm": math.inf}, "FIELD_INVALID", "clip_norm", "inf"),
    "a negative clip norm": ({"clip_norm": -1.0}, "FIELD_INVALID", "clip_norm", "-1"),
    "no target": ({"target": None}, "FIELD_INVALID", "target", ""),
    "class weights of another loss": (
        {"loss": pipeline_pb2.LossSpec(name="mean_squared_error", class_weights=[1, 2])},
        "SPEC_INVALID",
        "class_weights",
        "2 numbers",
    ),
    "a negative weight": ({"weights": _weights([1, 1, 1, -0.5])}, "FIELD_INVALID", "weights", "-0.5"),
    "a weight that is no number": ({"weights": _weights([1, 1, 1, math.nan])}, "FIELD_INVALID", "weights", "nan"),
    "too many weights": ({"weights": _weights([1, 1, 1])}, "TENSOR_SIGNATURE", "weights.shape", "3"),
    "weights that are no tensor": (
        {"weights": tensor_pb2.Input(name="weights", value=tensor_pb2.Value(double_value=1))},
        "WRONG_TYPE",
        "weights",
        "float",
    ),
}


@pytest.mark.parametrize("case", BAD_TRAIN_FIELDS)
def test_a_bad_field_of_a_step(raw: Raw, pipeline: penstock.Pipeline, case: str) -> None:
    changes, reason, field, value = BAD_TRAIN_FIELDS[case]
    refused(lambda: raw.call("TrainStep", train(pipeline.name, **changes)), INVALID, reason, field, value)


@pytest.mark.parametrize(
    ("field", "value"), [("total_rows", 0), ("total_rows", -1), ("total_elements", 0), ("total_rows", 3)]
)
def test_bad_totals(raw: Raw, pipeline: penstock.Pipeline, field: str, value: int) -> None:
    request = work_pb2.ForwardBackwardRequest(
        pipeline=pipeline.name,
        inputs=[given()],
        target=given("target"),
        request_id=request_id(),
        reply=waiting(),
        **{field: value},
    )
    refused(lambda: raw.call("ForwardBackward", request), INVALID, "FIELD_INVALID", field, str(value))


def test_a_stale_state(raw: Raw, pipeline: penstock.Pipeline) -> None:
    request = train(pipeline.name, expected_state="of another time")
    refused(lambda: raw.call("TrainStep", request), Code.FAILED_PRECONDITION, "STATE_MISMATCH")


def test_a_step_of_nothing(raw: Raw, pipeline: penstock.Pipeline) -> None:
    request = work_pb2.OptimizerStepRequest(pipeline=pipeline.name, request_id=request_id())
    refused(lambda: raw.call("OptimizerStep", request), Code.FAILED_PRECONDITION, "ACCUMULATION_EMPTY")


def test_an_open_accumulation(daemon: Daemon, raw: Raw, pipeline: penstock.Pipeline) -> None:
    stranger = Raw(daemon.address, "stranger")
    pipeline.forward_backward(*mlp_batch(0))
    try:
        request = train(pipeline.name)
        refused(lambda: raw.call("TrainStep", request), Code.FAILED_PRECONDITION, "ACCUMULATION_OPEN")
        contribution = work_pb2.ForwardBackwardRequest(
            pipeline=pipeline.name, inputs=[given()], target=given("target"), request_id=request_id()
        )
        refused(lambda: stranger.call("ForwardBackward", contribution), Code.FAILED_PRECONDITION, "ACCUMULATION_HELD")
        step = work_pb2.OptimizerStepRequest(pipeline=pipeline.name, request_id=request_id())
        refused(lambda: stranger.call("OptimizerStep", step), Code.FAILED_PRECONDITION, "ACCUMULATION_HELD")
        step.force = True
        refused(lambda: stranger.call("OptimizerStep", step), INVALID, "FIELD_INVALID", "force", "true")
    finally:
        pipeline.optimizer_step(discard=True)
        stranger.close()


# --- graphs ---


def test_graphs_out_of_place(daemon: Daemon, raw: Raw) -> None:
    with penstock.Client(daemon.address) as client:
        own = create_mlp(client)
        inputs, target = mlp_batch(0, 4)
        forward = own.forward(inputs)
        gradient = given("output", np.ones((4, WIDTH), np.float32))

        def backward(graph: str, *gradients: tensor_pb2.Input) -> Any:
            return raw.call(
                "Backward",
                work_pb2.BackwardRequest(
                    pipeline=own.name, graph=graph, gradients=gradients, request_id=request_id(), reply=waiting()
                ),
            )

        values = forward.outputs.name
        as_input = tensor_pb2.Input(name="input", handle=tensor_pb2.HandleTensor(handle=forward.graph.name))
        refused(lambda: raw.call("Infer", infer(own.name, as_input)), INVALID, "HANDLE_KIND")
        refused(lambda: backward(values, gradient), INVALID, "HANDLE_KIND")
        refused(lambda: backward(forward.graph.name), INVALID, "TENSOR_SIGNATURE", "gradients")
        refused(lambda: backward(forward.graph.name, given("logits")), INVALID, "TENSOR_SIGNATURE", "gradients")
        wrong = given("output", np.ones((3, WIDTH), np.float32))
        refused(lambda: backward(forward.graph.name, wrong), INVALID, "TENSOR_SIGNATURE", "gradients", "3")
        # None of these used it up.
        own.backward(forward.graph, np.ones((4, WIDTH), np.float32))
        refused(lambda: backward(forward.graph.name, gradient), Code.FAILED_PRECONDITION, "GRAPH_CONSUMED")
        own.optimizer_step(discard=True)
        stale = own.forward(inputs)
        own.train_step(inputs, target)
        refused(lambda: backward(stale.graph.name, gradient), Code.FAILED_PRECONDITION, "GRAPH_STALE")
        with pytest.raises(penstock.PenstockError) as raised:
            for _ in range(100):
                own.forward(inputs)
        assert raised.value.reason == "GRAPH_LIMIT" and raised.value.code == Code.RESOURCE_EXHAUSTED
        with pytest.raises(penstock.PenstockError) as raised:
            own.delete()
        assert (raised.value.code, raised.value.reason) == (Code.FAILED_PRECONDITION, "PIPELINE_IN_USE")
        own.delete(force=True)
