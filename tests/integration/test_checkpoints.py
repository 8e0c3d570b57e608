"""Checkpoints as a product: pipelines from one alone, those of deleted pipelines, copies, replacement, rotation, resuming."""

from __future__ import annotations

import base64
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from typing import Any

import penstock
import pytest
from penstock import safetensors
from penstock.checksum import crc32c
from penstock.v1 import state_pb2

from conftest import WITHOUT_JOURNAL, StartDaemon
from daemon_process import Daemon
from small_models import bits, create_gpt, create_mlp, differing, fresh_name, mlp_batch, state_of, weights_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}


def reason_of(call: Any) -> str:
    with pytest.raises(penstock.PenstockError) as raised:
        call()
    return raised.value.reason


def ids(pipeline: penstock.Pipeline) -> list[str]:
    return [checkpoint.name.rsplit("/", 1)[1] for checkpoint in pipeline.list_checkpoints()]


def train(pipeline: penstock.Pipeline, first: int, last: int) -> None:
    for step in range(first, last):
        assert pipeline.train_step(*mlp_batch(step)).step == step + 1


def test_the_example_of_the_page_runs(daemon: Daemon) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "checkpoints.md").read_text(), re.DOTALL)
    program = program.replace("127.0.0.1:8470", daemon.address)
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", program], env=CLIENT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert "pipelines/first/checkpoints/best 20 COMPLETE mlp" in done.stdout.splitlines()


# --- pipelines from checkpoints ---


def test_the_checkpoint_of_a_deleted_pipeline_trains_on_after_a_restart(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "first", dropout=0.1)
        train(pipeline, 0, 3)
        pipeline.save_checkpoint("three")
        train(pipeline, 3, 6)
        undisturbed = state_of(pipeline)
        pipeline.delete()
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        (left,) = client.checkpoints()
        assert (left.name, left.step, left.state) == ("pipelines/first/checkpoints/three", 3, "COMPLETE")
        assert left.message.model == "mlp" and left.message.has_specification and not left.message.pipeline_exists
        for changes in (
            {},
            {"balance": [1, 3], "devices": ["cpu:0", "cpu:1"]},
            {"stages": 1, "schedule": "gpipe"},
            {"stages": 4, "schedule": "interleaved-1f1b", "chunks": 2, "checkpoint": "always"},
        ):
            pipeline = client.create_pipeline(fresh_name("again"), from_checkpoint=left.name, **changes)
            assert pipeline.message.step == 3 and pipeline.plan.micro_batches == 4
            train(pipeline, 3, 6)
            assert not differing(state_of(pipeline), undisturbed), changes
            pipeline.delete()
        # Under its old name, beside the checkpoint that it is made from.
        pipeline = client.create_pipeline("first", from_checkpoint=left.name)
        assert [len(stage.layers) for stage in pipeline.plan.stages] == [2, 2] and ids(pipeline) == ["three"]
    daemon.stop()


def test_another_optimizer_takes_what_fits(client: penstock.Client) -> None:
    source = create_mlp(client, optimizer="adamw")
    train(source, 0, 2)
    saved = source.save_checkpoint().name
    slower = client.create_pipeline(fresh_name("slower"), from_checkpoint=saved, optimizer_options={"learning_rate": 1e-5})
    assert not differing(state_of(slower), state_of(source))
    other = client.create_pipeline(
        fresh_name("other"), from_checkpoint=saved, optimizer="sgd", optimizer_options={"learning_rate": 0.1, "momentum": 0.9}
    )
    assert other.message.step == 2 and not differing(weights_of(other), weights_of(source))
    slots = {name.rsplit("/", 1)[1] for name in state_of(other) if name.startswith("optimizer/")}
    assert slots and not slots & {name.rsplit("/", 1)[1] for name in state_of(source) if name.startswith("optimizer/")}
    assert other.train_step(*mlp_batch(2)).step == 3
    for pipeline in (source, slower, other):
        pipeline.delete(purge=True)


