"""Messages of StreamWork, on which each request has a tag. Makes no calls."""

from __future__ import annotations

import re
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.errors import PenstockError
from penstock.v1 import work_pb2


def request_of(tag: int, method: str, request: Message) -> work_pb2.StreamWorkRequest:
    """A request of ``WorkService/Method`` under a tag."""
    return work_pb2.StreamWorkRequest(tag=tag, **{_field_of(method): request})  # type: ignore[arg-type]


def cancel_of(tag: int) -> work_pb2.StreamWorkRequest:
    """Ends the request that has the tag."""
    return work_pb2.StreamWorkRequest(tag=tag, cancel=work_pb2.WorkCancel())


def answer_of(response: work_pb2.StreamWorkResponse) -> Any:
    """What the method returns.

    Raises:
        PenstockError: what it fails with.
    """
    if response.HasField("error"):
        raise PenstockError.from_status(response.error)
    return getattr(response, str(response.WhichOneof("message")))


def too_late() -> PenstockError:
    """As gRPC itself says it of a call."""
    return PenstockError(grpc.StatusCode.DEADLINE_EXCEEDED, "", "Deadline Exceeded")


def ended() -> PenstockError:
    """Of calls on a stream that has ended without an error."""
    return PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the stream has ended")


def _field_of(method: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", method.rpartition("/")[2]).lower()
