"""One attempt of each kind of call, for asyncio; pairs with :mod:`penstock.attempts`.

Written by hand: cancelled tasks end calls here, and an upload writes and reads in turns, where the synchronous client
has futures and a thread of gRPC's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from penstock.aio.streamed import StreamedCalls
from penstock.channels import Traceparent
from penstock.credentials import CredentialFiles
from penstock.deadline import Deadline, grpc_seconds
from penstock.endpoint import Endpoint, closed_error
from penstock.errors import PenstockError
from penstock.flow import Upload
from penstock.releases import LAST_SECONDS, NAMES_OF_A_CALL
from penstock.v1 import handle_pb2, work_pb2

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
Attempt = Callable[[], Awaitable[Result]]
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
# What gRPC says instead of the server's status where a stream ends in a write. The next attempt is told.
_STATUS_LOST = "Internal error from Core"


class Attempts(Endpoint):
    """What calls one daemon, without repeating. Belongs to one event loop."""

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
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("a client of asyncio is made inside the event loop that uses it") from None
        super().__init__(grpc.aio, address, caller, timeout, retry_for, traceparent, files)
        self._released: list[str] = []
        self._releasing: asyncio.Task[None] | None = None
        self._streamed = StreamedCalls(self._open_work_stream, self.address) if work_stream else None

    async def close(self) -> None:
        """Ends all calls that are under way. Work that the daemon has accepted goes on."""
        if self._releasing is not None:
            await asyncio.wait([self._releasing], timeout=LAST_SECONDS)
        self.closed = True
        if self._streamed is not None:
            await self._streamed.close()
        await asyncio.gather(self._channels.data.close(None), self._channels.control.close(None))

    def release_later(self, names: Iterable[str]) -> None:
        """Gives handles back without waiting for the answer. What does not reach the daemon ends with its lease."""
        self._released.extend(names)
        if self._released and not self.closed and (self._releasing is None or self._releasing.done()):
            self._releasing = asyncio.get_running_loop().create_task(self._release())

    async def call(
        self, method: str, request: Message, answer: type[Answer], whole: Deadline, limit: float
    ) -> Answer:
        """One request and one answer, in what is left of ``whole``, at most ``limit`` seconds."""
        if self._streamed is not None and method.startswith("WorkService/"):
            with self._told_of_the_close():
                streamed: Answer = await self._streamed.call(method, request, whole, limit)
            return streamed
        call = self._callable("unary_unary", method, answer)
        with self._told_of_the_close():
            response: Answer = await call(request, timeout=grpc_seconds(min(whole.left(), limit)), metadata=self._metadata())
        return response

    def stream(
        self, method: str, request: Message, answer: type[Answer], deadline: Deadline | None = None
    ) -> AsyncGenerator[Answer]:
        """One request, many answers. Not repeated: the caller knows where to go on. Closing it ends the call."""
        timeout = grpc_seconds((deadline or Deadline()).left())
        call = self._callable("unary_stream", method, answer)
        return self._answers(call(request, timeout=timeout, metadata=self._metadata()))

    async def send(self, method: str, answer: type[Answer], upload: Upload, deadline: Deadline) -> Answer:
        """Sends what is left of an upload under the daemon's credit, and returns the last answer."""
        call = self._callable("stream_stream", method, answer)(
            timeout=grpc_seconds(deadline.left()), metadata=self._metadata()
        )
        try:
            with self._told_of_the_close():
                last: Answer = await _send(call, upload)
            return last
        except grpc.aio.AioRpcError as raised:
            if raised.code() == grpc.StatusCode.INTERNAL and raised.details() == _STATUS_LOST:
                raise PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the stream ended in a write") from None
            raise
        finally:
            call.cancel()

    def _open_work_stream(self) -> Any:
        call = self._callable("stream_stream", "WorkService/StreamWork", work_pb2.StreamWorkResponse)
        return call(metadata=self._metadata())

    async def _answers(self, call: Any) -> AsyncGenerator[Any]:
        try:
            with self._told_of_the_close():
                async for answer in call:
                    yield answer
        except grpc.RpcError as error:
            raise PenstockError.from_call(error, self.address) from None
        finally:
            call.cancel()

    @contextmanager
    def _told_of_the_close(self) -> Iterator[None]:
        """Makes an error of the cancellation that :meth:`close` causes. That of the task itself goes on."""
        try:
            yield
        except asyncio.CancelledError:
            cancelling = getattr(asyncio.current_task(), "cancelling", None)  # from Python 3.11 on
            if self.closed and not (cancelling and cancelling()):
                raise closed_error() from None
            raise

    async def _release(self) -> None:
        call = self._callable(
            "unary_unary", "HandleService/ReleaseHandles", handle_pb2.ReleaseHandlesResponse
        )
        while self._released:
            part, self._released = self._released[:NAMES_OF_A_CALL], self._released[NAMES_OF_A_CALL:]
            with suppress(grpc.RpcError, grpc.aio.UsageError):  # leases end what does not arrive
                request = handle_pb2.ReleaseHandlesRequest(names=part)
                await call(request, timeout=self.timeout, metadata=self._metadata())


async def pause(seconds: float) -> None:
    """Lets the event loop go on for so long."""
    await asyncio.sleep(seconds)


async def collect(answers: AsyncGenerator[Answer], take: Callable[[Answer], object]) -> None:
    """Takes every answer of a stream, and ends the call whatever happens."""
    async with aclosing(answers):
        async for answer in answers:
            take(answer)


async def _send(call: Any, upload: Upload) -> Any:
    await call.write(upload.start())
    chunks: Iterator[tuple[int, Any]] | None = None
    credit = 0
    following: tuple[int, Any] | None = None
    while True:
        answer = await call.read()
        if answer is _EOF:
            code = await call.code()
            if code != grpc.StatusCode.OK:
                raise _error_of(code, await call.details(), await call.trailing_metadata())
            raise PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the upload's stream ended without an answer")
        given = upload.credit(answer)
        if given is None:
            return answer
        credit += given[0]
        if chunks is None:
            chunks = upload.chunks(*given[1])
            following = next(chunks, None)
        while following is not None and following[0] <= credit:
            credit -= following[0]
            try:
                await call.write(following[1])
            except asyncio.InvalidStateError:
                break  # the answer says why
            following = next(chunks, None)


def _error_of(code: grpc.StatusCode, details: str, metadata: Any) -> PenstockError:
    return PenstockError.from_call(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details, None))