def test_a_checkpoint_has_the_optimizers_settings_of_its_time(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    settings: Any = {
        "optimizer_options": {"learning_rate": 1e-3},
        "groups": [penstock.ParameterGroup(["*.bias"], frozen=True)],
        "learning_rate_schedule": "linear",
        "total_steps": 20,
    }
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "first")
        created = pipeline.message.spec.optimizer
        train(pipeline, 0, 2)
        before = pipeline.save_checkpoint("before").name
        updated = pipeline.update_optimizer(**settings).spec.optimizer
        train(pipeline, 2, 3)
        after = pipeline.save_checkpoint("after").name
        train(pipeline, 3, 5)
        undisturbed = state_of(pipeline)
        pipeline.delete()
    daemon.kill()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert client.create_pipeline("old", from_checkpoint=before).message.spec.optimizer == created
        pipeline = client.create_pipeline("first", from_checkpoint=after)
        assert pipeline.message.spec.optimizer == updated != created
        train(pipeline, 3, 5)
        assert not differing(state_of(pipeline), undisturbed)
        # It is the same pipeline as long as nobody changes it again.
        assert client.create_pipeline("first", from_checkpoint=after, exist_ok=True).message.step == 5
        pipeline.update_optimizer(optimizer_options={"learning_rate": 0.5})
        again = reason_of(lambda: client.create_pipeline("first", from_checkpoint=after, exist_ok=True))
        assert again == "PIPELINE_EXISTS"
        # A schedule of another name is taken as a whole.
        steps = {"learning_rate_schedule": "step", "step_size": 2}
        other = client.create_pipeline("other", from_checkpoint=after, **steps).message.spec.optimizer
        assert other.learning_rate_schedule.total_steps == 0 and other.groups == updated.groups
    daemon.stop()


def test_what_does_not_fit_makes_no_pipeline(client: penstock.Client, daemon: Daemon) -> None:
    source = create_mlp(client)
    saved = source.save_checkpoint("mine").name
    name = fresh_name("none")

    def create(**arguments: Any) -> Any:
        return lambda: client.create_pipeline(name, **arguments)

    assert reason_of(create(from_checkpoint=saved, options={"width": 32})) == "MODEL_MISMATCH"
    assert reason_of(create(from_checkpoint=saved, dtype="fp64")) == "MODEL_MISMATCH"
    assert reason_of(create(from_checkpoint=saved, balance=[9])) == "SPEC_INVALID"
    assert reason_of(create(from_checkpoint=f"{source.name}/checkpoints/none")) == "CHECKPOINT_NOT_FOUND"
    assert reason_of(create(from_checkpoint="pipelines/nobody/checkpoints/mine")) == "CHECKPOINT_NOT_FOUND"
    assert reason_of(create(from_checkpoint=f"{source.name}/checkpoints/../x")) == "NAME_INVALID"
    assert name not in [pipeline.name for pipeline in client.list_pipelines()]
    assert client.create_pipeline(name, from_checkpoint=saved).message.step == 0
    client.delete_pipeline(name)
    source.delete(purge=True)


def test_exist_ok(client: penstock.Client) -> None:
    name = fresh_name("shared")
    train(create_mlp(client, name), 0, 1)
    again = create_mlp(client, name, exist_ok=True)
    assert again.message.step == 1, "as it is"
    with pytest.raises(penstock.PenstockError) as raised:
        create_mlp(client, name, exist_ok=True, seed=8)
    assert raised.value.reason == "PIPELINE_EXISTS"
    assert raised.value.values["field"] == "spec.seed" and "7 -> 8" in str(raised.value)
    assert reason_of(lambda: create_mlp(client, name)) == "PIPELINE_EXISTS"
    again.delete()


# --- hostile and old folders ---


def manifest_of(daemon: Daemon, pipeline: str, checkpoint: str) -> pathlib.Path:
    return daemon.state_dir / "pipelines" / pipeline / "checkpoints" / checkpoint / "manifest.json"


def rewrite(path: pathlib.Path, specification: bytes) -> None:
    """Another specification, with all checksums right."""
    text = path.read_text()
    text = re.sub(r'"specification": ".*"', f'"specification": "{base64.b64encode(specification).decode()}"', text)
    body = text[: text.index(',\n  "manifest_crc32c"')]
    path.write_text(f'{body},\n  "manifest_crc32c": "{crc32c(body.encode()):08x}"\n}}\n')


