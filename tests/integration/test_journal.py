"""The journal: what was acknowledged is there after kill -9, once, bit for bit, and a retry gets the same answer."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import penstock
import pytest

from conftest import StartDaemon
from small_models import create_mlp, differing, mlp_batch, request_id, state_of

NAME = "trained"


def test_training_goes_on_after_a_kill_without_a_checkpoint_of_the_caller(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME, dropout=0.1)
        before = [pipeline.train_step(*mlp_batch(step)) for step in range(4)]
        pipeline.forward_backward(*mlp_batch(4), total_rows=16)
        wanted = state_of(pipeline)
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline(NAME)
        assert not differing(state_of(pipeline), wanted)
        pipeline.forward_backward(*mlp_batch(5), total_rows=16)
        assert pipeline.optimizer_step().step == 5
        after = state_of(pipeline)
        other = create_mlp(client, "undisturbed", dropout=0.1)
        for step in range(4):
            assert other.train_step(*mlp_batch(step)).loss == before[step].loss
        other.forward_backward(*mlp_batch(4), total_rows=16)
        other.forward_backward(*mlp_batch(5), total_rows=16)
        other.optimizer_step()
        assert not differing(state_of(other), after)
    daemon.stop()


def test_names_that_differ_in_an_underscore_alone_stay_apart(start_daemon: StartDaemon) -> None:
    """In state, handles, checkpoints and metrics, before a restart and after it."""
    daemon = start_daemon()
    names = ["a-b_c", "a_b-c", "a_b_c"]
    with penstock.Client(daemon.address) as client:
        for steps, name in enumerate(names, 1):
            pipeline = create_mlp(client, name)
            for step in range(steps):
                pipeline.train_step(*mlp_batch(step))
            assert pipeline.save_checkpoint("end_1").name == f"pipelines/{name}/checkpoints/end_1"
            assert pipeline.submit_infer(mlp_batch(0)[0]).wait(30).name.startswith(f"pipelines/{name}/handles/")
        wanted = {name: state_of(client.pipeline(name)) for name in names}
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert [pipeline.name for pipeline in client.list_pipelines()] == [f"pipelines/{name}" for name in sorted(names)]
        metrics = daemon.metrics()
        for steps, name in enumerate(names, 1):
            pipeline = client.pipeline(name)
            assert not differing(state_of(pipeline), wanted[name])
            assert [(saved.step, saved.name) for saved in pipeline.list_checkpoints()] == [
                (steps, f"pipelines/{name}/checkpoints/end_1")
            ]
            assert metrics.sum("penstock_step_number", pipeline=name) == steps
    daemon.stop()


def test_a_retry_after_a_restart_gets_the_first_answer_and_another_payload_is_refused(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    again = request_id()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME)
        first = pipeline.train_step(*mlp_batch(0), request_id=again)
        pipeline.train_step(*mlp_batch(1))
        wanted = state_of(pipeline)
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline(NAME)
        second = pipeline.train_step(*mlp_batch(0), request_id=again)
        assert (second.loss, second.step, second.sequence) == (first.loss, first.step, first.sequence)
        with pytest.raises(penstock.PenstockError) as raised:
            pipeline.train_step(*mlp_batch(2), request_id=again)
        assert raised.value.reason == "REQUEST_ID_REUSED"
        assert not differing(state_of(pipeline), wanted)
    daemon.stop()


def test_a_kill_while_a_checkpoint_is_written_beside_a_step(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    wide: dict[str, Any] = {"options": {"layers": 4, "width": 1024}}  # 48 MiB with the optimizer's state

    def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.random.default_rng(number).standard_normal((2, 8, 1024), np.float32)
        return rows[0], rows[1]

    with penstock.Client(daemon.address, retry_for=60) as client:  # a save that is cut off is asked for again
        pipeline, other = create_mlp(client, NAME, **wide), create_mlp(client, "undisturbed", **wide)
        caught = False
        for number in range(0, 60, 2):
            name, again = f"save-{number}", request_id()
            unfinished = daemon.state_dir / "pipelines" / NAME / "checkpoints" / f".unfinished-{name}"
            step = pipeline.train_step(*batch(number)).step
            answers: list[Any] = []
            saving = threading.Thread(target=lambda: answers.append(pipeline.save_checkpoint(name)))
            saving.start()
            while saving.is_alive() and not unfinished.exists():
                pass
            behind = pipeline.train_step(*batch(number + 1), request_id=again)
            if unfinished.exists():
                daemon.kill()
                caught = unfinished.exists()
                daemon.start()
            saving.join()
            assert answers[0].step == step
            other.train_step(*batch(number))
            if caught:
                break
            other.train_step(*batch(number + 1))
        assert caught, "never in the middle of a write with a step behind it"
        second = pipeline.train_step(*batch(number + 1), request_id=again)
        assert (second.loss, second.step, second.sequence) == (behind.loss, behind.step, behind.sequence)
        state = state_of(pipeline)
        pipeline.restore_checkpoint(name)
        assert not differing(state_of(pipeline), state_of(other)), "it holds what was there at its place"
        other.train_step(*batch(number + 1))
        assert not differing(state, state_of(other))
    daemon.stop()


def test_a_copied_checkpoint_outlives_the_pipeline_that_it_came_from(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        source = create_mlp(client, "source")
        source.save_checkpoint("saved")
        pipeline = create_mlp(client, NAME)
        pipeline.train_step(*mlp_batch(0))  # what comes later is made again after the kill
        client.checkpoints("source")[0].copy_to(pipeline, "copied")
        source.delete(purge=True)
        pipeline.train_step(*mlp_batch(1))
        wanted = state_of(pipeline)
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline(NAME)
        assert not differing(state_of(pipeline), wanted)
        pipeline.restore_checkpoint("copied")
    daemon.stop()


def test_a_damaged_journal_fails_its_pipeline_and_no_other(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        damaged = create_mlp(client, NAME)
        for step in range(30):
            damaged.train_step(*mlp_batch(step))
        damaged.save_checkpoint("mine")
        (file,) = daemon.state_dir.glob("journal/*/journal.db-wal")
        other = create_mlp(client, "other")
        other.train_step(*mlp_batch(0))
        wanted = state_of(other)
    daemon.kill()
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert {one.name: one.state for one in client.list_pipelines()} == {
            f"pipelines/{NAME}": "FAILED",
            "pipelines/other": "READY",
        }
        assert not differing(state_of(client.pipeline("other")), wanted)
        with pytest.raises(penstock.PenstockError) as raised:
            client.pipeline(NAME).train_step(*mlp_batch(0))
        assert raised.value.reason == "JOURNAL_CORRUPT"
        client.delete_pipeline(NAME)
        mended = client.create_pipeline(NAME, from_checkpoint=f"pipelines/{NAME}/checkpoints/mine")
        assert mended.train_step(*mlp_batch(30)).step == 31
    daemon.stop()


def test_with_the_journal_off_a_restart_forgets(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--journal=off")
    with penstock.Client(daemon.address) as client:
        create_mlp(client, NAME).train_step(*mlp_batch(0))
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert client.list_pipelines() == []
    assert not (daemon.state_dir / "journal").exists()
    daemon.stop()
