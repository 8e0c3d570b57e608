"""Which checkpoints a training loop goes on from, and how it calls those that it saves. Makes no calls."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator

from penstock.errors import PenstockError
from penstock.v1 import state_pb2

MOST_KEPT = 10_000


def newest_first(checkpoints: Iterable[state_pb2.Checkpoint]) -> list[state_pb2.Checkpoint]:
    """Those that are whole or damaged, by step and then by time. Restoring a damaged one tells what is wrong with it."""
    states = (state_pb2.CHECKPOINT_STATE_COMPLETE, state_pb2.CHECKPOINT_STATE_DAMAGED)
    found = [one for one in checkpoints if one.state in states]
    return sorted(found, key=lambda one: (one.step, one.create_time.ToNanoseconds()), reverse=True)


def pass_over(checkpoint: state_pb2.Checkpoint, error: PenstockError, is_last: bool) -> None:
    """Warns of one that can't be restored, if it is damaged and others are left; else raises."""
    if error.reason != "CHECKPOINT_CORRUPT" or is_last:
        raise error
    warnings.warn(f"{checkpoint.name} is damaged; an older one is taken", RuntimeWarning, stacklevel=4)


def check_keep(keep: int) -> None:
    """
    Raises:
        ValueError: the daemon would refuse each save with it.
    """
    if not 0 <= keep <= MOST_KEPT:
        raise ValueError(f"keep must be from 0 to {MOST_KEPT}, got {keep}")


def names_of(step: int) -> Iterator[str]:
    """What the checkpoint of a step may be called: the first that is free."""
    yield ""  # the daemon calls it step-{n}
    for version in itertools.count(2):
        yield f"step-{step}-v{version}"


def warn_of_save(step: int, error: PenstockError) -> None:
    warnings.warn(f"the checkpoint of step {step} could not be saved: {error}", RuntimeWarning, stacklevel=4)
