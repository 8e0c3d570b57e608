"""Weights and optimizer state as PyTorch's distributed checkpoints: its own loader gives the same bits."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Iterator
from typing import Any

import penstock
import pytest
import torch
from penstock import aio
from torch import nn
from torch.distributed import checkpoint as distributed
from torch.distributed.checkpoint import state_dict_saver

from daemon_process import Daemon
from own_fixtures import daemon, reference_has_one_thread  # noqa: F401
from small_models import fresh_name


class Tied(nn.Module):
    """One matrix in two places, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> Iterator[penstock.Client]:  # noqa: F811
    with penstock.Client(daemon.address) as one:
        yield one


@pytest.fixture(scope="module")
def pipeline(client: penstock.Client, tmp_path_factory: pytest.TempPathFactory) -> penstock.Pipeline:
    path = tmp_path_factory.mktemp("model") / f"{fresh_name('tied')}.pt2"
    penstock.export(Tied(), torch.randn(2, 6), path)
    made = client.create_pipeline(
        fresh_name("tied"), model=client.models.upload(path), stages=2, micro_batches=2, loss="mean_squared_error"
    )
    for _ in range(3):
        made.train_step(torch.randn(8, 6), torch.randn(8, 6))
    made.save_checkpoint("kept")
    return made


def loaded(folder: pathlib.Path, pipeline: penstock.Pipeline, with_optimizer: bool) -> dict[str, Any]:
    """What PyTorch finds there, in the places of a fresh module and of empty slots."""
    wanted: dict[str, Any] = {"model": Tied().state_dict(), "step": 0}
    if with_optimizer:
        slots = pipeline.optimizer_state()
        wanted["optimizer"] = {
            "state": {name: {slot: torch.full_like(value, 9) for slot, value in own.items()} for name, own in slots.items()}
        }
    distributed.load(wanted, checkpoint_id=folder, no_dist=True)
    return wanted


def agrees(found: dict[str, Any], pipeline: penstock.Pipeline, with_optimizer: bool) -> None:
    state = pipeline.state_dict()
    assert found["step"] == 3 and set(found["model"]) == set(state)
    assert all(torch.equal(value, state[name]) for name, value in found["model"].items())
    Tied().load_state_dict(found["model"])
    if with_optimizer:
        slots = pipeline.optimizer_state()
        assert slots
        for name, own in found["optimizer"]["state"].items():
            assert all(torch.equal(value, slots[name][slot]) for slot, value in own.items())


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_pytorch_loads_a_pipeline_and_its_checkpoint(
    client: penstock.Client, pipeline: penstock.Pipeline, with_optimizer: bool, tmp_path: pathlib.Path
) -> None:
    [kept] = client.checkpoints(pipeline.name)
    assert pipeline.save_distributed(tmp_path / "live", include_optimizer_state=with_optimizer) == 3
    assert kept.save_distributed(tmp_path / "kept", include_optimizer_state=with_optimizer) == 3
    for name in ("live", "kept"):
        agrees(loaded(tmp_path / name, pipeline, with_optimizer), pipeline, with_optimizer)
        assert ("optimizer" in str(distributed.FileSystemReader(tmp_path / name).read_metadata())) == with_optimizer


def test_asyncio_writes_the_same(daemon: Daemon, pipeline: penstock.Pipeline, tmp_path: pathlib.Path) -> None:  # noqa: F811
    async def save() -> None:
        async with aio.Client(daemon.address) as client:
            assert await (await client.pipeline(pipeline.name)).save_distributed(tmp_path / "live") == 3

    asyncio.run(save())
    agrees(loaded(tmp_path / "live", pipeline, False), pipeline, False)


def test_what_is_there_is_not_touched(pipeline: penstock.Pipeline, tmp_path: pathlib.Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(FileExistsError, match="taken"):
        pipeline.save_distributed(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_nothing_is_left_of_a_save_that_fails(
    pipeline: penstock.Pipeline, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(state: object, *, checkpoint_id: pathlib.Path, **_: object) -> None:
        checkpoint_id.mkdir()
        (checkpoint_id / "half").touch()
        raise OSError("no space left")

    monkeypatch.setattr(state_dict_saver, "save", full)
    with pytest.raises(OSError, match="no space"):
        pipeline.save_distributed(tmp_path / "folder")
    assert not list(tmp_path.iterdir())
