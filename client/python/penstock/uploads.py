# Written by client/python/tools/unasync.py from penstock/aio/uploads.py; change that file instead.
"""Tensors on their way to the daemon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.connection import Connection
from penstock.handles import ValueHandle
from penstock.deadline import Deadline
from penstock.errors import PenstockError
from penstock.inputs import InputValue, Prepared, Signatures, gone_upload, in_doubt, upload_id
from penstock.tensor_upload import TensorUpload
from penstock.v1 import handle_pb2, tensor_pb2


def put(
    connection: Connection,
    pipeline: str,
    values: Mapping[str, Any],
    lease: float = 0.0,
    deadline: Deadline | None = None,
    request_id: str = "",
) -> ValueHandle:
    """Uploads named arrays and returns one handle for all of them.

    Args:
        pipeline: ``pipelines/{pipeline}``.
        lease: seconds that the daemon keeps them without renewal; 0 is its default.
        request_id: a second put with the same one goes on with the first; empty: a new one.
    """
    upload = TensorUpload(pipeline, values, lease, request_id)
    answer = connection.upload("HandleService/PutTensors", handle_pb2.PutTensorsResponse, upload, deadline)
    return ValueHandle(connection, handle_pb2.Result(handle=answer.handle))


@contextmanager
def staged(
    connection: Connection,
    pipeline: str,
    values: Mapping[str, InputValue],
    signature: Signatures,
    deadline: Deadline,
    request_id: str,
) -> Iterator[list[tensor_pb2.Input]]:
    """The inputs of one call as messages. What had to be uploaded is released at the end: the daemon keeps the bytes of
    accepted work as long as it needs them. A call or an upload that got no answer needs them again."""
    prepared = Prepared(values, signature)
    if not prepared.too_large:
        yield prepared.messages()
        return
    uploads: list[str] = []
    try:
        for number, arrays in enumerate(prepared.parts()):
            part_id = upload_id(request_id, number)
            try:
                uploads.append((put(connection, pipeline, arrays, deadline=deadline, request_id=part_id)).name)
            except PenstockError as error:
                uploads.append(gone_upload(error))
        yield prepared.messages(uploads)
    except BaseException as error:
        if not in_doubt(error):
            connection.release_later(uploads)
        raise
    connection.release_later(uploads)
