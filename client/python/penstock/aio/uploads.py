"""Tensors on their way to the daemon, for asyncio; see :mod:`penstock.uploads`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import numpy.typing as npt

from penstock.aio.connection import Connection
from penstock.aio.handles import ValueHandle
from penstock.inputs import InputValue, Prepared
from penstock.uploads import TensorUpload
from penstock.v1 import handle_pb2, tensor_pb2


async def put(
    connection: Connection,
    pipeline: str,
    values: Mapping[str, npt.ArrayLike],
    lease: float = 0.0,
    wanted: Mapping[str, int] = {},
) -> ValueHandle:
    """Uploads named arrays and answers one handle for all of them."""
    upload = _Tensors(TensorUpload(pipeline, values, lease, wanted))
    answer = await connection.upload("HandleService/PutTensors", handle_pb2.PutTensorsResponse, upload)
    return ValueHandle(connection, handle_pb2.Result(handle=answer.handle))


@asynccontextmanager
async def staged(
    connection: Connection,
    pipeline: str,
    values: Mapping[str, InputValue],
    signature: Sequence[tensor_pb2.TensorSignature],
) -> AsyncIterator[list[tensor_pb2.Input]]:
    """The inputs of one call as messages; what had to be uploaded is released at the end."""
    prepared = Prepared(values, signature)
    if not prepared.too_large:
        yield prepared.messages()
        return
    async with await put(connection, pipeline, prepared.arrays, wanted=prepared.wanted) as upload:
        yield prepared.messages(upload.name)


class _Tensors:
    def __init__(self, upload: TensorUpload) -> None:
        self._upload = upload

    def start(self) -> handle_pb2.PutTensorsRequest:
        return self._upload.start()

    def chunks(self, first: int, offset: int) -> Iterator[handle_pb2.PutTensorsRequest]:
        return self._upload.chunks(first, offset)

    def credit(self, answer: handle_pb2.PutTensorsResponse) -> tuple[int, tuple[int, int]] | None:
        if answer.HasField("handle"):
            return None
        return answer.credit.bytes, (answer.credit.next_tensor, answer.credit.next_offset)
