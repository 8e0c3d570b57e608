"""Futures of remote results: one thread asks the daemon for all of them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.v1 import handle_pb2

if TYPE_CHECKING:
    from penstock.connection import Connection
    from penstock.handles import Handle

_WAIT = 0.25  # seconds of one waiting call: as long may a newcomer be unseen


class Watcher:
    """Settles futures as their handles settle.

    Threads: ``watch`` from any; results are set, and callbacks run, on the watcher's own thread, which lives while
    there is something to watch.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._watched: list[tuple[Handle, Future[Any]]] = []
        self._running = False

    def watch(self, handle: Handle) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # the work is the daemon's: Handle.cancel() stops it
        with self._lock:
            self._watched.append((handle, future))
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="penstock-futures", daemon=True).start()
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._running = False
                    return
            settled = [entry for entry in watched if entry[0].settled] or self._ask(watched)
            with self._lock:
                self._watched = [entry for entry in self._watched if entry not in settled]
            for handle, future in settled:
                _settle(handle, future)

    def _ask(self, watched: list[tuple[Handle, Future[Any]]]) -> list[tuple[Handle, Future[Any]]]:
        """Waits until one settles, or a little; answers what is over, with its future failed if its handle is gone."""
        from penstock.handles import wait_request

        first = watched[:1000]
        try:
            response = self._connection.unary(
                "HandleService/WaitHandles",
                wait_request([handle for handle, _ in first], _WAIT, any_of=True),
                handle_pb2.WaitHandlesResponse,
                wait=_WAIT,
            )
        except Exception as error:  # the daemon can't be reached: every future says so
            for _, future in watched:
                future.set_exception(error)
            return watched
        over = []
        for entry, answer in zip(first, response.handles):
            try:
                entry[0].take(answer)
            except PenstockError as error:
                entry[1].set_exception(error)
            if entry[0].settled or entry[1].done():
                over.append(entry)
        return over


def _settle(handle: Handle, future: Future[Any]) -> None:
    if future.done():
        return
    try:
        future.set_result(handle.result())
    except Exception as error:
        future.set_exception(error)
