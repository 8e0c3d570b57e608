"""The way to the daemon: calls by name, retries with the same request, errors as PenstockError."""

from __future__ import annotations

import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from penstock import chunks
from penstock.deadline import Deadline
from penstock.errors import DeadlineError, PenstockError
from penstock.flow import Flow, Upload, requests_of
from penstock.releases import Releases
from penstock.session import session
from penstock.v1 import handle_pb2

Answer = TypeVar("Answer", bound=Message)

_USUAL_PORT = 8470
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

_ANSWERS_IN_CHUNKS = ("HandleService/FetchHandle", "StateService/ReadParameters")


def serialize(message: Message | bytes) -> bytes:
    """The bytes of a message; what is bytes already stays."""
    return message if isinstance(message, bytes) else message.SerializeToString()


def deserializer_of(method: str, answer: type[Message]) -> Callable[[bytes], Any]:
    """What reads the answers of a method."""
    return chunks.reader(answer) if method in _ANSWERS_IN_CHUNKS else answer.FromString


def moves_data(method: str) -> bool:
    return method.startswith(_DATA_CALLS)


Traceparent = str | Callable[[], str | None] | None
Metadata = tuple[tuple[str, str], ...]


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


class Patience:
    """How long to go on with a call that gets no answer, under the same request id.

    A call whose caller gave it a time is repeated until that is over; another one for ``retry_for`` seconds from the
    first failure on, whenever in the call it came. An attempt that took too long is repeated as long as the call has time.

    Args:
        what: method, for the error.
        retry_for: 0: nothing is repeated.
        deadline: of all attempts together.
    """

    def __init__(self, what: str, retry_for: float, deadline: Deadline, request_id: str = "") -> None:
        self._what = what
        self._retry_for = retry_for
        self._deadline = deadline
        self._request_id = request_id
        self._give_up: float | None = None
        self._pause = 0.05

    def wait_after(self, error: PenstockError) -> float:
        """Seconds until the next attempt: at growing intervals, or when the daemon said.

        Raises:
            PenstockError: the error, if asking again is no use or ``retry_for`` is over.
            DeadlineError: the call's time is over.
        """
        if self._request_id and not error.reason:  # the daemon names it itself
            error.values.setdefault("request_id", self._request_id)
        if not _passes(error) or self._deadline.cancelled:
            raise error
        wait = error.retry_delay if error.retry_delay is not None else self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2.0, self._pause * 1.6)
        overdue = error.code == grpc.StatusCode.DEADLINE_EXCEEDED
        over = wait >= self._deadline.left()
        if overdue and (over or self._retry_for <= 0) or over and self._deadline.given:
            raise DeadlineError.unanswered(self._what, self._deadline.seconds, self._request_id, error) from error
        if overdue:
            self._give_up = None  # the daemon can be reached
            return wait
        if self._give_up is None:
            self._give_up = self._deadline.now() + self._retry_for
        if self._retry_for <= 0 or not self._deadline.given and self._deadline.now() + wait > self._give_up:
            raise error
        return wait


