"""Measures what a change of the plan costs those whom a pipeline serves: a trainer and a caller of inference, one call after
another each, while the pipeline goes from one stage to two and back. Run by hand:

    build/deps/test-venv/bin/python tests/bench/replan.py --daemon build/release/server/penstockd

Prints, with and without a journal and for a small and a larger model, medians of the changes (least to most): how long the
call takes, planning and building included; the longest time from one answer to the next of inference and of training while
the call runs, and as many times before it, where nothing changes. All calls must succeed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from spreads import spread
from turns import milliseconds

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
SEQUENCE = 64
MODELS: dict[str, dict[str, Any]] = {
    "2 blocks of 64": {"blocks": 2, "width": 64, "heads": 2, "sequence": SEQUENCE},
    "4 blocks of 256": {"blocks": 4, "width": 256, "heads": 4, "sequence": SEQUENCE},
}
QUIET_SECONDS = 1.0  # before a change, in which nothing else happens


class Caller:
    """Calls one thing after another, and keeps when each answer came."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._stop = threading.Event()
        self.answers: list[float] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._call()
                self.answers.append(time.monotonic())
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def longest(self, begin: float, end: float) -> float:
        """Seconds between two answers, of which the later came in that time or was the first after it."""
        times = list(self.answers)
        gaps = [later - earlier for earlier, later in zip(times, times[1:]) if begin <= later and earlier <= end]
        return max(gaps, default=end - begin)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise SystemExit(f"a call has failed: {self.error}")


def measure(address: str, options: dict[str, Any], changes: int) -> dict[str, list[float]]:
    import penstock

    found: dict[str, list[float]] = {key: [] for key in ("call", "infer", "infer before", "train", "train before")}
    text = np.random.default_rng(0).integers(0, 256, (8, SEQUENCE + 1))
    with penstock.Client(address) as client, penstock.Client(address) as other:
        pipeline = client.create_pipeline("moving", model="gpt", options=options, stages=1, micro_batches=2, loss="cross_entropy")
        beside = other.pipeline(pipeline.name)
        callers = {
            "infer": Caller(lambda: beside.infer(text[:1, :-1])),
            "train": Caller(lambda: pipeline.train_step(text[:, :-1], text[:, 1:])),
        }
        for change in range(changes + 1):  # the first warms up
            quiet = time.monotonic()
            time.sleep(QUIET_SECONDS)
            begin = time.monotonic()
            client.pipeline(pipeline.name).replan(stages=1 + (change + 1) % 2)
            end = time.monotonic()
            time.sleep(QUIET_SECONDS)  # the answers after it
            if change == 0:
                continue
            found["call"].append(end - begin)
            for name, caller in callers.items():
                found[name].append(caller.longest(begin, end))
                found[f"{name} before"].append(caller.longest(quiet, begin))
        for caller in callers.values():
            caller.end()
        pipeline.delete(force=True, purge=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--changes", type=int, default=8, help="of each pipeline")
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    from daemon_process import Daemon

    print(f"{options.changes} changes of each, one stage to two and back; medians (least to most)")
    for title, model in MODELS.items():
        for journal in ("off", "on"):
            with tempfile.TemporaryDirectory() as folder:
                daemon = Daemon(pathlib.Path(folder), "--drain-announce=0s", f"--journal={journal}", devices=("cpu:0=0", "cpu:1=1"))
                with daemon.running():
                    found = measure(daemon.address, model, options.changes)
            print(f"gpt, {title}, journal {journal}: the call takes {spread(found['call'], 2)} s")
            for name in ("infer", "train"):
                print(
                    f"  {name}: longest wait for an answer {milliseconds(found[name])} ms, "
                    f"without a change {milliseconds(found[f'{name} before'])} ms",
                    flush=True,
                )


if __name__ == "__main__":
    main()
