"""The daemon with libraries of layers: what it refuses to start with, and how a faulty layer ends."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from typing import Any

import numpy as np
import penstock
import pytest
from penstock import Layer
from penstock.v1 import pipeline_pb2

import daemon_process
from conftest import StartDaemon
from layer_lists import create, linear
from small_models import WIDTH, create_mlp, fresh_name, mlp_batch

LIBRARY = os.environ["PENSTOCK_TEST_LAYERS"]


@pytest.mark.parametrize("asked", ["start", "check"])
@pytest.mark.parametrize(
    ("library", "fault", "problem"),
    [
        ("missing.so", "", "must name a file that can be read"),
        ("text.so", "", "is not a shared object"),
        ("other.so", "", "was built for Penstock 9."),
        (LIBRARY, "throws", "fails when it registers its kinds (these kinds are not ready)"),
        (LIBRARY, "built_in", "registers kind linear, which is known already"),
    ],
)
def test_a_bad_library_ends_the_start(
    library: str, fault: str, problem: str, asked: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "text.so").write_text("these are words")
    good = pathlib.Path(LIBRARY).read_bytes()
    (tmp_path / "other.so").write_bytes(good.replace(b"library:Penstock 0.", b"library:Penstock 9."))
    file = str(tmp_path / library)
    flags = [f"--layer-library={file}", f"--state-dir={tmp_path / 'state'}", "--device=cpu:0", "--listen=127.0.0.1:0"]
    if asked == "check":
        flags.append("--check-config")
    done = subprocess.run(
        [daemon_process.BINARY, *flags],
        env={**os.environ, "PENSTOCK_TEST_LAYERS_FAULT": fault},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert f"penstockd: --layer-library: {problem}" in done.stderr and f"got {file}" in done.stderr
    assert not (tmp_path / "state").exists(), "nothing was begun"


def test_a_faulty_layer_fails_its_own_calls(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=0s", f"--layer-library={LIBRARY}")
    with penstock.Client(daemon.address) as client:
        assert {"test_twice", "test_faulty", "linear"} <= set(client.server_info().layers)
        other = create_mlp(client)
        other.train_step(*mlp_batch(0))

        with pytest.raises(penstock.PenstockError, match="this factory fails on purpose") as failed:
            create(client, [linear("a"), Layer("test_faulty", "b", {"fault": "factory"})])
        assert f"kind test_faulty of {pathlib.Path(LIBRARY).name}: " in str(failed.value)

        pipeline = client.create_pipeline(
            fresh_name("own"),
            model=[linear("a"), Layer("test_twice", "b"), Layer("test_faulty", "c", {"fault": "large"}), linear("d")],
            stages=2,
            micro_batches=2,
            loss="mean_squared_error",
        )
        rows, target = mlp_batch(1)
        assert pipeline.train_step(rows, target).step == 1
        before = pipeline.infer(rows)["output"].tobytes()
        with pytest.raises(penstock.PenstockError, match="this layer fails on purpose") as failed:
            pipeline.train_step(rows * 1e8, target)
        assert "layer c" in str(failed.value), failed.value
        assert pipeline.infer(rows)["output"].tobytes() == before, "the step that failed changed nothing"
        assert pipeline.train_step(rows, target).step == 2
        assert np.isfinite(other.train_step(*mlp_batch(2)).loss or np.nan)
    daemon.stop()


# --- A fault in the last part of a step, when the weights have changed ------------------------------------------------------

HIDDEN = 256


def create_faulty(client: penstock.Client, stage: int, fault: str, **changes: Any) -> penstock.Pipeline:
    """Two stages with statistics on both, and a layer that fails where it is told to."""
    layers = [
        [linear("in", WIDTH, HIDDEN), Layer("batch_norm", "norm0", {"features": HIDDEN})],
        [Layer("batch_norm", "norm1", {"features": HIDDEN}), linear("out", HIDDEN, WIDTH)],
    ]
    if stage == 1:
        layers[0].pop()  # what is normalised is never large
    layers[stage].insert(1 - stage, Layer("test_faulty", "faulty", {"fault": fault}))
    balance = [len(of_stage) for of_stage in layers]
    return create(client, layers[0] + layers[1], balance=balance, **changes)


def marked_batch(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One whose step fails: the faulty layer sees values above a thousand."""
    rows, target = mlp_batch(seed)
    return rows * np.float32(1e5), target


