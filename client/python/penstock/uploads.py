"""Tensors on their way to the daemon: chunks within the daemon's credit, resumed by offset if the connection breaks."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping

import grpc
import numpy.typing as npt

from penstock import tensors
from penstock.checksum import crc32c
from penstock.connection import Connection
from penstock.errors import PenstockError
from penstock.handles import ValueHandle, seconds
from penstock.v1 import handle_pb2, tensor_pb2

CHUNK_BYTES = 256 << 10


def put(
    connection: Connection,
    pipeline: str,
    values: Mapping[str, npt.ArrayLike],
    lease: float = 0.0,
    wanted: Mapping[str, int] = {},
) -> ValueHandle:
    """Uploads named arrays and answers one handle for all of them.

    Args:
        pipeline: ``pipelines/{pipeline}``.
        lease: seconds that the daemon keeps them without renewal; 0 is its default.
        wanted: types (``tensor_pb2.DataType``) by name where the array leaves a choice.
    """
    upload = _Upload(connection, pipeline, values, lease, wanted)
    return ValueHandle(connection, handle_pb2.Result(handle=connection.retry(upload.attempt)))


class _Upload:
    """One upload, attempted once or several times under the same request id.

    The stream's requests are made on a thread of gRPC; the lock guards what the answers change: credit and position.
    """

    def __init__(
        self,
        connection: Connection,
        pipeline: str,
        values: Mapping[str, npt.ArrayLike],
        lease: float,
        wanted: Mapping[str, int],
    ) -> None:
        self._connection = connection
        arrays = {name: tensors.wire_array(value) for name, value in values.items()}
        self._bytes = [tensors.bytes_of(array) for array in arrays.values()]
        self._start = handle_pb2.PutStart(
            pipeline=pipeline,
            tensors=[
                tensors.header_of(name, array, wanted.get(name, tensor_pb2.DATA_TYPE_UNSPECIFIED))
                for name, array in arrays.items()
            ],
            request_id=str(uuid.uuid4()),
            lease=seconds(lease),
        )

    def attempt(self) -> handle_pb2.Handle:
        """Sends what the daemon does not have yet."""
        flow = _Flow()
        answers = self._connection.duplex(
            "HandleService/PutTensors", self._requests(flow), handle_pb2.PutTensorsResponse
        )
        try:
            for answer in answers:
                if answer.HasField("handle"):
                    return answer.handle
                flow.add(answer.credit)
        finally:
            flow.end()
        raise PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the upload's stream ended without a handle")

    def _requests(self, flow: _Flow) -> Iterator[handle_pb2.PutTensorsRequest]:
        yield handle_pb2.PutTensorsRequest(start=self._start)
        first, offset = flow.position()
        for index in range(first, len(self._bytes)):
            data = self._bytes[index]
            while offset < len(data):
                piece = data[offset : offset + CHUNK_BYTES]
                if not flow.take(len(piece)):
                    return
                chunk = handle_pb2.TensorChunk(tensor=index, offset=offset, data=bytes(piece), crc32c=crc32c(piece))
                yield handle_pb2.PutTensorsRequest(chunk=chunk)
                offset += len(piece)
            offset = 0


class _Flow:
    """What the daemon lets the sender send on one stream. Threads: the sender takes, the receiver adds and ends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._credit = 0
        self._position: tuple[int, int] = (0, 0)
        self._started = False
        self._ended = False

    def add(self, credit: handle_pb2.PutCredit) -> None:
        """Takes over a credit message; the first one tells where to go on."""
        with self._changed:
            if not self._started:
                self._position = (credit.next_tensor, credit.next_offset)
                self._started = True
            self._credit += credit.bytes
            self._changed.notify_all()

    def end(self) -> None:
        """Lets the sender go: nothing more is wanted."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def position(self) -> tuple[int, int]:
        """Waits for the first credit; the tensor and the byte offset to start at."""
        with self._changed:
            self._changed.wait_for(lambda: self._started or self._ended)
            return self._position

    def take(self, size: int) -> bool:
        """Waits for credit of ``size`` bytes and uses it up; ``False`` at the end of the stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._credit >= size or self._ended)
            if self._ended:
                return False
            self._credit -= size
            return True
