"""What operators do with journals: show, verify, compact, copy, and the history of training."""

from __future__ import annotations

import csv
import io
import json
import os
import pathlib
import subprocess
import threading
from typing import Any

import penstock

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon
from small_models import create_mlp, differing, mlp_batch, state_of

PENSTOCK = os.environ.get("PENSTOCK", "penstock")
NAME = "trained"


def run(*arguments: str, daemon: Daemon | None = None) -> subprocess.CompletedProcess[str]:
    server = ("--server", daemon.address) if daemon else ()
    return subprocess.run([PENSTOCK, *server, *arguments], capture_output=True, text=True, timeout=120)


def printed(*arguments: str, daemon: Daemon | None = None) -> Any:
    done = run(*arguments, "-o", "json", daemon=daemon)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def train(pipeline: penstock.Pipeline, first: int, last: int, rows: int = 8) -> list[Any]:
    return [pipeline.train_step(*mlp_batch(step, rows)) for step in range(first, last)]


def daemon_on(state_dir: pathlib.Path, folder: pathlib.Path) -> Daemon:
    """Another daemon, which takes over a state folder."""
    folder.mkdir()
    state_dir.rename(folder / "state")
    return Daemon(folder, *QUICK_DRAIN)


def test_show_lists_the_calls_and_never_their_tensors(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME)
        train(pipeline, 0, 3)
        pipeline.save_checkpoint("kept")
        try:
            pipeline.save_checkpoint("kept")
        except penstock.PenstockError as error:
            assert error.reason == "CHECKPOINT_EXISTS"
    calls = printed("journal", "show", NAME, daemon=daemon)["calls"]
    assert [call["method"] for call in calls] == ["SaveCheckpoint", "SaveCheckpoint", *["TrainStep"] * 3]
    failed, saved, newest = calls[:3]
    assert (failed["state"], failed["error_reason"]) == ("failed", "CHECKPOINT_EXISTS")
    assert saved["state"] == newest["state"] == "done"
    inputs, targets = mlp_batch(2)
    assert (newest["inputs"], newest["input_bytes"]) == (2, inputs.nbytes + targets.nbytes)
    assert newest["request_id"] and newest["accept_time"] <= newest["settle_time"] and newest["run_seconds"] > 0
    oldest = printed("journal", "show", NAME, "--oldest-first", "--limit", "2", daemon=daemon)["calls"]
    assert [call["sequence"] for call in oldest] == [call["sequence"] for call in calls[:2:-1]]
    unknown = run("journal", "show", "nobody", daemon=daemon)
    assert unknown.returncode == 1 and "nobody" in unknown.stderr
    # Without a daemon the files are read; beside one they are not.
    refused = run("journal", "show", NAME, "--state-dir", str(daemon.state_dir))
    assert refused.returncode == 1 and "a daemon uses the state folder" in refused.stderr
    daemon.kill()
    assert printed("journal", "show", NAME, "--state-dir", str(daemon.state_dir))["calls"] == calls
    nothing = run("journal", "show", NAME, "--state-dir", str(daemon.folder))
    assert nothing.returncode == 1 and "--state-dir" in nothing.stderr and str(daemon.folder) in nothing.stderr


def test_verify_names_the_damage(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME)
        train(pipeline, 0, 2, rows=8192)  # inputs of 512 KiB stand in files
        train(pipeline, 2, 4)
        (whole,) = printed("journal", "verify", daemon=daemon)["journals"]
        assert (whole["pipeline"], whole["calls"], whole["inputs"]) == (f"pipelines/{NAME}", 4, 8)
        assert whole["input_bytes"] == sum(2 * 64 * rows for rows in (8192, 8192, 8, 8))
        assert whole["damage"] == ""
        blob = next(daemon.state_dir.glob("journal/*/blobs/*"))
        content = bytearray(blob.read_bytes())
        content[1000] ^= 1
        blob.write_bytes(content)
        damaged = run("journal", "verify", NAME, daemon=daemon)
        assert damaged.returncode == 1
        assert blob.name in damaged.stdout and "JOURNAL_CORRUPT" in damaged.stderr and "call " in damaged.stderr
        train(pipeline, 4, 5)  # who looks at it changes nothing
    daemon.kill()
    assert blob.name in run("journal", "verify", "--state-dir", str(daemon.state_dir)).stdout


def test_compact_empties_the_journal_and_keeps_the_history(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME, dropout=0.1)
        nothing = printed("journal", "compact", NAME, daemon=daemon)
        assert nothing == {"calls": 0, "bytes": 0, "checkpoint": ""}
        outcomes = train(pipeline, 0, 4)
        inputs, target = mlp_batch(4)
        made = pipeline.forward(inputs)
        refused = run("journal", "compact", NAME, daemon=daemon)
        assert refused.returncode == 1 and "GRAPH_OPEN" in refused.stderr
        pipeline.backward(made.graph, {"output": target})
        gone = printed("journal", "compact", NAME, daemon=daemon)
        assert gone["calls"] == 6 and gone["bytes"] > 0
        outcomes.append(pipeline.optimizer_step())
        gone = printed("journal", "compact", NAME, daemon=daemon)
        assert gone["calls"] == 1
        assert gone["checkpoint"].startswith(f"pipelines/{NAME}/checkpoints/auto-")
        assert printed("journal", "compact", NAME, daemon=daemon)["calls"] == 0
        (verified,) = printed("journal", "verify", daemon=daemon)["journals"]
        assert (verified["calls"], verified["outcomes"]) == (0, 7)
        calls = printed("journal", "show", NAME, daemon=daemon)["calls"]
        assert [call["cut"] for call in calls] == [True] * 7
        outcomes += train(pipeline, 5, 6)
        wanted = state_of(pipeline)
        steps = printed("history", NAME, daemon=daemon)["steps"]
        assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
        assert [step.get("loss") for step in steps] == [outcome.loss for outcome in outcomes]
        assert [step["gradient_norm"] for step in steps] == [outcome.gradient_norm for outcome in outcomes]
        rows = list(csv.DictReader(io.StringIO(run("history", NAME, "--csv", daemon=daemon).stdout)))
        assert [float(row["gradient_norm"]) for row in rows] == [outcome.gradient_norm for outcome in outcomes]
        assert {row["applied"] for row in rows} == {"true"} and rows[4]["loss"] == ""
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert not differing(state_of(client.pipeline(NAME)), wanted)
    assert 'repeated="1"' in daemon.log
    daemon.stop()


