"""The way to the daemon for asyncio; see :mod:`penstock.connection`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from penstock.connection import (
    CHANNEL_OPTIONS,
    Patience,
    Traceparent,
    deserializer_of,
    metadata_of,
    moves_data,
    seconds_of,
    serialize,
    target_of,
)
from penstock.deadline import Deadline
from penstock.errors import PenstockError
from penstock.flow import Upload
from penstock.releases import LAST_SECONDS, NAMES_OF_A_CALL
from penstock.v1 import handle_pb2

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
# What gRPC says instead of the server's status where a stream ends in a write. The next attempt is told.
_STATUS_LOST = "Internal error from Core"


class Connection:
    """Calls one daemon on behalf of one caller. Belongs to one event loop."""

    def __init__(
        self, address: str, caller: str | None, timeout: float, retry_for: float, traceparent: Traceparent = None
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.retry_for = retry_for
        self._metadata = metadata_of(caller, traceparent)
        self._data = grpc.aio.insecure_channel(target_of(address), options=CHANNEL_OPTIONS)
        self._control = grpc.aio.insecure_channel(target_of(address), options=CHANNEL_OPTIONS)
        self._closed = False
        self._calls: dict[tuple[str, str], Any] = {}
        self._released: list[str] = []
        self._releasing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Ends all calls that are under way. Work that the daemon has accepted goes on."""
        if self._releasing is not None:
            await asyncio.wait([self._releasing], timeout=LAST_SECONDS)
        self._closed = True
        await asyncio.gather(self._data.close(None), self._control.close(None))

    def release_later(self, names: Iterable[str]) -> None:
        """Gives handles back without waiting for the answer. What does not reach the daemon ends with its lease."""
        self._released.extend(names)
        if self._released and (self._releasing is None or self._releasing.done()):
            self._releasing = asyncio.get_running_loop().create_task(self._release())

    async def unary(
        self, method: str, request: Message, answer: type[Answer], deadline: Deadline | None = None, wait: float = 0.0
    ) -> Answer:
        """Calls ``Service/Method``. Repeats it while it gets no answer; see :class:`penstock.connection.Patience`.

        Raises:
            PenstockError: the daemon refused, or could not be reached.
            DeadlineError: the caller's time is over.
        """
        call = self._callable("unary_unary", method, answer)
        whole = deadline or Deadline(self.timeout + wait, given=False)

        async def attempt() -> Answer:
            response: Answer = await call(
                request, timeout=min(whole.left(), self.timeout + wait), metadata=self._metadata()
            )
            return response

        return await self.retry(attempt, method, whole, getattr(request, "request_id", ""))

    def stream(
        self, method: str, request: Message, answer: type[Answer], deadline: Deadline | None = None
    ) -> AsyncIterator[Answer]:
        """One request, many answers. Not repeated. Closing it ends the call."""
        timeout = seconds_of(deadline or Deadline())
        call = self._callable("unary_stream", method, answer)(request, timeout=timeout, metadata=self._metadata())
        return _answers(call)

    async def upload(
        self, method: str, answer: type[Answer], upload: Upload, deadline: Deadline | None = None
    ) -> Answer:
        """Many requests under the daemon's credit, and the last answer. Broken streams go on where they were."""
        whole = deadline or Deadline()

        async def attempt() -> Answer:
            call = self._callable("stream_stream", method, answer)(timeout=seconds_of(whole), metadata=self._metadata())
            try:
                last: Answer = await _send(call, upload)
                return last
            except grpc.aio.AioRpcError as raised:
                if raised.code() == grpc.StatusCode.INTERNAL and raised.details() == _STATUS_LOST:
                    raise PenstockError(grpc.StatusCode.UNAVAILABLE, "", "the stream ended in a write") from None
                raise
            finally:
                call.cancel()

        return await self.retry(attempt, method, whole)

    async def retry(
        self,
        attempt: Callable[[], Awaitable[Result]],
        what: str,
        deadline: Deadline | None = None,
        request_id: str = "",
    ) -> Result:
        """Repeats ``attempt`` while it gets no answer."""
        patience = Patience(what, self.retry_for, deadline or Deadline(), request_id)
        while True:
            try:
                return await attempt()
            except grpc.RpcError as raised:
                error = PenstockError.from_call(raised)
            except PenstockError as raised:
                error = raised
            if self._closed:
                raise error
            await asyncio.sleep(patience.wait_after(error))

    async def _release(self) -> None:
        call = self._callable("unary_unary", "HandleService/ReleaseHandles", handle_pb2.ReleaseHandlesResponse)
        while self._released:
            part, self._released = self._released[:NAMES_OF_A_CALL], self._released[NAMES_OF_A_CALL:]
            with suppress(grpc.RpcError):  # leases end what does not arrive
                request = handle_pb2.ReleaseHandlesRequest(names=part)
                await call(request, timeout=self.timeout, metadata=self._metadata())

    def _callable(self, kind: str, method: str, answer: type[Answer]) -> Any:
        if (kind, method) not in self._calls:
            channel = self._data if moves_data(method) else self._control
            self._calls[kind, method] = getattr(channel, kind)(
                f"/penstock.v1.{method}",
                request_serializer=serialize,
                response_deserializer=deserializer_of(method, answer),
            )
        return self._calls[kind, method]


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


async def _answers(call: Any) -> AsyncIterator[Any]:
    try:
        async for answer in call:
            yield answer
    except grpc.RpcError as error:
        raise PenstockError.from_call(error) from None
    finally:
        call.cancel()


def _error_of(code: grpc.StatusCode, details: str, metadata: Any) -> PenstockError:
    return PenstockError.from_call(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details, None))


async def collect(answers: AsyncIterator[Answer], take: Callable[[Answer], object]) -> None:
    """Takes every answer of a stream, and ends the call whatever happens."""
    async with aclosing(answers) as stream:  # type: ignore[type-var]
        async for answer in stream:
            take(answer)
