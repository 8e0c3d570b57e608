"""Peers that mean ill or know no better: sizes at the limits, strange headers, many names, floods, forged log lines.

The daemon lives, others are served, and what it keeps and shows stays bounded.
"""

from __future__ import annotations

import pathlib
import re
import socket
import struct
from typing import Any

import grpc
import penstock
import pytest
from penstock.v1 import handle_pb2, pipeline_pb2

import bad_input_messages as messages
from daemon_process import Daemon, eventually
from raw_calls import ROWS, Raw, infer
from small_models import WIDTH, request_id

pytestmark = pytest.mark.usefixtures("next_request_is_served")
Code = grpc.StatusCode

INFER = "/penstock.v1.WorkService/Infer"
MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
GET = "/penstock.v1.PipelineService/GetPipeline"


def model_infer(rows: int = 4, **fields: Any) -> bytes:
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest(model_name="victim", **fields)
    message.inputs.add(name="input", datatype="FP32", shape=[rows, WIDTH])
    message.raw_input_contents.append(bytes(4 * WIDTH * rows))
    encoded: bytes = message.SerializeToString()
    return encoded


def padded(message: bytes, size: int) -> bytes:
    """The message with an unknown field, which all readers pass over, in exactly so many bytes."""
    for missing in range(size - len(message), size - len(message) - 12, -1):
        if missing >= 0 and len(whole := message + messages.field(1000, bytes(missing))) == size:
            return whole
    raise ValueError(f"{len(message)} bytes can't become {size}")


@pytest.mark.parametrize(
    ("path", "limit"),
    [(GET, 64 << 10), (INFER, 4 << 20), (MODEL_INFER, 64 << 20)],
    ids=["a control message", "work", "an inference of the open protocol"],
)
def test_the_largest_message_is_taken_and_one_byte_more_is_refused(
    raw: Raw, pipeline: penstock.Pipeline, path: str, limit: int
) -> None:
    def message(size: int) -> bytes:
        if path == MODEL_INFER:  # which takes no unknown fields
            short = model_infer(rows=size // (4 * WIDTH) - 3)
            return model_infer(rows=size // (4 * WIDTH) - 3, id="x" * (size - len(short) - 3))
        good = pipeline_pb2.GetPipelineRequest(name=pipeline.name) if path == GET else infer(pipeline.name)
        return padded(good.SerializeToString(), size)

    for size in (limit - 1, limit):
        assert len(message(size)) == size and raw.bytes_call(path, message(size))
    with pytest.raises(grpc.RpcError) as raised:
        raw.bytes_call(path, message(limit + 1))
    assert raised.value.code() == Code.RESOURCE_EXHAUSTED


def test_headers_named_like_parameters_are_ignored(raw: Raw, pipeline: penstock.Pipeline) -> None:
    headers = [
        (name, value)
        for name, value in (
            ("micro_batches", "0"),
            ("priority", "none"),
            ("timeout", "-1"),
            ("triton_enable_empty_final_response", "1"),
            ("triton_magic", "1"),
            ("request_id", "x y"),
            ("pipeline", "pipelines/nobody"),
        )
    ]
    raw.bytes_call(INFER, infer(pipeline.name).SerializeToString(), metadata=headers)
    assert raw.bytes_call(MODEL_INFER, model_infer(), metadata=headers)


def test_names_of_clients_make_no_series(daemon: Daemon, pipeline: penstock.Pipeline) -> None:
    """Of callers, request ids, pipelines, models and methods that nobody has announced."""
    series = re.compile(r"^[^#].*(?= )", re.MULTILINE)

    def call(channel: grpc.Channel, path: str, message: bytes, caller: str) -> None:
        try:
            channel.unary_unary(path)(message, timeout=30, metadata=(("penstock-caller", caller),))
        except grpc.RpcError as error:
            assert error.code() in (Code.NOT_FOUND, Code.UNIMPLEMENTED), error

    def flood(first: int, last: int) -> set[str]:
        with grpc.insecure_channel(daemon.address) as channel:
            for i in range(first, last):
                own = infer(pipeline.name, request_id=request_id()).SerializeToString()
                call(channel, INFER, own, f"caller-{i}")
                call(channel, INFER, infer(f"pipelines/guess-{i}").SerializeToString(), f"caller-{i}")
                call(channel, MODEL_INFER, model_infer(model_version=str(i)), f"caller-{i}")
                call(channel, f"/penstock.v1.Guess{i}/Method{i}", b"", f"caller-{i}")
        return set(series.findall(daemon.page("/metrics")))

    first = flood(0, 20)
    assert flood(20, 520) == first
    assert not any("caller-" in one or "guess-" in one or "Guess" in one for one in first)


def test_forged_lines_do_not_reach_the_log(daemon: Daemon, raw: Raw, pipeline: penstock.Pipeline) -> None:
    forged = '\ntime=2000-01-01T00:00:00Z level=error msg="forged"\r\x1b[2J\u2028'
    for call in (
        lambda: raw.call("GetPipeline", pipeline_pb2.GetPipelineRequest(name=f"pipelines/{forged}")),
        lambda: raw.call("GetHandle", handle_pb2.GetHandleRequest(name=f"{pipeline.name}/handles/{forged}")),
        lambda: raw.call("Infer", infer(pipeline.name, request_id=forged)),
        lambda: raw.call("CreatePipeline", messages.creation(forged, spec=messages.mlp_spec())),
    ):
        with pytest.raises(penstock.PenstockError):
            call()
    unread = b"pipelines/\xff\n\x1b[2J"
    with pytest.raises(grpc.RpcError):
        raw.bytes_call(GET, messages.field(1, unread))
    text = daemon.log_path.read_bytes()
    assert all(byte >= 0x20 or byte == 0x0A for byte in text)
    assert "\nforged" not in daemon.log and "\ntime=2000" not in daemon.log


def test_descriptors_close_on_exec_and_broken_pipes_raise_no_signal(daemon: Daemon, pipeline: penstock.Pipeline) -> None:
    """With a call open and answered: sockets, journals, files and the log are all there."""
    process = pathlib.Path(f"/proc/{daemon.pid}")
    ignored = re.search(r"^SigIgn:\s*([0-9a-f]+)$", (process / "status").read_text(), re.MULTILINE)
    assert ignored and int(ignored[1], 16) & 1 << (13 - 1), "SIGPIPE"
    left = []
    for descriptor in (process / "fdinfo").iterdir():
        if int(descriptor.name) <= 2:
            continue
        flags = re.search(r"^flags:\s*(\d+)$", descriptor.read_text(), re.MULTILINE)
        assert flags
        if not int(flags[1], 8) & 0o2000000:
            left.append(str((process / "fd" / descriptor.name).readlink()))
    assert left == []


# --- HTTP/2 by hand ---


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def connect(daemon: Daemon) -> socket.socket:
    host, port = daemon.address.rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), timeout=30)
    peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
    return peer