def test_history_comes_in_pages(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        train(create_mlp(client, NAME, micro_batches=1), 0, 230)  # more than the command line's page
    assert len(printed("history", NAME, daemon=daemon)["steps"]) == 230
    calls = printed("journal", "show", NAME, "--limit", "215", daemon=daemon)["calls"]
    assert [call["sequence"] for call in calls] == list(range(230, 15, -1))
    daemon.stop()


def test_another_daemon_goes_on_from_a_copy_made_in_training(
    start_daemon: StartDaemon, tmp_path: pathlib.Path
) -> None:
    daemon = start_daemon("--journal-replay=0.05s", *QUICK_DRAIN)  # checkpoints and cuts all the time
    copies = [tmp_path / f"copy-{i}" for i in range(4)]
    states: dict[int, dict[str, bytes]] = {}
    over = threading.Event()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME, dropout=0.1)
        create_mlp(client, "idle")
        deleted = create_mlp(client, "deleted")
        train(deleted, 0, 1)
        deleted.save_checkpoint("left")
        deleted.delete()

        def train_on() -> None:
            step = 0
            while not over.is_set():
                train(pipeline, step, step + 1)
                step += 1
                states[step] = state_of(pipeline)

        trainer = threading.Thread(target=train_on)
        trainer.start()
        while len(states) < 5:
            over.wait(0.01)
        for i, copy in enumerate(copies):
            before = len(states)
            named = ("--named-checkpoints",) if i == 0 else ()
            made = printed("journal", "backup", str(copy), *named, daemon=daemon)
            assert {one["name"] for one in made["pipelines"]} == {f"pipelines/{NAME}", "pipelines/idle"}
            assert made["left_out"] == []
            while len(states) < before + 2:
                over.wait(0.01)
        over.set()
        trainer.join()
        last = pipeline.refresh().step
    for i, copy in enumerate(copies):
        with daemon_on(copy, tmp_path / f"other-{i}").running() as other, penstock.Client(other.address) as client:
            assert {one.name for one in client.list_pipelines()} == {f"pipelines/{NAME}", "pipelines/idle"}
            pipeline = client.pipeline(NAME)
            step = pipeline.refresh().step
            assert 5 <= step <= last
            assert not differing(state_of(pipeline), states[step])
            history = printed("history", NAME, daemon=other)["steps"]
            assert [one["step"] for one in history] == list(range(1, step + 1))
            left = printed("checkpoint", "list", "--all", daemon=other)["checkpoints"]
            assert any(one["name"] == "pipelines/deleted/checkpoints/left" for one in left) == (i == 0)
            # It trains on as the first daemon did.
            if step < last:
                train(pipeline, step, step + 1)
                assert not differing(state_of(pipeline), states[step + 1])
    daemon.stop()


def test_a_copy_has_what_its_calls_restore(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME, dropout=0.1)
        train(pipeline, 0, 2)
        pipeline.save_checkpoint("start")
        train(pipeline, 2, 4)
        pipeline.restore_checkpoint("start")
        pipeline.forward_backward(*mlp_batch(9), total_rows=16)
        printed("journal", "backup", str(tmp_path / "copy"), daemon=daemon)
        pipeline.forward_backward(*mlp_batch(10), total_rows=16)
        pipeline.optimizer_step()
        wanted = state_of(pipeline)
    with daemon_on(tmp_path / "copy", tmp_path / "other").running() as other, penstock.Client(other.address) as client:
        pipeline = client.pipeline(NAME)
        pipeline.forward_backward(*mlp_batch(10), total_rows=16)
        pipeline.optimizer_step()
        assert not differing(state_of(pipeline), wanted)
    daemon.stop()


def test_a_bad_folder_of_a_copy_is_named(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        create_mlp(client, NAME)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for folder, problem in [
        ("relative", "must be an absolute path"),
        (str(tmp_path / "link"), "must not exist"),
        (str(tmp_path / ("x" * 201)), "and 200 behind its last slash"),
        (str(tmp_path), "must not exist"),
        (str(tmp_path / "missing" / "copy"), "must stand in a folder that exists"),
    ]:
        refused = run("journal", "backup", folder, daemon=daemon)
        assert refused.returncode == 1 and problem in refused.stderr and "field=folder" in refused.stderr, refused.stderr
    assert not list(tmp_path.glob("*.unfinished"))
    daemon.stop()


def test_without_a_journal_each_command_says_so(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    daemon = start_daemon("--journal=off", *QUICK_DRAIN)
    with penstock.Client(daemon.address) as client:
        create_mlp(client, NAME)
    for words in [
        ("journal", "show", NAME),
        ("journal", "verify", NAME),
        ("journal", "compact", NAME),
        ("journal", "backup", str(tmp_path / "copy")),
        ("history", NAME),
    ]:
        refused = run(*words, daemon=daemon)
        assert refused.returncode != 0 and "--journal=off" in refused.stderr, words
    daemon.stop()
