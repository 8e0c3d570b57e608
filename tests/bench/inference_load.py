"""Requests to a server, by `penstock bench` on cores of its choice: how many a second, their latency, the CPU time of both sides."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import grpc

BUILD = pathlib.Path(__file__).resolve().parents[2] / "build/release"
PENSTOCK = BUILD / "client/cli/penstock"
ECHO = BUILD / "tests/bench/echo_server"
OPEN = (1, 8, 32, 128)
MODELS = {"tiny": {"layers": 4, "width": 64}, "wide": {"layers": 16, "width": 1024}}
SECONDS = 2.0
WARM_UP = 0.5


@contextlib.contextmanager
def process(words: list[str], address: str, environment: dict[str, str]) -> Iterator[int]:
    with tempfile.TemporaryFile() as log:
        started = subprocess.Popen(words, env={**os.environ, **environment}, stdout=log, stderr=log)
        try:
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(timeout=60)
            yield started.pid
        except grpc.FutureTimeoutError:
            log.seek(0)
            sys.exit(f"{words[0]} does not listen:\n{log.read().decode(errors='replace')[-2000:]}")
        finally:
            started.terminate()
            started.wait()


def cpu_seconds(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def children_seconds() -> float:
    """CPU time of those that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def told_by(load: subprocess.Popen[str]) -> dict[str, float]:
    """Requests a second, p50 and p99 in ms, once the load has ended."""
    text, _ = load.communicate()
    if load.returncode != 0:
        raise subprocess.CalledProcessError(load.returncode, load.args)
    point = json.loads(text)["points"][0]
    seconds = point["latency_seconds"]
    return {"rate": point["calls_per_second"], "p50": 1e3 * seconds["p50"], "p99": 1e3 * seconds["p99"]}


class Server:
    """Where it listens, its processes, and the words of `penstock bench` for it."""

    def __init__(self, address: str, pids: list[int], *words: str) -> None:
        self.address, self.pids, self.words = address, pids, words

    def begin(
        self, model: str, cores: int | str, *how: str, seconds: float = SECONDS, warm_up: float = WARM_UP
    ) -> subprocess.Popen[str]:
        """A load, for example `--concurrency 8`, from these cores, as taskset takes them."""
        words = ["bench", model, *self.words, *how, "--warm-up", str(warm_up), "--window", str(seconds / 3)]
        stable = ["--max-windows", "3", "--stability-percentage", "200", "-o", "json"]
        command = ["taskset", "-c", str(cores), str(PENSTOCK), "--server", self.address, *words, *stable]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def load(self, model: str, concurrency: int, cores: int | str, seconds: float = SECONDS) -> dict[str, float]:
        """What `told_by` says, and CPU us of a request: the server's and the client's."""
        before, client_before = cpu_seconds(self.pids), children_seconds()
        found = told_by(self.begin(model, cores, "--concurrency", str(concurrency), seconds=seconds))
        # The warm-up is as fast as the rest.
        requests = found["rate"] * (seconds + WARM_UP)
        found["cpu"] = 1e6 * (cpu_seconds(self.pids) - before) / requests
        found["client cpu"] = 1e6 * (children_seconds() - client_before) / requests
        return found
