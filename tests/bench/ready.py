"""Measures how soon an exported program of half a gigabyte is READY in a pipeline of two stages, beside reading its file, and
whether the first calls are slower than the third. Run by hand:

    build/deps/torch-venv/bin/python tests/bench/ready.py --daemon build/release/server/penstockd

Prints seconds, and milliseconds of calls: the medians of the rounds, and the least and most.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from spreads import spread
from turns import in_turns, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
LAYERS, WIDTH, ROWS = 8, 4096, 8
CALLS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import numpy as np
    import penstock
    import torch
    from daemon_process import Daemon

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    rows = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = pathlib.Path(name)
        (folder / "models").mkdir()
        path = folder / "models/large.pt2"
        penstock.export(torch.nn.Sequential(*layers), torch.from_numpy(rows), path)
        daemon = Daemon(
            folder, "--journal=off", f"--model-root={folder / 'models'}", "--drain-announce=0s", devices=("cpu:0=0", "cpu:1=1")
        )
        running.enter_context(daemon.running())
        client = running.enter_context(penstock.Client(daemon.address))

        calls: dict[str, list[float]] = {}

        def ready(title: str, **planning: Any) -> Callable[[], float]:
            def run() -> float:
                begun = time.perf_counter()
                pipeline = client.create_pipeline(
                    "large", model="large.pt2", balance=[LAYERS, LAYERS], micro_batches=2, schedule="gpipe",
                    loss="mean_squared_error", **planning,
                )
                seconds = time.perf_counter() - begun
                for kind, call in (("infer", lambda: pipeline.infer(rows)), ("train", lambda: pipeline.train_step(rows, rows))):
                    for number in range(1, CALLS + 1):
                        called = time.perf_counter()
                        call()
                        calls.setdefault(f"{title}: {kind} {number}", []).append(1e3 * (time.perf_counter() - called))
                pipeline.delete(force=True)
                return seconds

            return run

        def timed(work: Callable[[], Any]) -> Callable[[], float]:
            def run() -> float:
                begun = time.perf_counter()
                work()
                return time.perf_counter() - begun

            return run

        ways = {
            "read": timed(path.read_bytes),
            "torch.export.load": timed(lambda: torch.export.load(path)),
            "READY, unmeasured": ready("unmeasured", planning_seconds=0),
            "READY, measured": ready("measured"),
        }
        found = in_turns(ways, options.rounds)
        print(
            f"a program of {path.stat().st_size / 1e6:.0f} MB, {LAYERS} x Linear({WIDTH}), two stages; {options.rounds} rounds "
            "in turns; medians (least to most)"
        )
        for title, seconds in found.items():
            print(f"{title:20} {spread(seconds, 2):>24} s")
        for one, other in (("READY, unmeasured", "read"), ("READY, unmeasured", "torch.export.load")):
            print(f"{one} / {other}: {spread(ratios(found[one], found[other]), 2)}")
        for title, milliseconds in calls.items():
            print(f"{title:20} {spread(milliseconds[1:], 1):>24} ms")


if __name__ == "__main__":
    main()
