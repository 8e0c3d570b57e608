"""Looking at work that is under way: in turns with it; pairs with :mod:`penstock.showing`.

Written by hand: a task can be cancelled, a thread can't.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from penstock.aio.attempts import Attempt
from penstock.creation import PROGRESS_SECONDS
from penstock.deadline import Deadline

Result = TypeVar("Result")


async def while_looking(work: Attempt[Result], look: Attempt[None], deadline: Deadline) -> Result:
    """Does work under a deadline, and looks now and then until it is done. What a look raises ends the work."""
    under_way = asyncio.ensure_future(work())
    try:
        while not (await asyncio.wait([under_way], timeout=PROGRESS_SECONDS))[0]:
            await look()
        return under_way.result()
    finally:
        under_way.cancel()
        await asyncio.wait([under_way])  # it has ended, and its own error is of no interest beside the look's
        if not under_way.cancelled():
            under_way.exception()
