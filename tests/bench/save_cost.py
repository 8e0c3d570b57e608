"""What a save costs the step behind it.

    build/deps/test-venv/bin/python tests/bench/save_cost.py --daemon build/release/server/penstockd

In each round every daemon makes, in turn, two steps of gpt, and two with a save between them; all calls are there before the second step's
turn comes. The cost is what the second step, and the save, take longer from the end of the first; ratios are of the same round. Then it
saves once more, alone, for the processor time of the thread that trains and of the one that writes: other programs don't disturb that.
`--before` names another build of the daemon, to compare with. The disk is that of the temporary folder.
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


QUEUED_SECONDS = 0.1  # a save is in the queue by then, and a step of gpt takes longer


class Times:
    """Of one daemon, a value for each round, in seconds."""

    def __init__(self) -> None:
        self.step: list[float] = []
        self.save: list[float] = []
        self.behind: list[float] = []  # a save and a step
        self.train: list[float] = []  # of ps-train, in a save
        self.write: list[float] = []  # of ps-save


def processor_seconds(pid: int, thread: str) -> float:
    """Of a thread of the daemon, from its beginning."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    named = [task for task in tasks if (task / "comm").read_text().strip() == thread]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in named) / 1e9


def measure(pipeline: Any, pid: int, times: Times) -> None:
    text = np.random.default_rng(1).integers(0, 256, (32, 129))
    ended: list[float] = []

    def save() -> None:
        pipeline.save_checkpoint("a", replace=True)
        ended.append(time.perf_counter())

    for saves in (False, True):
        first = pipeline.submit_train_step(text[:, :-1], text[:, 1:])
        saving = threading.Thread(target=save)
        if saves:
            saving.start()
            time.sleep(QUEUED_SECONDS)
        second = pipeline.submit_train_step(text[:, :-1], text[:, 1:])
        first.result()
        begun = time.perf_counter()
        second.result()
        (times.behind if saves else times.step).append(time.perf_counter() - begun)
    saving.join()
    times.save.append(ended[0] - begun)
    for thread, spent in (("ps-train", times.train), ("ps-save", times.write)):
        spent.append(-processor_seconds(pid, thread))
    pipeline.save_checkpoint("a", replace=True)
    for thread, spent in (("ps-train", times.train), ("ps-save", times.write)):
        spent[-1] += processor_seconds(pid, thread)


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
    made: dict[str, tuple[Any, int]] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        for part, program in programs.items():
            folder = pathlib.Path(name) / part
            folder.mkdir()
            daemon_process.BINARY = program
            daemon = daemon_process.Daemon(folder)
            running.enter_context(daemon.running())
            client = running.enter_context(penstock.Client(daemon.address))
            made[part] = (client.create_pipeline("gpt", **GPT), daemon.pid)
        for number in range(options.rounds + 1):
            for part in programs if number % 2 else reversed(programs):
                measure(*made[part], times[part] if number > 0 else Times())  # the first round warms up
    print(f"gpt, {options.rounds} rounds, all daemons in turn; ms; medians (least to most)")
    for part, ran in times.items():
        cost = spread([100 * (behind / step - 1) for behind, step in zip(ran.behind, ran.step)], 1)
        print(f"{part}: the save costs {cost} % of the step")
        for what, values in (
            ("a step", ran.step),
            ("a save and a step", ran.behind),
            ("a save, with a step behind it", ran.save),
            ("processor time of ps-train in a save", ran.train),
            ("processor time of ps-save in it", ran.write),
        ):
            print(f"  {what:38} {spread([1e3 * value for value in values], 0)}")


if __name__ == "__main__":
    main()
