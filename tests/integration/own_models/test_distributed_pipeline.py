"""Tests of fairscale's DistributedPipeline, by their names: modules on several workers, with several inputs and outputs,
beside plain PyTorch."""

from __future__ import annotations

import pathlib

import numpy as np
import penstock
import pytest
import torch
from torch import nn

from own_fixtures import reference_has_one_thread  # noqa: F401
from rank_models import (  # noqa: F401
    Ranks, give_weights, gradients_of, layers_of, over, ranks_of, same_bits, three, two, used
)

MODES = ["always", "except_last", "never"]
MICRO_BATCHES = 4


def made(two: Ranks, checkpoint: str = "except_last", rate: float = 0.05) -> tuple[penstock.Pipeline, nn.Sequential]:
    """A linear layer on rank 0 and a ReLU on rank 1, and the same in PyTorch."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    pipeline = two.create(
        layers_of(module),
        over(2),
        micro_batches=MICRO_BATCHES,
        checkpoint=checkpoint,
        optimizer_options={"learning_rate": rate},
    )
    give_weights(pipeline, module)
    return pipeline, module


def plain_loss(module: nn.Module, x: torch.Tensor) -> float:
    """Mean squared error against the rows themselves, micro-batch by micro-batch; gradients add up."""
    total = 0.0
    for rows in x.chunk(MICRO_BATCHES):
        loss = nn.functional.mse_loss(module(rows), rows) * (len(rows) / len(x))
        loss.backward()
        total += loss.item()
    return total


def test_create_multiple_workers(two: Ranks) -> None:
    pipeline, module = made(two)
    assert [(stage.rank, list(stage.layers)) for stage in pipeline.plan.stages] == [(0, ["0"]), (1, ["1"])]
    assert len(pipeline.read_names()) == 2
    assert [two.weights(rank, pipeline) for rank in (0, 1)] == [4 * (16 + 4), 0]
    assert same_bits(pipeline.read_parameters(), module.state_dict()) == []


@pytest.mark.parametrize("checkpoint", MODES)
def test_forward_multi(two: Ranks, checkpoint: str) -> None:
    pipeline, module = made(two, checkpoint)
    x = torch.randn(8, 4, requires_grad=True)
    wanted = torch.cat([module(rows) for rows in x.chunk(MICRO_BATCHES)])
    gradient = torch.randn(8, 4)
    wanted.backward(gradient)
    forward = pipeline.forward(x.detach(), input_gradients=True)
    output = forward.outputs.fetch()["output"]
    assert output.shape == (8, 4) and np.array_equal(output, wanted.detach().numpy())
    outcome = pipeline.backward(forward.graph, gradient, input_gradients=True)
    assert outcome.input_gradients is not None and x.grad is not None
    (of_input,) = outcome.input_gradients.fetch().values()
    assert np.array_equal(of_input, x.grad.numpy())
    assert same_bits(pipeline.infer(x.detach()), {"output": wanted}) == []


@pytest.mark.parametrize("checkpoint", MODES)
def test_backward(two: Ranks, checkpoint: str) -> None:
    """One gradient for each parameter, from a loss that the last rank computes."""
    pipeline, module = made(two, checkpoint)
    x = torch.randn(8, 4)
    loss = plain_loss(module, x)
    assert pipeline.forward_backward(x, x).loss == pytest.approx(loss, rel=1e-6)
    gradients = pipeline.gradients()
    assert len(gradients) == 2
    for name, value in gradients.items():
        torch.testing.assert_close(torch.from_numpy(value), module.get_parameter(name).grad, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("checkpoint", MODES)
def test_update(two: Ranks, checkpoint: str) -> None:
    """The loss falls, as it does in PyTorch."""
    pipeline, module = made(two, checkpoint)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    x = torch.randn(8, 4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        wanted = plain_loss(module, x)
        optimizer.step()
        losses.append(pipeline.train_step(x, x).loss)
        assert losses[-1] == pytest.approx(wanted, rel=1e-6)
    assert losses[0] > losses[1] > losses[2]


class Branches(nn.Module):
    """One layer, whose halves go two ways that end together; the sum of the halves is a second output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        one, other = torch.split(self.first(x) * scale, 2, dim=-1)
        return {"joined": torch.cat([self.left(one), self.right(other)], -1), "sum": one + other}


@pytest.mark.parametrize("checkpoint", MODES)
def test_multi_input_multi_output_layers(three: Ranks, tmp_path: pathlib.Path, checkpoint: str) -> None:
    """Two inputs, of which the first rank gives two values to two further ranks, and two outputs of different ranks."""
    torch.manual_seed(3)
    module = Branches()
    inputs = {"x": torch.randn(8, 4), "scale": torch.rand(8, 4) + 0.5}
    pipeline = three.create(
        three.upload(module, {name: value[:2] for name, value in inputs.items()}, tmp_path),
        over(3),
        starts=["left", "right"],
        micro_batches=MICRO_BATCHES,
        checkpoint=checkpoint,
        optimizer_options={"learning_rate": 0.05},
    )
    assert [stage.rank for stage in pipeline.plan.stages] == [0, 1, 2]
    gradient = {"joined": torch.randn(8, 4), "sum": torch.randn(8, 2)}
    asking = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    outputs: dict[str, list[torch.Tensor]] = {"joined": [], "sum": []}
    for number in range(MICRO_BATCHES):
        answer = module(**{name: value.chunk(MICRO_BATCHES)[number] for name, value in asking.items()})
        parts = [value.chunk(MICRO_BATCHES)[number] for value in gradient.values()]
        torch.autograd.backward(list(answer.values()), parts)
        for name, value in answer.items():
            outputs[name].append(value)
    forward = pipeline.forward(inputs, input_gradients=True)
    assert same_bits(forward.outputs.fetch(), {name: torch.cat(value) for name, value in outputs.items()}) == []
    outcome = pipeline.backward(forward.graph, gradient, input_gradients=True)
    assert outcome.input_gradients is not None
    found = {**outcome.input_gradients.fetch(), **pipeline.gradients()}
    wanted = {**gradients_of(module), **{name: value.grad for name, value in asking.items()}}
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        torch.testing.assert_close(torch.from_numpy(value), wanted[name], atol=1e-6, rtol=1e-5)
    pipeline.optimizer_step(discard=True)
    losses = [pipeline.train_step(inputs, inputs["x"]).loss for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
