"""Whether four ranks keep to a schedule: devices that only sleep (layer `delay`), one in each rank, against what the planner predicted, and
against the same four devices in one process.

    build/deps/test-venv/bin/python tests/bench/rank_schedules.py --daemon build/release/server/penstockd \
        --penstock build/release/client/cli/penstock

Each stage takes 5 ms (--milliseconds) for a forward, an input gradient and a weight gradient each. *Predicted* is the plan's makespan, from costs that the daemon
has measured before. *Simulated* is that of `penstock schedule simulate`, from these alone; not where backwards are split, as the first
stage's has one half only. Measured is what the daemon says that a run took. One process of the lowest priority per core keeps the cores
from halting. Devices take the cores in turn. In each round both make the same steps in turn.
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
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turns import in_turns, milliseconds, percent, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]

RANKS = 4
WIDTH = 4
KINDS: list[tuple[str, int]] = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("looped-bfs", 2),
    ("interleaved-1f1b", 2),
    ("zb-h1", 1),
    ("zb-h2", 1),
    ("interleaved-zb", 2),
    ("zbv", 2),
    ("dualpipe-v", 2),
]
WHOLE_BACKWARD = ("gpipe", "1f1b", "looped-bfs", "interleaved-1f1b")
AWAKE = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nos.sched_setaffinity(0, {%d})\nwhile True: pass"


@contextlib.contextmanager
def awake_cores() -> Iterator[None]:
    programs = [subprocess.Popen([sys.executable, "-c", AWAKE % core]) for core in sorted(os.sched_getaffinity(0))]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def simulated(penstock: str, sleep: float, kind: str, chunks: int, micro_batches: int) -> float:
    """Seconds; costs are of a whole device, so of all its chunks."""
    costs = [f"--{part}={sleep * chunks}" for part in ("forward", "input", "weight")]
    words = ["--kind", kind, "--devices", str(RANKS), "--micro-batches", str(micro_batches), "--chunks", str(chunks)]
    command = [penstock, "schedule", "simulate", *words, *costs, "-o", "json"]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(json.loads(told)["makespan"]) / 1e3


def pipeline_of(client: Any, sleep: float, kind: str, chunks: int, micro_batches: int, devices: list[str]) -> Any:
    import penstock

    times = {part: sleep for part in ("forward_ms", "input_ms", "weight_ms")}
    layers = [penstock.Layer("delay", options={**times, "features": WIDTH}) for _ in range(RANKS * chunks)]
    return client.create_pipeline(
        "delay",
        model=layers,
        balance=[1] * len(layers),
        devices=devices,
        schedule=kind,
        micro_batches=micro_batches,
        checkpoint="never",
        optimizer="sgd",
        loss="mean_squared_error",
        **({"chunks": chunks} if chunks > 1 else {}),
    )


def run_seconds(pipeline: Any, micro_batches: int) -> Callable[[], float]:
    rows = np.zeros((micro_batches, WIDTH), np.float32)
    return lambda: float(pipeline.train_step(rows, rows).seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--penstock", required=True)
    parser.add_argument("--transport", choices=("ucx", "grpc"), default="ucx")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--milliseconds", type=float, default=5.0, help="that a device sleeps")
    parser.add_argument("--micro-batches", type=int, nargs="*", default=[8, 16])
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import penstock
    from daemon_process import Daemon
    from rank_group import Group

    how_often = f"{options.rounds} rounds, in turns; medians (least to most)"
    print(f"{RANKS} devices that sleep {options.milliseconds:g} ms, one in each rank, over {options.transport}, {how_often}")
    print(
        f"{'':36} {'predicted':>9} {'simulated':>9} {'four ranks, ms':>24} {'one process, ms':>24}   "
        "speed of four ranks, % of predicted; of simulated; of one process"
    )
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        running.enter_context(awake_cores())
        folder = pathlib.Path(name)
        usable = sorted(os.sched_getaffinity(0))
        cores = [usable[rank % len(usable)] for rank in range(RANKS)]
        group = Group(folder, RANKS, options.transport, devices=[(f"cpu:0={core}",) for core in cores])
        running.enter_context(group.running())
        (folder / "alone").mkdir()
        alone = Daemon(folder / "alone", devices=tuple(f"cpu:{k}={core}" for k, core in enumerate(cores)))
        running.enter_context(alone.running())
        places = {
            "ranks": (running.enter_context(group.client()), ["cpu:0", *(f"{rank}/cpu:0" for rank in range(1, RANKS))]),
            "alone": (running.enter_context(penstock.Client(alone.address)), [f"cpu:{k}" for k in range(RANKS)]),
        }
        for micro_batches in options.micro_batches:
            for kind, chunks in KINDS:
                made = {
                    where: pipeline_of(client, options.milliseconds, kind, chunks, micro_batches, devices)
                    for where, (client, devices) in places.items()
                }
                runs = {where: run_seconds(one, micro_batches) for where, one in made.items()}
                times = in_turns(runs, options.rounds)
                took = statistics.median(times["ranks"])
                predicted = made["ranks"].plan.makespan_seconds
                shares = [f"{100 * predicted / took:.1f}", "-", percent(ratios(times["alone"], times["ranks"]))]
                ideal = "-"
                if kind in WHOLE_BACKWARD:
                    seconds = simulated(options.penstock, options.milliseconds, kind, chunks, micro_batches)
                    ideal = f"{1e3 * seconds:.0f}"
                    shares[1] = f"{100 * seconds / took:.1f}"
                print(
                    f"{f'{kind}, {chunks} a rank, m = {micro_batches}':36} {1e3 * predicted:9.1f} {ideal:>9} "
                    f"{milliseconds(times['ranks'], 1):>24} {milliseconds(times['alone'], 1):>24}   {'; '.join(shares)}",
                    flush=True,
                )
                for pipeline in made.values():
                    pipeline.delete(force=True, purge=True)


if __name__ == "__main__":
    main()
