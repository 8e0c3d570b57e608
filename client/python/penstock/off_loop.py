"""Long computations of calls: where they are called, as there is no event loop; pairs with penstock.aio.off_loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def off_loop(function: Callable[Arguments, Result], *args: Arguments.args, **named: Arguments.kwargs) -> Result:
    return function(*args, **named)
