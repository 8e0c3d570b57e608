"""Messages that are good but for what a test changes in them, and bytes that are no good message at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from google.protobuf.message import Message
from penstock.checksum import crc32c
from penstock.v1 import handle_pb2, pipeline_pb2, state_pb2, tensor_pb2, work_pb2

from raw_calls import given
from small_models import request_id


@dataclasses.dataclass(frozen=True)
class Names:
    """What the daemon has while bad inputs come."""

    pipeline: str  # nobody trains it
    held: str  # one contribution is accumulated
    handle: str  # a value of `pipeline`
    graph: str  # of a Forward of `pipeline`
    checkpoint: str  # of `pipeline`
    used: str  # the request id of the accumulated contribution



def contribution(pipeline: str, **changes: Any) -> work_pb2.ForwardBackwardRequest:
    fields: dict[str, Any] = {"inputs": [given()], "target": given("target"), "request_id": request_id()}
    return work_pb2.ForwardBackwardRequest(pipeline=pipeline, **{**fields, **changes})


def header(name: str = "x", shape: Sequence[int] = (4,), byte_size: int = 16) -> tensor_pb2.TensorHeader:
    return tensor_pb2.TensorHeader(name=name, type="DATA_TYPE_FP32", shape=shape, byte_size=byte_size)


def put_start(names: Names, *headers: tensor_pb2.TensorHeader, **fields: Any) -> handle_pb2.PutTensorsRequest:
    start = handle_pb2.PutStart(pipeline=names.pipeline, tensors=headers or [header()], **fields)
    return handle_pb2.PutTensorsRequest(start=start)


def put_chunk(data: bytes, offset: int = 0, checksum: int | None = None) -> handle_pb2.PutTensorsRequest:
    crc = crc32c(data) if checksum is None else checksum
    chunk = handle_pb2.TensorChunk(tensor=0, offset=offset, data=data, crc32c=crc)
    return handle_pb2.PutTensorsRequest(chunk=chunk)


def tiny_chunks(names: Names) -> Iterator[Message]:
    yield put_start(names, header(shape=[25_000], byte_size=100_000))
    for offset in range(100_000):
        yield put_chunk(b"\0", offset)


def varint(value: int) -> bytes:
    """As protobuf writes it; a negative number as its 64 bits."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def _nested(depth: int, *numbers: int) -> bytes:
    """Messages in one another: the field of each is the next number, over and over."""
    payload = b""
    for level in range(depth):
        payload = field(numbers[(level + 1) % len(numbers)], payload)
    return payload


def nested_value(names: Names) -> bytes:
    value = field(5, _nested(10_000, 1, 5))  # lists in lists
    return field(1, names.pipeline.encode()) + field(2, field(1, b"input") + field(5, value))


def nested_layers(names: Names) -> bytes:
    layers = field(3, _nested(10_000, 6))
    return field(1, b"bad") + field(2, field(1, layers)) + field(4, request_id().encode())


def creation(identifier: str = "bad", **changes: Any) -> pipeline_pb2.CreatePipelineRequest:
    return pipeline_pb2.CreatePipelineRequest(pipeline_id=identifier, request_id=request_id(), **changes)


def mlp_spec(**fields: Any) -> pipeline_pb2.PipelineSpec:
    spec = pipeline_pb2.PipelineSpec(model=pipeline_pb2.ModelSpec(name="mlp"), **fields)
    spec.model.options["layers"].int_value = 4
    spec.model.options["width"].int_value = 16
    spec.loss.name = "mean_squared_error"
    return spec


def with_optimizer_option(name: str, text: str) -> pipeline_pb2.PipelineSpec:
    spec = mlp_spec()
    spec.optimizer.options[name].string_value = text
    return spec


def planning(**changes: Any) -> pipeline_pb2.PlanPipelineRequest:
    sample = pipeline_pb2.PlanningSample(inputs=[given(**changes)])
    return pipeline_pb2.PlanPipelineRequest(spec=mlp_spec(), sample=sample)


def save(names: Names, identifier: str, **fields: Any) -> state_pb2.SaveCheckpointRequest:
    return state_pb2.SaveCheckpointRequest(
        pipeline=names.pipeline, checkpoint_id=identifier, **{"request_id": request_id(), **fields}
    )


def copy(names: Names, **changes: Any) -> state_pb2.CopyCheckpointRequest:
    fields = {"source": names.checkpoint, "destination": names.held, "request_id": request_id()}
    return state_pb2.CopyCheckpointRequest(**{**fields, **changes})


def restore(**fields: Any) -> state_pb2.RestoreCheckpointRequest:
    return state_pb2.RestoreCheckpointRequest(request_id=request_id(), **fields)


def fetch(names: Names, **fields: Any) -> handle_pb2.FetchHandleRequest:
    return handle_pb2.FetchHandleRequest(name=names.handle, tensor="output", **fields)


def backward(names: Names, gradient: tensor_pb2.Input, **changes: Any) -> work_pb2.BackwardRequest:
    fields = {"pipeline": names.pipeline, "graph": names.graph, "request_id": request_id(), **changes}
    return work_pb2.BackwardRequest(gradients=[gradient], **fields)


def step(names: Names, identifier: str | None = None, **fields: Any) -> work_pb2.OptimizerStepRequest:
    once = request_id() if identifier is None else identifier
    return work_pb2.OptimizerStepRequest(pipeline=names.held, request_id=once, **fields)


def forward(names: Names, **fields: Any) -> work_pb2.ForwardRequest:
    return work_pb2.ForwardRequest(
        pipeline=names.pipeline, inputs=[given()], **{"request_id": request_id(), **fields}
    )


def evaluate(names: Names, **fields: Any) -> work_pb2.EvaluateRequest:
    return work_pb2.EvaluateRequest(pipeline=names.pipeline, inputs=[given()], target=given("target"), **fields)
