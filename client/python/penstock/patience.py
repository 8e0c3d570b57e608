"""When a call that got no answer is made again. Makes no calls: both clients ask it."""

from __future__ import annotations

import random

import grpc

from penstock.deadline import Deadline
from penstock.errors import DeadlineError, PenstockError


class Patience:
    """How long to go on with a call that gets no answer, under the same request id.

    A call whose caller gave it a time is repeated until that is over; another one for ``retry_for`` seconds from the
    first failure on, whenever in the call it came. An attempt that took too long is repeated as long as the call has time.

    Args:
        what: method, for the error.
        retry_for: 0: nothing is repeated.
        deadline: of all attempts together.
    """

    def __init__(self, what: str, retry_for: float, deadline: Deadline, request_id: str = "") -> None:
        self._what = what
        self._retry_for = retry_for
        self._deadline = deadline
        self._request_id = request_id
        self._give_up: float | None = None
        self._pause = 0.05

    def wait_after(self, error: PenstockError) -> float:
        """Seconds until the next attempt: at growing intervals, or when the daemon said.

        Raises:
            PenstockError: the error, if asking again is no use or ``retry_for`` is over.
            DeadlineError: the call's time is over.
        """
        if self._request_id and not error.reason:  # the daemon names it itself
            error.values.setdefault("request_id", self._request_id)
        if not _passes(error) or self._deadline.cancelled:
            raise error
        wait = error.retry_delay if error.retry_delay is not None else self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2.0, self._pause * 1.6)
        overdue = error.code == grpc.StatusCode.DEADLINE_EXCEEDED
        over = wait >= self._deadline.left()
        if overdue and (over or self._retry_for <= 0) or over and self._deadline.given:
            raise DeadlineError.unanswered(self._what, self._deadline.seconds, self._request_id, error) from error
        if overdue:
            self._give_up = None  # the daemon can be reached
            return wait
        if self._give_up is None:
            self._give_up = self._deadline.now() + self._retry_for
        if self._retry_for <= 0 or not self._deadline.given and self._deadline.now() + wait > self._give_up:
            raise error
        return wait


def _passes(error: PenstockError) -> bool:
    """Whether asking again under the same request id may help. A daemon that closes its listener cancels the calls that
    it has not picked up; the work of a call is cancelled with a reason."""
    if error.reason:
        return error.code == grpc.StatusCode.UNAVAILABLE or error.reason == "PREDECESSOR_PENDING"
    return error.code in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    )
