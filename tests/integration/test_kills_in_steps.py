"""The daemon dies in a named part of a call: in a stage's forward or backward of a micro-batch, or when the weights of a
stage have changed. What was acknowledged, and the call itself when its client asks again, is done once, bit for bit."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import penstock
import pytest
from penstock import Layer

from conftest import QUICK_DRAIN, StartDaemon
from layer_lists import create, linear
from small_models import WIDTH, differing, mlp_batch, state_of

LIBRARY = os.environ["PENSTOCK_TEST_LAYERS"]
SECONDS_OF_RETRIES = 120.0
Work = Callable[[penstock.Pipeline], object]


def layers() -> list[Layer]:
    """Of each of two stages the middle one ends the daemon where it is told to."""
    return [
        linear("in"),
        Layer("test_killer", "a", {"at": "first"}),
        Layer("batch_norm", "norm", {"features": WIDTH}),
        Layer("dropout", "drop", {"p": 0.1}),
        Layer("test_killer", "b", {"at": "second"}),
        linear("out"),
    ]


def create_killed(client: penstock.Client) -> penstock.Pipeline:
    return create(client, layers(), balance=[3, 3], micro_batches=2, optimizer="adam", schedule="1f1b")


def step(pipeline: penstock.Pipeline) -> object:
    outcome = pipeline.train_step(*mlp_batch(7))
    return outcome.loss, outcome.gradient_norm, outcome.step


def contribution(pipeline: penstock.Pipeline) -> object:
    return pipeline.forward_backward(*mlp_batch(7), total_rows=16).loss


PARTS: list[tuple[str, Work]] = [
    *[(f"{stage} {part} {micro_batch}", step)
      for stage in ("first", "second") for part in ("forward", "backward") for micro_batch in (0, 1)],
    *[(f"{stage} commit 0", step) for stage in ("first", "second")],
    *[(f"{stage} {part} 1", contribution) for stage in ("first", "second") for part in ("forward", "backward")],
]  # fmt: skip


def finish(pipeline: penstock.Pipeline, work: Work) -> None:
    if work is contribution:
        pipeline.forward_backward(*mlp_batch(8), total_rows=16)
        pipeline.optimizer_step()
    pipeline.train_step(*mlp_batch(9))


def test_what_runs_when_the_daemon_dies_is_done_once(
    start_daemon: StartDaemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "kill"
    monkeypatch.setenv("PENSTOCK_TEST_KILL", str(asked))
    daemon = start_daemon(*QUICK_DRAIN, f"--layer-library={LIBRARY}")
    with penstock.Client(daemon.address, retry_for=SECONDS_OF_RETRIES) as client, ThreadPoolExecutor(1) as thread:
        for number, (part, work) in enumerate(PARTS):
            pipeline, undisturbed = create_killed(client), create_killed(client)
            for each in (pipeline, undisturbed):
                each.train_step(*mlp_batch(0))
            asked.write_text(part)
            answer = thread.submit(work, pipeline)
            assert daemon.wait() == -signal.SIGKILL, part
            assert not asked.exists(), part
            if number % 5 == 0:  # what is made again dies at the same place
                asked.write_text(part)
                daemon.launch()
                assert daemon.wait() == -signal.SIGKILL, part
                assert not asked.exists(), part
            daemon.start()
            assert answer.result() == work(undisturbed), part
            for each in (pipeline, undisturbed):
                finish(each, work)
            assert not differing(state_of(pipeline), state_of(undisturbed)), part
            pipeline.delete(purge=True)
            undisturbed.delete(purge=True)
    daemon.stop()
