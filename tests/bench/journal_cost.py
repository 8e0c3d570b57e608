"""What the journal costs: the same calls on a daemon with it and on one without, and how long a restart makes calls again.

    build/deps/test-venv/bin/python tests/bench/journal_cost.py --daemon build/release/server/penstockd

Both daemons run all the time. In each round both do the same work in turn, so that what else the machine does falls on both; the ratios
are of the same round. The disk is that of the temporary folder.
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

from spreads import spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]

GPT: dict[str, Any] = {
    "model": "gpt",
    "options": {"blocks": 8, "width": 256, "heads": 4, "sequence": 128},
    "stages": 2,
    "schedule": "1f1b",
    "micro_batches": 8,
    "checkpoint": "never",
    "optimizer": "adamw",
    "loss": "cross_entropy",
}
MLP: dict[str, Any] = {
    "model": "mlp",
    "options": {"layers": 4, "width": 64},
    "stages": 2,
    "micro_batches": 4,
    "optimizer": "sgd",
    "loss": "mean_squared_error",
}


def seconds(work: Callable[[], object], times: int) -> float:
    """Of one piece of work."""
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times


def works(client: Any) -> dict[str, tuple[Callable[[], object], int]]:
    """What is measured, each with how often a round does it."""
    gpt = client.create_pipeline("gpt", **GPT)
    mlp = client.create_pipeline("mlp", **MLP)
    random = np.random.default_rng(1)
    text = random.integers(0, 256, (32, 129))
    rows = random.standard_normal((32, 64)).astype(np.float32)

    def several() -> None:
        for outcome in [mlp.submit_train_step(rows, rows) for _ in range(8)]:
            outcome.result()

    return {
        "gpt, 8 micro-batches, a step": (lambda: gpt.train_step(text[:, :-1], text[:, 1:]), 3),
        "mlp, a step, one open call": (lambda: mlp.train_step(rows, rows), 200),
        "mlp, 8 steps, all open at once": (several, 25),
        "mlp, an inference": (lambda: mlp.infer(rows), 200),
    }


def restart(daemon: Any, calls: int) -> tuple[float, float]:
    """Seconds from the start to READY, with nothing to make again and with so many calls."""
    import penstock

    def start() -> float:
        daemon.kill()
        begun = time.perf_counter()
        daemon.start()
        return time.perf_counter() - begun

    with penstock.Client(daemon.address) as client:
        for pipeline in client.list_pipelines():
            pipeline.delete(force=True, purge=True)
        empty = start()
        mlp = client.create_pipeline("mlp", **MLP)
        rows = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
        for _ in range(calls // 50):
            for outcome in [mlp.submit_train_step(rows, rows) for _ in range(50)]:
                outcome.result()
    return empty, start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=10_000)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import penstock
    from daemon_process import Daemon

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in ("on", "off"):
            (folder / part).mkdir()
        daemons = {"on": Daemon(folder / "on"), "off": Daemon(folder / "off", "--journal=off")}
        with daemons["on"].running(), daemons["off"].running():
            clients = {part: penstock.Client(daemon.address) for part, daemon in daemons.items()}
            made = {part: works(client) for part, client in clients.items()}
            times: dict[str, dict[str, list[float]]] = {what: {"on": [], "off": []} for what in made["on"]}
            for number in range(options.rounds + 1):
                for what in times:
                    for part in ("on", "off") if number % 2 else ("off", "on"):
                        work, count = made[part][what]
                        measured = seconds(work, count)
                        if number > 0:  # the first round warms up
                            times[what][part].append(measured)
            for client in clients.values():
                client.close()
            empty, full = restart(daemons["on"], options.calls)
    print(f"{options.rounds} rounds, both daemons in turn; medians (least to most)")
    print(f"{'':34} {'journal on, ms':>24} {'off, ms':>24}   speed on / off")
    for what, both in times.items():
        ratio = [off / on for on, off in zip(both["on"], both["off"])]
        milliseconds = {part: spread([value * 1e3 for value in values], 2) for part, values in both.items()}
        print(f"{what:34} {milliseconds['on']:>24} {milliseconds['off']:>24}   {spread(ratio, 3)}")
    print(f"from the start to READY: {empty:.2f} s with nothing, {full:.2f} s with {options.calls} steps of mlp to make again")


if __name__ == "__main__":
    main()
