#!/usr/bin/env python3
"""Draws docs/screenshots: a daemon that trains and infers, its status pages in Debian's Chromium, light and dark.

Usage: screenshots.py PENSTOCKD [FOLDER]     (in the tests' Python environment; needs Debian's package chromium)
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client/python"), str(ROOT / "tests/integration")]

import penstock  # noqa: E402

WIDTH = 1240
FEATURES = 8

# File, page, height, dark.
SHOTS = [
    ("overview.png", "/", 620, False),
    ("overview_dark.png", "/", 620, True),
    ("status.png", "/statusz", 1180, False),
    ("pipeline_1f1b.png", "/pipeline?name=training", 1330, False),
    ("pipeline_1f1b_dark.png", "/pipeline?name=training", 1330, True),
    ("pipeline_filled.png", "/pipeline?name=filled", 1330, False),
    ("queues.png", "/queuez", 620, False),
    ("memory_dark.png", "/memz", 700, True),
    ("traces.png", "/tracez", 900, False),
    ("settings.png", "/flagz", 1250, False),
]


def create(client: penstock.Client, name: str, factors: list[int], checkpoint: str) -> penstock.Pipeline:
    """Four stages that sleep, so that the pictures show the schedule and not what else the machine does."""
    layers = [
        penstock.Layer(
            "delay",
            f"layer{i}",
            {
                "features": FEATURES,
                "forward_ms": 10.0 * k,
                "input_ms": 10.0 * k,
                "weight_ms": 10.0 * k,
                "inference_ms": 8.0,
            },
        )
        for i, k in enumerate(factors)
    ]
    return client.create_pipeline(
        name,
        model=layers,
        balance=[1] * len(layers),
        schedule="1f1b",
        micro_batches=8,
        checkpoint=checkpoint,
        optimizer="adamw",
        optimizer_options={"learning_rate": 0.001},
        loss="mean_squared_error",
        seed=1,
    )


def train(pipeline: penstock.Pipeline, stop: threading.Event, pause: float) -> None:
    rows, target = np.random.default_rng(0).standard_normal((2, 16, FEATURES), np.float32)
    while not stop.wait(pause):
        pipeline.train_step(rows, target)


def infer(pipeline: penstock.Pipeline, stop: threading.Event) -> None:
    rows = np.zeros((1, FEATURES), np.float32)
    while not stop.is_set():
        pipeline.infer(rows)


def shoot(address: str, page: str, height: int, dark: bool, path: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as profile:
        # The switch that a page sees as a wish for dark colours.
        scheme = ["--blink-settings=preferredColorScheme=0"] if dark else ["--blink-settings=preferredColorScheme=1"]
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                *scheme,
                f"--window-size={WIDTH},{height}",
                f"--screenshot={path}",
                f"http://{address}{page}",
            ],
            check=True,
            timeout=180,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--output", path, path], check=True)


def main() -> None:
    os.environ["PENSTOCKD"] = sys.argv[1]
    from daemon_process import Daemon

    folder = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        daemon = Daemon(pathlib.Path(scratch), "--drain-announce=0s", "--device=cpu:2=0", "--device=cpu:3=1")
        daemon.start()
        try:
            with penstock.Client(daemon.address) as client:
                training = create(client, "training", [1, 1, 1, 1], "except_last")
                filled = create(client, "filled", [1, 1, 2, 1], "never")
                training.save_checkpoint()
                for pipeline, inference, pause in ((training, False, 0.0), (filled, True, 0.0)):
                    stop = threading.Event()
                    threads = [threading.Thread(target=train, args=(pipeline, stop, pause))]
                    if inference:
                        threads += [threading.Thread(target=infer, args=(pipeline, stop)) for _ in range(3)]
                    for thread in threads:
                        thread.start()
                    time.sleep(4)
                    for name, page, height, dark in SHOTS:
                        mine = f"name={'filled' if inference else 'training'}" in page
                        if mine or ("name=" not in page and inference):
                            shoot(daemon.admin_address, page, height, dark, folder / name)
                    stop.set()
                    for thread in threads:
                        thread.join()
        finally:
            daemon.kill()
    for name, *_ in SHOTS:
        print(f"{name}: {(folder / name).stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
