"""Measuring several things in turns, so that what else the machine does falls on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spreads import spread

Found = TypeVar("Found")


def in_turns(variants: dict[str, Callable[[], Found]], rounds: int) -> dict[str, list[Found]]:
    """What each gives, once a round, in an order that turns round: A B B A. A round before warms up and does not count."""
    found: dict[str, list[Found]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in variants if number % 2 else reversed(variants):
            value = variants[name]()
            if number > 0:
                found[name].append(value)
    return found


def ratios(one: list[float], other: list[float]) -> list[float]:
    """Of one to the other, within each round."""
    return [a / b for a, b in zip(one, other, strict=True)]


def percent(shares: list[float]) -> str:
    """Median, least and most."""
    return spread([100 * share for share in shares], 1)


def milliseconds(seconds: list[float], digits: int = 0) -> str:
    """Median, least and most."""
    return spread([1e3 * value for value in seconds], digits)
