"""Requests as no friendly client would send them, and the refusals they must get."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from google.protobuf import duration_pb2
from penstock import tensors
from penstock.chunks import Chunk
from penstock.connection import Connection
from penstock.deadline import Deadline
from penstock.v1 import handle_pb2, model_pb2, pipeline_pb2, tensor_pb2, work_pb2

from small_models import WIDTH, request_id

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ROWS = np.ones((4, WIDTH), np.float32)

Call = Callable[[], Any]


class Raw:
    """Calls any method with any message, as one caller. Refusals come as PenstockError, with nothing repeated."""

    def __init__(self, address: str, caller: str | None = None) -> None:
        self.address = address
        self._connection = Connection(address, caller, timeout=30.0, retry_for=0.0)
        self._answers = {
            "Infer": ("WorkService", work_pb2.InferResponse),
            "Evaluate": ("WorkService", work_pb2.EvaluateResponse),
            "Forward": ("WorkService", work_pb2.ForwardResponse),
            "Backward": ("WorkService", work_pb2.BackwardResponse),
            "ForwardBackward": ("WorkService", work_pb2.ForwardBackwardResponse),
            "OptimizerStep": ("WorkService", work_pb2.OptimizerStepResponse),
            "TrainStep": ("WorkService", work_pb2.TrainStepResponse),
            "CreatePipeline": ("PipelineService", pipeline_pb2.Pipeline),
            "GetPipeline": ("PipelineService", pipeline_pb2.Pipeline),
            "ListPipelines": ("PipelineService", pipeline_pb2.ListPipelinesResponse),
            "UpdatePipeline": ("PipelineService", pipeline_pb2.Pipeline),
            "PublishCheckpoint": ("StateService", pipeline_pb2.Pipeline),
            "UpdateOptimizer": ("PipelineService", pipeline_pb2.Pipeline),
            "UnloadPipeline": ("PipelineService", pipeline_pb2.Pipeline),
            "LoadPipeline": ("PipelineService", pipeline_pb2.Pipeline),
            "DeletePipeline": ("PipelineService", pipeline_pb2.DeletePipelineResponse),
            "GetHandle": ("HandleService", handle_pb2.Handle),
            "WaitHandles": ("HandleService", handle_pb2.WaitHandlesResponse),
            "ListHandles": ("HandleService", handle_pb2.ListHandlesResponse),
            "RenewHandles": ("HandleService", handle_pb2.RenewHandlesResponse),
            "ShareHandle": ("HandleService", handle_pb2.Handle),
            "ReleaseHandles": ("HandleService", handle_pb2.ReleaseHandlesResponse),
            "CancelHandles": ("HandleService", handle_pb2.CancelHandlesResponse),
            "GetModel": ("ModelService", model_pb2.Model),
            "ListModels": ("ModelService", model_pb2.ListModelsResponse),
            "DeleteModel": ("ModelService", model_pb2.DeleteModelResponse),
        }

    def close(self) -> None:
        self._connection.close()

    def call(self, method: str, request: Any) -> Any:
        service, answer = self._answers[method]
        return self._connection.unary(f"{service}/{method}", request, answer)

    def unary(self, path: str, request: Any, answer: Any) -> Any:
        return self._connection.unary(path, request, answer)

    def fetch(self, request: handle_pb2.FetchHandleRequest) -> list[handle_pb2.FetchHandleResponse | Chunk]:
        answer = handle_pb2.FetchHandleResponse
        return list(self._connection.stream("HandleService/FetchHandle", request, answer, Deadline(30)))

    def put(self, messages: Iterable[handle_pb2.PutTensorsRequest]) -> list[handle_pb2.PutTensorsResponse]:
        return list(self._connection.duplex("HandleService/PutTensors", iter(messages), handle_pb2.PutTensorsResponse))

    def open_put(self, messages: Iterator[handle_pb2.PutTensorsRequest]) -> Iterator[handle_pb2.PutTensorsResponse]:
        return self._connection.duplex("HandleService/PutTensors", messages, handle_pb2.PutTensorsResponse)

    def duplex(self, path: str, messages: Iterator[Any], answer: Any) -> Iterator[Any]:
        return self._connection.duplex(path, messages, answer)

    def bytes_call(self, path: str, payload: bytes, **options: Any) -> bytes:
        """A unary call with any bytes as its message; raises grpc.RpcError."""
        unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.insecure_channel(self.address, options=unlimited)
        with channel:
            answer: bytes = channel.unary_unary(path)(payload, timeout=30, **options)
            return answer


def tensor(array: np.ndarray = ROWS, **changes: Any) -> tensor_pb2.Tensor:
    """A tensor whose header says something else than its bytes."""
    message = tensors.encode("", array)
    for field, value in changes.items():
        if field == "data":
            message.data = value
        elif field == "header_name":
            message.header.name = value
        elif field == "shape":
            message.header.shape[:] = value
        else:
            setattr(message.header, field, value)
    return message


def given(name: str = "input", array: np.ndarray = ROWS, **changes: Any) -> tensor_pb2.Input:
    return tensor_pb2.Input(name=name, tensor=tensor(array, **changes))


def infer(pipeline: str, *inputs: tensor_pb2.Input, **changes: Any) -> work_pb2.InferRequest:
    return work_pb2.InferRequest(pipeline=pipeline, inputs=inputs or [given()], **{"reply": waiting(), **changes})


def train(pipeline: str, **changes: Any) -> work_pb2.TrainStepRequest:
    fields: dict[str, Any] = {
        "pipeline": pipeline,
        "inputs": [given()],
        "target": given("target"),
        "request_id": request_id(),
        "reply": waiting(),
    }
    return work_pb2.TrainStepRequest(**{**fields, **changes})


def waiting(seconds: int = 30) -> work_pb2.ReplyOptions:
    return work_pb2.ReplyOptions(wait_for=duration(seconds))


def duration(seconds: int, nanos: int = 0) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=seconds, nanos=nanos)


def refused(
    call: Call,
    code: grpc.StatusCode = INVALID,
    reason: str = "FIELD_INVALID",
    field: str = "",
    value: str = "",
) -> penstock.PenstockError:
    """The call must be refused with this code and reason, name field and value, and tell nothing it should not."""
    with pytest.raises(penstock.PenstockError) as raised:
        call()
    error = raised.value
    assert (error.code, error.reason) == (code, reason), f"{error} {error.values}"
    if field:
        assert field in error.values.get("field", ""), f"{error} {error.values}"
    if value:
        assert value in error.values.get("value", "") or value in error.message, f"{error} {error.values}"
    clean(error)
    return error


def clean(error: penstock.PenstockError) -> None:
    """No error holds a path, a pointer, a stack, or anything that can't be printed."""
    assert len(error.message.encode()) <= 512, error.message
    for text in (error.message, *error.values.values()):
        assert text.isprintable(), repr(text)
        for secret in ("/root", "/home", "/tmp", "/build/", "0x", ".cc:", ".cpp:", "c10::", "Exception raised from"):
            assert secret not in text, text


def failed_handle(result: handle_pb2.Result) -> penstock.PenstockError:
    """The error of work that was accepted and failed."""
    assert result.handle.state == handle_pb2.HANDLE_STATE_FAILED, result
    error = penstock.PenstockError.from_status(result.handle.error)
    clean(error)
    return error
