"""The sentences by which the ancestors refuse, with Penstock's codes: what a client of the API reads.

Each test is named by the rows of the list of the ancestors' behaviours that it covers.
"""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock import Layer
from penstock.v1 import pipeline_pb2, tensor_pb2

from layer_lists import linear, pop_add, stash
from raw_calls import INVALID, ROWS, Raw, given, infer, refused
from small_models import fresh_name, request_id

pytestmark = pytest.mark.usefixtures("next_request_is_served")
Code = grpc.StatusCode


FOUR = [linear(f"l{i}") for i in range(4)]


def spec(model: Any = FOUR, **fields: Any) -> pipeline_pb2.PipelineSpec:
    return penstock.pipeline_spec(model=model, loss="mean_squared_error", **fields)


def refuse(
    raw: Raw,
    specification: pipeline_pb2.PipelineSpec,
    sentence: str,
    field: str,
    code: grpc.StatusCode = INVALID,
    reason: str = "SPEC_INVALID",
) -> penstock.PenstockError:
    """Neither planning nor creating takes the specification; both say the sentence."""
    for validate_only in (True, False):
        request = pipeline_pb2.CreatePipelineRequest(
            pipeline_id="bad", spec=specification, validate_only=validate_only, request_id=request_id()
        )
        error = refused(lambda request=request: raw.call("CreatePipeline", request), code, reason, field)
        assert sentence in error.message, error.message
    return error


@pytest.mark.parametrize("chunks", [0, -1])
def test_chunks_positive(raw: Raw, chunks: int) -> None:
    refuse(raw, spec(micro_batches=chunks), "number of micro-batches must be a positive integer", "micro_batches")


def test_checkpoint_mode(raw: Raw) -> None:
    unknown = spec()
    unknown.schedule.checkpoint = 99  # type: ignore[assignment]
    refuse(raw, unknown, "checkpoint is not one of 'always', 'except_last', or 'never'", "checkpoint")


@pytest.mark.parametrize(("balance", "total"), [([1], 1), ([5], 5), ([2, 1], 3), ([2, 3], 5)])
def test_balance_of_another_sum(raw: Raw, balance: list[int], total: int) -> None:
    sentence = f"module and sum of balance have different length (module: 4, sum of balance: {total})"
    error = refuse(raw, spec(balance=balance), sentence, "spec.cut.balance")
    assert "plan" in error.message, "no advice"


@pytest.mark.parametrize("balance", [[0, 4], [-1, 5]])
def test_balance_of_no_layers(raw: Raw, balance: list[int]) -> None:
    error = refuse(raw, spec(balance=balance), "all balance numbers must be positive integer", "spec.cut.balance")
    assert str(balance) in error.message


def test_order_of_checks(raw: Raw) -> None:
    """Everything is wrong; mending one thing after the other shows the next one."""
    wrong = spec([Layer("teleport")], balance=[0, 2], micro_batches=0)
    wrong.schedule.checkpoint = 99  # type: ignore[assignment]
    refuse(raw, wrong, "number of micro-batches", "micro_batches")
    wrong.schedule.micro_batches = 1
    refuse(raw, wrong, "checkpoint is not one of", "checkpoint")
    wrong.schedule.checkpoint = pipeline_pb2.CHECKPOINT_MODE_NEVER
    refuse(raw, wrong, "teleport", "kind")
    wrong.model.layers[0].kind = "relu"
    wrong.model.layers.insert(0, linear("first").message())
    refuse(raw, wrong, "all balance numbers", "balance")


@pytest.mark.parametrize("inner", [False, True])
def test_two_layers_of_one_name(raw: Raw, inner: bool) -> None:
    layers = [linear("same"), linear("other"), linear("same")]
    model = [Layer("sequential", "outer", layers=layers)] if inner else layers
    field = "spec.model.layers[0].layers[2].name" if inner else "spec.model.layers[2].name"
    refuse(raw, spec(model), "module with duplicate children is not supported", field)


def test_too_few_devices(raw: Raw) -> None:
    sentence = "too few devices to hold given partitions (devices: 2, partitions: 3)"
    wrong = spec(balance=[1, 1, 2], devices=["cpu:0", "cpu:1"])
    refuse(raw, wrong, sentence, "spec.devices", Code.OUT_OF_RANGE)


def test_devices_that_are_not_there(raw: Raw) -> None:
    layers = [linear("first", device="cpu:0"), linear("last", device="cpu:7")]
    error = refuse(raw, spec(layers), "no such device", "spec.model.layers[1].device")
    assert "cpu:0, cpu:1" in error.message
    refuse(raw, spec([linear("first"), linear("last", device="cpu:1")], stages=2), "must be 0", "spec.cut.stages")


@pytest.mark.parametrize(
    ("layers", "faults"),
    [
        ([pop_add("a")], ["'a' declared 'skip' as poppable but it was not stashed"]),
        ([stash("a")], ["no module declared 'skip' as poppable but stashed"]),
        (
            [stash("a"), stash("b"), pop_add("c")],
            ["'b' redeclared 'skip' as stashable but not isolated by namespace"],
        ),
        (
            [stash("a"), pop_add("b"), pop_add("c")],
            ["'c' redeclared 'skip' as poppable but not isolated by namespace"],
        ),
        (
            [stash("a", "one"), pop_add("b", "two"), stash("c", "one")],
            [
                "'c' redeclared 'one' as stashable but not isolated by namespace",
                "'b' declared 'two' as poppable but it was not stashed",
                "no module declared 'one' as poppable but stashed",
            ],
        ),
    ],
    ids=["never stashed", "never popped", "stashed twice", "popped twice", "all faults"],
)
def test_all_faults(raw: Raw, layers: list[Layer], faults: list[str]) -> None:
    model = [linear("first"), *layers]
    sentence = "one or more pairs of stash and pop do not match:"
    error = refuse(raw, spec(model), sentence, "spec.model.layers", reason="WRONG_TYPE")
    for fault in faults:
        assert f"* {fault}" in error.message, error.message
    assert error.message.count("* ") == len(faults)