def state_of(pipeline: penstock.Pipeline) -> dict[str, bytes]:
    names = pipeline.state_arrays()
    return {name: np.asarray(values).tobytes() for name, values in names.items()}


@pytest.mark.parametrize("stage", [0, 1])
def test_a_step_that_fails_in_its_last_part_is_undone(start_daemon: StartDaemon, stage: int) -> None:
    daemon = start_daemon("--drain-announce=0s", f"--layer-library={LIBRARY}")
    rows, _ = mlp_batch(0)
    with penstock.Client(daemon.address) as client:
        pipeline, sound = create_faulty(client, stage, "commit"), create_faulty(client, stage, "")
        for each in (pipeline, sound):
            assert each.train_step(*mlp_batch(1)).step == 1
        before, answer = state_of(pipeline), pipeline.infer(rows)["output"].tobytes()
        assert before == state_of(sound)

        with pytest.raises(penstock.PenstockError, match="this layer fails to commit on purpose") as failed:
            pipeline.train_step(*marked_batch(2))
        assert failed.value.reason == "STEP_ROLLED_BACK", failed.value
        assert failed.value.values["step_part"] == "statistics"
        assert failed.value.values["stage"] == str(stage)
        assert pipeline.refresh().state == pipeline_pb2.PIPELINE_STATE_READY
        assert pipeline.infer(rows)["output"].tobytes() == answer
        assert state_of(pipeline) == before
        pipeline.save_checkpoint("after-the-fault")

        for each in (pipeline, sound):
            assert each.train_step(*marked_batch(2)).step == 2
            assert each.train_step(*mlp_batch(3)).step == 3
        assert state_of(pipeline) == state_of(sound), "the retry is the step that would have been"
        assert pipeline.infer(rows)["output"].tobytes() == sound.infer(rows)["output"].tobytes()
        pipeline.restore_checkpoint("after-the-fault")
        assert state_of(pipeline) == before, "what was saved is the state before the step"


def bytes_of_undo(pipeline: penstock.Pipeline) -> int:
    found = re.search(r"Undo: stages copy the (\d+) bytes", " ".join(pipeline.message.plan.why))
    assert found, pipeline.message.plan.why
    return int(found[1])


@pytest.mark.parametrize("stage", [0, 1])
def test_without_copies_such_a_step_breaks_the_pipeline_until_a_restore(start_daemon: StartDaemon, stage: int) -> None:
    flags = ("--drain-announce=0s", f"--layer-library={LIBRARY}", "--handle-bytes=16MiB", "--trace-ring-events=0")
    roomy = start_daemon(*flags)
    with penstock.Client(roomy.address) as client:
        undo = bytes_of_undo(create_faulty(client, stage, "commit"))
        needed = roomy.metrics().sum("penstock_memory_reserved_bytes", **{"class": "pipelines"})
    roomy.kill()

    daemon = start_daemon(*flags, f"--memory-limit={(int(needed) - undo // 2 + (16 << 20)) * 32 // 29}")
    rows, target = mlp_batch(0)
    with penstock.Client(daemon.address) as client:
        pipeline = create_faulty(client, stage, "commit")
        assert any(reason.startswith("No undo: ") for reason in pipeline.message.plan.why), pipeline.message.plan.why
        assert pipeline.train_step(*mlp_batch(1)).step == 1
        before, answer = state_of(pipeline), pipeline.infer(rows)["output"].tobytes()
        pipeline.save_checkpoint("good")

        with pytest.raises(penstock.PenstockError, match="this layer fails to commit on purpose") as failed:
            pipeline.train_step(*marked_batch(2))
        assert failed.value.reason == "PIPELINE_BROKEN", failed.value
        for refused in (
            lambda: pipeline.infer(rows),
            lambda: pipeline.train_step(rows, target),
            lambda: state_of(pipeline),
            lambda: pipeline.save_checkpoint("bad"),
        ):
            with pytest.raises(penstock.PenstockError) as broken:
                refused()
            assert broken.value.reason == "PIPELINE_BROKEN", broken.value
        assert pipeline.refresh().state == pipeline_pb2.PIPELINE_STATE_FAILED
        assert [checkpoint.name.split("/")[-1] for checkpoint in pipeline.list_checkpoints()] == ["good"]

        pipeline.restore_checkpoint("good")
        assert pipeline.refresh().state == pipeline_pb2.PIPELINE_STATE_READY
        assert state_of(pipeline) == before
        assert pipeline.infer(rows)["output"].tobytes() == answer
        assert pipeline.train_step(*marked_batch(2)).step == 2
