"""The earliest of a call's three times ends it: that of the queue and of the work, and gRPC's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
import tritonclient.grpc as triton
from google.protobuf import duration_pb2
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2
from tritonclient.utils import InferenceServerException

from daemon_process import Daemon, eventually
from raw_calls import given
from small_models import request_id

ROWS = np.zeros((64, 4), np.float32)
NAME = "slow"
Code = grpc.StatusCode


def seconds(value: float) -> duration_pb2.Duration:
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(value * 1e9))
    return message


class Slow:
    """A pipeline on which a call of 64 micro-batches takes a minute and more, and can be stopped between two."""

    def __init__(self, daemon: Daemon, client: penstock.Client) -> None:
        self.daemon = daemon
        layer = penstock.Layer("delay", options={"forward_ms": 1000.0, "features": 4})
        self.pipeline = client.create_pipeline(
            NAME, model=[layer, layer], balance=[1, 1], schedule="1f1b", micro_batches=1, loss="mean_squared_error"
        )
        self.channel = grpc.insecure_channel(daemon.address)

    def unary(self, method: str, answer: Any, service: str = "WorkService") -> Any:
        return self.channel.unary_unary(
            f"/penstock.v1.{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )

    def request(self, kind: Any, work_timeout: float = 0, **changes: Any) -> Any:
        reply = work_pb2.ReplyOptions(wait_for=seconds(60))
        if work_timeout:
            reply.work_timeout.CopyFrom(seconds(work_timeout))
        fields = {"pipeline": f"pipelines/{NAME}", "inputs": [given(array=ROWS)], "micro_batches": 64, "reply": reply}
        return kind(**{**fields, **changes})

    def idle(self) -> bool:
        """Nothing runs or waits, and no memory of a call is held."""
        metrics = self.daemon.metrics()
        held = sum(
            metrics.sum("penstock_memory_reserved_bytes", **{"class": kind})
            for kind in ("messages", "inputs", "queues", "uploads")
        )
        busy = metrics.sum("penstock_queue_depth") + metrics.sum("penstock_runs_active")
        return busy == 0 and held == 0


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    daemon = Daemon(tmp_path_factory.mktemp("slow"))
    daemon.start()
    with penstock.Client(daemon.address) as client:
        yield Slow(daemon, client)
    daemon.kill()  # with a step under way that takes minutes


METHODS = {
    "Infer": (work_pb2.InferRequest, work_pb2.InferResponse),
    "Evaluate": (work_pb2.EvaluateRequest, work_pb2.EvaluateResponse),
    "Forward": (work_pb2.ForwardRequest, work_pb2.ForwardResponse),
}


def fields_of(method: str) -> dict[str, Any]:
    if method == "Evaluate":
        return {"target": given("target", ROWS)}
    return {"request_id": request_id()} if method == "Forward" else {}


def error_of(answer: Any) -> str:
    """The reason of what a call's handle failed with."""
    result = answer.outputs if hasattr(answer, "outputs") and answer.outputs.handle.name else answer.outcome
    assert result.handle.HasField("error"), answer
    return str(penstock.PenstockError.from_status(result.handle.error).reason)


@pytest.mark.parametrize("method", METHODS)
def test_the_time_of_the_work_ends_what_runs(slow: Slow, method: str) -> None:
    request, answer_type = METHODS[method]
    answer = slow.unary(method, answer_type)(slow.request(request, work_timeout=1.5, **fields_of(method)), timeout=50)
    assert error_of(answer) == "WORK_DEADLINE"
    eventually(slow.idle)


@pytest.mark.parametrize("method", ["Infer", "Evaluate"])
def test_the_callers_time_ends_what_runs(slow: Slow, method: str) -> None:
    """Without a request id nobody could ask for the results again."""
    request, answer_type = METHODS[method]
    with pytest.raises(grpc.RpcError) as raised:
        slow.unary(method, answer_type)(slow.request(request, work_timeout=50, **fields_of(method)), timeout=1.5)
    assert raised.value.code() == Code.DEADLINE_EXCEEDED
    eventually(slow.idle)


@pytest.mark.parametrize(("times", "told"), [({"client_timeout": 1.5}, "Deadline"), ({"timeout": 1_500_000}, "while it ran")])
def test_the_open_protocol_has_both_times(slow: Slow, times: dict[str, Any], told: str) -> None:
    rows = triton.InferInput("input", ROWS.shape, "FP32")
    rows.set_data_from_numpy(ROWS)
    with triton.InferenceServerClient(slow.daemon.address) as client:
        with pytest.raises(InferenceServerException, match=told):
            client.infer(NAME, [rows], **times)
    eventually(slow.idle)


def test_a_stream_ends_with_its_callers_time(slow: Slow) -> None:
    """A fetch that waits for a result, and an upload whose sender stalls."""
    request = slow.request(work_pb2.InferRequest, request_id=request_id(), reply=work_pb2.ReplyOptions())
    name = slow.unary("Infer", work_pb2.InferResponse)(request, timeout=20).outputs.handle.name
    fetch = slow.channel.unary_stream(
        "/penstock.v1.HandleService/FetchHandle",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=handle_pb2.FetchHandleResponse.FromString,
    )
    with pytest.raises(grpc.RpcError) as raised:
        list(fetch(handle_pb2.FetchHandleRequest(name=name, wait_for=seconds(50)), timeout=1))
    assert raised.value.code() == Code.DEADLINE_EXCEEDED

    header = tensor_pb2.TensorHeader(name="x", type=tensor_pb2.DATA_TYPE_FP32, shape=[4], byte_size=16)
    start = handle_pb2.PutTensorsRequest(start=handle_pb2.PutStart(pipeline=f"pipelines/{NAME}", tensors=[header]))
    over = threading.Event()

    def stalls() -> Iterator[handle_pb2.PutTensorsRequest]:
        yield start
        over.wait(60)

    put = slow.channel.stream_stream(
        "/penstock.v1.HandleService/PutTensors",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=handle_pb2.PutTensorsResponse.FromString,
    )
    with pytest.raises(grpc.RpcError) as raised:
        list(put(stalls(), timeout=1))
    over.set()
    assert raised.value.code() == Code.DEADLINE_EXCEEDED
    for method, message, answer in (
        ("CancelHandles", handle_pb2.CancelHandlesRequest, handle_pb2.CancelHandlesResponse),
        ("ReleaseHandles", handle_pb2.ReleaseHandlesRequest, handle_pb2.ReleaseHandlesResponse),
    ):
        slow.unary(method, answer, "HandleService")(message(names=[name]), timeout=20)
    eventually(slow.idle)


def test_what_waits_ends_in_the_queue(slow: Slow) -> None:
    """The last of this file: what it waits behind goes on for minutes."""
    step = slow.unary("TrainStep", work_pb2.TrainStepResponse)
    fields = {"target": given("target", ROWS)}
    first = step.future(slow.request(work_pb2.TrainStepRequest, request_id=request_id(), **fields), timeout=50)
    eventually(lambda: slow.daemon.metrics().sum("penstock_runs_active") == 1)
    late = slow.request(work_pb2.TrainStepRequest, work_timeout=0.5, request_id=request_id(), **fields)
    assert error_of(step(late, timeout=50)) == "QUEUE_DEADLINE"
    assert slow.pipeline.statistics().step == 0
    first.cancel()
