"""How long a restart takes when its replay is as large as the defaults allow: just under 60 s of steps, and just under
16 GiB of inputs.

    build/deps/test-venv/bin/python tests/bench/largest_replay.py --daemon build/release/server/penstockd

Needs 40 GB on the disk of the temporary folder. The daemon is killed, and the time counts from its next start to READY.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from journal_cost import GPT

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]

SECONDS = 57.0  # of 60, the default of --journal-replay
BYTES = 15.9 * 2**30  # of 16 GiB, the default of --journal-bytes
ROWS, FEATURES = 1 << 18, 16  # 16 MiB of inputs, and as much of targets


def restart(daemon: Any) -> float:
    """Seconds from the start to READY."""
    daemon.kill()
    begun = time.perf_counter()
    daemon.start()
    return time.perf_counter() - begun


def of_steps(client: Any) -> Callable[[], int]:
    gpt = client.create_pipeline("large", **GPT)
    text = np.random.default_rng(1).integers(0, 256, (32, 129))

    def step() -> int:
        gpt.train_step(text[:, :-1], text[:, 1:])
        return int(text.nbytes)

    return step


def of_inputs(client: Any) -> Callable[[], int]:
    import penstock

    layer = penstock.Layer("delay", options={"forward_ms": 0.0, "features": FEATURES})
    pipeline = client.create_pipeline(
        "large", model=[layer, layer], stages=2, schedule="1f1b", micro_batches=1, loss="mean_squared_error"
    )
    rows, target = np.zeros((2, ROWS, FEATURES), np.float32)

    def step() -> int:
        for array in (rows, target):  # its digest is another one each time
            array[0, 0] += 1 + (array is target) * 0.5
        pipeline.train_step(rows, target)
        return int(rows.nbytes + target.nbytes)

    return step


def measure(client: Any, daemon: Any, what: str, make: Callable[[Any], Callable[[], int]]) -> None:
    step = make(client)
    pipeline = client.pipeline("large")
    calls, sent, begun, took = 0, 0, time.perf_counter(), 0.0
    while took < SECONDS if what == "steps" else sent < BYTES:
        sent += step()
        calls += 1
        took = time.perf_counter() - begun
    saved = len(client.checkpoints("large", automatic=True))
    assert saved == 1, f"{saved} automatic checkpoints: the journal was cut, and nothing large is left"
    seconds = restart(daemon)
    again = pipeline.refresh().step
    assert again == calls, f"{again} of {calls} steps are back"
    print(f"{what:8} {calls:6} steps {sent / 2**30:6.2f} GiB in {took:6.1f} s   READY after {seconds:6.1f} s", flush=True)
    pipeline.delete(force=True, purge=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import daemon_process
    import penstock

    daemon_process.START_SECONDS = 600.0
    with tempfile.TemporaryDirectory() as name:
        daemon = daemon_process.Daemon(pathlib.Path(name))
        with daemon.running(), penstock.Client(daemon.address, retry_for=600.0) as client:
            print(f"nothing  {'':47} READY after {restart(daemon):6.1f} s")
            for _ in range(options.rounds):
                measure(client, daemon, "steps", of_steps)
                measure(client, daemon, "inputs", of_inputs)


if __name__ == "__main__":
    main()
