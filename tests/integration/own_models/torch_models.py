"""Real models against a real daemon: what the tests of this folder and tests/exported/compare_models.py share.

Eager PyTorch with one thread is the reference: the same micro-batches, in order, one optimizer step.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import penstock
import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "exported"))
from real_models import NAMES, RealModel, Tensors, mean_loss, real_models  # noqa: E402, F401

Batch = tuple[Tensors, torch.Tensor]

# Not the default epsilon of 1e-8: some gradients are zero but for rounding, such as that of a bias of attention's keys,
# and AdamW would make steps of the full learning rate out of these roundings.
ADAMW = {"learning_rate": 1e-3, "weight_decay": 0.01, "epsilon": 1e-5}


def one_thread() -> None:
    """Daemon's stages have one thread each; fast paths are other operators than those that train."""
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)


def made(model: RealModel, dropout: float = 0.0, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return model.build(dropout)


def batches(model: RealModel, count: int, rows: int, seed: int = 1) -> list[Batch]:
    torch.manual_seed(seed)
    return [(model.inputs(rows), model.targets(rows)) for _ in range(count)]


def arrays(inputs: Tensors) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in inputs.items()}


class Programs:
    """Exports each model once and brings it to a daemon; files lie in a folder that goes at the end."""

    def __init__(self, client: penstock.Client) -> None:
        self.client = client
        self.exported: dict[str, penstock.Exported] = {}
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def brought(self, model: RealModel, dropout: float = 0.0) -> str:
        """The id of the model in the daemon, with the weights that `made` gives it."""
        name = f"{model.name}-{dropout}.pt2"
        if name not in self.exported:
            path = pathlib.Path(self._folder.name) / name
            exported = penstock.export(
                made(model, dropout), model.inputs(2), path, outputs=model.outputs, fixed=model.fixed
            )
            self.client.models.upload(path)
            path.unlink()
            self.exported[name] = exported
        return name


def infer(pipeline: penstock.Pipeline, inputs: Tensors) -> torch.Tensor:
    """The first output, of one micro-batch."""
    return torch.from_numpy(next(iter(pipeline.infer(arrays(inputs), micro_batches=1).values())))


def train(pipeline: penstock.Pipeline, steps: Sequence[Batch]) -> list[float]:
    return [pipeline.train_step(arrays(inputs), target.numpy()).loss or 0.0 for inputs, target in steps]


def evaluate(model: RealModel, module: nn.Module, inputs: Tensors) -> torch.Tensor:
    module.eval()
    with torch.no_grad():
        return model.forward(module, inputs)


def eager_steps(
    model: RealModel, module: nn.Module, steps: Sequence[Batch], micro_batches: int, optimizer: torch.optim.Optimizer
) -> Iterator[float]:
    """The plain loop."""
    module.train()
    for inputs, target in steps:
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        rows = len(target)
        parts = list(zip(*(value.chunk(micro_batches) for value in inputs.values())))
        for part, labels in zip(parts, target.chunk(micro_batches)):
            loss = mean_loss(model.forward(module, dict(zip(inputs, part))), labels) * (len(labels) / rows)
            loss.backward()
            total += loss.item()
        optimizer.step()
        yield total


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {
        "lr": ADAMW["learning_rate"],
        "weight_decay": ADAMW["weight_decay"],
        "eps": ADAMW["epsilon"],
    }
    return torch.optim.AdamW(module.parameters(), fused=True, **settings)


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference, of the largest value."""
    scale = right.double().abs().max().item() if right.numel() else 0.0
    worst = (left.double() - right.double()).abs().max().item() if right.numel() else 0.0
    return worst / (scale or 1.0)


def furthest(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> tuple[str, float]:
    """Where two states differ most."""
    assert left.keys() == right.keys(), left.keys() ^ right.keys()
    worst = max(left, key=lambda name: relative(left[name], right[name]))
    return worst, relative(left[worst], right[worst])
