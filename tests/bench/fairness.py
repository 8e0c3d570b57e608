"""Measures what a caller who floods takes from another: the latency of one small inference at a time, alone and beside
a caller with 60 open calls, and beside one who also uploads 200 MB a second; and the steps a second of two callers who
train two pipelines on the same devices, one with a single call open, the other with 16, and what the first one's take. Run by hand:

    build/deps/test-venv/bin/python tests/bench/fairness.py build/release/server/penstockd [BEFORE]

BEFORE is the penstockd of another version; both run in turns. The stages sleep, 2 ms for a micro-batch, so that the
load itself changes little. Clients who load the daemon stand for other machines: where chrt may, daemon and measured
caller run before them, so that they take no core from these. Prints the median of the rounds, and the range.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
PENSTOCK = ROOT / "build/release/client/cli/penstock"
OPEN = 60
UPLOADED = 8 << 20
PER_SECOND = 200e6


def first() -> tuple[str, ...]:
    """Before a command that loads may not take the cores from."""
    words = ("chrt", "--rr", "20")
    try:
        allowed = subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        allowed = False
    return words if allowed else ()


def bench(address: str, caller: str, concurrency: int, seconds: float, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    words = ["bench", "shared", "--concurrency", str(concurrency), "--warm-up", "0.5", "--window", str(seconds / 3)]
    stable = ["--max-windows", "3", "--stability-percentage", "200", "-o", "json"]
    command = [*prefix, PENSTOCK, "--server", address, "--caller", caller, *words, *stable]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def latencies(address: str, seconds: float) -> dict[str, float]:
    text, _ = bench(address, "small", 1, seconds, first()).communicate()
    seconds = json.loads(text)["points"][0]["latency_seconds"]
    return {"p50": 1e3 * seconds["p50"], "p99": 1e3 * seconds["p99"]}


@contextlib.contextmanager
def flood(address: str, seconds: float) -> Iterator[None]:
    run = bench(address, "flood", OPEN, seconds)
    time.sleep(1)
    try:
        yield
    finally:
        run.communicate()


@contextlib.contextmanager
def uploads(address: str) -> Iterator[dict[str, float]]:
    """What it gives has at the end how many MB a second went up."""
    import numpy as np
    import penstock

    ended = threading.Event()
    found: dict[str, float] = {}

    def upload() -> None:
        array = np.zeros(UPLOADED // 4, np.float32)
        with penstock.Client(address, caller="flood") as client:
            pipeline = client.pipeline("shared")
            began = due = time.monotonic()
            count = 0
            while not ended.wait(max(0.0, due - time.monotonic())):
                pipeline.put({"a": array}).release()
                due += UPLOADED / PER_SECOND
                count += 1
            found["MB/s up"] = count * UPLOADED / (time.monotonic() - began) / 1e6

    thread = threading.Thread(target=upload)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def train_beside(address: str, ahead: dict[str, int], seconds: float) -> dict[str, float]:
    """Each caller trains a pipeline of its own name, with so many calls open: steps a second, and what those of one with a
    single call open take."""
    import numpy as np
    import penstock

    rows = np.zeros((4, 4), np.float32)
    found: dict[str, float] = {}
    begin = threading.Barrier(len(ahead))

    def train(caller: str) -> None:
        with penstock.Client(address, caller=caller) as client:
            pipeline = client.pipeline(caller)
            open_calls = [pipeline.submit_train_step(rows, rows) for _ in range(ahead[caller])]
            begin.wait()
            began = last = time.monotonic()
            took = []
            while last < began + seconds:
                open_calls.pop(0).result()
                now = time.monotonic()
                took.append(1e3 * (now - last))
                last = now
                open_calls.append(pipeline.submit_train_step(rows, rows))
            found[f"{caller} steps/s"] = len(took) / seconds
            if ahead[caller] == 1:
                took.sort()
                found["p50"], found["p99"] = took[len(took) // 2], took[len(took) * 99 // 100]
            for call in open_calls:
                call.result()

    threads = [threading.Thread(target=train, args=(caller,)) for caller in ahead]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def measure_training(address: str, seconds: float) -> dict[str, dict[str, float]]:
    import penstock

    for caller in ("one", "sixteen"):
        layer = penstock.Layer("delay", options={"forward_ms": 2.0, "features": 4})
        with penstock.Client(address, caller=caller) as client:
            client.create_pipeline(
                caller, model=[layer, layer], stages=2, schedule="1f1b", micro_batches=2, loss="mean_squared_error"
            )
    return {
        "training, one open call, alone": train_beside(address, {"one": 1}, seconds),
        "training, beside 16 open calls": train_beside(address, {"one": 1, "sixteen": 16}, seconds),
    }


def measure(address: str, seconds: float) -> dict[str, dict[str, float]]:
    found = {"alone": latencies(address, seconds)}
    with flood(address, seconds + 3):
        found[f"beside {OPEN} calls"] = latencies(address, seconds)
    with flood(address, seconds + 3), uploads(address) as uploaded:
        loaded = latencies(address, seconds)
    found[f"beside {OPEN} calls and uploads"] = {**loaded, **uploaded}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("daemon")
    parser.add_argument("before", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import daemon_process
    import penstock

    versions = {"before": options.before, "now": options.daemon} if options.before else {"now": options.daemon}
    found: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(options.rounds):
        for version, binary in versions.items():
            daemon_process.BINARY = binary
            with tempfile.TemporaryDirectory() as folder:
                daemon = daemon_process.Daemon(pathlib.Path(folder), "--drain-announce=0s", prefix=first())
                daemon.start()
                try:
                    layer = penstock.Layer("delay", options={"forward_ms": 2.0, "features": 4})
                    with penstock.Client(daemon.address) as client:
                        client.create_pipeline("shared", model=[layer, layer], stages=2, schedule="1f1b", micro_batches=1)
                        loads = {**measure(daemon.address, options.seconds), **measure_training(daemon.address, options.seconds)}
                        for load, each in loads.items():
                            for name, value in each.items():
                                found.setdefault((load, name, version), []).append(value)
                finally:
                    daemon.kill()
    print(f"one inference of 2 x 2 ms at a time, ms; {options.rounds} rounds of {options.seconds:g} s")
    for (load, name, version), values in found.items():
        row = f"{statistics.median(values):8.1f} ({min(values):.1f} to {max(values):.1f})"
        print(f"  {load:32} {name:15} {version:8} {row}")


if __name__ == "__main__":
    main()
