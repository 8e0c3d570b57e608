"""Chunks written and read by hand are those of protobuf, and come in their order."""

from __future__ import annotations

import numpy as np
import penstock
import pytest
from penstock.checksum import crc32c
from penstock.chunks import Chunk, reader, request_of
from penstock.download import Download
from penstock.flow import Flow

from penstock.v1 import handle_pb2, state_pb2, tensor_pb2

SIZES = [0, 1, 127, 128, 16_383, 16_384, 1 << 20]


def bytes_of(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("tensor", "offset"), [(0, 0), (1, 1), (63, 1 << 20), (300, 1 << 40)])
def test_what_is_written_is_the_message(size: int, tensor: int, offset: int) -> None:
    data = bytes_of(size)
    parsed = handle_pb2.PutTensorsRequest.FromString(request_of(tensor, offset, memoryview(data)))
    chunk = handle_pb2.TensorChunk(tensor=tensor, offset=offset, data=data, crc32c=crc32c(data))
    assert parsed == handle_pb2.PutTensorsRequest(chunk=chunk)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("tensor", "offset"), [(0, 0), (63, 1 << 20), (300, 1 << 40)])
@pytest.mark.parametrize("answer", [handle_pb2.FetchHandleResponse, state_pb2.ReadParametersResponse])
def test_what_is_read_is_the_message(answer: type, size: int, tensor: int, offset: int) -> None:
    data = bytes_of(size)
    chunk = handle_pb2.TensorChunk(tensor=tensor, offset=offset, data=data, crc32c=crc32c(data))
    message = answer(chunk=chunk).SerializeToString()
    assert reader(answer)(message) == Chunk(tensor, offset, memoryview(data), crc32c(data))


def test_an_unusual_message_is_read_by_protobuf() -> None:
    read = reader(handle_pb2.FetchHandleResponse)
    chunk = handle_pb2.TensorChunk(tensor=3, offset=70_000, data=b"abc", crc32c=7)
    twice = handle_pb2.FetchHandleResponse(chunk=chunk).SerializeToString() * 2  # protobuf merges them
    unknown = b"\x12\x07" + b"\x1a\x03abc" + b"\x30\x01"
    assert read(twice) == Chunk(3, 70_000, memoryview(b"abc"), 7)
    assert read(unknown) == Chunk(0, 0, memoryview(b"abc"), 0)
    header = tensor_pb2.TensorHeader(name="x", byte_size=4)
    first = handle_pb2.FetchHandleResponse(handle=handle_pb2.Handle(name="h", tensors=[header]))
    assert read(first.SerializeToString()) == first
    for cut in range(len(twice) // 2):
        try:
            expected = handle_pb2.FetchHandleResponse.FromString(twice[:cut])
        except Exception:
            with pytest.raises(type(_failure(twice[:cut]))):
                read(twice[:cut])
        else:
            assert read(twice[:cut]) == expected


def test_only_the_first_credit_says_where_to_go_on() -> None:
    flow = Flow()
    flow.add(5, (1, 20))
    flow.add(5, (3, 40))
    assert flow.position() == (1, 20)
    assert flow.take(10)


def test_a_download_takes_each_byte_in_its_place() -> None:
    header = tensor_pb2.TensorHeader(name="x", type=tensor_pb2.DATA_TYPE_FP32, shape=[4], byte_size=16)
    values = np.arange(4, dtype=np.float32)

    def piece(begin: int, end: int) -> Chunk:
        data = values.tobytes()[begin:end]
        return Chunk(0, begin, memoryview(data), crc32c(data))

    download = Download(handle_pb2.Handle(name="h", tensors=[header]))
    with pytest.raises(penstock.PenstockError, match="DATA_LOSS / CHUNK_SIZE"):
        download.accept(piece(8, 16))
    download.accept(piece(0, 8))
    with pytest.raises(penstock.PenstockError, match="CHUNK_SIZE: h: the stream ended at 8"):
        download.end_stream()
    download.accept(piece(8, 16))
    download.end_stream()
    assert download.request() is None and np.array_equal(download.results()["x"], values)


def _failure(message: bytes) -> Exception:
    try:
        handle_pb2.FetchHandleResponse.FromString(message)
    except Exception as error:
        return error
    raise AssertionError("it can be read")
