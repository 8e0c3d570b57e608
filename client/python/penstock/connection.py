"""The way to the daemon: calls by name, retries with the same request, errors as PenstockError."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from penstock.errors import PenstockError
from penstock.watcher import Watcher

Answer = TypeVar("Answer", bound=Message)

_MAX_MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
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


def serialize(message: Message) -> bytes:
    return message.SerializeToString()


def moves_data(method: str) -> bool:
    return method.startswith(_DATA_CALLS)


Traceparent = str | Callable[[], str | None] | None
Metadata = tuple[tuple[str, str], ...]


def metadata_of(caller: str | None, traceparent: Traceparent) -> Callable[[], Metadata]:
    """What every call says of itself, made anew for each; see ``traceparent`` of :class:`Connection`."""
    fixed = (("penstock-caller", caller),) if caller else ()
    if traceparent is None:
        inherited = os.environ.get("TRACEPARENT", "")
        traceparent = inherited if re.fullmatch("[0-9a-f-]+", inherited) else None

    def metadata() -> Metadata:
        now = traceparent() if callable(traceparent) else traceparent
        return (*fixed, ("traceparent", now)) if now else fixed

    return metadata


class Patience:
    """How long to go on asking a daemon that can't be reached."""

    def __init__(self, retry_for: float) -> None:
        self._give_up = time.monotonic() + retry_for
        self._pause = 0.05

    def wait_after(self, error: PenstockError) -> float:
        """Seconds until the next attempt: at growing intervals, or when the daemon said.

        Raises:
            PenstockError: the error, if asking again is no use or the time is over.
        """
        wait = error.retry_delay if error.retry_delay is not None else self._pause * random.uniform(0.5, 1.0)
        if not _passes(error) or time.monotonic() + wait > self._give_up:
            raise error
        self._pause = min(2.0, self._pause * 1.6)
        return wait


class Connection:
    """Calls one daemon on behalf of one caller. All methods may be called from any thread.

    Args:
        address: ``host:port`` or ``unix:PATH``.
        caller: sent as ``penstock-caller``; it separates owners among honest clients. ``None``: the daemon's ``local``.
        traceparent: of the W3C, sent with each call, so that the daemon's spans belong to that trace; a function is asked
            before each. ``None``: the variable ``TRACEPARENT``, if it is set.
        timeout: seconds that the daemon may take to answer a call, waiting not included.
        retry_for: seconds during which a call that found the daemon UNAVAILABLE is repeated, with the same request id.
    """

    def __init__(
        self, address: str, caller: str | None, timeout: float, retry_for: float, traceparent: Traceparent = None
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.retry_for = retry_for
        self._metadata = metadata_of(caller, traceparent)
        self._data = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._control = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._closed = False
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], Any] = {}
        self._watcher = Watcher(self)

    def watcher(self) -> Watcher:
        """Who waits for the futures of this connection's handles."""
        return self._watcher

    def close(self) -> None:
        """Ends all calls that are under way. Work that the daemon has accepted goes on."""
        self._closed = True
        self._data.close()
        self._control.close()

    def unary(self, method: str, request: Message, answer: type[Answer], wait: float = 0.0) -> Answer:
        """Calls ``Service/Method`` of ``penstock.v1``. Repeats it while the daemon is UNAVAILABLE.

        Args:
            wait: seconds that the request asks the daemon to wait, added to the deadline.

        Raises:
            PenstockError: the daemon refused, or could not be reached for ``retry_for`` seconds.
        """
        call = self._callable("unary_unary", method, answer)

        def attempt() -> Answer:
            response: Answer = call(request, timeout=self.timeout + wait, metadata=self._metadata())
            return response

        return self.retry(attempt)

    def stream(
        self, method: str, request: Message, answer: type[Answer], timeout: float | None = None
    ) -> Iterator[Answer]:
        """One request, many answers. Not repeated: the caller knows where to go on. Closing it ends the call."""
        call = self._callable("unary_stream", method, answer)(request, timeout=timeout, metadata=self._metadata())
        return _answers(call)

    def duplex(self, method: str, requests: Iterator[Message], answer: type[Answer]) -> Iterator[Answer]:
        """Many requests, many answers. gRPC reads ``requests`` on a thread of its own."""
        call = self._callable("stream_stream", method, answer)(requests, metadata=self._metadata())
        return _answers(call)

    def retry(self, attempt: Callable[[], Answer]) -> Answer:
        """Repeats ``attempt`` while the daemon can't be reached; see :class:`Patience`."""
        patience = Patience(self.retry_for)
        while True:
            try:
                return attempt()
            except grpc.RpcError as raised:
                error = PenstockError.from_call(raised)
            except PenstockError as raised:
                error = raised
            if self._closed:
                raise error
            time.sleep(patience.wait_after(error))

    def _callable(self, kind: str, method: str, answer: type[Answer]) -> Any:
        with self._lock:
            if (kind, method) not in self._calls:
                channel = self._data if moves_data(method) else self._control
                self._calls[kind, method] = getattr(channel, kind)(
                    f"/penstock.v1.{method}", request_serializer=serialize, response_deserializer=answer.FromString
                )
            return self._calls[kind, method]


def _passes(error: PenstockError) -> bool:
    """Whether asking again under the same request id may help. A daemon that closes its listener cancels the calls that
    it has not picked up; the work of a call is cancelled with a reason."""
    bare_cancel = error.code == grpc.StatusCode.CANCELLED and not error.reason
    return error.code == grpc.StatusCode.UNAVAILABLE or bare_cancel


def _answers(call: Any) -> Iterator[Any]:
    try:
        yield from call
    except grpc.RpcError as error:
        raise PenstockError.from_call(error) from None
    finally:
        call.cancel()
