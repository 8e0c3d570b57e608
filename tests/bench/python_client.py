"""Measures the Python client: training over a slow way, and tensors up and down. Run by hand:

    build/deps/test-venv/bin/python tests/bench/python_client.py --daemon build/release/server/penstockd \
        [--before FOLDER]

FOLDER is the `client/python` of another version. Both run in turns against one daemon, each round in a process of its
own. Prints the median of the rounds, and the range.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "integration"))

DELAY = 0.025  # seconds, each way
STEPS = 40
MIB = 1 << 20


class SlowWay:
    """A proxy that keeps all bytes back for a while, each way."""

    def __init__(self, to: str, delay: float) -> None:
        self._host, _, self._port = to.rpartition(":")
        self._delay = delay
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, int(self._port))
        await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await late.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    to.close()
                    return
                to.write(data)

        delivering = asyncio.create_task(deliver())
        data = b"."
        while data:
            try:
                data = await source.read(1 << 20)
            except ConnectionError:
                data = b""
            await late.put((time.monotonic() + self._delay, data))
        await delivering


# --- what a version of the client does, in a process of its own -------------------------------------------------------


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock, and of this process's CPU over all threads."""
    began, worked = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began, time.process_time() - worked


def steps_of(near: str, far: str) -> dict[str, float]:
    """Steps that sleep, so that a busy machine changes little; over the slow way."""
    import numpy as np
    import penstock

    figures: dict[str, float] = {}
    batch = (np.ones((8, 4), np.float32), np.ones((8, 4), np.float32))
    with penstock.Client(near) as client, penstock.Client(far) as slow:
        for own in (2, 10):
            times = {"forward_ms": own / 2, "weight_ms": own / 2, "input_ms": 0.0}
            delay = penstock.Layer("delay", options={**times, "features": 4})
            pipeline = client.create_pipeline(
                f"bench-{os.getpid()}", model=[delay], stages=1, schedule="1f1b", micro_batches=1, optimizer="sgd",
                loss="mean_squared_error", checkpoint="never",
            )  # fmt: skip
            near_by, _ = timed(lambda: list(penstock.outcomes(pipeline, [batch] * STEPS, ahead=8)))
            figures[f"step of {own} ms: without the way, ms"] = 1e3 * near_by / STEPS
            away = slow.pipeline(pipeline.name)
            for ahead in (0, 2, 8, 31):
                passed, _ = timed(lambda: list(penstock.outcomes(away, [batch] * STEPS, ahead=ahead)))
                figures[f"step of {own} ms: {2e3 * DELAY:.0f} ms away, ahead {ahead}, ms"] = 1e3 * passed / STEPS
            pipeline.delete()
    return figures


def transfers_of(near: str, far: str) -> dict[str, float]:
    import numpy as np
    import penstock

    figures: dict[str, float] = {}
    with penstock.Client(near) as client:
        pipeline = client.create_pipeline(
            f"bench-{os.getpid()}", model="mlp", options={"layers": 2, "width": 16}, stages=1, schedule="1f1b",
            micro_batches=1, loss="mean_squared_error",
        )  # fmt: skip
        for mib in (64, 256):
            array = np.random.default_rng(0).integers(0, 255, mib * MIB, np.uint8).view(np.float32)
            handles: list[penstock.ValueHandle] = []
            fetched: list[dict[str, np.ndarray]] = []
            for what, run in (
                ("put", lambda: handles.append(pipeline.put({"a": array}))),
                ("fetch", lambda: fetched.append(handles[0].fetch())),
            ):
                passed, worked = timed(run)
                figures[f"{what} {mib} MiB, MB/s"] = array.nbytes / passed / 1e6
                figures[f"{what} {mib} MiB, CPU of the client, ms per GB"] = 1e12 * worked / array.nbytes
            assert np.array_equal(fetched[0]["a"].view(np.uint8), array.view(np.uint8))
            handles[0].release()
        pipeline.delete()
    return figures


# --- rounds in turns --------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--before", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("steps", "transfers"))
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    from daemon_process import Daemon

    import daemon_process

    daemon_process.BINARY = options.daemon
    versions = {"now": ROOT / "client" / "python"}
    if options.before:
        versions = {"before": options.before, **versions}
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(pathlib.Path(folder), "--drain-announce=0s")
        daemon.start()
        try:
            slow = SlowWay(daemon.address, DELAY)
            parts = [options.only] if options.only else ["steps", "transfers"]
            for part, (version, path) in itertools.product(parts * options.rounds, versions.items()):
                call = f"{part}_of({daemon.address!r}, {slow.address!r})"
                program = f"import json, python_client as p; print(json.dumps(p.{call}))"
                environment = {**os.environ, "PYTHONPATH": f"{path}:{pathlib.Path(__file__).parent}"}
                run = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
                for name, value in json.loads(run.stdout.splitlines()[-1]).items():
                    found.setdefault(name, {}).setdefault(version, []).append(value)
        finally:
            daemon.kill()
    print(f"{'':52}" + "".join(f"{version:>28}" for version in versions))
    for name, values in found.items():
        rows = [values[version] for version in versions]
        cells = [f"{statistics.median(row):10.1f} ({min(row):.1f} to {max(row):.1f})" for row in rows]
        print(f"{name:52}" + "".join(f"{cell:>28}" for cell in cells))


if __name__ == "__main__":
    main()
