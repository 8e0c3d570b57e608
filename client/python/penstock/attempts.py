"""One attempt of each kind of call, for threads; pairs with :mod:`penstock.aio.attempts`.

Written by hand: a thread that waits for gRPC is cancelled through the call's future, and an upload is read by a thread
of gRPC's own, where asyncio has awaits and cancelled tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from penstock.channels import Traceparent
from penstock.credentials import CredentialFiles
from penstock.deadline import Deadline, grpc_seconds
from penstock.endpoint import Endpoint
from penstock.errors import PenstockError
from penstock.flow import Flow, Upload, requests_of
from penstock.releases import Releases
from penstock.streamed import StreamedCalls
from penstock.v1 import handle_pb2, work_pb2

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
Attempt = Callable[[], Result]


class Attempts(Endpoint):
    """What calls one daemon, without repeating. May be used from any thread."""

    def __init__(
        self,
        address: str,
        caller: str | None,
        timeout: float,
        retry_for: float,
        traceparent: Traceparent = None,
        files: CredentialFiles = CredentialFiles(),
        work_stream: bool = False,
    ) -> None:
        super().__init__(grpc, address, caller, timeout, retry_for, traceparent, files)
        self._releases = Releases(self._send_releases)
        self._streamed = StreamedCalls(self._open_work_stream, self.address) if work_stream else None

    def close(self) -> None:
        """Ends all calls that are under way. Work that the daemon has accepted goes on."""
        self._releases.finish()
        self.closed = True
        if self._streamed is not None:
            self._streamed.close()
        self._channels.data.close()
        self._channels.control.close()

    def release_later(self, names: Iterable[str]) -> None:
        """Gives handles back without waiting for the answer. What does not reach the daemon ends with its lease."""
        self._releases.add(names)

    def call(self, method: str, request: Message, answer: type[Answer], whole: Deadline, limit: float) -> Answer:
        """One request and one answer, in what is left of ``whole``, at most ``limit`` seconds."""
        if self._streamed is not None and method.startswith("WorkService/"):
            streamed: Answer = self._streamed.call(method, request, whole, limit)
            return streamed
        call = self._callable("unary_unary", method, answer)
        under_way = call.future(request, timeout=grpc_seconds(min(whole.left(), limit)), metadata=self._metadata())
        with whole.cancels(under_way.cancel):
            try:
                response: Answer = under_way.result()
            except grpc.FutureCancelledError:
                raise PenstockError(grpc.StatusCode.CANCELLED, "", "the call was given up") from None
            finally:
                under_way.cancel()  # an interrupt of this thread ends the call, too
        return response

    def stream(
        self, method: str, request: Message, answer: type[Answer], deadline: Deadline | None = None
    ) -> Generator[Answer]:
        """One request, many answers. Not repeated: the caller knows where to go on. Closing it ends the call."""
        whole = deadline or Deadline()
        call = self._callable("unary_stream", method, answer)
        return self._answers(call(request, timeout=grpc_seconds(whole.left()), metadata=self._metadata()), whole)

    def duplex(
        self, method: str, requests: Iterator[Any], answer: type[Answer], deadline: Deadline | None = None
    ) -> Generator[Answer]:
        """Many requests, messages or their bytes; many answers. gRPC reads ``requests`` on a thread of its own."""
        whole = deadline or Deadline()
        call = self._callable("stream_stream", method, answer)
        return self._answers(call(requests, timeout=grpc_seconds(whole.left()), metadata=self._metadata()), whole)

    def send(self, method: str, answer: type[Answer], upload: Upload, deadline: Deadline) -> Answer:
        """Sends what is left of an upload under the daemon's credit, and returns the last answer."""
        flow = Flow()
        try:
            for response in self.duplex(method, requests_of(upload, flow), answer, deadline):
                given = upload.credit(response)
                if given is None:
                    return response
                flow.add(*given)
        except PenstockError:
            if flow.error is not None:
                raise flow.error from None
            raise
        finally:
            flow.end()
        raise PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the upload's stream ended without an answer")

    def _open_work_stream(self, requests: Iterator[Message]) -> Any:
        call = self._callable("stream_stream", "WorkService/StreamWork", work_pb2.StreamWorkResponse)
        return call(requests, metadata=self._metadata())

    def _send_releases(self, request: handle_pb2.ReleaseHandlesRequest) -> Any:
        call = self._callable(
            "unary_unary", "HandleService/ReleaseHandles", handle_pb2.ReleaseHandlesResponse
        )
        return call.future(request, timeout=self.timeout, metadata=self._metadata())

    def _answers(self, call: Any, deadline: Deadline) -> Generator[Any]:
        try:
            with deadline.cancels(call.cancel):
                yield from call
        except grpc.RpcError as error:
            raise PenstockError.from_call(error, self.address) from None
        finally:
            call.cancel()


def pause(seconds: float) -> None:
    """Holds this thread for so long."""
    time.sleep(seconds)


def collect(answers: Generator[Answer], take: Callable[[Answer], object]) -> None:
    """Takes every answer of a stream, and ends the call whatever happens."""
    with closing(answers):
        for answer in answers:
            take(answer)
