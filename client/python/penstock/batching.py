"""Whether requests of inference run as one, from keyword arguments to a message."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.casting import shown_integer
from penstock.v1 import pipeline_pb2

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def batching_spec(
    dynamic_batching: bool | None = None,
    batch_rows: int | None = None,
    batch_micro_batch_rows: int | None = None,
    batch_delay: float | None = None,
) -> pipeline_pb2.DynamicBatching | None:
    """The arguments are those of :meth:`Client.create_pipeline`. Which numbers make sense is the daemon's to judge.

    Raises:
        TypeError: one is of another type.
        ValueError: a number of more than 64 bits, or a bound of batches that are refused.
    """
    if not isinstance(dynamic_batching, (bool, np.bool_, type(None))):
        raise TypeError(f"dynamic_batching: must be True, False or None, got {dynamic_batching!r}")
    spec = pipeline_pb2.DynamicBatching(
        max_rows=_whole("batch_rows", batch_rows),
        micro_batch_rows=_whole("batch_micro_batch_rows", batch_micro_batch_rows),
        max_delay_seconds=_seconds("batch_delay", batch_delay),
    )
    if dynamic_batching is None:
        return spec if spec.ListFields() else None
    given = {"batch_rows": batch_rows, "batch_micro_batch_rows": batch_micro_batch_rows, "batch_delay": batch_delay}
    for name, value in given.items():
        if value is not None and not dynamic_batching:
            raise ValueError(f"{name}: belongs to dynamic_batching, which is False, got {value!r}")
    return spec if dynamic_batching else None


def _whole(argument: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{argument}: must be a whole number, got {value!r}")
    number = int(value)
    if not _LEAST <= number <= _MOST:
        raise ValueError(f"{argument}: must be an integer of 64 bits, got {shown_integer(number)}")
    return number


def _seconds(argument: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{argument}: must be a number of seconds, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{argument}: must fit float64, got {shown_integer(int(value))}") from None
