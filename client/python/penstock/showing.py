"""Looking at work that is under way: on this thread, while another one does it; pairs with
:mod:`penstock.aio.showing`.

Written by hand: a thread can't be cancelled; the work's deadline is, instead.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from penstock.attempts import Attempt
from penstock.creation import PROGRESS_SECONDS
from penstock.deadline import Deadline

Result = TypeVar("Result")


def while_looking(work: Attempt[Result], look: Attempt[None], deadline: Deadline) -> Result:
    """Does work under a deadline, and looks now and then until it is done. What a look raises ends the work."""
    with ThreadPoolExecutor(1, "penstock-create") as executor:
        under_way = executor.submit(work)
        try:
            while not wait([under_way], PROGRESS_SECONDS).done:
                look()
            return under_way.result()
        except BaseException:
            deadline.cancel()  # else the executor would wait for it
            raise
