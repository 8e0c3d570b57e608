"""Which program this is: what holds an accumulation on the daemon, beside the caller."""

from __future__ import annotations

import os
import uuid

_session = uuid.uuid4().hex


def session() -> str:
    """The same for all clients of this process, and another one after a restart or a fork."""
    return _session


def _renew() -> None:
    global _session
    _session = uuid.uuid4().hex


os.register_at_fork(after_in_child=_renew)
