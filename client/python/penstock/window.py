"""How many steps of a training loop may be under way. Makes no calls."""

from __future__ import annotations

from penstock.results import OutcomeFacts

MOST_AHEAD = 31  # of the 256 calls that the daemon takes of a caller at once; most are left to others


class Window:
    """How many steps may be under way. Knows no calls.

    Model:     ``ahead`` beside the one that is awaited, and none beyond the next checkpoint: before a step has ended it
               is not known whether it is applied, and so which number the next one has.
    """

    def __init__(self, ahead: int, save_every: int = 0, step: int = 0) -> None:
        if ahead < 0 or save_every < 0:
            raise ValueError(f"ahead and save_every must be at least 0, got {ahead} and {save_every}")
        self._most = min(ahead, MOST_AHEAD) + 1
        self._save_every = save_every
        self._step = step

    def room(self) -> int:
        """Steps that may be under way now."""
        if not self._save_every:
            return self._most
        return min(self._most, self._save_every - self._step % self._save_every)

    def end(self, outcome: OutcomeFacts) -> None:
        """Takes the next outcome."""
        self._step = outcome.step

    def is_due(self, outcome: OutcomeFacts) -> bool:
        """Whether a checkpoint of this step is to be saved."""
        return bool(self._save_every) and outcome.applied is not False and outcome.step % self._save_every == 0
