"""AsyncPipe's tests of what goes forth and back between ranks, by their names, over processes, beside plain PyTorch."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import penstock
import pytest
import torch
from penstock import Layer
from torch import nn

from own_fixtures import reference_has_one_thread  # noqa: F401
from rank_models import (  # noqa: F401
    Ranks, four, give_weights, gradients_of, layers_of, over, ranks_of, same_bits, two, used
)


def backward(pipeline: penstock.Pipeline, forward: Any, gradient: torch.Tensor) -> dict[str, np.ndarray]:
    """The gradients of the inputs, of one of the output."""
    (name,) = forward.outputs.fetch()
    outcome = pipeline.backward(forward.graph, {name: gradient}, input_gradients=True)
    assert outcome.input_gradients is not None
    return outcome.input_gradients.fetch()


def pieces(module: nn.Module, x: torch.Tensor, gradient: torch.Tensor, micro_batches: int) -> torch.Tensor:
    """Output and, in the parameters, gradients of a module that gets its rows in so many pieces."""
    outputs = []
    for rows, of_rows in zip(x.chunk(micro_batches), gradient.chunk(micro_batches)):
        outputs.append(module(rows))
        outputs[-1].backward(of_rows)
    return torch.cat(outputs).detach()


class ForkNonFloat(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x > 0.5


class JoinNonFloat(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        doubled, large = pair
        return torch.where(large, doubled * 2, doubled)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_checkpoint_non_float_input(two: Ranks, tmp_path: pathlib.Path, checkpoint: str, micro_batches: int) -> None:
    """A tensor of truth values goes to the next rank beside one of numbers, which alone has a gradient to come back."""
    module = nn.Sequential(ForkNonFloat(), JoinNonFloat())
    program = two.upload(module, torch.rand(2, 4), tmp_path)
    pipeline = two.create(program, over(2), starts=["1"], checkpoint=checkpoint, micro_batches=micro_batches)
    assert [stage.rank for stage in pipeline.plan.stages] == [0, 1]
    torch.manual_seed(0)
    x = torch.rand(6, 4, requires_grad=True)
    output = module(x)
    gradient = torch.rand(6, 4)
    output.backward(gradient)
    assert x.grad is not None and set((x.grad / gradient).round().flatten().tolist()) == {2.0, 4.0}
    forward = pipeline.forward(x.detach(), input_gradients=True)
    assert same_bits(forward.outputs.fetch(), {"output": output}) == []
    (of_input,) = backward(pipeline, forward, gradient).values()
    assert np.array_equal(of_input, x.grad.numpy())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_async_event_loop(four: Ranks, schedule: str) -> None:
    """Every rank takes each of ten micro-batches once in both directions; the sums are those of the plain loop."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU())
    pipeline = four.create(layers_of(module), over(4), schedule=schedule, micro_batches=10, checkpoint="never")
    assert [stage.rank for stage in pipeline.plan.stages] == [0, 1, 2, 3]
    give_weights(pipeline, module)
    x = torch.rand(100, 10)
    gradient = torch.full((100, 10), 1 / 1000)  # of the mean
    wanted = pieces(module, x, gradient, 10)
    forward = pipeline.forward(x)
    assert same_bits(forward.outputs.fetch(), {"output": wanted}) == []
    pipeline.backward(forward.graph, gradient)
    assert same_bits(pipeline.gradients(), gradients_of(module)) == []
    for rank in range(4):
        for phase in ("forward", "backward"):
            assert four.own(rank, pipeline, "penstock_phase_duration_seconds_count", phase=phase) == 10


def test_recomputation_does_not_wait_for_the_gradient(two: Ranks) -> None:
    """A first rank whose gradients take their time recomputes before they come, in every micro-batch: AsyncPipe, whose
    ranks act on what arrives, does it after."""
    slow = Layer("delay", "slow", {"features": 4, "forward_ms": 0.0, "input_ms": 20.0, "weight_ms": 0.0})
    layers = [Layer("linear", "quick", {"in": 4, "out": 4}), slow]
    pipeline = two.create(layers, over(2), micro_batches=3, checkpoint="always")
    rows = np.ones((6, 4), np.float32)
    pipeline.train_step(rows, rows)
    events = json.loads(pipeline.trace())
    found = {event["name"]: event for event in (events["traceEvents"] if isinstance(events, dict) else events)}
    for micro_batch in range(3):
        recomputed, came = found[f"0R{micro_batch}"], found[f"0RECV_B{micro_batch}"]
        assert recomputed["ts"] + recomputed["dur"] <= came["ts"]


class IdentityFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Identity(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return IdentityFunction.apply(x)


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_python_autograd_function(two: Ranks, tmp_path: pathlib.Path, checkpoint: str) -> None:
    """AsyncPipe runs functions of Python, of which those that return what they got need care. A program has operators
    only: of such a function it keeps those that its forward calls. Layers that return what they got are here too."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), Identity(), Identity(), nn.Linear(4, 2))
    x, gradient = torch.rand(42, 3), torch.rand(42, 2)
    pipeline = two.create(two.upload(module, x, tmp_path), over(2), starts=["3"], checkpoint=checkpoint)
    wanted = pieces(module, x, gradient, 1)
    forward = pipeline.forward(x)
    assert same_bits(forward.outputs.fetch(), {"output": wanted}) == []
    pipeline.backward(forward.graph, gradient)
    assert same_bits(pipeline.gradients(), gradients_of(module)) == []
    nothing = two.create([Layer("identity"), Layer("identity")], over(2), checkpoint=checkpoint)
    forward = nothing.forward(x, input_gradients=True)
    (y,) = forward.outputs.fetch().values()
    assert np.array_equal(y, x.numpy())
    (of_input,) = backward(nothing, forward, torch.from_numpy(y)).values()
    assert np.array_equal(of_input, x.numpy())


class OneTwoThree(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return a * 1, b * 2, b * 3


class Total(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a + b + c


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = OneTwoThree(), Total()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.second(*self.first(a, b))


@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_tuple_wait(two: Ranks, tmp_path: pathlib.Path, checkpoint: str) -> None:
    """The gradient of a tuple goes back once all of it is there: that of ``b``, of which two parts come, is whole in every
    one of 32 micro-batches. There a copy could overtake a slow one; here no value is read before what makes it has run."""
    torch.manual_seed(0)
    a, b = (torch.rand(64, 3, 8, 8, requires_grad=True) for _ in range(2))
    program = two.upload(TwoInputs(), {"a": a.detach()[:2], "b": b.detach()[:2]}, tmp_path)
    pipeline = two.create(program, over(2), starts=["second"], micro_batches=32, checkpoint=checkpoint)
    assert [stage.rank for stage in pipeline.plan.stages] == [0, 1]
    output = TwoInputs()(a, b)
    output.retain_grad()
    output.norm().backward()
    assert output.grad is not None and b.grad is not None
    assert torch.isclose(b.grad.norm(), torch.tensor(5.0))
    forward = pipeline.forward({"a": a.detach(), "b": b.detach()}, input_gradients=True)
    assert same_bits(forward.outputs.fetch(), {"output": output}) == []
    assert same_bits(backward(pipeline, forward, output.grad), {"a": a.grad, "b": b.grad}) == []


def test_parallel_randoms(two: Ranks) -> None:
    """A recomputation on either rank draws the numbers of its forward: where the output is zero, and there only, is the
    gradient. They are those of one process."""
    torch.manual_seed(0)
    x = torch.rand(10, 10) + 1
    dropouts = [Layer("dropout", f"d{k}", {"p": 0.001}) for k in range(100)]
    layers = [
        Layer("delay", "gives_its_input", {"features": 10, "forward_ms": 0.0, "input_ms": 0.0, "weight_ms": 0.0}),
        *(Layer("sequential", name, layers=dropouts) for name in ("first", "second")),
    ]
    seen = []
    for devices in (over(2), ["cpu:0", "cpu:1"]):
        pipeline = two.create(layers, devices, balance=[2, 1], micro_batches=10, checkpoint="always", seed=3)
        forward = pipeline.forward(x, input_gradients=True)
        (y,) = forward.outputs.fetch().values()
        (of_input,) = backward(pipeline, forward, torch.ones(10, 10)).values()
        assert (y == 0).any() and (y != 0).any()
        assert ((y == 0) == (of_input == 0)).all()
        recomputed = [two.own(rank, pipeline, "penstock_recomputed_activation_bytes_total") > 0 for rank in (0, 1)]
        assert recomputed == [True, devices == over(2)]
        seen.append((y.tobytes(), of_input.tobytes()))
    assert seen[0] == seen[1]


class OneMoreInPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * x


@pytest.mark.parametrize("checkpoint", ["always", "never"])
@pytest.mark.parametrize("second", [nn.ReLU(inplace=True), OneMoreInPlace()], ids=["relu", "one more"])
def test_inplace_on_requires_grad(two: Ranks, tmp_path: pathlib.Path, checkpoint: str, second: nn.Module) -> None:
    """What a rank does in place to what came from another one is an error in AsyncPipe, or wrong where it does not notice.
    Here the stage copies that first, and the results are right, also of what must not be done twice."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, 3), second)
    x, gradient = torch.rand(6, 1), torch.rand(6, 3)
    program = two.upload(module, x, tmp_path)
    pipeline = two.create(program, over(2), starts=["1"], checkpoint=checkpoint, micro_batches=2)
    assert [stage.rank for stage in pipeline.plan.stages] == [0, 1]
    forward = pipeline.forward(x)
    assert same_bits(forward.outputs.fetch(), {"output": pieces(module, x, gradient, 2)}) == []
    pipeline.backward(forward.graph, gradient)
    assert same_bits(pipeline.gradients(), gradients_of(module)) == []


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_simple_linears(two: Ranks, checkpoint: str) -> None:
    """The sum of each rank's gradients is that of the model without a pipeline; in four pieces as there, every gradient is."""
    torch.manual_seed(12345)
    module = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(2, 1))
    pipeline = two.create(layers_of(module), over(2), balance=[2, 2], micro_batches=4, checkpoint=checkpoint)
    give_weights(pipeline, module)
    x, gradient = torch.rand(8, 1), torch.full((8, 1), 1 / 8)  # of the mean

    forward = pipeline.forward(x)
    assert same_bits(forward.outputs.fetch(), {"output": pieces(module, x, gradient, 4)}) == []
    pipeline.backward(forward.graph, gradient)
    gradients = pipeline.gradients()
    assert same_bits(gradients, gradients_of(module)) == []

    module.zero_grad()
    module(x).mean().backward()
    for stage in pipeline.plan.stages:
        own = [name for name in gradients if name.split(".")[0] in stage.layers]
        assert len(own) == 4
        found = sum(float(gradients[name].sum()) for name in own)
        plain = sum(float(module.get_parameter(name).grad.sum()) for name in own)
        assert found == pytest.approx(plain, rel=1e-5) and plain != 0
