"""The names of log levels, as messages have them."""

from __future__ import annotations

from penstock.v1 import admin_pb2

_PREFIX = "LOG_LEVEL_"
_LEVELS = ("debug", "info", "warning", "error")


def log_level_request(level: str) -> admin_pb2.SetLogLevelRequest:
    """What asks for a level; empty: for no change.

    Raises:
        ValueError: there is no such level.
    """
    if not level:
        return admin_pb2.SetLogLevelRequest()
    if level not in _LEVELS:
        raise ValueError(f"level: must be one of {', '.join(_LEVELS)}, got {level!r}")
    return admin_pb2.SetLogLevelRequest(level=_PREFIX + level.upper())


def log_level_name(level: admin_pb2.LogLevel) -> str:
    """``"debug"``, ``"info"``, ..."""
    return admin_pb2.LogLevel.Name(level).removeprefix(_PREFIX).lower()
