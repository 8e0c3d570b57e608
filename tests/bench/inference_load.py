"""Requests of one row to a server, by `penstock bench` on a core of its own: how many a second, their latency, the server's CPU time."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

PENSTOCK = pathlib.Path(__file__).resolve().parents[2] / "build/release/client/cli/penstock"
OPEN = (1, 8, 32, 128)
MODELS = {"tiny": {"layers": 4, "width": 64}, "wide": {"layers": 16, "width": 1024}}
SECONDS = 2.0
WARM_UP = 0.5


def cpu_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Server:
    """Where it listens, its processes, and the words of `penstock bench` for it."""

    def __init__(self, address: str, pids: list[int], *words: str) -> None:
        self.address, self.pids, self.words = address, pids, words

    def load(self, model: str, concurrency: int, core: int) -> dict[str, float]:
        """Requests a second, p50 and p99 in ms, CPU us of a request."""
        words = ["bench", model, *self.words, "--concurrency", str(concurrency), "--warm-up", str(WARM_UP), "--window", str(SECONDS / 3)]
        stable = ["--max-windows", "3", "--stability-percentage", "200", "-o", "json"]
        before = cpu_seconds(self.pids)
        text = subprocess.run(
            ["taskset", "-c", str(core), PENSTOCK, "--server", self.address, *words, *stable], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        point = json.loads(text)["points"][0]
        seconds = point["latency_seconds"]
        found = {"rate": point["calls_per_second"], "p50": 1e3 * seconds["p50"], "p99": 1e3 * seconds["p99"]}
        # The warm-up is as fast as the rest.
        found["cpu"] = 1e6 * (cpu_seconds(self.pids) - before) / (found["rate"] * (SECONDS + WARM_UP))
        return found
