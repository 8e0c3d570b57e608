"""What a save costs the step behind it.

    build/deps/test-venv/bin/python tests/bench/save_cost.py --daemon build/release/server/penstockd

In each round every daemon makes, in turn, a step of gpt by itself, then a save with a step right behind it. The cost is what the second
step ends later than the first, of the first's time; ratios are of the same round. `--before` names another build of the daemon, to compare
with. The disk is that of the temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import tempfile
import threading
import time
from typing import Any

import numpy as np

from journal_cost import GPT
from spreads import spread

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]


class Times:
    """Of one daemon, a value for each round, in seconds."""

    def __init__(self) -> None:
        self.step: list[float] = []
        self.save: list[float] = []
        self.behind: list[float] = []  # from the beginning of a save to the end of the step behind it


def measure(pipeline: Any, times: Times) -> None:
    text = np.random.default_rng(1).integers(0, 256, (32, 129))
    ended: list[float] = []

    def save() -> None:
        pipeline.save_checkpoint("a", replace=True)
        ended.append(time.perf_counter())

    begun = time.perf_counter()
    pipeline.train_step(text[:, :-1], text[:, 1:])
    times.step.append(time.perf_counter() - begun)
    saving = threading.Thread(target=save)
    begun = time.perf_counter()
    saving.start()
    pipeline.train_step(text[:, :-1], text[:, 1:])
    times.behind.append(time.perf_counter() - begun)
    saving.join()
    times.save.append(ended[0] - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--before")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    import daemon_process
    import penstock

    programs = {"now": options.daemon} | ({"before": options.before} if options.before else {})
    times = {part: Times() for part in programs}
    pipelines = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        for part, program in programs.items():
            folder = pathlib.Path(name) / part
            folder.mkdir()
            daemon_process.BINARY = program
            daemon = daemon_process.Daemon(folder)
            running.enter_context(daemon.running())
            client = running.enter_context(penstock.Client(daemon.address))
            pipelines[part] = client.create_pipeline("gpt", **GPT)
        for number in range(options.rounds + 1):
            for part in programs if number % 2 else reversed(programs):
                measure(pipelines[part], times[part] if number > 0 else Times())  # the first round warms up
    print(f"gpt, {options.rounds} rounds, all daemons in turn; medians (least to most)")
    print(f"{'':8} {'a step, ms':>20} {'a save, ms':>20} {'a step behind it, ms':>22}   the save costs, of the step")
    for part, made in times.items():
        columns = (spread([1e3 * value for value in values], 0) for values in (made.step, made.save, made.behind))
        cost = [100 * (behind / step - 1) for behind, step in zip(made.behind, made.step)]
        print("{:8} {:>20} {:>20} {:>22}   {} %".format(part, *columns, spread(cost, 1)))


if __name__ == "__main__":
    main()