def test_faults_in_layers_in_layers(raw: Raw) -> None:
    inner = Layer("sequential", "inner", layers=[stash("a"), stash("b"), pop_add("c")])
    error = refuse(
        raw,
        spec([linear("first"), inner]),
        "'b' redeclared 'skip' as stashable but not isolated by namespace",
        "spec.model.layers[1].layers",
        reason="WRONG_TYPE",
    )
    assert "do not match" in error.message


def test_ties_that_cannot_be(raw: Raw) -> None:
    layers = [linear("a"), linear("b", 16, 8), linear("c", 8, 16)]
    refuse(
        raw,
        spec(layers, ties=[("a.weight", "d.weight")]),
        "is not a parameter of the model",
        "spec.model.ties[0].parameters[1]",
    )
    shapes = spec(layers, ties=[("a.weight", "b.weight")])
    refuse(raw, shapes, "must have the shape of the first, [16, 16]", "spec.model.ties[0].parameters[1]")
    refuse(raw, spec(layers, ties=[("a.weight",)]), "must be at least two", "spec.model.ties[0].parameters")


@pytest.mark.parametrize("field", ["dtype", "autocast"])
def test_unknown_precision(raw: Raw, field: str) -> None:
    refuse(raw, spec(**{field: "fp12"}), "fp12", f"spec.model.{field}")


def test_layers_nested_too_deep(raw: Raw) -> None:
    layer = linear("bottom")
    for _ in range(20):
        layer = Layer("sequential", layers=[layer])
    refuse(raw, spec([layer]), "must not be nested more than 16 deep", ".layers")


@pytest.mark.parametrize("method", ["exact", "block_partition"])
def test_more_stages_than_layers(raw: Raw, method: str) -> None:
    sentence = "must lie in [1, 4], the number of layers, got 5"
    refuse(raw, spec(stages=5, cut_method=method), sentence, "spec.cut.stages")


def test_stages_positive(raw: Raw) -> None:
    wrong = spec()
    wrong.cut.stages = -1
    refuse(raw, wrong, "partitions must be a positive integer (-1 < 1)", "spec.cut.stages")


# --- inputs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def identity(client: penstock.Client) -> penstock.Pipeline:
    """Takes any values and gives them back."""
    return client.create_pipeline(fresh_name("identity"), model="identity", micro_batches=4, stages=1)


def plain(name: str, **value: Any) -> tensor_pb2.Input:
    return tensor_pb2.Input(name=name, value=tensor_pb2.Value(**value))


def whole(source: tensor_pb2.Input) -> tensor_pb2.Input:
    source.whole = True
    return source


def refuse_inputs(
    raw: Raw, pipeline: penstock.Pipeline, inputs: list[tensor_pb2.Input], sentence: str, reason: str = "WRONG_TYPE"
) -> penstock.PenstockError:
    def call() -> Any:
        result = raw.call("Infer", infer(pipeline.name, *inputs)).outputs
        if result.handle.HasField("error"):  # found by the run
            raise penstock.PenstockError.from_status(result.handle.error)
        return result

    error = refused(call, INVALID, reason)
    assert sentence in error.message, error.message
    return error


def test_no_tensor(raw: Raw, identity: penstock.Pipeline) -> None:
    sentence = "inputs do not have any tensors: (int, str"
    refuse_inputs(raw, identity, [plain("a", int_value=3), plain("b", string_value="x")], sentence)
    # A whole tensor does not count.
    refuse_inputs(raw, identity, [whole(given("a")), plain("b", bool_value=True)], "inputs do not have any tensors")


def test_a_value_where_a_tensor_is_wanted(raw: Raw, pipeline: penstock.Pipeline) -> None:
    for value, name in [({"int_value": 3}, "int"), ({"string_value": "x"}, "str"), ({}, "NoneType")]:
        refuse_inputs(raw, pipeline, [plain("input", **value)], f"expected Tensor, but got {name}")


def test_only_tensors_are_whole(raw: Raw, identity: penstock.Pipeline) -> None:
    inputs = [given("a"), whole(plain("b", int_value=42))]
    refuse_inputs(raw, identity, inputs, "NoChunk only supported for tensors, found: 42")


def test_unequal_numbers_of_pieces(raw: Raw, identity: penstock.Pipeline) -> None:
    inputs = [given("a", np.ones((3, 2), np.float32)), given("b", np.ones((4, 2), np.float32))]
    sentence = "Found different number of chunks produced for inputs: 3 and 4"
    refuse_inputs(raw, identity, inputs, sentence, "TENSOR_SIGNATURE")


def test_a_scalar(raw: Raw, identity: penstock.Pipeline) -> None:
    inputs = [given("a", np.float32(1))]
    refuse_inputs(raw, identity, inputs, "chunk expects at least a 1-dimensional tensor", "TENSOR_SIGNATURE")


@pytest.mark.parametrize("chunks", [0, -1])
def test_chunks_of_a_call(raw: Raw, pipeline: penstock.Pipeline, chunks: int) -> None:
    request = infer(pipeline.name, micro_batches=chunks)
    error = refused(lambda: raw.call("Infer", request), INVALID, "FIELD_INVALID", "micro_batches", str(chunks))
    assert "number of micro-batches must be a positive integer" in error.message
