"""Measures inference beside a Triton server: requests of one row a second, their latency and the server's CPU time, with 1, 8, 32 and
128 open, in turns, in one run. Run by hand, after tests/bench/triton_server/setup.sh has fetched it:

    build/deps/test-venv/bin/python tests/bench/triton_peer.py --daemon build/release/server/penstockd --triton build/triton

Two models of linear layers with ReLU, the same as in batching.py; Triton runs them in eager PyTorch by its Python backend, and both batch.
The servers share the first core, and one at a time works; `penstock bench` has the second one and sends the same messages of the Open
Inference Protocol to each. `echo` is a gRPC server that returns its input: what the protocol itself costs. `infer` is the daemon's own
call. Prints the medians of the rounds, and the least and most.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

from inference_load import ECHO, MODELS, OPEN, Server, process
from spreads import spread
from turns import ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
DIGITS = {"rate": 0, "p50": 2, "p99": 2, "cpu": 0}


def family(pid: int) -> list[int]:
    """A process and its children: Triton's Python backend is one."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    threads = [int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    found = {int(child) for child in children}
    for thread in threads:
        found |= {int(child) for child in pathlib.Path(f"/proc/{pid}/task/{thread}/children").read_text().split()}
    return [pid, *(one for child in sorted(found) for one in family(child))]


@contextlib.contextmanager
def triton(folder: pathlib.Path, sizes: dict[str, int], ports: list[int]) -> Iterator[Server]:
    address = f"127.0.0.1:{ports[1]}"
    environment = {
        "T_WIDTH": str(sizes["width"]),
        "T_LAYERS": str(sizes["layers"]),
        **{name: str(port) for name, port in zip(("T_HTTP", "T_GRPC", "T_METRICS"), ports, strict=True)},
    }
    words = ["--open-inference", "--sequence", str(sizes["width"])]
    with process(["bash", str(ROOT / "tests/bench/triton_server/start.sh"), str(folder)], address, environment) as pid:
        server = Server(address, family(pid), *words)
        server.load("mlp", 1, min(os.sched_getaffinity(0)))  # the model is there, and warm
        yield Server(address, family(pid), *words)


def report(name: str, found: dict[str, dict[str, list[float]]]) -> None:
    for server, values in found.items():
        cells = [spread(values[what], digits) for what, digits in DIGITS.items()]
        print(f"{name:22} {server:14} {cells[0]:>26} {cells[1]:>26} {cells[2]:>26} {cells[3]:>24}")
    one, other = found["open inference"], found["triton"]
    shares = {what: spread(ratios(one[what], other[what]), 2) for what in DIGITS}
    print(f"{'':22} beside Triton: rate {shares['rate']}, p50 {shares['p50']}, p99 {shares['p99']}, CPU {shares['cpu']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--triton", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import penstock
    from daemon_process import Daemon, free_ports

    first, second = sorted(os.sched_getaffinity(0))[:2]
    print(f"one row a request, {options.rounds} rounds, in turns; medians (least to most)")
    print(f"{'model, open requests':22} {'':14} {'requests a second':>26} {'p50, ms':>26} {'p99, ms':>26} {'CPU us a request':>24}")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        os.sched_setaffinity(0, {first})  # of the servers, which inherit it
        daemon = Daemon(pathlib.Path(name), devices=("cpu:0",))
        running.enter_context(daemon.running())
        client = running.enter_context(penstock.Client(daemon.address))
        echo = f"127.0.0.1:{free_ports(1)[0]}"
        echo_pid = running.enter_context(process([str(ECHO), echo], echo, {}))
        for model, sizes in MODELS.items():
            client.create_pipeline(model, model="mlp", options=sizes, stages=1, dynamic_batching=True, batch_rows=128)
            with triton(options.triton, sizes, free_ports(3)) as other:
                servers = {
                    "echo": Server(echo, [echo_pid], "--open-inference", "--sequence", str(sizes["width"])),
                    "infer": Server(daemon.address, [daemon.pid]),
                    "open inference": Server(daemon.address, [daemon.pid], "--open-inference"),
                    "triton": other,
                }
                for concurrency in OPEN:
                    found: dict[str, dict[str, list[float]]] = {server: {} for server in servers}
                    for number in range(options.rounds):
                        for server in servers if number % 2 else reversed(servers):
                            measured = servers[server].load("mlp" if server == "triton" else model, concurrency, second)
                            for what, value in measured.items():
                                found[server].setdefault(what, []).append(value)
                    report(f"{model}, {concurrency}", found)


if __name__ == "__main__":
    main()
