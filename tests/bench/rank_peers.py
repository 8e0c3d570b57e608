"""Two ranks of Penstock against other pipelines of two processes: every schedule of `torch.distributed.pipelining`, and fairscale's
AsyncPipe.

    build/deps/test-venv/bin/python tests/bench/rank_peers.py --daemon build/release/server/penstockd

All have a core for each process, the same model and weights, 8 micro-batches, the same cut, and plain SGD; the losses of every step must
agree. In each round both make the same steps in turn. While Penstock works the other's processes are stopped: some of their threads poll.
A step of Penstock is one that a client asks for over gRPC, with the journal and the copies with which it can be undone; the other's is a
loop beside the model. AsyncPipe has one schedule, all forwards and then all backwards: it is compared with gpipe, and with 1f1b.

AsyncPipe needs an older PyTorch. Where there is no environment for it, its rows are left out:

    python3 -m venv build/deps/fairscale-venv
    build/deps/fairscale-venv/bin/pip install torch==2.3.1 'numpy<2' 'setuptools<70' wheel
    build/deps/fairscale-venv/bin/pip install --no-build-isolation --no-deps fairscale==0.4.13
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from journal_cost import GPT
from spreads import spread
from turns import in_turns, milliseconds, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python")]
ENVIRONMENTS = ROOT / "build/deps"
PROGRAM = pathlib.Path(__file__).with_name("torch_pipelines.py")

LEARNING_RATE = 0.01
TOLERANCE = 1e-3  # of the losses: both add in another order


@dataclasses.dataclass(frozen=True)
class Case:
    other: str  # a schedule of torch.distributed.pipelining, or async-pipe
    schedule: str  # ours
    checkpoint: str = "never"

    @property
    def balance(self) -> list[int]:
        return [5, 5] if self.schedule in ("gpipe", "1f1b") else [3, 2, 2, 3]

    @property
    def name(self) -> str:
        ours = "" if self.schedule == self.other else f" against {self.schedule}"
        return f"{self.other}{ours}, {self.checkpoint}"


SAME = ("gpipe", "1f1b", "looped-bfs", "interleaved-1f1b", "interleaved-zb", "zbv", "dualpipe-v")
CASES = [
    *(Case(schedule, schedule) for schedule in SAME),
    *(Case(schedule, schedule, "always") for schedule in ("gpipe", "1f1b")),
    *(Case("async-pipe", ours, checkpoint) for ours in ("gpipe", "1f1b") for checkpoint in ("never", "always")),
]


class Other:
    """Two processes of another pipeline, stopped except in their turn."""

    def __init__(self, python: str, case: Case, folder: pathlib.Path, data: pathlib.Path, number: int) -> None:
        arguments = {
            "meet": folder / f"meet{number}",
            "data": data,
            "balance": ",".join(map(str, case.balance)),
            "schedule": case.other,
            "micro-batches": GPT["micro_batches"],
            "checkpoint": case.checkpoint,
            "learning-rate": LEARNING_RATE,
        }
        words = [f"--{name}={value}" for name, value in arguments.items()]
        self._log = folder / f"other{number}.log"
        self._ranks: list[subprocess.Popen[str]] = []
        for rank in range(2):
            command = [python, str(PROGRAM), f"--rank={rank}", f"--core={rank}", *words]
            with open(self._log, "a") as log:
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
                self._ranks.append(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]

    def _answers(self) -> list[dict[str, Any]]:
        lines = [rank.stdout.readline() for rank in self._ranks]  # type: ignore[union-attr]
        if not all(lines):
            raise RuntimeError(f"the other pipeline has ended:\n{self._log.read_text()[-4000:]}")
        return [json.loads(line) for line in lines]

    def _signal(self, what: signal.Signals) -> None:
        for rank in self._ranks:
            rank.send_signal(what)

    @contextlib.contextmanager
    def running(self) -> Iterator[Other]:
        try:
            self.version = self._answers()[0]["ready"]
            self._signal(signal.SIGSTOP)
            yield self
        finally:
            for rank in self._ranks:
                rank.kill()
                rank.wait()

    def steps(self, count: int) -> tuple[float, list[float]]:
        """Seconds from the first rank's begin to the last one's end, and the losses."""
        self._signal(signal.SIGCONT)
        for rank in self._ranks:
            rank.stdin.write(f"{count}\n")  # type: ignore[union-attr]
            rank.stdin.flush()  # type: ignore[union-attr]
        answers = self._answers()
        self._signal(signal.SIGSTOP)
        seconds = max(answer["ended"] for answer in answers) - min(answer["begun"] for answer in answers)
        losses: list[float] = next(answer["losses"] for answer in answers if answer["losses"][0] is not None)
        return seconds, losses


def pipeline_of(client: Any, case: Case) -> Any:
    return client.create_pipeline(
        "gpt",
        **{
            **GPT,
            "stages": 0,
            "balance": case.balance,
            "devices": ["cpu:0", "1/cpu:0"],
            "schedule": case.schedule,
            "checkpoint": case.checkpoint,
            "optimizer": "sgd",
            "optimizer_options": {"learning_rate": LEARNING_RATE},
        },
    )


def compare(pipeline: Any, other: Other, text: np.ndarray, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds per step of both. Fails where they don't do the same."""
    losses: dict[str, list[float]] = {"penstock": [], "other": []}
    steps: int = options.steps

    def ours(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            losses["penstock"].append(pipeline.train_step(text[:, :-1], text[:, 1:]).loss)
        return time.perf_counter() - begun

    def theirs(count: int) -> float:
        seconds, told = other.steps(count)
        losses["other"] += told
        return seconds

    def turn(work: Callable[[int], float]) -> float:
        work(1)  # the caches are the other's
        return work(steps) / steps

    found = in_turns({"penstock": lambda: turn(ours), "other": lambda: turn(theirs)}, options.rounds)
    for mine, its in zip(losses["penstock"], losses["other"], strict=True):
        assert math.isclose(mine, its, rel_tol=TOLERANCE), f"other losses than {losses}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--torch", default=f"{ENVIRONMENTS}/torch-venv/bin/python", metavar="PYTHON")
    parser.add_argument("--fairscale", default=f"{ENVIRONMENTS}/fairscale-venv/bin/python", metavar="PYTHON")
    parser.add_argument("--transport", choices=("ucx", "grpc"), default="ucx")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="of each in a round, after one that does not count")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="of the others' schedules, or async-pipe")
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    from rank_group import Group

    cases = [case for case in CASES if case.other in (options.only or [*SAME, "async-pipe"])]
    if not pathlib.Path(options.fairscale).exists():
        cases = [case for case in cases if case.other != "async-pipe"]
        print("AsyncPipe is left out: no environment for it")
    text = np.random.default_rng(1).integers(0, 256, (32, 129))
    how_often = f"{options.rounds} rounds of {options.steps} steps, in turns; medians (least to most)"
    print(f"gpt, 8 micro-batches, two ranks over {options.transport}, {how_often}")
    print(f"{'':38} {'Penstock, ms':>24} {'the other, ms':>24}   Penstock takes, times the other")
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = pathlib.Path(name)
        group = Group(folder, 2, options.transport, devices=[("cpu:0=0",), ("cpu:0=1",)])
        running.enter_context(group.running())
        client = running.enter_context(group.client())
        for number, case in zip(itertools.count(), cases):
            pipeline = pipeline_of(client, case)
            data = folder / "data.npz"
            np.savez(data, tokens=text[:, :-1], targets=text[:, 1:], **pipeline.read_parameters())
            python = options.fairscale if case.other == "async-pipe" else options.torch
            with Other(python, case, folder, data, number).running() as other:
                versions["AsyncPipe" if case.other == "async-pipe" else "torch.distributed.pipelining"] = other.version
                found = compare(pipeline, other, text, options)
            times = [milliseconds(found[side]) for side in ("penstock", "other")]
            share = spread(ratios(found["penstock"], found["other"]), 3)
            print(f"{case.name:38} {times[0]:>24} {times[1]:>24}   {share}", flush=True)
            pipeline.delete(force=True, purge=True)
    print("; ".join(f"{name} with PyTorch {version}" for name, version in versions.items()))


if __name__ == "__main__":
    main()
