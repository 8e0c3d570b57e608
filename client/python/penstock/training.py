"""The training loop: batches in, outcomes out, with a few steps under way so that the daemon never waits for this
machine."""

from __future__ import annotations

import collections
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from penstock.data import batches_of
from penstock.handles import Outcome, OutcomeHandle

if TYPE_CHECKING:
    from penstock.pipelines import Pipeline


def train(
    pipeline: Pipeline,
    batches: Iterable[Any],
    *,
    ahead: int = 2,
    steps: int | None = None,
    progress: bool | Progress = False,
    save_every: int = 0,
    on_step: Callable[[Outcome], object] | None = None,
    **arguments: Any,
) -> list[Outcome]:
    """Makes one step of each batch and answers all outcomes; see :func:`outcomes`, which gives them one by one.

    Example::

        batches = penstock.Batches(images, labels, rows=32, epochs=3)
        for outcome in penstock.train(pipeline, batches, progress=True):
            ...

    Args:
        steps: ends after so many.
        progress: ``True`` shows a line on the terminal: steps, loss, rows per second, bubble, time left. Or a
            :class:`Progress` of your own.
        save_every: saves a checkpoint after each so many steps.
        on_step: called with each outcome; what it raises ends the loop, after the steps under way.
    """
    line = progress if isinstance(progress, Progress) else Progress() if progress else None
    total = steps
    if isinstance(batches, Sized):
        total = len(batches) if steps is None else min(steps, len(batches))
    made: list[Outcome] = []
    try:
        for outcome in outcomes(pipeline, batches, ahead=ahead, steps=steps, **arguments):
            made.append(outcome)
            if line is not None:
                line.show(outcome, len(made), total)
            if on_step is not None:
                on_step(outcome)
            if save_every and len(made) % save_every == 0:
                pipeline.save_checkpoint()
    finally:
        if line is not None:
            line.end()
    return made


def outcomes(
    pipeline: Pipeline, batches: Iterable[Any], *, ahead: int = 2, steps: int | None = None, **arguments: Any
) -> Iterator[Outcome]:
    """Makes one step of each batch and gives the outcomes in order, while up to ``ahead`` further steps are under way.

    Closing the iterator early waits for these: what the daemon has accepted it will do.

    Args:
        batches: :class:`Batches`, a PyTorch ``DataLoader``, or anything that gives (inputs, target).
        ahead: 0: each step is awaited before the next batch is sent.
        arguments: of :meth:`Pipeline.train_step`: ``learning_rate``, ``clip_norm``, ``loss`` ...

    Raises:
        PenstockError: the first step that failed; those accepted after it are waited for.
    """
    under_way: collections.deque[OutcomeHandle] = collections.deque()
    try:
        for number, batch in enumerate(batches_of(batches)):
            if steps is not None and number >= steps:
                break
            under_way.append(pipeline.train_step(batch.inputs, batch.target, wait=False, **arguments))
            while len(under_way) > ahead:
                with under_way.popleft() as handle:
                    yield handle.result()
        while under_way:
            with under_way.popleft() as handle:
                yield handle.result()
    finally:
        for handle in under_way:
            with suppress(Exception), handle:
                handle.wait()


class Progress:
    """One line about a training that goes on: rewritten in place on a terminal, now and then a new one elsewhere.

    Args:
        to: where; ``None``: standard error.
        interval: seconds between two lines where lines can't be rewritten.
    """

    def __init__(self, to: TextIO | None = None, interval: float = 10.0) -> None:
        self._to = sys.stderr if to is None else to
        self._interval = interval if not self._to.isatty() else 0.1
        self._in_place = self._to.isatty()
        self._began = time.monotonic()
        self._shown = float("-inf")
        self._rows = 0
        self._text = ""

    def show(self, outcome: Outcome, done: int, total: int | None) -> None:
        """Takes an outcome, the number of steps that are done, and that of all if it is known."""
        now = time.monotonic()
        self._rows += outcome.rows
        self._text = self.text(outcome, done, total, now - self._began)
        if now - self._shown >= self._interval:
            self._write()
            self._shown = now

    def text(self, outcome: Outcome, done: int, total: int | None, passed: float) -> str:
        parts = [f"step {outcome.step}"]
        if total:
            width = 20 * done // total
            parts.append(f"[{'#' * width}{'.' * (20 - width)}] {done}/{total}")
        if outcome.loss is not None:
            parts.append(f"loss {outcome.loss:.4f}")
        if passed > 0:
            parts.append(f"{self._rows / passed:.1f} rows/s")
        if outcome.measured_bubble is not None:
            parts.append(f"bubble {100 * outcome.measured_bubble:.0f} %")
        if total and passed > 0:
            parts.append(f"{passed / done * (total - done):.0f} s left")
        return "  ".join(parts)

    def end(self) -> None:
        """The last line stays."""
        if self._text:
            self._write()
            if self._in_place:
                self._to.write("\n")
            self._to.flush()
        self._text = ""

    def _write(self) -> None:
        if self._in_place:
            with suppress(OSError, ValueError):
                self._text = self._text[: os.get_terminal_size(self._to.fileno()).columns - 1]
            self._to.write("\r\x1b[K" + self._text)
        else:
            self._to.write(self._text + "\n")
        self._to.flush()
