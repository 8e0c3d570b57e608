"""The daemon with libraries of layers: what it refuses to start with, and how a faulty layer ends."""

from __future__ import annotations

import os
import pathlib
import subprocess

import numpy as np
import penstock
import pytest
from penstock import Layer

import daemon_process
from conftest import StartDaemon
from layer_lists import create, linear
from small_models import create_mlp, fresh_name, mlp_batch

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
