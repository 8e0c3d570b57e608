"""Uploads in chunks within the daemon's credit: what is sent, and how the sender waits for credit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Protocol

from google.protobuf.message import Message


class Upload(Protocol):
    """What can be sent in chunks: tensors or a file."""

    def start(self) -> Message: ...

    def chunks(self, first: int, offset: int) -> Iterator[tuple[int, Any]]:
        """What is left to send: bytes of credit, and the request, a message or its bytes."""
        ...

    def credit(self, answer: Any) -> tuple[int, tuple[int, int]] | None:
        """Bytes that may be sent, and where to go on; ``None``: the answer is the last one."""


def requests_of(upload: Upload, flow: Flow) -> Iterator[Any]:
    """What to send on one stream, messages or their bytes. Runs on a thread of gRPC, which ends the call with what this
    raises, and forgets it: ``flow.error`` keeps it."""
    try:
        yield upload.start()
        position = flow.position()
        if position is None:
            return
        for size, request in upload.chunks(*position):
            if not flow.take(size):
                return
            yield request
    except Exception as error:
        flow.error = error
        raise


class Flow:
    """What the daemon lets the sender send on one stream. Threads: the sender takes, the receiver adds and ends.

    Attributes:
        error: why the sender sends no more; ``None`` if it did not fail.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._changed = threading.Condition()
        self._credit = 0
        self._position: tuple[int, int] = (0, 0)
        self._started = False
        self._ended = False

    def add(self, credit: int, position: tuple[int, int]) -> None:
        """Takes over a credit message; the first one tells where to go on: tensor and byte offset."""
        with self._changed:
            if not self._started:
                self._position = position
                self._started = True
            self._credit += credit
            self._changed.notify_all()

    def end(self) -> None:
        """Lets the sender go: nothing more is wanted."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def position(self) -> tuple[int, int] | None:
        """Waits for the first credit; the tensor and the byte offset to start at, or ``None`` at the end of the
        stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._started or self._ended)
            return self._position if self._started else None

    def take(self, size: int) -> bool:
        """Waits for credit of ``size`` bytes and uses it up; ``False`` at the end of the stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._credit >= size or self._ended)
            if self._ended:
                return False
            self._credit -= size
            return True
