"""What it costs that the stages of a pipeline stand in two processes: the same training steps in one process with two devices, and in
two ranks with one device each; a core for every device.

    build/deps/test-venv/bin/python tests/bench/rank_cost.py --daemon build/release/server/penstockd

All daemons run all the time, and one works at a time. In each round all of them make the same steps in turn; the speed is against one
process in the same round. Everything goes over loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from journal_cost import GPT
from turns import in_turns, milliseconds, percent, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]

ALONE = "one process"
CASES = [(schedule, checkpoint) for schedule in ("1f1b", "gpipe") for checkpoint in ("never", "always")]
BALANCE = [5, 5]  # embedding and four blocks; four blocks and head


@contextlib.contextmanager
def clients(folder: pathlib.Path) -> Iterator[dict[str, tuple[Any, list[str]]]]:
    """By what stands below: a client, and the devices of the stages."""
    import penstock
    from daemon_process import Daemon
    from rank_group import Group

    with contextlib.ExitStack() as running:
        (folder / "alone").mkdir()
        alone = Daemon(folder / "alone", devices=("cpu:0=0", "cpu:1=1"))
        running.enter_context(alone.running())
        found = {ALONE: (running.enter_context(penstock.Client(alone.address)), ["cpu:0", "cpu:1"])}
        for transport in ("ucx", "grpc"):
            (folder / transport).mkdir()
            group = Group(folder / transport, 2, transport, devices=[("cpu:0=0",), ("cpu:0=1",)])
            running.enter_context(group.running())
            found[f"two ranks, {transport}"] = (running.enter_context(group.client()), ["cpu:0", "1/cpu:0"])
        yield found


def step_seconds(pipeline: Any, steps: int) -> Callable[[], float]:
    """Measures so many steps, each awaited before the next."""
    text = np.random.default_rng(1).integers(0, 256, (32, 129))

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            pipeline.train_step(text[:, :-1], text[:, 1:])
        return (time.perf_counter() - begun) / steps

    return measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="of each daemon in a round")
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    print(f"gpt, 8 micro-batches, {options.rounds} rounds of {options.steps} steps, in turns; medians (least to most)")
    print(f"{'':32} {'ms per step':>24}   speed against one process, %")
    with tempfile.TemporaryDirectory() as name, clients(pathlib.Path(name)) as running:
        for schedule, checkpoint in CASES:
            pipelines: dict[str, Any] = {}
            for what, (client, devices) in running.items():
                changes = {"schedule": schedule, "checkpoint": checkpoint, "balance": BALANCE, "devices": devices}
                pipelines[what] = client.create_pipeline("gpt", **{**GPT, **changes, "stages": 0})
                assert [stage.device for stage in pipelines[what].plan.stages] == devices
            measures = {what: step_seconds(pipeline, options.steps) for what, pipeline in pipelines.items()}
            times = in_turns(measures, options.rounds)
            print(f"{schedule}, {checkpoint}")
            for what, seconds in times.items():
                speed = "" if what == ALONE else percent(ratios(times[ALONE], seconds))
                print(f"  {what:30} {milliseconds(seconds):>24}   {speed}".rstrip(), flush=True)
            for pipeline in pipelines.values():
                pipeline.delete(force=True, purge=True)


if __name__ == "__main__":
    main()
