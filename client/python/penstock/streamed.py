"""Calls of work on one stream, for threads; pairs with :mod:`penstock.aio.streamed`.

Written by hand: a thread reads answers here, and threads wait by futures, where asyncio has tasks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.deadline import Deadline, grpc_seconds
from penstock.errors import PenstockError
from penstock.tagged import answer_of, cancel_of, ended, request_of, too_late


class StreamedCalls:
    """Makes calls on a stream that is opened with the first one, and anew with the first one after it has ended. May be
    used from any thread.

    Args:
        open_stream: starts a call of StreamWork, given its requests.
        address: of the daemon, for errors.
    """

    def __init__(self, open_stream: Callable[[Iterator[Message]], Any], address: str) -> None:
        self._open_stream = open_stream
        self._address = address
        self._lock = threading.Lock()
        self._stream: _Stream | None = None

    def call(self, method: str, request: Message, whole: Deadline, limit: float) -> Any:
        """One request and its answer, in what is left of ``whole``, at most ``limit`` seconds."""
        with self._lock:
            if self._stream is None or self._stream.ended:
                self._stream = _Stream(self._open_stream, self._address)
            stream = self._stream
        return stream.ask(method, request, whole, grpc_seconds(min(whole.left(), limit)))

    def close(self) -> None:
        """Ends the stream, and with it all calls that are under way."""
        with self._lock:
            if self._stream is not None:
                self._stream.close()


class _Stream:
    """One stream from its start to its end."""

    def __init__(self, open_stream: Callable[[Iterator[Message]], Any], address: str) -> None:
        self.ended = False
        self._address = address
        self._requests: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._tag = 0
        self._most = 0  # requests at a time, once the daemon has said so
        self._waiting: dict[int, futures.Future[Any]] = {}
        self._end: PenstockError = ended()
        self._call = open_stream(self._sent())
        threading.Thread(target=self._read, name="penstock-stream", daemon=True).start()

    def ask(self, method: str, request: Message, whole: Deadline, seconds: float | None) -> Any:
        """Sends the request once there is room, and waits for its answer."""
        answer: futures.Future[Any] = futures.Future()
        tag = 0
        try:
            with whole.cancels(lambda: self._cancel(answer)):
                with self._changed:
                    if not self._changed.wait_for(lambda: self._may_go_on(answer), seconds):
                        raise too_late()
                    if self.ended:
                        raise self._end
                    if not answer.cancelled():
                        self._tag += 1
                        tag = self._tag
                        self._waiting[tag] = answer
                        self._requests.put(request_of(tag, method, request))
                return answer.result(seconds)
        except futures.CancelledError:
            raise PenstockError(grpc.StatusCode.CANCELLED, "", "the call was given up") from None
        except futures.TimeoutError:
            raise too_late() from None
        finally:
            self._give_up(tag)

    def close(self) -> None:
        self._call.cancel()

    def _may_go_on(self, answer: futures.Future[Any]) -> bool:
        return self.ended or answer.cancelled() or len(self._waiting) < self._most

    def _cancel(self, answer: futures.Future[Any]) -> None:
        answer.cancel()
        with self._changed:
            self._changed.notify_all()

    def _give_up(self, tag: int) -> None:
        """Cancels a request that has no answer. Its place is free once the daemon has answered."""
        with self._changed:
            if tag in self._waiting:
                self._waiting[tag] = futures.Future()
                self._requests.put(cancel_of(tag))

    def _sent(self) -> Iterator[Message]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        try:
            for response in self._call:
                self._take(response)
        except grpc.RpcError as raised:
            self._end = PenstockError.from_call(raised, self._address)
        with self._changed:
            self.ended = True
            waiting, self._waiting = self._waiting, {}
            self._changed.notify_all()
        self._requests.put(None)
        for future in waiting.values():
            with suppress(futures.InvalidStateError):  # it was cancelled
                future.set_exception(self._end)

    def _take(self, response: Any) -> None:
        with self._changed:
            if response.HasField("opened"):
                self._most = response.opened.requests
            future = self._waiting.pop(response.tag, None)
            self._changed.notify_all()
        if future is None:
            return
        with suppress(futures.InvalidStateError):
            try:
                future.set_result(answer_of(response))
            except PenstockError as error:
                future.set_exception(error)
