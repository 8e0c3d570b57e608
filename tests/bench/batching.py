"""Measures what dynamic batching gives and costs: requests of one row a second, their latency and the daemon's CPU time, with 1, 8, 32
and 128 open, on a pipeline that batches and on one that does not, in turns. Run by hand:

    build/deps/test-venv/bin/python tests/bench/batching.py --daemon build/release/server/penstockd

Two models of linear layers with ReLU: a tiny one, where what is around the model counts, and one of 16 layers of 1024, where batches
do. The daemon has the first core, `penstock bench` the second one. Prints the medians of the rounds, and the least and most.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile

from inference_load import MODELS, OPEN, Server
from spreads import spread
from turns import ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
VARIANTS = {"alone": {}, "batched": {"dynamic_batching": True, "batch_rows": 128}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import penstock
    from daemon_process import Daemon

    first, second = sorted(os.sched_getaffinity(0))[:2]
    print(f"one row a request, {options.rounds} rounds, in turns; medians (least to most)")
    print(f"{'model, open requests':22} {'':8} {'requests a second':>26} {'p50, ms':>26} {'p99, ms':>26} {'CPU us a request':>24}")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        os.sched_setaffinity(0, {first})  # of the daemon, which inherits it
        daemon = Daemon(pathlib.Path(name), devices=("cpu:0",))
        running.enter_context(daemon.running())
        client = running.enter_context(penstock.Client(daemon.address))
        server = Server(daemon.address, [daemon.pid])
        for model, sizes in MODELS.items():
            for variant, batching in VARIANTS.items():
                client.create_pipeline(f"{model}-{variant}", model="mlp", options=sizes, stages=1, **batching)
            for concurrency in OPEN:
                found: dict[str, dict[str, list[float]]] = {variant: {} for variant in VARIANTS}
                for number in range(options.rounds):
                    for variant in VARIANTS if number % 2 else reversed(VARIANTS):
                        measured = server.load(f"{model}-{variant}", concurrency, second)
                        for what, value in measured.items():
                            found[variant].setdefault(what, []).append(value)
                for variant, values in found.items():
                    cells = [spread(values[what], digits) for what, digits in (("rate", 0), ("p50", 2), ("p99", 2), ("cpu", 0))]
                    print(f"{f'{model}, {concurrency}':22} {variant:8} {cells[0]:>26} {cells[1]:>26} {cells[2]:>26} {cells[3]:>24}")
                gain = spread(ratios(found["batched"]["rate"], found["alone"]["rate"]), 2)
                print(f"{'':22} batched answers so many times as many: {gain}", flush=True)


if __name__ == "__main__":
    main()