def closed(peer: socket.socket) -> bool:
    """The daemon ends the connection, whatever it still says."""
    try:
        while peer.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def headers(path: bytes, authority: bytes = b"x") -> bytes:
    """Literal fields, of which the receiver's table keeps none."""
    fields = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", authority),
              (b"te", b"trailers"), (b"content-type", b"application/grpc"))  # fmt: skip
    return b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in fields)


def test_a_storm_of_pings_ends_its_connection(daemon: Daemon, pipeline: penstock.Pipeline) -> None:
    peer = connect(daemon)
    try:
        for _ in range(1000):
            peer.sendall(frame(6, 0, 0, bytes(8)) * 10)
    except ConnectionError:
        pass
    assert closed(peer)
    assert pipeline.infer(ROWS, timeout=30)


def test_streams_that_are_opened_and_reset(daemon: Daemon, pipeline: penstock.Pipeline) -> None:
    """On the same connection or, if it was ended, the next one; others are served meanwhile."""
    opened_and_reset(daemon, pipeline, 20_000)
    eventually(lambda: daemon.metrics().sum("process_open_fds") < 200)


def opened_and_reset(daemon: Daemon, pipeline: penstock.Pipeline, count: int) -> None:
    peer, stream = connect(daemon), 1
    request = headers(INFER.encode())
    for done in range(0, count, 100):
        batch = b"".join(
            frame(1, 4, one, request) + frame(3, 0, one, struct.pack(">I", 8)) for one in range(stream, stream + 200, 2)
        )
        stream += 200
        try:
            peer.settimeout(30)
            peer.sendall(batch)
            peer.settimeout(0)
            while peer.recv(1 << 20):
                pass
            raise ConnectionError  # it has ended the connection
        except BlockingIOError:
            pass
        except ConnectionError:
            peer.close()
            peer, stream = connect(daemon), 1
        if done % 5_000 == 0:
            assert pipeline.infer(ROWS, timeout=30)
    peer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 4, 1, b"\x80" * 100),
    ],
    ids=["HTTP/1.1", "a hello of TLS", "a frame of 16 MB", "an index of no header"],
)
def test_what_is_no_grpc_ends_its_connection(daemon: Daemon, pipeline: penstock.Pipeline, garbage: bytes) -> None:
    host, port = daemon.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        try:
            peer.sendall(garbage)
        except ConnectionError:
            pass
        assert closed(peer)
