"""A pipeline whose stages stand in several processes has the bits of the same pipeline in one, whatever carries them."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import penstock
import pytest

from layer_lists import create, linear
from rank_group import Group
from small_models import create_gpt, create_mlp, differing, gpt_batch, mlp_batch, state_of

# Devices by stage, and what is set for the schedule. One process has the devices cpu:0 and cpu:1.
PLACEMENTS: list[tuple[list[str], dict[str, Any]]] = [
    (["cpu:0", "1/cpu:0"], {"schedule": "1f1b"}),
    (["1/cpu:0", "cpu:0"], {"schedule": "gpipe", "checkpoint": "always"}),
    (["1/cpu:1", "2/cpu:0"], {"schedule": "zb-h1", "checkpoint": "never"}),
    (["2/cpu:0", "1/cpu:0", "cpu:1", "1/cpu:1"], {"schedule": "1f1b", "checkpoint": "except_last"}),
    (["cpu:0", "1/cpu:0", "cpu:0", "1/cpu:0"], {"schedule": "interleaved-1f1b", "chunks": 2}),
]


@pytest.fixture(scope="module", params=["grpc", "ucx"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("group"), 3, request.param, "--peer-timeout=60s").running() as running:
        yield running


@pytest.fixture
def client(group: Group) -> Iterator[penstock.Client]:
    with group.client() as connected:
        yield connected
        for pipeline in connected.list_pipelines():
            pipeline.delete(force=True, purge=True)


def alone(devices: list[str]) -> list[str]:
    """The same lanes on devices of one process."""
    return [f"cpu:{k % 2}" for k, _ in enumerate(dict.fromkeys(devices))]


def work(pipeline: penstock.Pipeline, batch: Any) -> list[Any]:
    """Steps in one and in two parts, and what is said of them."""
    said: list[Any] = []
    for step in range(2):
        outcome = pipeline.train_step(*batch(step))
        said.append((outcome.loss, outcome.gradient_norm, outcome.step, outcome.applied))
    for part in range(2):
        said.append(pipeline.forward_backward(*batch(10 + part, 4), total_rows=8).loss)
    outcome = pipeline.optimizer_step()
    said.append((outcome.gradient_norm, outcome.step))
    inputs, _ = batch(20)
    said.append({name: array.tobytes() for name, array in pipeline.infer(inputs).items()})
    return said


@pytest.mark.parametrize("placement", PLACEMENTS, ids=[" ".join(devices) for devices, _ in PLACEMENTS])
def test_same_bits_as_in_one_process(client: penstock.Client, placement: tuple[list[str], dict[str, Any]]) -> None:
    devices, schedule = placement
    lanes = list(dict.fromkeys(devices)) if "chunks" in schedule else devices
    stages = len(devices)
    arguments: dict[str, Any] = {"stages": stages, "options": {"blocks": 4, "width": 32, "heads": 2, "sequence": 16,
                                                               "vocab": 256, "dropout": 0.1}, **schedule}
    apart = create_gpt(client, "apart", devices=lanes, **arguments)
    placed = [stage.device for stage in apart.plan.stages]
    assert placed == devices
    together = create_gpt(client, "together", devices=alone(lanes), **arguments)
    assert work(apart, gpt_batch) == work(together, gpt_batch)
    assert differing(state_of(apart), state_of(together)) == []


def test_state_goes_from_one_placement_to_another(client: penstock.Client) -> None:
    first = create_mlp(client, "first", devices=["1/cpu:0", "cpu:0"], dropout=0.1)
    for step in range(3):
        first.train_step(*mlp_batch(step))
    saved = first.save_checkpoint("three")
    second = create_mlp(client, "second", devices=["cpu:0", "2/cpu:1"], dropout=0.1, from_checkpoint=saved.name)
    assert differing(state_of(first), state_of(second)) == []
    assert first.train_step(*mlp_batch(3)).loss == second.train_step(*mlp_batch(3)).loss
    first.restore_checkpoint("three")
    second.write_parameters(first.read_parameters(include_optimizer_state=True), step=3)
    assert first.train_step(*mlp_batch(4)).loss == second.train_step(*mlp_batch(4)).loss
    assert differing(state_of(first), state_of(second)) == []


@pytest.mark.parametrize("devices", [["1/cpu:0", "cpu:0"], ["cpu:0", "1/cpu:0"]], ids=" ".join)
def test_a_tie_of_two_uses_on_one_rank_and_one_on_another(client: penstock.Client, devices: list[str]) -> None:
    layers = [linear(name) for name in ("a", "b", "c", "d")]
    ties = [("a.weight", "b.weight", "d.weight")]
    apart = create(client, layers, ties=ties, balance=[2, 2], devices=devices)
    together = create(client, layers, ties=ties)
    for step in range(2):
        assert apart.train_step(*mlp_batch(step)).loss == together.train_step(*mlp_batch(step)).loss
    assert differing(state_of(apart), state_of(together)) == []


def test_halves_by_hand_over_ranks(client: penstock.Client) -> None:
    apart = create_mlp(client, "apart", devices=["1/cpu:0", "cpu:0"])
    together = create_mlp(client, "together", devices=["cpu:0", "cpu:1"])
    inputs, target = mlp_batch(5)
    gradients = []
    for pipeline in (apart, together):
        forward = pipeline.forward(inputs)
        output = forward.outputs.fetch()["output"]
        pipeline.backward(forward.graph, {"output": ((output - target) / output.size).astype(np.float32)})
        gradients.append({k: v.tobytes() for k, v in pipeline.gradients().items()})
        pipeline.optimizer_step()
    assert gradients[0] == gradients[1]
    assert differing(state_of(apart), state_of(together)) == []
