"""Tensors, inputs and outputs that lie or don't fit.

Each is a named error with field and value; the daemon lives, and the next good request is answered.
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import tensor_pb2, work_pb2

from raw_calls import INVALID, ROWS, Raw, failed_handle, given, infer, refused, train, waiting
from small_models import GPT, SEQUENCE, WIDTH, gpt_batch, state_of

pytestmark = pytest.mark.usefixtures("next_request_is_served")
Code = grpc.StatusCode


BAD_TENSORS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # name: changes, reason, field, value
    "dtype of another signature": ({"array": ROWS.astype(np.int64)}, "TENSOR_SIGNATURE", "inputs[0]", "INT64"),
    "dtype that lies about its size": ({"type": tensor_pb2.DATA_TYPE_FP64}, "TENSOR_HEADER", "byte_size", "256"),
    "no dtype": ({"type": 0}, "TENSOR_HEADER", "type", ""),
    "unknown dtype": ({"type": 99}, "TENSOR_HEADER", "type", "99"),
    "rank too low": ({"array": ROWS.reshape(-1)}, "TENSOR_SIGNATURE", "shape", "[64]"),
    "rank too high": ({"array": ROWS.reshape(4, 4, 4)}, "TENSOR_SIGNATURE", "shape", "[4, 4, 4]"),
    "scalar": ({"array": np.float32(1)}, "TENSOR_SIGNATURE", "shape", "[]"),
    "rank above 8": ({"shape": [1] * 7 + [4, WIDTH]}, "TENSOR_HEADER", "shape", "9"),
    "a hundred thousand dimensions": ({"shape": [1] * 100_000}, "TENSOR_HEADER", "shape", "100000"),
    "wrong width": ({"array": np.ones((4, 5), np.float32)}, "TENSOR_SIGNATURE", "shape", "5"),
    "negative dimension": ({"shape": [-1, WIDTH]}, "TENSOR_HEADER", "shape", "-1"),
    "product wraps": ({"shape": [1 << 62, 4]}, "TENSOR_HEADER", "shape", ""),
    "product wraps to the true one": ({"shape": [1 << 32, 1 << 32, 4, WIDTH]}, "TENSOR_HEADER", "shape", ""),
    "overflow behind a zero": ({"shape": [1 << 32, 1 << 32, 0]}, "TENSOR_HEADER", "shape", ""),
    "bytes wrap": ({"shape": [1 << 60, 8], "byte_size": 0}, "TENSOR_HEADER", "", ""),
    "one byte more declared": ({"byte_size": 257}, "TENSOR_HEADER", "byte_size", "257"),
    "one byte less declared": ({"byte_size": 255}, "TENSOR_HEADER", "byte_size", "255"),
    "negative bytes": ({"byte_size": -1}, "TENSOR_HEADER", "byte_size", "-1"),
    "fewer bytes than declared": ({"data": b"\0" * 255}, "TENSOR_HEADER", "data", "255"),
    "more bytes than declared": ({"data": b"\0" * 257}, "TENSOR_HEADER", "data", "257"),
    "a name beyond ASCII": ({"header_name": "\u00fc"}, "TENSOR_HEADER", "name", ""),
    "a name with a newline": ({"header_name": "input\nerror"}, "TENSOR_HEADER", "name", ""),
    "a name with NUL": ({"header_name": "input\0"}, "TENSOR_HEADER", "name", ""),
    "a name of 64 KiB": ({"header_name": "x" * 65536}, "TENSOR_HEADER", "name", ""),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_a_bad_tensor(raw: Raw, pipeline: penstock.Pipeline, case: str) -> None:
    changes, reason, field, value = BAD_TENSORS[case]
    refused(lambda: raw.call("Infer", infer(pipeline.name, given(**changes))), INVALID, reason, field, value)


@pytest.mark.parametrize("case", ["dtype of another signature", "wrong width", "fewer bytes than declared"])
def test_a_bad_target(raw: Raw, pipeline: penstock.Pipeline, case: str) -> None:
    changes, reason, _, value = BAD_TENSORS[case]
    request = train(pipeline.name, target=given("target", **changes))
    refused(lambda: raw.call("TrainStep", request), INVALID, reason, "target", value)


def test_inputs_and_target_of_different_rows(raw: Raw, pipeline: penstock.Pipeline) -> None:
    request = train(pipeline.name, target=given("target", array=ROWS[:3]))
    refused(lambda: raw.call("TrainStep", request), INVALID, "TENSOR_SIGNATURE", "target", "3")


@pytest.mark.parametrize(
    ("inputs", "reason", "value"),
    [
        ([given("other")], "TENSOR_SIGNATURE", "other"),
        ([given(""), given("")], "FIELD_INVALID", ""),
        ([given(), given()], "FIELD_INVALID", "input"),
        ([given(), given("other")], "TENSOR_SIGNATURE", "other"),
        ([tensor_pb2.Input(name="input")], "FIELD_INVALID", "input"),
        ([given(f"x{i}", np.zeros((1, 1), np.float32)) for i in range(65)], "FIELD_INVALID", "65"),
    ],
    ids=["unknown", "nameless", "twice", "one too many", "without a source", "65 of them"],
)
def test_bad_inputs(
    raw: Raw, pipeline: penstock.Pipeline, inputs: list[tensor_pb2.Input], reason: str, value: str
) -> None:
    refused(lambda: raw.call("Infer", infer(pipeline.name, *inputs)), INVALID, reason, "inputs", value)


def test_no_inputs(raw: Raw, pipeline: penstock.Pipeline) -> None:
    request = work_pb2.InferRequest(pipeline=pipeline.name, reply=waiting())
    refused(lambda: raw.call("Infer", request), INVALID, "TENSOR_SIGNATURE", "inputs")


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        (["nothing"], "TENSOR_SIGNATURE"),
        (["output", "output"], "FIELD_INVALID"),
        (["o"] * 65, "FIELD_INVALID"),
        (["x" * 65536], "TENSOR_SIGNATURE"),
    ],
    ids=["unknown", "twice", "65", "long"],
)
def test_bad_outputs(raw: Raw, pipeline: penstock.Pipeline, outputs: list[str], reason: str) -> None:
    refused(lambda: raw.call("Infer", infer(pipeline.name, outputs=outputs)), INVALID, reason, "outputs")


def test_a_million_outputs(raw: Raw, pipeline: penstock.Pipeline) -> None:
    request = infer(pipeline.name, outputs=["output"] * 400_000)
    refused(lambda: raw.call("Infer", request), INVALID, "FIELD_INVALID")


def test_nan_and_infinity_are_data(pipeline: penstock.Pipeline) -> None:
    rows = ROWS.copy()
    rows[0, 0], rows[1, 0] = np.nan, np.inf
    output = pipeline.infer(rows)["output"]
    assert np.isnan(output[0]).all() and np.isfinite(output[2:]).all()


@pytest.mark.parametrize("token", [GPT["vocab"], -1, 2**62])
def test_a_token_outside_the_vocabulary(raw: Raw, words: penstock.Pipeline, token: int) -> None:
    tokens = np.zeros((4, SEQUENCE), np.int64)
    tokens[2, 3] = token
    error = failed_handle(raw.call("Infer", infer(words.name, given("tokens", tokens))).outputs)
    assert (error.code, error.reason) == (INVALID, "TENSOR_SIGNATURE"), error
    assert (error.values["field"], error.values["value"]) == ("inputs[tokens]", str(token)), error
    assert (error.values["stage"], error.values["micro_batch"], error.values["action"]) == ("0", "2", "0F2"), error
    assert words.infer(np.zeros((4, SEQUENCE), np.int64))["logits"].shape == (4, SEQUENCE, GPT["vocab"])


@pytest.mark.parametrize("label", [GPT["vocab"], -5, 2**62])
def test_an_exception_inside_a_stage_names_its_place(raw: Raw, words: penstock.Pipeline, label: int) -> None:
    """A label that is no class is found by the loss, on the last stage, in the micro-batch that has it."""
    tokens, target = gpt_batch(0, 4)
    before = state_of(words)
    bad = target.copy()
    bad[2, 3] = label
    request = train(words.name, inputs=[given("tokens", tokens)], target=given("target", bad))
    error = failed_handle(raw.call("TrainStep", request).outcome)
    assert (error.code, error.reason) == (INVALID, "TENSOR_SIGNATURE"), error
    assert (error.values["field"], error.values["value"]) == ("target", str(label)), error
    assert (error.values["stage"], error.values["micro_batch"], error.values["action"]) == ("1", "2", "1F2"), error
    assert state_of(words) == before
    assert words.train_step(tokens, target, timeout=30).applied
