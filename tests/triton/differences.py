"""Asks a real Triton server and this daemon the same, message by message, and compares what they say: codes, names, types,
shapes, numbers. Run by hand, after tests/bench/triton_server/setup.sh has fetched Triton into build/triton:

    build/deps/test-venv/bin/python tests/triton/differences.py --daemon build/release/server/penstockd --triton build/triton

Prints each question with what both say, and ends with 1 where they differ and DIFFERENCES does not say so, or where it
says so and they don't. What is meant by each difference stands in docs/open_inference.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("integration",)] + [str(ROOT / "client" / "python")]

Stub = service_pb2_grpc.GRPCInferenceServiceStub
ROW = struct.pack("<16i", *range(16))
ONES = struct.pack("<16i", *[1] * 16)

SUM, DIFFERENCE = "OUTPUT0 INT32 [1, 16] [1, 2, 3]", "OUTPUT1 INT32 [1, 16] [-1, 0, 1]"
ROWS = f"simple/1 id='' {SUM}; {DIFFERENCE}"
NINE = ROWS.replace("[1, 16]", "[9, 16]")

# By question: what Penstock says and what Triton says, where they differ on purpose.
DIFFERENCES: dict[str, tuple[str, str]] = {
    "name of the server": ("penstock", "triton"),
    "configuration": ("penstock max_batch_size=0 [-1, 16]", "python max_batch_size=8 [16]"),
    "statistics of an unknown model": ("NOT_FOUND", "INVALID_ARGUMENT"),
    "infer with version x": ("NOT_FOUND", "INVALID_ARGUMENT"),
    "infer an output twice": ("INVALID_ARGUMENT", f"simple/1 id='' {SUM}"),
    "infer without a model": ("INVALID_ARGUMENT", "NOT_FOUND"),
    "infer more rows than a batch has": (NINE, "INVALID_ARGUMENT"),  # it runs by itself
    "infer with a sequence": ("INVALID_ARGUMENT", ROWS),  # refused rather than ignored
    "infer from shared memory": ("UNIMPLEMENTED", "INVALID_ARGUMENT"),
    "load what is there": ("", "UNAVAILABLE"),  # Triton loads nothing unless it was started to
    "load an unknown model": ("NOT_FOUND", "UNAVAILABLE"),
    "shared memory": ("UNIMPLEMENTED", ""),
}


def request(model: str = "simple", rows: int = 1, **fields: Any) -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name=model, **fields)
    for name, row in (("INPUT0", ROW), ("INPUT1", ONES)):
        asked.inputs.add(name=name, datatype="INT32", shape=[rows, 16])
        asked.raw_input_contents.append(row * rows)
    return asked


def changed(change: Callable[[pb.ModelInferRequest], Any], **fields: Any) -> pb.ModelInferRequest:
    asked = request(**fields)
    change(asked)
    return asked


def typed(values: int = 16) -> pb.ModelInferRequest:
    asked = request()
    del asked.raw_input_contents[:]
    for tensor in asked.inputs:
        tensor.contents.int_contents.extend(range(values))
    return asked


def answer(response: pb.ModelInferResponse) -> str:
    tensors = [
        f"{tensor.name} {tensor.datatype} {list(tensor.shape)} {list(struct.unpack(f'<{len(raw) // 4}i', raw))[:3]}"
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=False)
    ]
    return f"{response.model_name}/{response.model_version} id={response.id!r} " + "; ".join(sorted(tensors))


def infer(asked: pb.ModelInferRequest) -> Callable[[Stub], str]:
    return lambda stub: answer(stub.ModelInfer(asked, timeout=10))


def stream(*asked: pb.ModelInferRequest) -> Callable[[Stub], str]:
    def ask(stub: Stub) -> str:
        said = []
        for one in stub.ModelStreamInfer(iter(asked), timeout=10):
            failed = "error" if one.error_message else answer(one.infer_response)
            said.append(f"{one.infer_response.id}: {failed}")
        return " | ".join(said)

    return ask


def metadata(model: str, version: str = "") -> Callable[[Stub], str]:
    def ask(stub: Stub) -> str:
        said = stub.ModelMetadata(pb.ModelMetadataRequest(name=model, version=version), timeout=10)
        tensors = [f"{one.name} {one.datatype} {list(one.shape)}" for one in [*said.inputs, *said.outputs]]
        return f"{said.name} {list(said.versions)} " + "; ".join(tensors)

    return ask


def counted(stub: Stub) -> str:
    """What two requests, of one row and of three, add."""
    from daemon_process import eventually

    def now() -> tuple[int, int, int, int]:
        (model,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="simple"), timeout=10).model_stats
        stats = model.inference_stats
        return model.inference_count, model.execution_count, stats.success.count, stats.fail.count

    before = now()
    stub.ModelInfer(request(), timeout=10)
    stub.ModelInfer(request(rows=3), timeout=10)
    with contextlib.suppress(grpc.RpcError):
        stub.ModelInfer(changed(lambda r: r.inputs[0].shape.append(1)), timeout=10)
    eventually(lambda: now()[2] >= before[2] + 2)  # Triton counts after it has answered
    rows, runs, good, bad = (after - then for after, then in zip(now(), before, strict=True))
    return f"rows {rows}, runs {runs}, good {good}, bad {bad}"


def config(stub: Stub) -> str:
    said = stub.ModelConfig(pb.ModelConfigRequest(name="simple"), timeout=10).config
    (shape,) = {str(list(one.dims)) for one in [*said.input, *said.output]}
    return f"{said.backend} max_batch_size={said.max_batch_size} {shape}"


def index(ready: bool) -> Callable[[Stub], str]:
    def ask(stub: Stub) -> str:
        said = stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=ready), timeout=10)
        return "; ".join(f"{one.name} {one.version} {one.state}" for one in said.models if one.name == "simple")

    return ask


def text(value: str) -> pb.InferParameter:
    return pb.InferParameter(string_param=value)


def number(value: int) -> pb.InferParameter:
    return pb.InferParameter(int64_param=value)


def wanted(*names: str) -> Callable[[pb.ModelInferRequest], Any]:
    return lambda asked: [asked.outputs.add(name=name) for name in names]


QUESTIONS: dict[str, Callable[[Stub], str]] = {
    "live": lambda stub: str(stub.ServerLive(pb.ServerLiveRequest(), timeout=10).live),
    "ready": lambda stub: str(stub.ServerReady(pb.ServerReadyRequest(), timeout=10).ready),
    "name of the server": lambda stub: stub.ServerMetadata(pb.ServerMetadataRequest(), timeout=10).name,
    "model ready": lambda stub: str(stub.ModelReady(pb.ModelReadyRequest(name="simple"), timeout=10).ready),
    "version 1 ready": lambda stub: str(
        stub.ModelReady(pb.ModelReadyRequest(name="simple", version="1"), timeout=10).ready
    ),
    "version 2 ready": lambda stub: str(
        stub.ModelReady(pb.ModelReadyRequest(name="simple", version="2"), timeout=10).ready
    ),
    "unknown model ready": lambda stub: str(stub.ModelReady(pb.ModelReadyRequest(name="none"), timeout=10).ready),
    "metadata": metadata("simple"),
    "metadata of version 1": metadata("simple", "1"),
    "metadata of version 2": metadata("simple", "2"),
    "metadata of an unknown model": metadata("none"),
    "configuration": config,
    "index": index(ready=False),
    "index of what is ready": index(ready=True),
    "statistics of an unknown model": lambda stub: str(
        stub.ModelStatistics(pb.ModelStatisticsRequest(name="none"), timeout=10)
    ),
    "what is counted": counted,
    "infer": infer(request()),
    "infer with an id": infer(request(id="mine")),
    "infer three rows": infer(request(rows=3)),
    "infer with typed contents": infer(typed()),
    "infer with version 1": infer(request(model_version="1")),
    "infer with version 2": infer(request(model_version="2")),
    "infer with version x": infer(request(model_version="x")),
    "infer one output": infer(changed(wanted("OUTPUT1"))),
    "infer outputs in another order": infer(changed(wanted("OUTPUT1", "OUTPUT0"))),
    "infer inputs in another order": infer(
        changed(lambda r: (r.inputs[0].CopyFrom(request().inputs[1]), r.inputs[1].CopyFrom(request().inputs[0])))
    ),
    "infer an unknown output": infer(changed(wanted("OUTPUT9"))),
    "infer an output twice": infer(changed(wanted("OUTPUT0", "OUTPUT0"))),
    "infer an unknown model": infer(request(model="none")),
    "infer without a model": infer(request(model="")),
    "infer without an input": infer(changed(lambda r: (r.inputs.pop(), r.raw_input_contents.pop()))),
    "infer without inputs": infer(pb.ModelInferRequest(model_name="simple")),
    "infer an unknown input": infer(changed(lambda r: setattr(r.inputs[0], "name", "INPUT9"))),
    "infer an input twice": infer(changed(lambda r: setattr(r.inputs[1], "name", "INPUT0"))),
    "infer another type": infer(changed(lambda r: setattr(r.inputs[0], "datatype", "FP32"))),
    "infer an unknown type": infer(changed(lambda r: setattr(r.inputs[0], "datatype", "NONE"))),
    "infer another shape": infer(changed(lambda r: r.inputs[0].shape.__setitem__(1, 8))),
    "infer a shape below 0": infer(changed(lambda r: r.inputs[0].shape.__setitem__(0, -1))),
    "infer more rows in one input": infer(changed(lambda r: r.inputs[0].shape.__setitem__(0, 2))),
    "infer no rows": infer(request(rows=0)),
    "infer more rows than a batch has": infer(request(rows=9)),
    "infer too few bytes": infer(changed(lambda r: r.raw_input_contents.__setitem__(0, ROW[:-4]))),
    "infer too many bytes": infer(changed(lambda r: r.raw_input_contents.__setitem__(0, ROW + ROW))),
    "infer too few raw contents": infer(changed(lambda r: r.raw_input_contents.pop())),
    "infer too few typed contents": infer(typed(values=8)),
    "infer without contents": infer(changed(lambda r: r.raw_input_contents.__delitem__(slice(None)))),
    "infer typed and raw contents": infer(changed(lambda r: r.inputs[0].contents.int_contents.extend(range(16)))),
    "infer with a parameter of one's own": infer(changed(lambda r: r.parameters["mine"].MergeFrom(text("x")))),
    "infer with a sequence": infer(changed(lambda r: r.parameters["sequence_id"].MergeFrom(number(7)))),
    "infer with a priority": infer(changed(lambda r: r.parameters["priority"].MergeFrom(number(1)))),
    "infer from shared memory": infer(
        changed(lambda r: r.inputs[0].parameters["shared_memory_region"].MergeFrom(text("none")))
    ),
    "stream": stream(request(id="a"), request(id="b", rows=2)),
    "stream with an error between": stream(request(id="a"), request(id="b", model="none"), request(id="c")),
    "load what is there": lambda stub: str(
        stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="simple"), timeout=10)
    ),
    "load an unknown model": lambda stub: str(
        stub.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="none"), timeout=10)
    ),
    "shared memory": lambda stub: str(
        stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest(), timeout=10)
    ),
}


def said_by(stub: Stub, question: Callable[[Stub], str]) -> str:
    try:
        return question(stub).strip()
    except grpc.RpcError as error:
        return f"{error.code().name}"


@contextlib.contextmanager
def triton(folder: pathlib.Path, ports: list[int]) -> Iterator[str]:
    names = ("T_HTTP", "T_GRPC", "T_METRICS")
    environment = {"T_WIDTH": "64", "T_LAYERS": "4", **{name: str(port) for name, port in zip(names, ports, strict=True)}}
    start = str(ROOT / "tests/bench/triton_server/start.sh")
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(["bash", start, str(folder)], env={**os.environ, **environment}, stdout=log, stderr=log)
        try:
            address = f"127.0.0.1:{ports[1]}"
            with grpc.insecure_channel(address) as channel:
                grpc.channel_ready_future(channel).result(timeout=60)
            yield address
        except grpc.FutureTimeoutError:
            log.seek(0)
            sys.exit(f"Triton does not listen:\n{log.read().decode(errors='replace')[-2000:]}")
        finally:
            server.terminate()
            server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--daemon", required=True)
    parser.add_argument("--triton", type=pathlib.Path, required=True)
    options = parser.parse_args()
    if not options.triton.is_dir():
        print(f"skipped: {options.triton} is missing; tests/bench/triton_server/setup.sh makes it")
        return 77
    os.environ["PENSTOCKD"] = options.daemon
    import model_files
    import penstock
    from daemon_process import Daemon, free_ports

    wrong = 0
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        (pathlib.Path(name) / "simple.pt2").write_bytes(model_files.golden("simple.pt2"))
        folder = pathlib.Path(name) / "daemon"
        folder.mkdir()
        daemon = Daemon(folder, "--drain-announce=0s", f"--model-root={name}")
        running.enter_context(daemon.running())
        client = running.enter_context(penstock.Client(daemon.address))
        client.create_pipeline("simple", model="simple.pt2", stages=1, micro_batches=1, dynamic_batching=True, batch_rows=8)
        addresses = (daemon.address, running.enter_context(triton(options.triton, free_ports(3))))
        ours, theirs = (Stub(running.enter_context(grpc.insecure_channel(address))) for address in addresses)
        for name, question in QUESTIONS.items():
            pair = (said_by(ours, question), said_by(theirs, question))
            expected = DIFFERENCES.get(name, (pair[0], pair[0]))
            good = pair == expected
            wrong += not good
            mark = "equal  " if pair[0] == pair[1] else "differs" if good else "WRONG  "
            print(f"{mark} {name}: {pair[0]}" + ("" if pair[0] == pair[1] else f"   Triton: {pair[1]}"))
    unknown = set(DIFFERENCES) - set(QUESTIONS)
    print(f"{len(QUESTIONS)} questions, {len(DIFFERENCES)} differences, {wrong} that are not as listed {sorted(unknown) or ''}")
    return 1 if wrong or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
