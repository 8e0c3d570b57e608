"""An optimizer of the user's own makes the steps: gradients are read, weights written. It trains as plain PyTorch does."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import penstock
import pytest
import torch
from torch import nn

from daemon_process import Daemon
from own_fixtures import daemon, programs, reference_has_one_thread  # noqa: F401
from small_models import fresh_name

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEPS = 10


class Tied(nn.Module):
    """One matrix in two places, and a parameter that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.middle = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.middle(hidden)) + self.unused.sum().detach() * 0)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "RAdam": lambda parameters: torch.optim.RAdam(parameters, lr=0.05, weight_decay=0.1),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=3),
}


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(3)
    return [(torch.randn(8, 6, generator=draw), torch.randn(8, 6, generator=draw)) for _ in range(STEPS)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_plain_pytorch(name: str, client: penstock.Client, tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model, plain = Tied(), Tied()
    plain.load_state_dict(model.state_dict())
    path = tmp_path / f"{fresh_name('tied')}.pt2"
    penstock.export(model, torch.randn(2, 6), path)
    pipeline = client.create_pipeline(
        fresh_name("tied"), model=client.models.upload(path), stages=2, micro_batches=2, loss="mean_squared_error"
    )
    optimizer, reference = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](plain.parameters())
    for step, (inputs, target) in enumerate(batches()):

        def remote(inputs: torch.Tensor = inputs, target: torch.Tensor = target, step: int = step) -> float:
            pipeline.load_from(model, step=step, force=True)
            outcome = pipeline.forward_backward(inputs, target)
            gradients = pipeline.gradients()
            assert "unused" not in gradients and {"first.weight", "last.weight"} <= set(gradients)
            for name, parameter in model.named_parameters():
                parameter.grad = torch.from_numpy(gradients[name]) if name in gradients else None
            assert outcome.loss is not None
            return outcome.loss

        def local(inputs: torch.Tensor = inputs, target: torch.Tensor = target) -> torch.Tensor:
            reference.zero_grad()
            loss = nn.functional.mse_loss(plain(inputs), target)
            loss.backward()
            return loss

        optimizer.step(remote)
        reference.step(local)
        for (key, ours), theirs in zip(model.state_dict().items(), plain.state_dict().values()):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0, msg=f"{key} in step {step}")
    pipeline.load_from(model, step=STEPS, force=True)
    held_out = batches()[0]
    with torch.no_grad():
        expected = nn.functional.mse_loss(plain(held_out[0]), held_out[1])
    found = pipeline.evaluate(*held_out)
    assert found.step == STEPS and found.loss == pytest.approx(float(expected), abs=1e-6)


def test_the_lines_of_the_page_train(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own_optimizer.md").read_text(), re.DOTALL)
    program = "import torch\ntorch.manual_seed(0)\n" + program.replace("127.0.0.1:8470", daemon.address)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    losses = [float(line) for line in result.stdout.split()]
    assert len(losses) == 21 and losses[-1] < 0.8 * losses[0]
