"""Programs that change values in place, or compute without gradients, beside eager PyTorch."""

from __future__ import annotations

import pathlib

import numpy as np
import penstock
import torch
from torch import nn

from own_fixtures import daemon, reference_has_one_thread  # noqa: F401
from small_models import fresh_name

X = np.random.default_rng(0).standard_normal((6, 4), np.float32)
TARGET = np.random.default_rng(1).standard_normal((6, 3), np.float32)


class Scaled(nn.Module):
    """Its scale is used where there are no gradients, and learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            factor = self.scale * 2
        return self.second((self.first(x) * factor).relu())


class ChangedThroughAView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        half = hidden[:, :4]
        shifted = half.add_(1).mul_(2)
        return self.second(hidden) + shifted.sum(1, keepdim=True)


def stepped(model: nn.Module) -> dict[str, torch.Tensor]:
    """What PyTorch makes of it by a step of SGD with the rate 1."""
    loss = nn.functional.mse_loss(model(torch.from_numpy(X)), torch.from_numpy(TARGET))
    loss.backward()
    return {name: (p if p.grad is None else p - p.grad).detach() for name, p in model.named_parameters()}


def check(client: penstock.Client, model: nn.Module, path: pathlib.Path) -> int:
    """Compares a step for every cut in two, and returns how many cuts there are."""
    penstock.export(model, torch.from_numpy(X[:2]), path)
    client.models.upload(path)
    program = penstock.Program(path.name, cuts="nodes")
    expected = stepped(model)
    layers, first = 1, 0
    while first < layers:  # the first time without a cut, which tells the number of layers
        pipeline = client.create_pipeline(
            fresh_name("graph"),
            model=program,
            balance=[first, layers - first] if first else None,
            stages=None if first else 1,
            micro_batches=1,
            loss="mean_squared_error",
            optimizer="sgd",
            optimizer_options={"learning_rate": 1.0},
        )
        layers = sum(len(stage.layers) for stage in pipeline.plan.stages)
        pipeline.train_step(X, TARGET)
        for name, tensor in pipeline.state_dict().items():
            where = f"{name}, cut at {first} of {layers}"
            torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-6, msg=where)
        pipeline.delete()
        first += 1
    return layers - 1


def test_what_stands_under_no_grad_learns_nothing(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    assert check(client, Scaled(), tmp_path / "scaled.pt2") > 1


def test_what_a_view_changes_is_changed_for_all_that_see_it(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    assert check(client, ChangedThroughAView(), tmp_path / "view.pt2") > 1
