"""How a program gets at a result that is still to come: ``await handle``; pairs with :mod:`penstock.settling`.

Written by hand: the synchronous client has futures and a thread that waits for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import Any

from penstock.aio.connection import Connection
from penstock.results import Remote
from penstock.v1 import handle_pb2


class Settling(Remote, ABC):
    """A result of a connection. ``await handle`` is ``await handle.result()``."""

    def __init__(self, connection: Connection, result: handle_pb2.Result) -> None:
        super().__init__(result)
        self._connection = connection

    @abstractmethod
    async def result(self, timeout: float | None = None) -> Any:
        """Waits, and returns what the work gave."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()
