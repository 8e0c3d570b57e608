#!/usr/bin/env python3
"""Two hundred clients for an hour, and what the daemon takes meanwhile: memory, descriptors, threads, its ledger.

    build/deps/test-venv/bin/python tests/soak/soak.py build/release/server/penstockd [--minutes 60] [--clients 200]

Prints a line a minute and a verdict (samples.py says how it is judged); exits with 1 where something grows, the ledger does
not match resident memory, or a client has got a wrong answer. With --leak memory|descriptors|threads and --library
libpenstock_leak.so the daemon loses some of these on purpose: then it must be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/integration"), str(ROOT / "client/python"), str(pathlib.Path(__file__).parent)]

import daemon_process  # noqa: E402
import penstock  # noqa: E402
from clients import LEASE, Caller, Counts, make_pipelines, probe_of  # noqa: E402
from samples import MIB, Sample, Verdict, judge, take_sample  # noqa: E402

FLAGS = ("--drain-announce=0s", "--trace-ring-events=4096", "--max-pipelines=64")
PROBES = 16


def prefix_of(leak: str, library: str) -> tuple[str, ...]:
    """Starts the daemon with a library that loses something four times a second."""
    return ("env", f"LD_PRELOAD={library}", f"PENSTOCK_LEAK={leak}") if leak else ()


def look_at_the_end(owner: penstock.Client, answers: list[bytes], counts: Counts) -> None:
    """Each step was told of once, none is forgotten, and what nobody trained has not changed."""
    if len(set(counts.steps)) != len(counts.steps):
        counts.fail("a step was told of twice")
    if counts.steps and owner.pipeline("trained").refresh().step < max(counts.steps):
        counts.fail("a step that was told of is lost")
    for probe, answer in enumerate(answers):
        if owner.pipeline("fixed").infer(probe_of(probe))["output"].tobytes() != answer:
            counts.fail(f"the answer to probe {probe} has changed")


def held(daemon: daemon_process.Daemon) -> float:
    """Bytes that are reserved for work; answers to retries are kept for a day."""
    metrics = daemon.metrics()
    name = "penstock_memory_reserved_bytes"
    return metrics.sum(name) - metrics.sum(name, **{"class": "answers"})


def run(
    folder: pathlib.Path,
    minutes: float,
    clients: int,
    prefix: tuple[str, ...] = (),
    tell: Callable[[Sample], None] = lambda sample: None,
) -> tuple[Verdict, Counts, list[Sample]]:
    """One daemon's life. Its end is part of it: nobody is left, so nothing is held, and it stops well."""
    daemon = daemon_process.Daemon(folder, *FLAGS, prefix=prefix)
    counts = Counts()
    samples: list[Sample] = []
    with daemon.running():
        with penstock.Client(daemon.address, "owner") as owner:
            answers = make_pipelines(owner, PROBES)
        began = time.monotonic()
        end = began + 60 * minutes
        callers = [Caller(number, daemon.address, answers, counts, end) for number in range(clients)]
        for caller in callers:
            caller.start()
        pause = max(0.5, minutes / 5)
        while not samples or (time.monotonic() < end and not counts.failures):
            time.sleep(pause)
            samples.append(take_sample(daemon, time.monotonic() - began))
            tell(samples[-1])
        for caller in callers:
            caller.join(150)
            if caller.is_alive():
                counts.fail("a client hangs")
        with penstock.Client(daemon.address, "owner") as owner:
            look_at_the_end(owner, answers, counts)
            for pipeline in owner.list_pipelines():
                pipeline.delete(force=True, purge=True)
        deadline = time.monotonic() + 70 + LEASE  # an upload that broke off may go on for a minute
        while (left := held(daemon)) > 0:
            if time.monotonic() > deadline:
                counts.fail(f"{left:.0f} bytes are still reserved when nobody is left")
                break
            time.sleep(0.5)
    return judge(samples), counts, samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("daemon")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--leak", choices=["memory", "descriptors", "threads"], default="")
    parser.add_argument("--library", default=str(ROOT / "build/release/tests/soak/libpenstock_leak.so"))
    parser.add_argument("--samples", help="file for all samples, as JSON")
    options = parser.parse_args()
    daemon_process.BINARY = os.path.abspath(options.daemon)
    told = [0.0]

    def tell(sample: Sample) -> None:
        if sample.seconds < told[0]:
            return
        told[0] = sample.seconds + 60
        print(
            f"{sample.seconds / 60:6.1f} min  resident {sample.resident / MIB:7.1f} MiB  ledger {sample.ledger / MIB:7.1f} + "
            f"{sample.process / MIB:.1f} + {sample.allocator / MIB:.1f} MiB  descriptors {sample.descriptors:.0f}  "
            f"threads {sample.threads:.0f}",
            flush=True,
        )

    with tempfile.TemporaryDirectory() as folder:
        prefix = prefix_of(options.leak, options.library)
        verdict, counts, samples = run(pathlib.Path(folder), options.minutes, options.clients, prefix, tell)
    if options.samples:
        pathlib.Path(options.samples).write_text(json.dumps([vars(sample) for sample in samples]))
    print("done", dict(counts.done))
    print("refused", dict(counts.refused))
    for name, growth in verdict.growth.items():
        print(f"{name}: grew by {growth:.0f}, allowed are {verdict.allowed[name]:.0f}")
    print(f"ledger and resident memory differ by {verdict.mismatch:.1%}")
    complaints = verdict.complaints() + counts.failures[:10]
    for complaint in complaints:
        print("NOT WELL:", complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
