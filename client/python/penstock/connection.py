# Written by client/python/tools/unasync.py from penstock/aio/connection.py; change that file instead.
"""gRPC connection with retries: calls by name, repeated with the same request."""

from __future__ import annotations

from typing import TypeVar

import grpc
from google.protobuf.message import Message

from penstock.attempts import Attempt, Attempts, pause
from penstock.deadline import Deadline
from penstock.errors import PenstockError
from penstock.flow import Upload
from penstock.patience import Patience

Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class Connection(Attempts):
    """Calls one daemon on behalf of one caller, again where no answer came. The synchronous client's may be used from
    any thread; asyncio's belongs to one event loop."""

    def unary(
        self, method: str, request: Message, answer: type[Answer], deadline: Deadline | None = None, wait: float = 0.0
    ) -> Answer:
        """Calls ``Service/Method`` of ``penstock.v1``. Repeats it while it gets no answer; see :class:`Patience`.

        Args:
            deadline: the caller's time for the whole call; ``None``: ``timeout`` and ``wait``.
            wait: seconds that an attempt may wait inside the daemon.

        Raises:
            PenstockError: the daemon refused, or could not be reached.
            DeadlineError: the caller's time is over.
        """
        whole = deadline or Deadline(self.timeout + wait, given=False)

        def attempt() -> Answer:
            return self.call(method, request, answer, whole, self.timeout + wait)

        return self.retry(attempt, method, whole, getattr(request, "request_id", ""))

    def upload(
        self, method: str, answer: type[Answer], upload: Upload, deadline: Deadline | None = None
    ) -> Answer:
        """Many requests under the daemon's credit, and the last answer. Broken streams go on where they were."""
        whole = deadline or Deadline()

        def attempt() -> Answer:
            return self.send(method, answer, upload, whole)

        return self.retry(attempt, method, whole)

    def retry(
        self, attempt: Attempt[Result], what: str, deadline: Deadline | None = None, request_id: str = ""
    ) -> Result:
        """Repeats ``attempt`` while it gets no answer; see :class:`Patience`."""
        patience = Patience(what, self.retry_for, deadline or Deadline(), request_id)
        while True:
            try:
                return attempt()
            except grpc.RpcError as raised:
                error = PenstockError.from_call(raised, self.address)
            except PenstockError as raised:
                error = raised
            if self.closed:
                raise error
            pause(patience.wait_after(error))
