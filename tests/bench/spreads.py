"""How figures of several rounds are shown."""

from __future__ import annotations

import statistics


def spread(values: list[float], digits: int) -> str:
    """Median, least and most: ``3.43 (3.10 to 3.51)``."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