def test_specifications_that_lie(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    daemon = start_daemon(f"--model-root={root}")
    names = ["good", "flipped", "huge", "garbage", "empty", "gone", "bomb"]
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "source")
        for name in names:
            pipeline.save_checkpoint(name)
    daemon.stop()

    paths = {name: manifest_of(daemon, "source", name) for name in names}
    text = bytearray(paths["flipped"].read_bytes())
    text[text.index(b"specification") + 20] ^= 1
    paths["flipped"].write_bytes(text)
    os.truncate(paths["huge"], 1 << 30)
    rewrite(paths["garbage"], b"\xff" * 100)
    rewrite(paths["empty"], b"")
    rewrite(paths["bomb"], state_pb2.CheckpointSpecification(balance=[1] * 100_000).SerializeToString() + b"\n\0" * 100_000)
    other = state_pb2.CheckpointSpecification()
    other.spec.model.program = "gone.pt2"
    other.spec.model.program_digest = "sha256:" + "0" * 64
    rewrite(paths["gone"], other.SerializeToString())

    daemon.start()
    with penstock.Client(daemon.address) as client:

        def create(name: str) -> str:
            return reason_of(lambda: client.create_pipeline("new", from_checkpoint=f"pipelines/source/checkpoints/{name}"))

        states = {one.name.rsplit("/", 1)[1]: one.state for one in client.checkpoints("source")}
        assert {name for name, state in states.items() if state == "DAMAGED"} == {"flipped", "huge"}
        for name in ("flipped", "huge", "garbage", "bomb"):
            assert create(name) == "CHECKPOINT_CORRUPT", name
        assert create("empty") == "CHECKPOINT_SPEC_MISSING"
        assert create("gone") == "MODEL_NOT_FOUND"
        assert client.create_pipeline("new", from_checkpoint="pipelines/source/checkpoints/good").state == "READY"
    daemon.stop()


