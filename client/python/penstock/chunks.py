"""Chunks of tensors on the wire, written and read without copies by protobuf: of a gigabyte each one counts.

The chunk is field 2 of its message, and its bytes are field 3. What looks otherwise is protobuf's to read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.checksum import crc32c
from penstock.v1 import handle_pb2

CHUNK_BYTES = 1 << 20  # the most that the daemon takes and gives
_CHUNK, _TENSOR, _OFFSET, _DATA, _CRC32C = b"\x12", 0x08, 0x10, 0x1A, 0x25  # tags
_TAIL_BYTES = 5


class Chunk(NamedTuple):
    """A piece of a tensor, as ``TensorChunk`` has it."""

    tensor: int
    offset: int
    data: memoryview
    crc32c: int


def request_of(tensor: int, offset: int, data: memoryview) -> bytes:
    """A ``PutTensorsRequest`` with a chunk. Copies the bytes once."""
    front = (
        handle_pb2.TensorChunk(tensor=tensor, offset=offset).SerializeToString() + bytes([_DATA]) + _varint(len(data))
    )
    tail = bytes([_CRC32C]) + crc32c(data).to_bytes(4, "little")
    size = len(front) + len(data) + _TAIL_BYTES
    return b"".join((_CHUNK, _varint(size), front, data, tail))


def reader(answer: Any) -> Callable[[bytes], Any]:
    """Reads messages of this type: a chunk as :class:`Chunk`, whose data are the message's own bytes."""

    def read(message: bytes) -> Any:
        found = _chunk_of(message)
        if found is not None:
            return found
        parsed = answer.FromString(message)
        if not parsed.HasField("chunk"):
            return parsed
        return Chunk(parsed.chunk.tensor, parsed.chunk.offset, memoryview(parsed.chunk.data), parsed.chunk.crc32c)

    return read


def _chunk_of(message: bytes) -> Chunk | None:
    """``None`` for what is not one chunk with its fields in the usual forms."""
    if message[:1] != _CHUNK:
        return None
    try:
        size, at = _read_varint(message, 1)
        if at + size != len(message):
            return None
        tensor = offset = crc = 0
        data = memoryview(b"")
        while at < len(message):
            tag = message[at]
            if tag == _CRC32C:
                crc, at = int.from_bytes(message[at + 1 : at + 5], "little"), at + 5
                continue
            value, at = _read_varint(message, at + 1)
            if tag == _TENSOR:
                tensor = value
            elif tag == _OFFSET:
                offset = value
            elif tag == _DATA:
                data, at = memoryview(message)[at : at + value], at + value
            else:
                return None
    except IndexError:
        return None
    return Chunk(tensor, offset, data, crc) if at == len(message) else None


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