class Connection:
    """Calls one daemon on behalf of one caller. All methods may be called from any thread.

    Args:
        address: ``host``, ``host:port`` or ``unix:PATH``.
        caller: sent as ``penstock-caller``; it separates owners among honest clients. ``None``: the daemon's ``local``.
        traceparent: of the W3C, sent with each call, so that the daemon's spans belong to that trace; a function is asked
            before each. ``None``: the variable ``TRACEPARENT``, if it is set.
        timeout: seconds that the daemon may take to answer an attempt, waiting not included.
        retry_for: seconds for which a call without a time of its own is repeated, with the same request id, while the
            daemon is UNAVAILABLE.
    """

    def __init__(
        self, address: str, caller: str | None, timeout: float, retry_for: float, traceparent: Traceparent = None
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.retry_for = retry_for
        self._metadata = metadata_of(caller, traceparent)
        self._data = grpc.insecure_channel(target_of(address), options=CHANNEL_OPTIONS)
        self._control = grpc.insecure_channel(target_of(address), options=CHANNEL_OPTIONS)
        self._closed = False
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], Any] = {}
        self._releases = Releases(self._send_releases)

    def close(self) -> None:
        """Ends all calls that are under way. Work that the daemon has accepted goes on."""
        self._releases.finish()
        self._closed = True
        self._data.close()
        self._control.close()

    def release_later(self, names: Iterable[str]) -> None:
        """Gives handles back without waiting for the answer. What does not reach the daemon ends with its lease."""
        self._releases.add(names)

    def unary(
        self, method: str, request: Message, answer: type[Answer], deadline: Deadline | None = None, wait: float = 0.0
    ) -> Answer:
        """Calls ``Service/Method`` of ``penstock.v1``. Repeats it while it gets no answer; see :class:`Patience`.

        Args:
            deadline: the caller's time for the whole call; ``None``: ``timeout`` and ``wait``.
            wait: seconds that an attempt may wait inside the daemon.

        Raises:
            PenstockError: the daemon refused, or could not be reached.
            DeadlineError: the caller's time is over.
        """
        call = self._callable("unary_unary", method, answer)
        whole = deadline or Deadline(self.timeout + wait, given=False)

        def attempt() -> Answer:
            under_way = call.future(request, timeout=min(whole.left(), self.timeout + wait), metadata=self._metadata())
            with whole.cancels(under_way.cancel):
                try:
                    response: Answer = under_way.result()
                except grpc.FutureCancelledError:
                    raise PenstockError(grpc.StatusCode.CANCELLED, "", "the call was given up") from None
            return response

        return self.retry(attempt, method, whole, getattr(request, "request_id", ""))

    def stream(
        self, method: str, request: Message, answer: type[Answer], deadline: Deadline | None = None
    ) -> Iterator[Answer]:
        """One request, many answers. Not repeated: the caller knows where to go on. Closing it ends the call."""
        whole = deadline or Deadline()
        call = self._callable("unary_stream", method, answer)
        return _answers(call(request, timeout=seconds_of(whole), metadata=self._metadata()), whole)

    def duplex(
        self, method: str, requests: Iterator[Any], answer: type[Answer], deadline: Deadline | None = None
    ) -> Iterator[Answer]:
        """Many requests, messages or their bytes; many answers. gRPC reads ``requests`` on a thread of its own."""
        whole = deadline or Deadline()
        call = self._callable("stream_stream", method, answer)
        return _answers(call(requests, timeout=seconds_of(whole), metadata=self._metadata()), whole)

    def upload(
        self, method: str, answer: type[Answer], upload: Upload, deadline: Deadline | None = None
    ) -> Answer:
        """Many requests under the daemon's credit, and the last answer. Broken streams go on where they were."""

        def attempt() -> Answer:
            flow = Flow()
            try:
                for response in self.duplex(method, requests_of(upload, flow), answer, deadline):
                    given = upload.credit(response)
                    if given is None:
                        return response
                    flow.add(*given)
            finally:
                flow.end()
            raise PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the upload's stream ended without an answer")

        return self.retry(attempt, method, deadline)

    def retry(
        self, attempt: Callable[[], Answer], what: str, deadline: Deadline | None = None, request_id: str = ""
    ) -> Answer:
        """Repeats ``attempt`` while it gets no answer; see :class:`Patience`."""
        patience = Patience(what, self.retry_for, deadline or Deadline(), request_id)
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
                    f"/penstock.v1.{method}",
                    request_serializer=serialize,
                    response_deserializer=deserializer_of(method, answer),
                )
            return self._calls[kind, method]

    def _send_releases(self, request: handle_pb2.ReleaseHandlesRequest) -> Any:
        call = self._callable("unary_unary", "HandleService/ReleaseHandles", handle_pb2.ReleaseHandlesResponse)
        return call.future(request, timeout=self.timeout, metadata=self._metadata())


def seconds_of(deadline: Deadline) -> float | None:
    """As gRPC has it."""
    left = deadline.left()
    return None if left == math.inf else left


def _passes(error: PenstockError) -> bool:
    """Whether asking again under the same request id may help. A daemon that closes its listener cancels the calls that
    it has not picked up; the work of a call is cancelled with a reason."""
    if error.reason:
        return error.code == grpc.StatusCode.UNAVAILABLE or error.reason == "PREDECESSOR_PENDING"
    return error.code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )


def _answers(call: Any, deadline: Deadline) -> Iterator[Any]:
    try:
        with deadline.cancels(call.cancel):
            yield from call
    except grpc.RpcError as error:
        raise PenstockError.from_call(error) from None
    finally:
        call.cancel()
