"""An exported program lies in the leader's model root alone: the others get it from there, whatever theirs has."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import penstock
import pytest

from daemon_process import eventually
from model_files import golden
from rank_group import Group
from small_models import differing, state_of

NAME = "conv_net_both.pt2"


@pytest.fixture(scope="module", params=["grpc", "ucx"])
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("programs")
    group = Group(folder, 3, request.param, "--peer-timeout=60s")
    (folder / "leader").mkdir()
    (folder / "leader" / NAME).write_bytes(golden(NAME))
    group.ranks[0].add_flags(f"--model-root={folder / 'leader'}")
    (folder / "other").mkdir()
    (folder / "other" / NAME).write_bytes(golden("scaled.pt2"))  # another file of that name
    group.ranks[2].add_flags(f"--model-root={folder / 'other'}")
    with group.running():
        yield group


def test_programs_come_from_the_leader(group: Group) -> None:
    with group.client() as client:
        states = []
        for devices in (["cpu:0", "cpu:1", "cpu:0"], ["1/cpu:0", "2/cpu:0", "cpu:0"]):
            pipeline = client.create_pipeline(
                f"program{len(states)}",
                model=penstock.Program(NAME),
                stages=3,
                devices=devices,
                schedule="1f1b",
                micro_batches=2,
                seed=5,
                loss="cross_entropy",
            )
            for step in range(3):
                random = np.random.default_rng(step)
                pipeline.train_step(random.standard_normal((6, 3, 8, 8), np.float32), random.integers(0, 5, 6))
            states.append(state_of(pipeline))
        assert differing(*states) == []
    assert "ranks get a program from the leader" in group.leader.log


def test_what_comes_back_gets_it_again(group: Group) -> None:
    with group.client() as client:
        before = state_of(client.pipeline("program1"))
        group.ranks[1].kill()
        group.ranks[1].start()
        eventually(lambda: client.pipeline("program1").state == "READY")
        assert differing(before, state_of(client.pipeline("program1"))) == []
