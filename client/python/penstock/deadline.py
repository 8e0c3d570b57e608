"""The caller's time for one call: upload, call, wait and download take from the same seconds."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

LONGEST_WAIT = 30.0  # seconds that the daemon holds a reply; longer waits are made of several
_ENDLESS = 1e9  # seconds: gRPC counts nanoseconds since 1970, and takes what is beyond them for the past


class Deadline:
    """When a call must be over.

    Threads: any. ``cancel`` may come from another thread than the call's.

    Args:
        seconds: from now on; ``None``: as long as it takes.
        given: by the caller; ``False``: what the connection allows a call whose caller gave no time.
        clock: monotonic seconds; usually only tests set this.

    Raises:
        ValueError: the seconds are no number, or negative.
    """

    def __init__(
        self, seconds: float | None = None, *, given: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if seconds is not None and math.isnan(seconds):
            raise ValueError(f"timeout: must be a number of seconds, got {seconds}")
        if seconds is not None and seconds < 0:
            raise ValueError(f"timeout: must be at least 0 seconds, got {seconds:g}")
        self.seconds = seconds
        self.given = given and seconds is not None
        self._clock = clock
        self._end = math.inf if seconds is None else clock() + seconds
        self._lock = threading.Lock()
        self.cancelled = False
        self._actions: list[Callable[[], object]] = []

    def now(self) -> float:
        """Seconds of its clock."""
        return self._clock()

    def left(self) -> float:
        """Seconds that are left; 0 after the end; infinite if there is none."""
        return 0.0 if self.cancelled else max(0.0, self._end - self._clock())

    def hold(self) -> float:
        """Seconds that the daemon may hold its reply: a tenth of what is left is for the way here."""
        return min(0.9 * self.left(), LONGEST_WAIT)

    def cancel(self) -> None:
        """Ends it now, with what is under way."""
        with self._lock:
            self.cancelled = True
            actions = list(self._actions)
        for action in actions:
            action()

    @contextlib.contextmanager
    def cancels(self, action: Callable[[], object]) -> Iterator[None]:
        """While it lasts, :meth:`cancel` runs ``action``; at once if it came before."""
        with self._lock:
            self._actions.append(action)
            cancelled = self.cancelled
        try:
            if cancelled:
                action()
            yield
        finally:
            with self._lock:
                self._actions.remove(action)


def grpc_seconds(seconds: float) -> float | None:
    """As gRPC has them: ``None`` is no end."""
    return None if seconds >= _ENDLESS else seconds
