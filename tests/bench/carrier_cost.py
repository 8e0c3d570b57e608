"""What carries tensors between ranks against UCX's own measuring program, over loopback, two processes with a core each.

    build/deps/test-venv/bin/python tests/bench/carrier_cost.py --bench build/release/tests/bench/carrier_bench

It needs ucx_perftest (Debian: ucx-utils). In each round all programs move the same bytes in turn, with four frames under way and a header
of 100 bytes each; at last 1 KiB goes to and fro. ucx_perftest has the same environment, error handling and kind of memory. It polls, as it does
by itself, or sleeps while nothing comes, as Penstock must beside lanes that compute. Ratios are of the same round.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

from spreads import spread
from turns import in_turns, percent, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))

SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
MOVED = 1024  # MiB for each size
PING = 1024
PINGS = 2000
HEADER = 100
PEER = "ucx_perftest"
SECONDS = 120  # none of the runs takes a tenth of that


def own(bench: str, carrier: str) -> Callable[[int], float]:
    """MB/s of a size, or microseconds one way of the small message."""

    def measure(size: int) -> float:
        moved = 1 if size == PING else MOVED
        command = [bench, "--carrier", carrier, "--processes=2", f"--bytes={size}", f"--moved={moved}"]
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
        found = re.search(r"one way ([\d.]+) us" if size == PING else r"([\d.]+) MB/s", run.stdout)
        assert found, run.stdout
        return float(found[1])

    return measure


def listening(port: int) -> bool:
    """Without a connection, which the server would take for its client."""
    waiting = f":{port:04X} 00000000:0000 0A"
    return waiting in pathlib.Path("/proc/net/tcp").read_text() + pathlib.Path("/proc/net/tcp6").read_text()


def peer(environment: dict[str, str], mode: str) -> Callable[[int], float]:
    from daemon_process import eventually, free_ports

    def measure(size: int) -> float:
        port = free_ports(1)[0]
        both = [PEER, "-p", str(port), "-e", "-E", mode]
        server = subprocess.Popen([*both, "-c", "1"], env=environment, stdout=subprocess.DEVNULL)
        try:
            eventually(lambda: listening(port))
            small = size == PING
            count = PINGS if small else (MOVED << 20) // size
            test = ["-t", "ucp_am_lat" if small else "ucp_am_bw", "-s", str(size), "-n", str(count), "-w", "5", "-O", "4"]
            client = [*both, "127.0.0.1", "-c", "0", "-H", str(HEADER), "-f", "-v", *test]
            run = subprocess.run(client, env=environment, capture_output=True, text=True, check=True, timeout=SECONDS)
            names, values = run.stdout.strip().splitlines()[-2:]
            row = dict(zip(names.split(","), values.split(",")))
            return float(row["overall_lat"]) if small else float(row["overall_bw"]) * (1 << 20) / 1e6
        finally:
            server.terminate()
            server.wait()

    return measure


def name_of(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if shutil.which(PEER) is None:
        parser.error(f"{PEER} is not there; on Debian: apt-get install ucx-utils")
    told = subprocess.run([options.bench, "--environment"], capture_output=True, text=True, check=True).stdout
    environment = {**os.environ, **dict(line.split("=", 1) for line in told.splitlines())}
    programs = {
        "ucx": own(options.bench, "ucx"),
        "grpc": own(options.bench, "grpc"),
        "polls": peer(environment, "poll"),
        "sleeps": peer(environment, "sleep"),
    }
    print(f"{options.rounds} rounds, all programs in turn; medians (least to most)")
    print(f"{'MB/s':10}" + "".join(f"{name:>24}" for name in ("ucx", "grpc", f"{PEER} polls", f"{PEER} sleeps")))
    for size in [*SIZES, PING]:
        found = in_turns({name: functools.partial(run, size) for name, run in programs.items()}, options.rounds)
        digits = 1 if size == PING else 0
        unit = ", us" if size == PING else ""
        print(f"{name_of(size) + unit:10}" + "".join(f"{spread(found[name], digits):>24}" for name in programs))
        if size == PING:
            longer = [[a - b for a, b in zip(found["ucx"], found[name])] for name in ("polls", "sleeps")]
            print(f"{'':10}ucx takes longer one way by, us: {spread(longer[0], 1)}; than one that sleeps {spread(longer[1], 1)}")
        else:
            against = [percent(ratios(found["ucx"], found[name])) for name in ("polls", "sleeps")]
            print(f"{'':10}ucx moves, %: {against[0]}; of what one that sleeps moves {against[1]}", flush=True)


if __name__ == "__main__":
    main()
