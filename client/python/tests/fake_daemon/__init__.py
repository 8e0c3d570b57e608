"""A daemon that works in memory: inference doubles its input, training counts steps.

It keeps every request, and fails calls on demand: see ``fail`` and ``refuse``. What it does not know it refuses. Each
module has one service or two of it.
"""

from __future__ import annotations

from fake_daemon.errors import status
from fake_daemon.models import Models
from fake_daemon.pipelines import Pipelines
from fake_daemon.state import State
from fake_daemon.work import Work

__all__ = ["FakeDaemon", "status"]


class FakeDaemon(Pipelines, Work, State, Models):
    """All services, at an address of this machine."""

    def __init__(self) -> None:
        super().__init__()
        self.start()
