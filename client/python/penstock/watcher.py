"""Futures of remote results: one thread asks the daemon for all of a connection's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import PenstockError
from penstock.v1 import handle_pb2

_WAIT = 0.25  # seconds of one waiting call: as long may a newcomer be unseen


class Watched(Protocol):
    """What settles: a handle."""

    @property
    def settled(self) -> bool: ...

    def take(self, answer: handle_pb2.HandleAnswer) -> None: ...

    def result(self) -> Any: ...


Kind = TypeVar("Kind", bound=Watched)


class Watcher(Generic[Kind]):
    """Settles futures as their handles settle.

    Owns: the futures that are not settled, with their handles; nothing else, so it does not keep a connection alive.
    Threads: ``watch`` from any; results are set, and callbacks run, on the watcher's own thread, which lives while
    there is something to watch.

    Args:
        ask: waits up to so many seconds until one of the handles settles, and returns the state of the first of them.
    """

    def __init__(self, ask: Callable[[Sequence[Kind], float], handle_pb2.WaitHandlesResponse]) -> None:
        self._ask_daemon = ask
        self._lock = threading.Lock()
        self._watched: list[tuple[Kind, Future[Any]]] = []
        self._running = False

    def watch(self, handle: Kind) -> Future[Any]:
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

    def _ask(self, watched: list[tuple[Kind, Future[Any]]]) -> list[tuple[Kind, Future[Any]]]:
        """Waits until one settles, or a little; returns what is over, with its future failed if its handle is gone."""
        try:
            response = self._ask_daemon([handle for handle, _ in watched], _WAIT)
        except Exception as error:  # the daemon can't be reached: every future says so
            for _, future in watched:
                future.set_exception(error)
            return watched
        over = []
        for entry, answer in zip(watched, response.handles):
            try:
                entry[0].take(answer)
            except PenstockError as error:
                entry[1].set_exception(error)
            if entry[0].settled or entry[1].done():
                over.append(entry)
        return over


def _settle(handle: Watched, future: Future[Any]) -> None:
    if future.done():
        return
    try:
        future.set_result(handle.result())
    except Exception as error:
        future.set_exception(error)
