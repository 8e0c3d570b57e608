"""How a program gets at a result that is still to come: by a future; pairs with :mod:`penstock.aio.settling`.

Written by hand: futures need a thread that waits for them, where asyncio awaits the handle itself.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from penstock.connection import Connection
from penstock.results import Remote, wait_request
from penstock.v1 import handle_pb2
from penstock.watcher import Watcher


class Settling(Remote, ABC):
    """A result of a connection."""

    def __init__(self, connection: Connection, result: handle_pb2.Result) -> None:
        super().__init__(result)
        self._connection = connection

    @abstractmethod
    def result(self, timeout: float | None = None) -> Any:
        """Waits, and returns what the work gave."""

    def future(self) -> Future[Any]:
        """The same result for code that wants a :class:`concurrent.futures.Future`: callbacks, ``as_completed``, an
        event loop's ``wrap_future``. One thread of this connection waits for all of them. Cancelling it cancels no
        work."""
        with _watchers_lock:
            watcher = _watchers.setdefault(self._connection, Watcher(_ask_any))
        return watcher.watch(self)


# Who waits for the futures of a connection's handles: one, made with the first future.
_watchers: weakref.WeakKeyDictionary[Connection, Watcher[Settling]] = weakref.WeakKeyDictionary()
_watchers_lock = threading.Lock()


def _ask_any(handles: Sequence[Settling], wait: float) -> handle_pb2.WaitHandlesResponse:
    """Waits so many seconds until one of the handles, all of one connection, settles."""
    request = wait_request(handles, wait, any_of=True)
    return handles[0]._connection.unary("HandleService/WaitHandles", request, handle_pb2.WaitHandlesResponse, wait=wait)
