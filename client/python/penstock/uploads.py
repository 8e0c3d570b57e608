"""Tensors on their way to the daemon: chunks within the daemon's credit, resumed by offset if the connection breaks."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import grpc

from penstock import tensors
from penstock.chunks import request_of
from penstock.connection import Connection
from penstock.deadline import Deadline
from penstock.errors import PenstockError
from penstock.handles import CHUNK_BYTES, ValueHandle, seconds
from penstock.v1 import handle_pb2


def put(
    connection: Connection,
    pipeline: str,
    values: Mapping[str, Any],
    lease: float = 0.0,
    deadline: Deadline | None = None,
    request_id: str = "",
) -> ValueHandle:
    """Uploads named arrays and answers one handle for all of them.

    Args:
        pipeline: ``pipelines/{pipeline}``.
        lease: seconds that the daemon keeps them without renewal; 0 is its default.
        request_id: a second put with the same one goes on with the first; empty: a new one.
    """
    upload = TensorUpload(pipeline, values, lease, request_id)

    def attempt() -> handle_pb2.Handle:
        flow = Flow()
        answers = connection.duplex(
            "HandleService/PutTensors", _requests(upload, flow), handle_pb2.PutTensorsResponse, deadline
        )
        try:
            for answer in answers:
                if answer.HasField("handle"):
                    return answer.handle
                flow.add(answer.credit.bytes, (answer.credit.next_tensor, answer.credit.next_offset))
        finally:
            flow.end()
        raise ended_early()

    handle = connection.retry(attempt, "HandleService/PutTensors", deadline)
    return ValueHandle(connection, handle_pb2.Result(handle=handle))


def ended_early() -> PenstockError:
    return PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the upload's stream ended without an answer")


class TensorUpload:
    """Arrays on their way to the daemon, attempted once or several times under the same request id. Does no calls
    itself."""

    def __init__(self, pipeline: str, values: Mapping[str, Any], lease: float, request_id: str = "") -> None:
        arrays = {name: tensors.wire_array(value) for name, value in values.items()}
        self._bytes = [tensors.bytes_of(array) for array in arrays.values()]
        self._start = handle_pb2.PutStart(
            pipeline=pipeline,
            tensors=[tensors.header_of(name, array) for name, array in arrays.items()],
            request_id=request_id or str(uuid.uuid4()),
            lease=seconds(lease),
        )

    def start(self) -> handle_pb2.PutTensorsRequest:
        return handle_pb2.PutTensorsRequest(start=self._start)

    def chunks(self, first: int, offset: int) -> Iterator[tuple[int, bytes]]:
        """What the daemon does not have yet, from a tensor and an offset on: sizes and requests."""
        for index in range(first, len(self._bytes)):
            data = self._bytes[index]
            while offset < len(data):
                piece = data[offset : offset + CHUNK_BYTES]
                yield len(piece), request_of(index, offset, piece)
                offset += len(piece)
            offset = 0


def _requests(upload: TensorUpload, flow: Flow) -> Iterator[handle_pb2.PutTensorsRequest | bytes]:
    """What to send on one stream. Runs on a thread of gRPC."""
    yield upload.start()
    position = flow.position()
    if position is None:
        return
    for size, request in upload.chunks(*position):
        if not flow.take(size):
            return
        yield request


class Flow:
    """What the daemon lets the sender send on one stream. Threads: the sender takes, the receiver adds and ends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._credit = 0
        self._position: tuple[int, int] = (0, 0)
        self._started = False
        self._ended = False

    def add(self, credit: int, position: tuple[int, int]) -> None:
        """Takes over a credit message; the first one tells where to go on: tensor and byte offset."""
        with self._changed:
            if not self._started:
                self._position = position
                self._started = True
            self._credit += credit
            self._changed.notify_all()

    def end(self) -> None:
        """Lets the sender go: nothing more is wanted."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def position(self) -> tuple[int, int] | None:
        """Waits for the first credit; the tensor and the byte offset to start at, or ``None`` at the end of the
        stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._started or self._ended)
            return self._position if self._started else None

    def take(self, size: int) -> bool:
        """Waits for credit of ``size`` bytes and uses it up; ``False`` at the end of the stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._credit >= size or self._ended)
            if self._ended:
                return False
            self._credit -= size
            return True
