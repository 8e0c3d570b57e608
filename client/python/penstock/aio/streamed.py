"""Calls of work on one stream, for asyncio; pairs with :mod:`penstock.streamed`.

Written by hand: a task reads answers here, and cancelled tasks give calls up, where the synchronous client has a thread
and futures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.deadline import Deadline, grpc_seconds
from penstock.errors import PenstockError
from penstock.tagged import answer_of, cancel_of, ended, request_of, too_late


class StreamedCalls:
    """Makes calls on a stream that is opened with the first one, and anew with the first one after it has ended.

    Args:
        open_stream: starts a call of StreamWork.
        address: of the daemon, for errors.
    """

    def __init__(self, open_stream: Callable[[], Any], address: str) -> None:
        self._open_stream = open_stream
        self._address = address
        self._stream: _Stream | None = None

    async def call(self, method: str, request: Message, whole: Deadline, limit: float) -> Any:
        """One request and its answer, in what is left of ``whole``, at most ``limit`` seconds."""
        if self._stream is None or self._stream.ended:
            self._stream = _Stream(self._open_stream(), self._address)
        seconds = grpc_seconds(min(whole.left(), limit))
        try:
            return await asyncio.wait_for(self._stream.ask(method, request), seconds)
        except asyncio.TimeoutError:
            raise too_late() from None

    async def close(self) -> None:
        """Ends the stream, and with it all calls that are under way."""
        if self._stream is not None:
            await self._stream.close()


class _Stream:
    """One stream from its start to its end."""

    def __init__(self, call: Any, address: str) -> None:
        self.ended = False
        self._call = call
        self._address = address
        self._tag = 0
        self._most = 0  # requests at a time, once the daemon has said so
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._changed = asyncio.Condition()
        self._writing = asyncio.Lock()
        self._end: PenstockError = ended()
        self._background: set[asyncio.Task[None]] = set()
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def ask(self, method: str, request: Message) -> Any:
        """Sends the request once there is room, and waits for its answer."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.ended or len(self._waiting) < self._most)
            if self.ended:
                raise self._end
            self._tag += 1
            tag = self._tag
            answer = self._waiting[tag] = asyncio.get_running_loop().create_future()
        try:
            await self._write(request_of(tag, method, request))
            return await answer
        except asyncio.CancelledError:
            self._give_up(tag)
            raise

    async def close(self) -> None:
        self._call.cancel()
        await self._reader

    async def _write(self, request: Any) -> None:
        async with self._writing:
            # The end of the stream says why.
            with suppress(asyncio.InvalidStateError, grpc.RpcError):
                await self._call.write(request)

    def _give_up(self, tag: int) -> None:
        """Cancels the request. Its place is free once the daemon has answered."""
        if self.ended or tag not in self._waiting:
            return
        self._waiting[tag] = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(self._write(cancel_of(tag)))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _read(self) -> None:
        try:
            async for response in self._call:
                async with self._changed:
                    if response.HasField("opened"):
                        self._most = response.opened.requests
                    future = self._waiting.pop(response.tag, None)
                    self._changed.notify_all()
                if future is None or future.done():
                    continue
                try:
                    future.set_result(answer_of(response))
                except PenstockError as error:
                    future.set_exception(error)
        except grpc.RpcError as raised:
            self._end = PenstockError.from_call(raised, self._address)
        except asyncio.CancelledError:
            pass  # the call was
        finally:
            self.ended = True
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(self._end)
                    future.exception()  # of those that were given up nobody asks
            async with self._changed:
                self._changed.notify_all()
