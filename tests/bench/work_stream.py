"""Measures StreamWork beside calls of their own: small inferences a second with 1, 8, 32 and 128 open, and training steps whose inputs of
64 MiB come with each step, on the stream or by an upload, beside steps whose inputs the daemon has already; all in turns. Run by hand:

    build/deps/test-venv/bin/python tests/bench/work_stream.py --daemon build/release/server/penstockd

The daemon has the first core and no journal, the load the second one. Prints the medians of the rounds, and the least and most.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from inference_load import MODELS, OPEN, Server
from spreads import spread
from turns import in_turns, ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "integration"), str(ROOT / "client" / "python")]
WIDTH, ROWS = 1024, 16_384  # inputs of 64 MiB
STEPS = 3
CHUNK = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ["PENSTOCKD"] = options.daemon
    import penstock
    from daemon_process import Daemon

    first, second = sorted(os.sched_getaffinity(0))[:2]
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        os.sched_setaffinity(0, {first})  # of the daemon, which inherits it
        daemon = Daemon(pathlib.Path(name), "--journal=off", devices=("cpu:0",))
        running.enter_context(daemon.running())
        os.sched_setaffinity(0, {second})
        client = running.enter_context(penstock.Client(daemon.address))
        inferences(daemon, client, options.rounds, second)
        steps(daemon, client, options.rounds)


def inferences(daemon: Any, client: Any, rounds: int, core: int) -> None:
    servers = {"calls": Server(daemon.address, [daemon.pid]), "stream": Server(daemon.address, [daemon.pid], "--stream")}
    print(f"inferences of one row a second, {rounds} rounds, in turns; medians (least to most)")
    print(f"{'open':>4} {'':7} {'a second':>26} {'p99, ms':>24} {'CPU us of the daemon':>24}")
    for concurrency in OPEN:
        # Of its own, for a pipeline knows 750,000 request ids of a caller at a time.
        pipeline = f"tiny-{concurrency}"
        client.create_pipeline(pipeline, model="mlp", options=MODELS["tiny"], stages=1, dynamic_batching=True, batch_rows=128)
        found: dict[str, dict[str, list[float]]] = {name: {} for name in servers}
        for number in range(rounds):
            for name in servers if number % 2 else reversed(servers):
                for what, value in servers[name].load(pipeline, concurrency, core).items():
                    found[name].setdefault(what, []).append(value)
        for name, values in found.items():
            print(f"{concurrency:4} {name:7} {spread(values['rate'], 0):>26} {spread(values['p99'], 2):>24} {spread(values['cpu'], 0):>24}")
        print(f"{'':12} stream to calls: {spread(ratios(found['stream']['rate'], found['calls']['rate']), 2)}", flush=True)


def steps(daemon: Any, client: Any, rounds: int) -> None:
    import numpy as np
    from penstock.v1 import tensor_pb2

    sizes = {"layers": 2, "width": WIDTH}
    pipeline = client.create_pipeline("wide", model="mlp", options=sizes, stages=1, schedule="1f1b", micro_batches=4, loss="mean_squared_error")
    array = np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)
    kept = pipeline.put({"input": array, "target": array}, lease=3600)  # renewed by nobody
    target = tensor_pb2.Input(name="target", handle=tensor_pb2.HandleTensor(handle=kept.name, tensor="target"))
    here = tensor_pb2.Input(name="input", handle=tensor_pb2.HandleTensor(handle=kept.name, tensor="input"))

    def on_a_stream(bring: bool) -> Callable[[], float]:
        def measure() -> float:
            begin = time.monotonic()
            run_steps(daemon.address, pipeline.name, array if bring else None, here, target)
            return (time.monotonic() - begin) / STEPS

        return measure

    def by_uploads() -> float:
        begin = time.monotonic()
        handles = []
        for _ in range(STEPS):
            value = pipeline.put({"input": array})
            handles.append(pipeline.submit_train_step({"input": (value, "input")}, (kept, "target")))
            value.release()
        for handle in handles:
            handle.result()
        return (time.monotonic() - begin) / STEPS

    found = in_turns({"there": on_a_stream(False), "put": on_a_stream(True), "upload": by_uploads}, rounds)
    print(f"seconds of a step with inputs of 64 MiB, {STEPS} steps sent at once, {rounds} rounds, in turns; medians (least to most)")
    for name, what in (("there", "the daemon has them"), ("put", "they come on the stream"), ("upload", "they come by PutTensors")):
        longer = spread(ratios(found[name], found["there"]), 3)
        print(f"{what:26} {spread(found[name], 3):>24}   {longer} times the first")


def run_steps(address: str, pipeline: str, array: Any, here: Any, target: Any) -> None:
    """Sends all steps of a measurement, each behind its inputs if it brings them, then waits for the answers."""
    import uuid

    from penstock import tensors
    from penstock.checksum import crc32c
    from penstock.v1 import handle_pb2, tensor_pb2, work_pb2

    from raw_calls import Raw, waiting

    def requests() -> Iterator[work_pb2.StreamWorkRequest]:
        for number in range(STEPS):
            given = here
            if array is not None:
                put = 100 + number
                start = handle_pb2.PutStart(pipeline=pipeline, tensors=[tensors.header_of("input", array)])
                yield work_pb2.StreamWorkRequest(tag=put, put=start)
                data = memoryview(array).cast("B")
                for offset in range(0, len(data), CHUNK):
                    piece = data[offset : offset + CHUNK]
                    chunk = handle_pb2.TensorChunk(offset=offset, data=bytes(piece), crc32c=crc32c(piece))
                    yield work_pb2.StreamWorkRequest(tag=put, chunk=chunk)
                given = tensor_pb2.Input(name="input", handle=tensor_pb2.HandleTensor(put=put))
            step = work_pb2.TrainStepRequest(pipeline=pipeline, inputs=[given], target=target, request_id=str(uuid.uuid4()), reply=waiting(60))
            yield work_pb2.StreamWorkRequest(tag=1 + number, train_step=step)

    raw = Raw(address)
    handles, left = [], STEPS
    for answer in raw.duplex("WorkService/StreamWork", requests(), work_pb2.StreamWorkResponse):
        if answer.HasField("error"):
            raise RuntimeError(answer.error.message)
        if answer.HasField("put"):
            handles.append(answer.put.name)
        if answer.HasField("train_step"):
            left -= 1
    assert left == 0
    if handles:
        raw.call("ReleaseHandles", handle_pb2.ReleaseHandlesRequest(names=handles))
    raw.close()


if __name__ == "__main__":
    main()
