"""Tensors on their way to the daemon: chunks within the daemon's credit, resumed by offset if the connection breaks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from penstock import tensors
from penstock.chunks import CHUNK_BYTES, request_of
from penstock.results import seconds
from penstock.v1 import handle_pb2


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

    def credit(self, answer: handle_pb2.PutTensorsResponse) -> tuple[int, tuple[int, int]] | None:
        """Bytes that may be sent, and where to go on; ``None``: the answer is the last one."""
        if answer.HasField("handle"):
            return None
        return answer.credit.bytes, (answer.credit.next_tensor, answer.credit.next_offset)