def test_a_checkpoint_of_before_specifications(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    daemon.stop()
    shutil.copytree(ROOT / "tests/golden/checkpoint_format_1", daemon.state_dir / "pipelines/old/checkpoints/two")
    daemon.start()
    name = "pipelines/old/checkpoints/two"
    model: dict[str, Any] = {"model": "mlp", "options": {"layers": 2, "width": 4}, "optimizer": "sgd"}
    with penstock.Client(daemon.address) as client:
        (old,) = client.checkpoints()
        assert (old.name, old.step, old.state) == (name, 2, "COMPLETE") and not old.message.has_specification
        with pytest.raises(penstock.PenstockError) as raised:
            client.create_pipeline("new", from_checkpoint=name)
        assert raised.value.reason == "CHECKPOINT_SPEC_MISSING" and "give spec" in str(raised.value)
        assert client.create_pipeline("new", from_checkpoint=name, **model).message.step == 2
        assert client.create_pipeline("old", **model).restore_checkpoint("two").step == 2
    daemon.stop()


# --- lists and copies ---


def test_copies(client: penstock.Client, start_daemon: StartDaemon) -> None:
    source, twin, other = create_mlp(client), create_mlp(client, seed=99), create_gpt(client)
    train(source, 0, 2)
    source.save_checkpoint("two")
    (two,) = client.checkpoints(source.name)
    assert twin.list_checkpoints() == []
    with pytest.raises(ValueError, match="must be a checkpoint of"):
        twin.restore_checkpoint(two.name)
    assert two.copy_to(twin).name == f"{twin.name}/checkpoints/two"
    assert two.copy_to(twin, "start").step == 2
    assert twin.restore_checkpoint("start").step == 2
    assert not differing(state_of(twin), state_of(source))
    with pytest.raises(penstock.PenstockError) as raised:
        two.copy_to(other)
    assert raised.value.reason == "MODEL_MISMATCH" and raised.value.values["field"]
    assert reason_of(lambda: two.copy_to(source)) == "CHECKPOINT_EXISTS", "onto itself"
    assert reason_of(lambda: two.copy_to(twin, "a/b")) == "NAME_INVALID"
    assert source.state == twin.state == "READY" and other.list_checkpoints() == []
    everything = [one.name for one in client.checkpoints() if one.pipeline in (source.name[10:], twin.name[10:])]
    assert sorted(everything) == sorted([two.name, f"{twin.name}/checkpoints/start", f"{twin.name}/checkpoints/two"])
    source.delete()
    assert [one.name for one in client.checkpoints(source.name)] == [two.name]
    two.copy_to(twin, "of-a-deleted-one")
    two.delete()
    assert reason_of(lambda: client.checkpoints(source.name)) == "PIPELINE_NOT_FOUND"
    for pipeline in (twin, other):
        pipeline.delete(purge=True)


def test_what_a_checkpoint_holds_without_its_pipeline(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, optimizer="adamw")
        train(pipeline, 0, 2)
        saved, saved_weights = state_of(pipeline), weights_of(pipeline)
        pipeline.save_checkpoint("two")
        train(pipeline, 2, 3)
        assert differing(state_of(pipeline), saved)
        pipeline.delete()
        (two,) = client.checkpoints(pipeline.name)
        assert not differing(bits(two.read_parameters()), saved_weights)
        assert not differing(bits(two.read_parameters(include_optimizer_state=True)), saved)
        name = next(iter(saved_weights))
        assert list(two.read_parameters([name])) == [name]
        assert reason_of(lambda: two.read_parameters(["nothing"])) == "PARAMETER_NOT_FOUND"
        exported = tmp_path / "two.safetensors"
        words = ["checkpoint", "export", f"{two.pipeline}/two", "--optimizer-state", "--to", str(exported)]
        done = subprocess.run([os.environ["PENSTOCK"], "--server", daemon.address, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert not differing(bits(dict(safetensors.arrays_of(exported))), saved)
        (state,) = daemon.state_dir.glob(f"{pipeline.name}/checkpoints/two/state.safetensors")
        state.write_bytes(state.read_bytes()[:-1])
        assert reason_of(two.read_parameters) == "CHECKPOINT_CORRUPT"
        two.delete()
        assert reason_of(two.read_parameters) == "CHECKPOINT_NOT_FOUND"


def test_a_copy_over_the_quota(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--checkpoint-bytes=64KiB", *WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        source, twin = create_mlp(client, "source"), create_mlp(client, "twin")
        source.save_checkpoint("first")
        (first,) = client.checkpoints()
        copies = 0
        with pytest.raises(penstock.PenstockError) as raised:
            while True:
                first.copy_to(twin, f"copy-{copies}")
                copies += 1
        assert raised.value.reason == "STORAGE_FULL" and raised.value.values["limit"] == "checkpoint-bytes"
        assert copies > 0 and len(twin.list_checkpoints()) == copies
        twin.restore_checkpoint("copy-0")
        first.delete()
        client.checkpoints("twin")[0].copy_to(twin, "fits-now")
    daemon.stop()


# --- replacement and rotation ---


def test_rotation(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    pipeline.save_checkpoint("named")
    for step in range(4):
        train(pipeline, step, step + 1)
        pipeline.save_checkpoint(keep=2)
    assert ids(pipeline) == ["named", "step-3", "step-4"]
    pipeline.restore_checkpoint("step-3")
    for name in ("a", "b", "c"):
        pipeline.save_checkpoint(name, keep=2)
    assert ids(pipeline) == ["b", "c", "named", "step-3"], "the one that was restored from stays"
    assert reason_of(lambda: pipeline.save_checkpoint("d", keep=-1)) == "FIELD_INVALID"
    pipeline.delete(purge=True)


def test_kill_while_a_checkpoint_is_replaced_leaves_the_old_one_or_the_new_one(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    wide: dict[str, Any] = {"options": {"layers": 4, "width": 1024}, "optimizer": "sgd"}  # 16 MiB
    caught = 0
    with penstock.Client(daemon.address) as client:
        create_mlp(client, "wide", **wide).save_checkpoint("mine")
    for attempt in range(1, 30):
        if caught == 3:
            break
        with penstock.Client(daemon.address, retry_for=0) as client:
            client.create_pipeline("wide", from_checkpoint="pipelines/wide/checkpoints/mine", exist_ok=True)
            pipeline = client.pipeline("wide")
            pipeline.write_parameters({}, step=attempt)  # so that both can be told apart
            folder = manifest_of(daemon, "wide", "mine").parent
            saving = penstock_save(daemon)
            while saving.poll() is None:
                if len(list(folder.glob("state*"))) == 2:
                    os.kill(daemon.pid, signal.SIGKILL)
                    caught += 1
                    break
            saving.communicate()
        daemon.kill()
        daemon.start()
        with penstock.Client(daemon.address) as client:
            (mine,) = client.checkpoints("wide")
            assert mine.state == "COMPLETE"
            again = client.create_pipeline("again", from_checkpoint=mine.name)
            assert again.message.step == mine.step
            again.delete()
            assert len(list(folder.glob("*"))) == 2, "debris"
    assert caught == 3, "never in the middle"
    daemon.stop()


def penstock_save(daemon: Daemon) -> subprocess.Popen[bytes]:
    """Replaces the checkpoint `mine` of the pipeline `wide`, from a process of its own."""
    program = (
        f"import penstock\nwith penstock.Client({daemon.address!r}, retry_for=0) as client:\n"
        "    client.pipeline('wide').save_checkpoint('mine', replace=True)\n"
    )
    return subprocess.Popen([sys.executable, "-c", program], env=CLIENT, stderr=subprocess.DEVNULL)


# --- resuming ---

SCRIPT = """
import sys
import penstock
sys.path.insert(0, {folder!r})
from small_models import create_mlp, mlp_batch


def tell(outcome):
    print(outcome.step, flush=True)
    if outcome.step == {hold}:  # the loop stands still: no later step is saved
        sys.stdin.read()

with penstock.Client({address!r}, retry_for=0) as client:
    pipeline = create_mlp(client, "run", dropout=0.1, exist_ok=True)
    batches = [mlp_batch(number) for number in range(14)]
    made = penstock.train(pipeline, batches, save_every=3, keep=2, resume=True, steps=12, on_step=tell)
    print("from", made.resumed_step, "made", len(made))
"""


def run_until(daemon: Daemon, step: int) -> tuple[subprocess.Popen[str], list[str]]:
    """Starts the script; returns when it stands still after that step, or has ended."""
    program = SCRIPT.format(folder=str(pathlib.Path(__file__).parent), address=daemon.address, hold=step)
    pipe = subprocess.PIPE
    script = subprocess.Popen(
        [sys.executable, "-c", program], env=CLIENT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    assert script.stdout is not None
    lines = []
    for line in script.stdout:
        lines.append(line.strip())
        if lines[-1] == str(step):
            break
    return script, lines


def test_training_resumes_after_kill_of_script_and_daemon_as_if_nothing_had_happened(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "undisturbed", dropout=0.1)
        train(pipeline, 0, 12)
        undisturbed = state_of(pipeline)

    script, lines = run_until(daemon, 2)  # before the first save but that at the beginning
    assert lines[0] == "1"
    script.kill()
    script.communicate()

    script, lines = run_until(daemon, 5)
    assert lines == ["1", "2", "3", "4", "5"], "from the checkpoint of the beginning"
    daemon.kill()
    _, error = script.communicate()
    assert script.returncode == 1 and "UNAVAILABLE" in error

    daemon.start()
    script, lines = run_until(daemon, 8)
    assert lines[0] == "4", "after the checkpoint of step 3"
    script.kill()
    script.communicate()

    script, lines = run_until(daemon, 99)
    assert script.wait(60) == 0 and lines == ["7", "8", "9", "10", "11", "12", "from 6 made 6"]
    with penstock.Client(daemon.address) as client:
        pipeline = client.pipeline("run")
        assert not differing(state_of(pipeline), undisturbed)
        assert ids(pipeline) == ["step-12", "step-6", "step-9"], "two, and the one that was restored from"
    script, lines = run_until(daemon, 99)
    assert script.wait(60) == 0 and lines == ["from 12 made 0"], "it is done"
    daemon.stop()


def test_a_damaged_checkpoint_is_passed_over(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    batches = [mlp_batch(number) for number in range(6)]
    penstock.train(pipeline, batches, save_every=2)
    (newest,) = daemon.state_dir.glob(f"{pipeline.name}/checkpoints/step-6/state.safetensors")
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="step-6 is damaged"):
        made = penstock.train(pipeline, batches, resume=True)
    assert made.resumed_step == 4 and [outcome.step for outcome in made] == [5, 6]
    pipeline.delete(purge=True)


def test_where_all_checkpoints_are_damaged_nothing_is_trained_anew(client: penstock.Client, daemon: Daemon) -> None:
    pipeline = create_mlp(client)
    batches = [mlp_batch(number) for number in range(4)]
    penstock.train(pipeline, batches[:2], save_every=2, resume=True)
    saved = list(daemon.state_dir.glob(f"{pipeline.name}/checkpoints/step-*/state.safetensors"))
    assert len(saved) == 2
    for file in saved:
        file.write_bytes(file.read_bytes()[:-1])
    for _ in range(2):  # a script that is started again
        with pytest.warns(RuntimeWarning, match="step-2 is damaged"):
            assert reason_of(lambda: penstock.train(pipeline, batches, resume=True)) == "CHECKPOINT_CORRUPT"
    assert pipeline.refresh().step == 2
    with pytest.raises(ValueError, match="keep must be from 0 to 10000, got -1"):
        penstock.train(pipeline, batches, save_every=2, keep=-1)
    assert pipeline.refresh().step == 2
    pipeline.delete(purge=True)
