"""Restarts in the middle of an accumulation: automatic checkpoints hold its gradients, so the journal stays short."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import time
from typing import Any

import penstock
import penstock.session
import pytest
from penstock import Layer

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon
from layer_lists import linear
from small_models import WIDTH, create_gpt, create_mlp, differing, gpt_batch, mlp_batch, state_of

PENSTOCK = os.environ.get("PENSTOCK", "penstock")
NAME = "trained"
# A checkpoint follows a call as soon as calls of so much time are in the journal.
OFTEN = ("--journal-replay=1ms", *QUICK_DRAIN)


def create_layers(client: penstock.Client, name: str) -> penstock.Pipeline:
    """Dropout, batch norms whose statistics follow the mini-batch, one within another layer, and a tied weight."""
    norm = {"features": WIDTH}
    layers = [
        linear("first"),
        Layer("batch_norm", "norm", norm),
        Layer("dropout", "drop", {"p": 0.2}),
        Layer("sequential", "inner", layers=[linear("deep"), Layer("batch_norm", "norm", norm)]),
        linear("last"),
    ]
    return client.create_pipeline(
        name,
        model=layers,
        balance=[3, 2],
        ties=[("first.weight", "last.weight")],
        deferred_batch_norm=True,
        micro_batches=4,
        optimizer="adamw",
        optimizer_options={"learning_rate": 0.01},
        clip_norm=0.05,
        loss="mean_squared_error",
        seed=7,
    )


def create_text(client: penstock.Client, name: str) -> penstock.Pipeline:
    return create_gpt(client, name, dropout=0.1, clip_norm=0.05)


def run(daemon: Daemon, *words: str) -> Any:
    done = subprocess.run(
        [PENSTOCK, "--server", daemon.address, *words, "-o", "json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kept_calls(daemon: Daemon) -> int:
    """Calls that a start would make again."""
    calls = run(daemon, "journal", "show", NAME, "--limit", "1000")["calls"]
    return sum(not call.get("cut", False) for call in calls)


def facts(outcome: penstock.Outcome) -> tuple[object, ...]:
    return (outcome.loss, outcome.gradient_norm, outcome.step, outcome.applied)


@pytest.mark.parametrize(("create", "batch"), [(create_layers, mlp_batch), (create_text, gpt_batch)])
def test_what_follows_has_the_bits_of_an_undisturbed_run(start_daemon: StartDaemon, create: Any, batch: Any) -> None:
    daemon = start_daemon(*OFTEN)
    contributions = 3
    with penstock.Client(daemon.address) as client:
        undisturbed = create(client, "undisturbed")
        wanted = []
        for step in range(2):
            for part in range(contributions):
                wanted.append(facts(undisturbed.forward_backward(*batch(10 * step + part), total_rows=24)))
            wanted.append(facts(undisturbed.optimizer_step()))
        state = state_of(undisturbed)
        create(client, NAME)
    told = []
    for step in range(2):
        for part in range(contributions):
            with penstock.Client(daemon.address) as client:
                pipeline = client.pipeline(NAME)
                told.append(facts(pipeline.forward_backward(*batch(10 * step + part), total_rows=24)))
                run(daemon, "journal", "compact", NAME)
                assert kept_calls(daemon) == 0
            daemon.kill()
            daemon.start()
            assert f'made again pipeline="{NAME}"' not in daemon.log, "the checkpoint holds all of it"
        with penstock.Client(daemon.address) as client:
            told.append(facts(client.pipeline(NAME).optimizer_step()))
    assert told == wanted
    with penstock.Client(daemon.address) as client:
        assert not differing(state_of(client.pipeline(NAME)), state)
    daemon.stop()


def test_who_accumulates_for_ever_keeps_no_long_journal(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*OFTEN)
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME, dropout=0.1)
        most = 0
        for part in range(60):
            pipeline.forward_backward(*mlp_batch(part), total_rows=800)
            if part % 5 == 4:
                most = max(most, kept_calls(daemon))
        assert most < 20, most
        assert len(list(daemon.state_dir.glob("pipelines/*/checkpoints/auto-*"))) <= 3
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline(NAME)
        undisturbed = create_mlp(client, "undisturbed", dropout=0.1)
        for part in range(60):
            undisturbed.forward_backward(*mlp_batch(part), total_rows=800)
        for one in (pipeline, undisturbed):
            one.forward_backward(*mlp_batch(60), total_rows=800)
        assert pipeline.optimizer_step().gradient_norm == undisturbed.optimizer_step().gradient_norm
        assert not differing(state_of(pipeline), state_of(undisturbed))
    daemon.stop()


def upgrade(daemon: Daemon) -> None:
    done = subprocess.run(
        [PENSTOCK, "--server", daemon.address, "drain", "--for-upgrade"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert daemon.wait() == 0, daemon.log[-4000:]
    assert "the journal is empty" in daemon.log and "gradients are lost" not in daemon.log
    daemon.start()
    assert "made again" not in daemon.log


def test_an_upgrade_takes_the_accumulation_along(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        undisturbed = create_mlp(client, "undisturbed", dropout=0.1)
        pipeline = create_mlp(client, NAME, dropout=0.1)
        for part in range(2):
            for one in (undisturbed, pipeline):
                one.forward_backward(*mlp_batch(part), total_rows=24)
        undisturbed.forward_backward(*mlp_batch(2), total_rows=24)
        undisturbed.optimizer_step()
        wanted = state_of(undisturbed)
    upgrade(daemon)
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline(NAME)
        monkeypatch.setattr(penstock.session, "_session", "another-program")
        with penstock.Client(daemon.address) as other:
            with pytest.raises(penstock.PenstockError) as held:
                other.pipeline(NAME).forward_backward(*mlp_batch(2))
            assert held.value.reason == "ACCUMULATION_HELD" and held.value.values["holder"] == "local"
            assert held.value.values["session"] and not "another-".startswith(held.value.values["session"])
        monkeypatch.undo()
        pipeline.forward_backward(*mlp_batch(2), total_rows=24)
        assert pipeline.optimizer_step().step == 1
        assert not differing(state_of(pipeline), wanted)
    daemon.stop()


def test_a_lease_ends_it_after_an_upgrade_too(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        create_mlp(client, NAME).forward_backward(*mlp_batch(0), accumulation_lease=3)
    upgrade(daemon)
    with penstock.Client(daemon.address) as client:
        with penstock.Client(daemon.address, caller="patient") as patient:
            theirs = patient.pipeline(NAME)
            end = time.monotonic() + 60
            while True:
                try:
                    assert theirs.train_step(*mlp_batch(1)).step == 1
                    break
                except penstock.PenstockError as error:
                    assert error.reason == "ACCUMULATION_HELD" and time.monotonic() < end
                    time.sleep(0.05)
        with pytest.raises(penstock.PenstockError) as lost:
            client.pipeline(NAME).optimizer_step()
        assert lost.value.reason == "ACCUMULATION_LOST"
    upgrade(daemon)
    with penstock.Client(daemon.address) as client:
        with pytest.raises(penstock.PenstockError) as lost:
            client.pipeline(NAME).optimizer_step()
        assert lost.value.reason == "ACCUMULATION_LOST" and "lease" in lost.value.values["cause"]
    daemon.stop()


def test_nobody_sees_the_gradients_of_a_checkpoint_and_a_backup_has_them(
    start_daemon: StartDaemon, tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME, dropout=0.1)
        pipeline.train_step(*mlp_batch(0))
        pipeline.forward_backward(*mlp_batch(1), total_rows=16)
        saved = run(daemon, "journal", "compact", NAME)["checkpoint"].rsplit("/", 1)[1]
        manifest = json.loads((daemon.state_dir / f"pipelines/{NAME}/checkpoints/{saved}/manifest.json").read_text())
        assert manifest["format"] == 4 and any(name.startswith(".training/") for name in manifest["names"])
        wanted = state_of(pipeline)
        (checkpoint,) = [one for one in client.checkpoints(NAME, automatic=True) if one.name.endswith(saved)]
        shown = checkpoint.read_parameters(include_optimizer_state=True)
        assert not differing({name: array.tobytes() for name, array in shown.items()}, wanted)
        tuned = client.create_pipeline("tuned", from_checkpoint=checkpoint.name)
        assert not differing(state_of(tuned), wanted)
        with pytest.raises(penstock.PenstockError) as empty:
            tuned.optimizer_step()
        assert empty.value.reason == "ACCUMULATION_EMPTY"
        checkpoint.copy_to(tuned, "copied")
        copied = daemon.state_dir / "pipelines/tuned/checkpoints/copied"
        assert ".training/" not in (copied / "manifest.json").read_text()
        assert b".training/" not in (copied / "state.safetensors").read_bytes()
        run(daemon, "journal", "backup", str(tmp_path / "copy"))
        pipeline.forward_backward(*mlp_batch(2), total_rows=16)
        pipeline.optimizer_step()
        wanted = state_of(pipeline)
    (tmp_path / "other").mkdir()
    (tmp_path / "copy").rename(tmp_path / "other" / "state")
    other = Daemon(tmp_path / "other", *QUICK_DRAIN)
    with other.running(), penstock.Client(other.address) as client:
        pipeline = client.pipeline(NAME)
        pipeline.forward_backward(*mlp_batch(2), total_rows=16)
        pipeline.optimizer_step()
        assert not differing(state_of(pipeline), wanted)
    daemon.stop()
