"""Models given layer by layer through the API: skips, devices, ties, batch norm, layers in layers, precision, whole tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import penstock
import pytest
from penstock import Layer

from layer_lists import WITH_SKIP, create, linear, pop_add, stash
from small_models import WIDTH, differing, fresh_name, mlp_batch, state_of, weights_of


def train(pipeline: penstock.Pipeline, steps: int = 3) -> list[float]:
    losses = []
    for step in range(steps):
        outcome = pipeline.train_step(*mlp_batch(step))
        assert outcome.applied and outcome.loss is not None
        losses.append(outcome.loss)
    return losses


def learns(pipeline: penstock.Pipeline, steps: int = 30) -> None:
    batch = mlp_batch(0)
    losses = [pipeline.train_step(*batch).loss for _ in range(steps)]
    assert losses[-1] is not None and losses[0] is not None and losses[-1] < 0.8 * losses[0], losses


# --- skips ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_skips_over_stages_change_nothing(client: penstock.Client, schedule: str, checkpoint: str) -> None:
    """The same state after three steps, bit for bit, in one stage and in three with the skip past the second."""
    whole = create(client, WITH_SKIP, schedule=schedule, checkpoint=checkpoint)
    parts = create(client, WITH_SKIP, schedule=schedule, checkpoint=checkpoint, balance=[3, 2, 3])
    assert not whole.plan.skips
    (skip,) = parts.plan.skips
    assert (skip.from_stage, skip.to_stage, list(skip.names)) == (0, 2, ["skip"])
    assert train(whole) == train(parts)
    assert not differing(state_of(whole), state_of(parts))
    probe = mlp_batch(9)[0]
    assert whole.infer(probe)["output"].tobytes() == parts.infer(probe)["output"].tobytes()


def test_one_name_twice_with_namespaces(client: penstock.Client) -> None:
    block = [stash("keep"), linear("inner"), pop_add("join")]

    def isolated(number: int) -> list[Layer]:
        isolation = (penstock.Isolate(f"ns{number}"),)
        return [dataclasses.replace(layer, name=f"{layer.name}{number}", isolate=isolation) for layer in block]

    layers = [*isolated(0), *isolated(1), linear("last")]
    whole = create(client, layers)
    parts = create(client, layers, balance=[1, 3, 3])
    routes = [(skip.from_stage, skip.to_stage, list(skip.names)) for skip in parts.plan.skips]
    assert routes == [(0, 1, ["ns0/skip"]), (1, 2, ["ns1/skip"])]
    assert train(whole) == train(parts)
    assert not differing(state_of(whole), state_of(parts))


# --- devices of layers ------------------------------------------------------------------------------------------------


def placed(*devices: str) -> list[Layer]:
    return [linear(f"l{number}", device=device) for number, device in enumerate(devices)]


@pytest.mark.parametrize(
    ("devices", "stages"),
    [
        (["cpu:0", "cpu:0", "cpu:1", "cpu:1"], [("cpu:0", 2), ("cpu:1", 2)]),
        (["cpu:1", "", "", "cpu:0"], [("cpu:1", 3), ("cpu:0", 1)]),
        (["", "cpu:1", "cpu:0", ""], [("cpu:1", 2), ("cpu:0", 2)]),
        (["cpu:0", "cpu:1", "cpu:0", "cpu:1"], [("cpu:0", 1), ("cpu:1", 1), ("cpu:0", 1), ("cpu:1", 1)]),
        (["cpu", "cpu", "cpu:1", "cpu"], [("cpu:0", 1), ("cpu:0", 1), ("cpu:1", 1), ("cpu:0", 1)]),
    ],
)
def test_devices_of_layers_cut_the_model(
    client: penstock.Client, devices: list[str], stages: list[tuple[str, int]]
) -> None:
    pipeline = create(client, placed(*devices))
    assert [(stage.device, len(stage.layers)) for stage in pipeline.plan.stages] == stages
    whole = create(client, placed("", "", "", ""))
    assert train(pipeline) == train(whole)
    assert not differing(state_of(pipeline), state_of(whole))


def test_a_checkpoint_goes_to_other_devices(client: penstock.Client) -> None:
    """Where layers stand is no part of what was saved."""
    name = fresh_name("moving")
    arguments: dict[str, Any] = {"micro_batches": 4, "loss": "mean_squared_error", "seed": 3}
    pipeline = client.create_pipeline(name, model=placed("cpu:0", "cpu:0", "cpu:1", "cpu:1"), **arguments)
    train(pipeline, 1)
    pipeline.save_checkpoint("one")
    train(pipeline)
    wanted = state_of(pipeline)
    pipeline.delete()
    pipeline = client.create_pipeline(name, model=placed("cpu:1", "cpu:0", "cpu:0", "cpu:0"), **arguments)
    pipeline.restore_checkpoint("one")
    train(pipeline)
    assert not differing(state_of(pipeline), wanted)


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", ["time", "size"])
@pytest.mark.parametrize("method", ["exact", "block_partition"])
def test_a_plan_tells_layers_costs_and_why(client: penstock.Client, cost: str, method: str) -> None:
    spec = penstock.pipeline_spec(
        model=WITH_SKIP, stages=2, cut_cost=cost, cut_method=method, loss="mean_squared_error", micro_batches=4
    )
    plan = client.plan_pipeline("planned", spec)
    assert [layer.name for layer in plan.layers] == [layer.name for layer in WITH_SKIP]
    assert [layer.name for stage in plan.stages for layer in plan.layers if layer.stage == stage.stage] == [
        name for stage in plan.stages for name in stage.layers
    ]
    assert all(layer.cost >= 0 and layer.forward_seconds > 0 for layer in plan.layers)
    assert plan.layers[0].parameter_bytes == 4 * (WIDTH * WIDTH + WIDTH) and plan.layers[1].parameter_bytes == 0
    assert all(layer.output_bytes > 0 for layer in plan.layers)
    assert plan.why and all(plan.why)
    if cost == "size":  # which does not depend on the machine's mood
        loads = [sum(layer.cost for layer in plan.layers if layer.stage == stage) for stage in (0, 1)]
        assert plan.layers[0].cost == plan.layers[0].stash_bytes + 2 * plan.layers[0].parameter_bytes
        if method == "exact":
            layers = [layer.cost for layer in plan.layers]
            best = min(max(sum(layers[:cut]), sum(layers[cut:])) for cut in range(1, len(layers)))
            assert max(loads) == best


def test_a_parameter_scale_of_nothing_weighs_stashes_alone(client: penstock.Client) -> None:
    spec = penstock.pipeline_spec(
        model=WITH_SKIP, stages=2, cut_cost="size", parameter_scale=0.0, loss="mean_squared_error"
    )
    assert all(layer.cost == layer.stash_bytes for layer in client.plan_pipeline("planned", spec).layers)


# --- ties -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [("", "", ""), ("cpu:0", "cpu:0", "cpu:1")], ids=["one stage", "two stages"])
def test_tied_weights_are_one_parameter(client: penstock.Client, devices: tuple[str, str, str]) -> None:
    layers = placed(*devices)
    tied = create(client, layers, ties=[("l0.weight", "l2.weight")])
    assert sorted(tied.read_parameters()) == ["l0.bias", "l0.weight", "l1.bias", "l1.weight", "l2.bias"]
    whole = create(client, placed("", "", ""), ties=[("l0.weight", "l2.weight")])
    assert train(tied) == train(whole)
    assert not differing(state_of(tied), state_of(whole))
    # The outputs are those of one weight used twice.
    rows = mlp_batch(5)[0]
    values = tied.read_parameters()
    wanted = rows
    for weight, bias in [("l0.weight", "l0.bias"), ("l1.weight", "l1.bias"), ("l0.weight", "l2.bias")]:
        wanted = wanted @ values[weight].T + values[bias]
    assert np.allclose(tied.infer(rows)["output"], wanted, rtol=1e-4, atol=1e-5)


# --- batch norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [{}, {"balance": [1, 1]}], ids=["one stage", "two stages"])
@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_statistics_of_the_mini_batch(client: penstock.Client, checkpoint: str, cut: dict[str, Any]) -> None:
    """One commit per step, over all micro-batches, with the unbiased variance. The first layer sees the inputs."""
    layers = [Layer("batch_norm", "norm", {"features": WIDTH}), linear("last")]
    pipeline = create(client, layers, deferred_batch_norm=True, checkpoint=checkpoint, **cut)
    mean, variance = np.zeros(WIDTH), np.ones(WIDTH)
    for step in range(2):
        inputs, target = mlp_batch(step, rows=10)  # micro-batches of 3, 3, 3 and 1
        pipeline.train_step(3 + inputs, target)
        mean = 0.9 * mean + 0.1 * (3 + inputs.astype(np.float64)).mean(0)
        variance = 0.9 * variance + 0.1 * inputs.astype(np.float64).var(0, ddof=1)
    state = pipeline.read_parameters()
    assert np.allclose(state["norm.running_mean"], mean, rtol=1e-4)
    assert np.allclose(state["norm.running_var"], variance, rtol=1e-4)
    assert state["norm.num_batches_tracked"] == 2


def test_off_by_default(client: penstock.Client) -> None:
    layers = [Layer("batch_norm", "norm", {"features": WIDTH}), linear("last")]
    pipeline = create(client, layers)
    train(pipeline, 1)
    assert pipeline.read_parameters()["norm.num_batches_tracked"] == 4


# --- layers in layers, precision --------------------------------------------------------------------------------------


def test_layers_in_layers(client: penstock.Client) -> None:
    inner = Layer("sequential", "inner", layers=[linear("deep"), Layer("gelu", "bend")])
    outer = Layer("sequential", "outer", layers=[linear("shallow"), inner, linear("out")])
    layers = [linear("first"), outer, linear("last")]
    pipeline = create(client, layers, balance=[1, 2])
    assert {"outer.shallow.weight", "outer.inner.deep.weight", "outer.out.bias"} <= set(pipeline.read_parameters())
    assert [list(stage.layers) for stage in pipeline.plan.stages] == [["first"], ["outer", "last"]]
    assert pipeline.refresh().spec.model.layers[1].layers[1].layers[0].name == "deep"
    learns(pipeline)


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
def test_parameters_of_another_type(client: penstock.Client, dtype: str) -> None:
    pipeline = create(client, [linear("first"), Layer("relu"), linear("last")], dtype=dtype, balance=[2, 1])
    parameters = pipeline.read_parameters()
    if dtype == "fp64":
        assert all(array.dtype == np.float64 for array in parameters.values())
    else:
        assert all(array.dtype.itemsize == 2 for array in parameters.values())
    (given,) = pipeline.signature.inputs
    assert given.type == {"fp64": 11, "bf16": 5}[dtype]


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_autocast_in_recomputation_too(client: penstock.Client, checkpoint: str) -> None:
    """With and without recomputation the same bits come out, and other ones than without autocast."""
    layers = [linear("first"), Layer("gelu"), linear("last")]
    cast = create(client, layers, autocast="bf16", checkpoint=checkpoint, balance=[2, 1])
    never = create(client, layers, autocast="bf16", checkpoint="never")
    plain = create(client, layers, checkpoint=checkpoint)
    assert train(cast) == train(never)
    assert not differing(state_of(cast), state_of(never))
    train(plain)
    assert differing(weights_of(cast), weights_of(plain))
    learns(cast)


# --- whole tensors and plain values -----------------------------------------------------------------------------------


def test_a_whole_tensor_comes_back_once_per_micro_batch(client: penstock.Client) -> None:
    pipeline = client.create_pipeline(fresh_name("identity"), model="identity", micro_batches=5, stages=1)
    rows = np.arange(10, dtype=np.float32).reshape(10, 1)
    whole = np.ones((3, 1), np.float32)
    answer = pipeline.infer({"a": rows, "b": penstock.Whole(whole)})
    assert sorted(answer) == ["output0", "output1"]
    assert np.array_equal(answer["output0"], rows)
    assert np.array_equal(answer["output1"], np.ones((15, 1), np.float32))


def test_inputs_of_other_rows_in_as_many_pieces(client: penstock.Client) -> None:
    """Three and six rows make three micro-batches each when five are asked for."""
    pipeline = client.create_pipeline(fresh_name("identity"), model="identity", micro_batches=5, stages=1)
    three, six = np.arange(3, dtype=np.float32), np.arange(6, dtype=np.float32)
    answer = pipeline.infer({"a": three, "b": six})
    assert np.array_equal(answer["output0"], three) and np.array_equal(answer["output1"], six)


# --- gradients of inputs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [{}, {"balance": [1, 1]}], ids=["one stage", "two stages"])
def test_backward_answers_the_gradients_of_inputs(client: penstock.Client, cut: dict[str, Any]) -> None:
    pipeline = create(client, [linear("first"), linear("last")], **cut)
    inputs, gradient = mlp_batch(1)
    forward = pipeline.forward(inputs, input_gradients=True)
    outcome = pipeline.backward(forward.graph, gradient, input_gradients=True)
    weights = pipeline.read_parameters()
    assert outcome.input_gradients is not None
    (answer,) = outcome.input_gradients.fetch().values()
    assert np.allclose(answer, gradient @ weights["last.weight"] @ weights["first.weight"], rtol=1e-4, atol=1e-5)
    pipeline.optimizer_step(discard=True)
    without = pipeline.forward(inputs)
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.backward(without.graph, gradient, input_gradients=True)
    assert raised.value.values["field"] == "input_gradients"
    pipeline.backward(without.graph, gradient)
