"""Compares a model on one, two and four stages, under inference, in turns: requests a second with many open, and what one request alone
takes beside the sum of its stages. Run by hand:

    build/deps/test-venv/bin/python tests/bench/stages.py --daemon build/release/server/penstockd

First four layers `delay` of 5 ms, which sleep and take no core: twice as many stages should answer twice as many. Then an MLP whose layers
compute for milliseconds, on one and two stages, requests of 64 rows. A stage has one core and one thread; there are two cores, so the
client takes its time from the stages where both compute, but not from one alone. So there the ratio stands twice: as measured, and with two
stages that have the client's core time too, as if it were on another machine. That is right where both cores are in use. Nothing is
batched. Beside them stands a bare gRPC server that sleeps as long before it returns its input: what the machine takes to wake up, and gRPC. Prints medians of the rounds, and the least and most.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from inference_load import ECHO, Server, process
from spreads import spread
from turns import in_turns, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
LAYERS, MILLISECONDS, OPEN_OF_DELAY, SECONDS_OF_DELAY = 4, 5.0, 16, 2.0
MLP, ROWS, OPEN_OF_MLP, SECONDS_OF_MLP = {"layers": 8, "width": 1536}, 64, 6, 4.0


class Bench:
    """A daemon with two devices on each of two cores, and the pipelines on them."""

    def __init__(self, daemon: Any, client: Any, bare: Server, cores: list[int], rounds: int) -> None:
        self.daemon, self.client, self.bare, self.rounds = daemon, client, bare, rounds
        self.cores = ",".join(str(core) for core in cores)

    def create(self, name: str, layers: int, stages: int, **model: Any) -> None:
        devices = [f"cpu:{stage}" for stage in range(stages)]
        balance = [layers // stages] * stages
        self.client.create_pipeline(name, **model, balance=balance, devices=devices, schedule="1f1b", micro_batches=1)

    def load(self, name: str, rows: int, concurrency: int, seconds: float) -> dict[str, float]:
        """As Server.load, with ms of all stages for one request."""
        from stage_states import seconds_by_state

        before = self.daemon.metrics()
        server = Server(self.daemon.address, [self.daemon.pid], "--rows", str(rows))
        found = server.load(name, concurrency, self.cores, seconds)
        after = self.daemon.metrics()
        started = {"name": "penstock_batches_started_total", "pipeline": name, "mode": "infer"}
        requests = after.sum(**started) - before.sum(**started)
        found["stages"] = 1e3 * seconds_by_state(before, after, name)["infer"] / requests
        return found

    def loads(
        self, names: dict[int, str], *load: Any, beside: Callable[[], dict[str, float]] | None = None
    ) -> dict[int, list[dict[str, float]]]:
        """By stages; 0 is what is measured beside them."""
        variants: dict[str, Callable[[], dict[str, float]]] = {
            str(stages): functools.partial(self.load, name, *load) for stages, name in names.items()
        }
        if beside is not None:
            variants["0"] = beside
        return {int(stages): found for stages, found in in_turns(variants, self.rounds).items()}

    def sleeping(self) -> None:
        import penstock

        layer = penstock.Layer("delay", options={"forward_ms": MILLISECONDS, "features": 4})
        names = {stages: f"delay-{stages}" for stages in (1, 2, 4)}
        for stages, name in names.items():
            self.create(name, LAYERS, stages, model=[layer] * LAYERS)
        many = self.loads(names, 1, OPEN_OF_DELAY, SECONDS_OF_DELAY)
        one = self.loads(names, 1, 1, SECONDS_OF_DELAY, beside=lambda: self.bare.load("bare", 1, self.cores, SECONDS_OF_DELAY))
        of_bare = column(one[0], "p50")
        nominal = LAYERS * MILLISECONDS
        print(f"{LAYERS} layers that sleep {MILLISECONDS:g} ms each; {OPEN_OF_DELAY} open requests, or one alone")
        print(f"{'stages':>6} {'requests a second':>22} {'times one stage':>20} {'alone, p50, ms':>24} {f'beyond {nominal:g} ms':>20} "
              f"{'its stages take, ms':>24} {'mean beyond these, ms':>22} {'p50 beyond bare gRPC':>22}")
        print(f"{'bare':>6} {'':22} {'':20} {spread(of_bare, 2):>24} {spread([value - nominal for value in of_bare], 2):>20}")
        for stages in names:
            rate, alone, parts = column(many[stages], "rate"), column(one[stages], "p50"), column(one[stages], "stages")
            means = [1e3 / each for each in column(one[stages], "rate")]
            cells = [
                f"{spread(rate, 1):>22} {spread(ratios(rate, column(many[1], 'rate')), 2):>20}",
                f"{spread(alone, 2):>24} {spread([value - nominal for value in alone], 2):>20}",
                f"{spread(parts, 2):>24} {spread([mean - part for mean, part in zip(means, parts, strict=True)], 2):>22}",
                f"{spread([mine - bare for mine, bare in zip(alone, of_bare, strict=True)], 2):>22}",
            ]
            print(f"{stages:6} {' '.join(cells)}", flush=True)

    def computing(self) -> None:
        names = {stages: f"mlp-{stages}" for stages in (1, 2)}
        for stages, name in names.items():
            self.create(name, MLP["layers"], stages, model="mlp", options=MLP)
        found = self.loads(names, ROWS, OPEN_OF_MLP, SECONDS_OF_MLP)
        print(f"\nmlp, {MLP['layers']} layers of {MLP['width']}, {ROWS} rows a request, {OPEN_OF_MLP} open requests, two cores")
        print(f"{'stages':>6} {'requests a second':>22} {'its stages take, ms':>24} {'cores of the daemon':>20} {'of the client':>20}")
        rates = {stages: column(each, "rate") for stages, each in found.items()}
        clients = {}
        for stages, each in found.items():
            daemons, clients[stages] = ([1e-6 * one[what] * one["rate"] for one in each] for what in ("cpu", "client cpu"))
            parts = spread(column(each, "stages"), 2)
            print(f"{stages:6} {spread(rates[stages], 1):>22} {parts:>24} {spread(daemons, 2):>20} {spread(clients[stages], 2):>20}")
        whole = [rate * 2 / (2 - client) for rate, client in zip(rates[2], clients[2], strict=True)]
        print(f"two stages answer so many times as many as one: {spread(ratios(rates[2], rates[1]), 2)}; "
              f"with the client's core time {spread(ratios(whole, rates[1]), 2)}", flush=True)


def column(rounds: list[dict[str, float]], what: str) -> list[float]:
    return [found[what] for found in rounds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import penstock
    from daemon_process import Daemon, free_ports

    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)  # of the daemon, which inherits it
    print(f"inference, {options.rounds} rounds, in turns; medians (least to most)")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        daemon = Daemon(pathlib.Path(name), devices=tuple(f"cpu:{k}={cores[k % 2]}" for k in range(4)))
        running.enter_context(daemon.running())
        client = running.enter_context(penstock.Client(daemon.address))
        address = f"127.0.0.1:{free_ports(1)[0]}"
        pid = running.enter_context(process([str(ECHO), address, str(LAYERS), str(MILLISECONDS)], address, {}))
        bench = Bench(daemon, client, Server(address, [pid], "--open-inference", "--sequence", "4"), cores, options.rounds)
        bench.sleeping()
        bench.computing()


if __name__ == "__main__":
    main()
