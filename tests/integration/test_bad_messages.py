"""What comes below and beside penstock.v1: bytes, sizes, compression, other protocols.

Each is a named error with field and value; the daemon lives, and the next good request is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import pipeline_pb2

from daemon_process import Daemon, eventually
from raw_calls import INVALID, ROWS, Raw, given, infer, refused
from small_models import WIDTH

pytestmark = pytest.mark.usefixtures("next_request_is_served")
Code = grpc.StatusCode


def test_messages_above_the_limits(raw: Raw, pipeline: penstock.Pipeline) -> None:
    large = np.ones(((4 << 20) // (4 * WIDTH) + 1, WIDTH), np.float32)
    refused(
        lambda: raw.call("Infer", infer(pipeline.name, given(array=large))),
        Code.RESOURCE_EXHAUSTED,
        "MESSAGE_TOO_LARGE",
    )
    huge = bytes(65 << 20)
    with pytest.raises(grpc.RpcError) as raised:
        raw.bytes_call("/penstock.v1.WorkService/Infer", huge)
    assert raised.value.code() == Code.RESOURCE_EXHAUSTED
    control = pipeline_pb2.GetPipelineRequest(name="pipelines/" + "x" * 70_000)
    refused(lambda: raw.call("GetPipeline", control), Code.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")


def test_text_that_is_no_utf8(daemon: Daemon) -> None:
    """The library that reads messages complains of each: in our log, as one of its lines, at its rate."""
    name = b"pipelines/\xff\xfe"
    with grpc.insecure_channel(daemon.address) as channel:
        call = channel.unary_unary("/penstock.v1.PipelineService/GetPipeline")
        for _ in range(400):
            with pytest.raises(grpc.RpcError) as raised:
                call(bytes([1 << 3 | 2, len(name)]) + name, timeout=30)
            assert raised.value.code() == INVALID
    eventually(lambda: 'protobuf problem="String field' in daemon.log)
    assert "[libprotobuf" not in daemon.log
    assert daemon.metrics().sum("penstock_log_dropped_total", cause="rate") > 0


def test_messages_that_would_grow(daemon: Daemon, raw: Raw, pipeline: penstock.Pipeline) -> None:
    """Two bytes on the wire are enough for an object of a hundred: what is refused for it must not have grown before."""

    def field(number: int, payload: bytes) -> bytes:
        return bytes([number << 3 | 2]) + _varint(len(payload)) + payload

    def send(path: str, payload: bytes) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            raw.bytes_call(path, payload)
        assert raised.value.code() == (Code.RESOURCE_EXHAUSTED if len(payload) > 4 << 20 else INVALID), raised.value

    open_inference = "/inference.GRPCInferenceService/ModelInfer"
    name = pipeline.name.removeprefix("pipelines/").encode()
    empty_strings = bytes([8 << 3 | 2, 0])  # bytes_contents
    for size, most in ((63 << 20, 192 << 20), (4_000_000, 48 << 20)):
        payload = field(1, name) + field(5, field(1, b"input") + field(5, empty_strings * (size // 2)))
        growth = daemon.peak_growth(lambda payload=payload: send(open_inference, payload))
        assert growth < most, f"{growth >> 20} MiB for {size >> 20}"
    outputs = field(1, pipeline.name.encode()) + bytes([3 << 3 | 2, 0]) * 2_000_000
    unknown = field(1, pipeline.name.encode()) + bytes([15 << 3 | 0, 0]) * 2_000_000
    inputs = field(1, pipeline.name.encode()) + bytes([2 << 3 | 2, 0]) * 2_000_000
    for payload in (outputs, unknown, inputs):
        growth = daemon.peak_growth(lambda payload=payload: send("/penstock.v1.WorkService/Infer", payload))
        assert growth < 48 << 20, f"{growth >> 20} MiB"


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def test_bytes_that_are_no_message(raw: Raw, pipeline: penstock.Pipeline) -> None:
    groups = b"\x0b" * 10_000
    unknown = b"\xf8\x7f\x01" * 1_000_000  # a million fields that nobody knows: a work message may be of that size
    for method, too_many in (
        ("WorkService/Infer", (INVALID, "at most 65536 entries")),
        ("PipelineService/GetPipeline", (Code.RESOURCE_EXHAUSTED, "at most 65536 bytes")),
        ("AdminService/GetServerInfo", (Code.RESOURCE_EXHAUSTED, "at most 65536 bytes")),
    ):
        for payload, (code, text) in (
            (b"\xff" * 100, (INVALID, "a number is too large")),
            (groups, (INVALID, "a field has an unknown kind")),
            (b"\x0a\xff\xff\xff\xff\x0f", (INVALID, "a length points beyond its end")),
            (unknown, too_many),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                raw.bytes_call(f"/penstock.v1.{method}", payload)
            assert raised.value.code() == code and text in raised.value.details(), (method, payload[:4])


def test_an_unknown_method(raw: Raw) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        raw.bytes_call("/penstock.v1.WorkService/Predict", b"")
    assert raised.value.code() == Code.UNIMPLEMENTED


def test_compression_is_refused(raw: Raw, pipeline: penstock.Pipeline) -> None:
    bomb = bytes(30 << 20)
    with pytest.raises(grpc.RpcError) as raised:
        raw.bytes_call("/penstock.v1.WorkService/Infer", bomb, compression=grpc.Compression.Gzip)
    assert raised.value.code() == Code.UNIMPLEMENTED


@pytest.mark.parametrize("caller", ["x" * 129, "a b", "a/b"])
def test_a_bad_caller(raw: Raw, pipeline: penstock.Pipeline, caller: str) -> None:
    """Of a client that does not look at the name itself."""

    def call() -> None:
        try:
            path, message = "/penstock.v1.WorkService/Infer", infer(pipeline.name).SerializeToString()
            raw.bytes_call(path, message, metadata=(("penstock-caller", caller),))
        except grpc.RpcError as error:
            raise penstock.PenstockError.from_call(error) from None

    refused(call, INVALID, "NAME_INVALID", "penstock-caller")


def test_a_thousand_calls_that_are_dropped_at_once(daemon: Daemon, pipeline: penstock.Pipeline) -> None:
    channel = grpc.insecure_channel(daemon.address)
    call = channel.unary_unary("/penstock.v1.WorkService/Infer")
    payload = infer(pipeline.name).SerializeToString()
    for _ in range(1000):
        call.future(payload).cancel()
    channel.close()


# --- the Open Inference Protocol ---


def test_bad_open_inference_requests(raw: Raw, daemon: Daemon, pipeline: penstock.Pipeline) -> None:
    from tritonclient.grpc import service_pb2

    def request() -> Any:
        message = service_pb2.ModelInferRequest(model_name="victim")
        message.inputs.add(name="input", datatype="FP32", shape=[4, WIDTH])
        message.raw_input_contents.append(ROWS.tobytes())
        return message

    def changed(change: Callable[[Any], Any]) -> Any:
        message = request()
        change(message)
        return message

    def send(message: Any) -> Any:
        return raw.bytes_call("/inference.GRPCInferenceService/ModelInfer", message.SerializeToString())

    cases = {
        "unknown model": (lambda m: setattr(m, "model_name", "nobody"), Code.NOT_FOUND),
        "another version": (lambda m: setattr(m, "model_version", "2"), Code.NOT_FOUND),
        "no raw contents": (lambda m: m.ClearField("raw_input_contents"), INVALID),
        "one content too many": (lambda m: m.raw_input_contents.append(b""), INVALID),
        "raw and typed": (lambda m: m.inputs[0].contents.fp32_contents.append(1.0), INVALID),
        "unknown datatype": (lambda m: setattr(m.inputs[0], "datatype", "FP12"), INVALID),
        "another datatype": (lambda m: setattr(m.inputs[0], "datatype", "INT32"), INVALID),
        "bytes": (lambda m: setattr(m.inputs[0], "datatype", "BYTES"), INVALID),
        "negative shape": (lambda m: m.inputs[0].shape.__setitem__(0, -1), INVALID),
        "overflow": (lambda m: m.inputs[0].shape.__setitem__(0, 1 << 62), INVALID),
        "short contents": (lambda m: m.raw_input_contents.__setitem__(0, b"\0" * 255), INVALID),
        "unknown output": (lambda m: m.outputs.add(name="nothing"), INVALID),
        "an output twice": (lambda m: [m.outputs.add(name="output") for _ in range(2)], INVALID),
        "an input twice": (
            lambda m: (m.inputs.add().CopyFrom(m.inputs[0]), m.raw_input_contents.append(m.raw_input_contents[0])),
            INVALID,
        ),
        "an unknown reserved key": (
            lambda m: setattr(m.parameters["triton_magic"], "bool_param", True), INVALID),
        "a negative timeout": (lambda m: setattr(m.parameters["timeout"], "int64_param", -1), INVALID),
    }  # fmt: skip
    for name, (change, code) in cases.items():
        with pytest.raises(grpc.RpcError) as raised:
            send(changed(change))
            print(f"{name} was accepted")
        assert raised.value.code() == code, f"{name}: {raised.value}"
    assert service_pb2.ModelInferResponse.FromString(send(request())).raw_output_contents
