"""Compares training on two stages alone, beside inference whose requests run by themselves, and beside the same inference with dynamic
batching, in turns. Run by hand:

    build/deps/test-venv/bin/python tests/bench/training_beside.py --daemon build/release/server/penstockd

Two models, 1F1B: two devices that sleep (--model delay: 5 ms per forward, 10 per backward, 2 per run of inference, however many rows it
has; m = 4), or `gpt` on two cores (--model gpt; m = 8). A caller trains with two steps always open. Requests of one row come from `penstock
bench` at random, as many a second as would take half of the bubble (--fill) if each ran by itself; the gaps between them are the same in
every round and with batching. Printed, as medians of the rounds, with their least and most:

    longer     time of a step beside inference, less that of one alone in the same round, as a share of it
    filled     inference inside the steps, in device time, as a share of the bubble of training alone
    answered   requests a second; p50 and p99 in ms from the instant at which a request was due
    a run      requests that ran as one
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import numpy as np

from inference_load import Server, told_by
from journal_cost import GPT
from spreads import spread
from turns import in_turns, percent, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
OPEN_STEPS = 2
WARM_UP = 1.0
ALONE = 10  # requests, one after the other
SLEEPS = {"forward_ms": 5.0, "input_ms": 5.0, "weight_ms": 5.0, "inference_ms": 2.0, "features": 4}


@dataclasses.dataclass
class Workload:
    spec: dict[str, Any]
    inputs: np.ndarray
    target: np.ndarray
    seconds: float  # of training that is measured in a round


def workloads() -> dict[str, Workload]:
    import penstock

    layers = [penstock.Layer("delay", options=SLEEPS)] * 2
    delay = {"model": layers, "stages": 2, "schedule": "1f1b", "micro_batches": 4, "checkpoint": "never", "optimizer": "sgd"}
    delay["loss"] = "mean_squared_error"
    rows = np.zeros((4, 4), np.float32)
    text = np.random.default_rng(1).integers(0, 256, (32, 129))
    return {"delay": Workload(delay, rows, rows, 4.0), "gpt": Workload(GPT, text[:, :-1], text[:, 1:], 4.0)}


@dataclasses.dataclass
class Measured:
    """Device-seconds are of both stages, for one step."""

    step: float
    bubble: float
    filled: float
    requests: float = 0.0  # a run of the stages
    inference: dict[str, float] = dataclasses.field(default_factory=dict)


class Bench:
    def __init__(self, daemon: Any, workload: Workload) -> None:
        self.daemon, self.workload = daemon, workload

    def train(self, pipeline: Any) -> Measured:
        """Trains; what happens in WARM_UP is not counted."""
        from stage_states import seconds_by_state, work_and_step

        def submit() -> Any:
            return pipeline.submit_train_step(self.workload.inputs, self.workload.target)

        opened = collections.deque(submit() for _ in range(OPEN_STEPS))

        def steps(seconds: float) -> tuple[int, float]:
            """So many ended, and when the last one did."""
            end, count = time.monotonic() + seconds, 0
            while count == 0 or time.monotonic() < end:
                opened.popleft().result()
                opened.append(submit())
                count += 1
            return count, time.monotonic()

        name = short(pipeline)
        _, begun = steps(WARM_UP)
        before = self.daemon.metrics()
        count, ended = steps(self.workload.seconds)
        after = self.daemon.metrics()
        for step in opened:
            step.result()
        seconds = seconds_by_state(before, after, name)
        work, in_step = work_and_step(seconds)
        started = {"name": "penstock_batches_started_total", "pipeline": name, "mode": "infer"}
        runs = {"name": "penstock_inference_runs_total", "pipeline": name}
        requests, ran = (after.sum(**what) - before.sum(**what) for what in (started, runs))
        return Measured((ended - begun) / count, (in_step - work) / count, seconds["filled"] / count, requests / max(ran, 1))

    def beside(self, pipeline: Any, rate: float) -> Measured:
        cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        server = Server(self.daemon.address, [self.daemon.pid])
        load = server.begin(short(pipeline), cores, "--rate", f"{rate:g}", "--poisson", seconds=self.workload.seconds, warm_up=WARM_UP)
        measured = self.train(pipeline)
        measured.inference = told_by(load)
        return measured

    def device_seconds_alone(self, pipeline: Any) -> float:
        """Of one request."""
        from stage_states import seconds_by_state

        before = self.daemon.metrics()
        for _ in range(ALONE):
            pipeline.infer(self.workload.inputs[:1])
        seconds: float = seconds_by_state(before, self.daemon.metrics(), short(pipeline))["infer"]
        return seconds / ALONE


def short(pipeline: Any) -> str:
    return str(pipeline.name).removeprefix("pipelines/")


def compare(name: str, bench: Bench, client: Any, fill: float, rounds: int) -> None:
    unbatched = client.create_pipeline(f"{name}-unbatched", **bench.workload.spec)
    batched = client.create_pipeline(f"{name}-batched", **bench.workload.spec, dynamic_batching=True)
    bench.train(unbatched)
    first, request = bench.train(unbatched), bench.device_seconds_alone(unbatched)
    rate = fill * first.bubble / first.step / request
    variants = {
        "alone": lambda: bench.train(unbatched),
        "unbatched": lambda: bench.beside(unbatched, rate),
        "batched": lambda: bench.beside(batched, rate),
    }
    found = in_turns(variants, rounds)
    print(f"{name}, {rate:.1f} requests a second: one takes {1e3 * request:.1f} ms of both devices together, and the bubble of a step is "
          f"{1e3 * first.bubble:.0f} ms of them")
    print(f"{'':9} {'steps a second':>22} {'longer, %':>20} {'filled, %':>20} {'answered':>20} {'p50':>22} {'p99':>24} {'a run':>18}")
    steps = {variant: [one.step for one in each] for variant, each in found.items()}
    for variant, each in found.items():
        line = f"{variant:9} {spread([1 / step for step in steps[variant]], 2):>22}"
        if variant != "alone":
            longer = percent([ratio - 1 for ratio in ratios(steps[variant], steps["alone"])])
            filled = percent(ratios([one.filled for one in each], [one.bubble for one in found["alone"]]))
            answered, p50, p99 = (spread([one.inference[what] for one in each], 1) for what in ("rate", "p50", "p99"))
            line += f" {longer:>20} {filled:>20} {answered:>20} {p50:>22} {p99:>24} {spread([one.requests for one in each], 2):>18}"
        print(line)
    longer = percent([ratio - 1 for ratio in ratios(steps["batched"], steps["unbatched"])])
    print(f"a step beside batched inference is longer than beside the other by {longer} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fill", type=float, default=0.5, help="of the bubble, if requests ran by themselves")
    parser.add_argument("--model", choices=("delay", "gpt"), default="delay")
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import penstock
    from daemon_process import Daemon

    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)  # of the daemon, which inherits it
    print(f"1f1b on two stages, {options.rounds} rounds, in turns; medians (least to most)")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        daemon = Daemon(pathlib.Path(folder), devices=tuple(f"cpu:{k}={core}" for k, core in enumerate(cores)))
        running.enter_context(daemon.running())
        client = running.enter_context(penstock.Client(daemon.address))
        compare(options.model, Bench(daemon, workloads()[options.model]), client, options.fill, options.rounds)


if __name__ == "__main__":
    main()
