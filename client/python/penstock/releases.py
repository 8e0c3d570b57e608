"""Handles that are given back in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from penstock.v1 import handle_pb2

NAMES_OF_A_CALL = 1000  # the daemon takes so many
LAST_SECONDS = 1.0  # that the end of a connection waits for the last ones


class Releases:
    """Sends names in as few calls as possible, one call at a time.

    Threads: ``add`` and ``finish`` from any; the next call is sent by gRPC's thread that ends the last one.

    Args:
        send: starts a call and returns its future.
    """

    def __init__(self, send: Callable[[handle_pb2.ReleaseHandlesRequest], Any]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._names: list[str] = []
        self._sending = False

    def add(self, names: Iterable[str]) -> None:
        with self._changed:
            self._names.extend(names)
            if self._sending or not self._names:
                return
            self._sending = True
        self._next()

    def finish(self, timeout: float = LAST_SECONDS) -> bool:
        """Waits until all are sent and answered, and says whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sending, timeout)

    def _next(self, _: Any = None) -> None:
        with self._changed:
            part, self._names = self._names[:NAMES_OF_A_CALL], self._names[NAMES_OF_A_CALL:]
            if not part:
                self._sending = False
                self._changed.notify_all()
                return
        try:
            self._send(handle_pb2.ReleaseHandlesRequest(names=part)).add_done_callback(self._next)
        except Exception:  # the client is closed, or the caller's traceparent raises; leases end the rest
            with self._changed:
                self._names.clear()
            self._next()
