"""gRPC channels to one daemon: where they lead, what every call says, which calls have a channel of their own."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock import chunks
from penstock.session import session

Traceparent = str | Callable[[], str | None] | None
Metadata = tuple[tuple[str, str], ...]

_USUAL_PORT = 8470
_MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),  # each connection is one of its own
]
# Calls that may move much data. All others go over a second connection, so that they never queue behind it.
_DATA_CALLS = (
    "WorkService/",
    "HandleService/PutTensors",
    "HandleService/FetchHandle",
    "ModelService/UploadModel",
    "StateService/ReadParameters",
    "InsightService/ExportTrace",
)

_ANSWERS_IN_CHUNKS = ("HandleService/FetchHandle", "StateService/ReadParameters")


class Channels:
    """Two channels to one daemon: calls that move much data, and all others. May be used from any thread.

    Args:
        library: gRPC for threads or for asyncio.
        address: ``host``, ``host:port`` or ``unix:PATH``.
        credentials: what TLS needs; ``None``: plaintext.
    """

    def __init__(self, library: Any, address: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self.data = _open(library, target_of(address), credentials)
        self.control = _open(library, target_of(address), credentials)
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], Any] = {}

    def callable(self, kind: str, method: str, answer: type[Message]) -> Any:
        """What calls ``Service/Method`` of ``penstock.v1``; ``kind`` as gRPC names it, such as ``unary_stream``."""
        with self._lock:
            if (kind, method) not in self._calls:
                channel = self.data if method.startswith(_DATA_CALLS) else self.control
                self._calls[kind, method] = getattr(channel, kind)(
                    f"/penstock.v1.{method}",
                    request_serializer=_serialize,
                    response_deserializer=_deserializer_of(method, answer),
                )
            return self._calls[kind, method]


def _open(library: Any, target: str, credentials: grpc.ChannelCredentials | None) -> Any:
    if credentials is None:
        return library.insecure_channel(target, options=_OPTIONS)
    return library.secure_channel(target, credentials, options=_OPTIONS)


def target_of(address: str) -> str:
    """What gRPC connects to; a host without a port means the daemon's usual one (gRPC's own is 443)."""
    if address.startswith(("unix:", "dns:", "ipv4:", "ipv6:")) or re.fullmatch(r"(\[.+\]|[^:]+):\d+", address):
        return address
    if re.fullmatch(r"\[.+\]|[^:\[\]/]+", address):
        return f"{address}:{_USUAL_PORT}"
    raise ValueError(f"address: must be HOST, HOST:PORT or unix:PATH, got {address!r}")


def metadata_of(caller: str | None, traceparent: Traceparent) -> Callable[[], Metadata]:
    """What every call says of itself, made anew for each; see ``traceparent`` of :class:`Connection`.

    Raises:
        ValueError: no caller may have that name.
    """
    if caller is not None and not re.fullmatch(r"[a-zA-Z0-9_.@:-]{1,128}", caller):
        raise ValueError(f"caller: must be 1 to 128 of a to z, A to Z, 0 to 9 and _ . @ : -, got {caller!r}")
    named = (("penstock-caller", caller),) if caller else ()
    if traceparent is None:
        inherited = os.environ.get("TRACEPARENT", "")
        traceparent = inherited if re.fullmatch("[0-9a-f-]+", inherited) else None

    def metadata() -> Metadata:
        now = traceparent() if callable(traceparent) else traceparent
        said = (*named, ("penstock-session", session()))
        return (*said, ("traceparent", now)) if now else said

    return metadata


def _serialize(message: Message | bytes) -> bytes:
    """The bytes of a message; what is bytes already stays."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def _deserializer_of(method: str, answer: type[Message]) -> Callable[[bytes], Any]:
    """What reads the answers of a method."""
    return chunks.reader(answer) if method in _ANSWERS_IN_CHUNKS else answer.FromString
