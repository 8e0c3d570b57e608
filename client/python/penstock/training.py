"""The training loop: batches in, outcomes out, with a few steps under way so that the daemon never waits for this
machine."""

from __future__ import annotations

import collections
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from penstock.data import Batch, batches_of
from penstock.errors import PenstockError
from penstock.handles import Outcome
from penstock.requests import Call, LoopArguments, split
from penstock.resuming import check_keep, names_of, newest_first, pass_over, warn_of_save
from penstock.window import MOST_AHEAD, Window

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from penstock.pipelines import Pipeline


@dataclass(frozen=True)
class Save:
    """A checkpoint that :func:`train` was to save.

    Attributes:
        step: that it is of.
        name: of the checkpoint; ``""`` if it failed.
        error: why it failed; ``None`` if it did not.
    """

    step: int
    name: str
    error: PenstockError | None = None


class Training(list[Outcome]):
    """The outcomes of a training, in order.

    Attributes:
        saves: the checkpoints that were to be saved, also those that could not be.
        resumed_step: the step of the checkpoint that it began with, with ``resume``; ``None`` without.
    """

    saves: list[Save]
    resumed_step: int | None

    def __init__(self) -> None:
        super().__init__()
        self.saves = []
        self.resumed_step = None


def train(
    pipeline: Pipeline,
    batches: Iterable[Any],
    *,
    ahead: int = 2,
    steps: int | None = None,
    progress: bool | Progress = False,
    save_every: int = 0,
    keep: int = 0,
    resume: bool = False,
    on_step: Callable[[Outcome], object] | None = None,
    **arguments: Unpack[LoopArguments],
) -> Training:
    """Makes one step of each batch and returns all outcomes; see :func:`outcomes`, which gives them one by one.

    Example::

        batches = penstock.Batches(images, labels, rows=32, epochs=3)
        for outcome in penstock.train(pipeline, batches, progress=True):
            ...

    Args:
        steps: ends after so many; with ``resume``, those that were made before count too.
        progress: ``True`` shows a line on the terminal: steps, loss, rows per second, bubble, time left. Or a
            :class:`Progress` of your own.
        save_every: saves a checkpoint of each step whose number, ``Outcome.step``, is a multiple of it: 5, 10, 15. The
            next step begins after the save. A batch that is not applied makes no step. A checkpoint that exists is
            kept: the new one is ``step-10-v2``, ``step-10-v3`` and so on. A save that fails is warned of and told in
            ``saves`` of the result; the training goes on.
        keep: of the checkpoints that this saves, the newest so many stay; see :meth:`Pipeline.save_checkpoint`. 0: all.
        resume: goes on where a run of the same script ended, however it ended: restores the newest checkpoint that is
            complete, by step and then by time, and leaves out as many of the first batches as its step says; without a
            checkpoint it begins by saving one. What was trained after that checkpoint is trained again, and open
            contributions are discarded. The weights are then bit for bit those of a run that was never interrupted, if
            the batches are the same in the same order (shuffling is the caller's: :class:`Batches` with its ``seed``)
            and each was applied: a batch that was not makes no step, and so is not left out. Where ``micro_batches``
            is the planner's choice, make the pipeline from the checkpoint, or give it.
        on_step: called with each outcome; what it raises ends the loop, after the steps under way.
    """
    line = progress if isinstance(progress, Progress) else Progress() if progress else None
    count = _count_of(batches)
    total = min((number for number in (steps, count) if number is not None), default=None)
    made = Training()
    check_keep(keep)
    if resume:
        made.resumed_step = _resume(pipeline, keep)
        batches = itertools.islice(batches, made.resumed_step, None)
        steps = None if steps is None else max(0, steps - made.resumed_step)
        total = None if total is None else max(0, total - made.resumed_step)
    window = Window(ahead, save_every, pipeline.refresh().step if save_every else 0)
    try:
        for outcome in _outcomes(pipeline, batches, window, steps, arguments):
            made.append(outcome)
            if line is not None:
                line.show(outcome, len(made), total)
            if window.is_due(outcome):
                made.saves.append(_save(pipeline, outcome.step, keep))
            if on_step is not None:
                on_step(outcome)
    finally:
        if line is not None:
            line.end()
    return made


def outcomes(
    pipeline: Pipeline,
    batches: Iterable[Any],
    *,
    ahead: int = 2,
    steps: int | None = None,
    **arguments: Unpack[LoopArguments],
) -> Iterator[Outcome]:
    """Makes one step of each batch and gives the outcomes in order, while up to ``ahead`` further steps are under way.
    Each step is one call that the daemon answers when the step has ended, so that ``ahead`` hides the way to it.

    Closing the iterator early waits for these: what the daemon has accepted it will do.

    Args:
        batches: :class:`Batches`, a PyTorch ``DataLoader``, or anything that gives (inputs, target).
        ahead: 0: each step is awaited before the next batch is sent; at most 31.
        arguments: of :meth:`Pipeline.train_step`, the same for each step: ``learning_rate``, ``clip_norm``, ``loss`` ...;
            ``request_id`` and ``after`` belong to one call and are refused.

    Raises:
        PenstockError: the first step that failed; those accepted after it are waited for.
    """
    return _outcomes(pipeline, batches, Window(ahead), steps, arguments)


@dataclass
class _Step:
    """A step under way."""

    call: Call
    accepted: bool = False
    outcome: Future[Outcome] | None = None

    def result(self) -> Outcome:
        assert self.outcome is not None
        return self.outcome.result()


def _outcomes(
    pipeline: Pipeline, batches: Iterable[Any], window: Window, steps: int | None, arguments: Mapping[str, Any]
) -> Iterator[Outcome]:
    under_way: collections.deque[_Step] = collections.deque()
    with ThreadPoolExecutor(MOST_AHEAD + 1, "penstock-step") as threads:
        try:
            last = ""
            for batch in itertools.islice(batches_of(batches), steps):
                call, own = split(LoopArguments, True, arguments)
                step = _Step(call)
                step.outcome = threads.submit(_make, pipeline, batch, step, last, own)
                under_way.append(step)
                last = call.request_id
                while len(under_way) >= window.room():
                    yield _ended(under_way, window)
            while under_way:
                yield _ended(under_way, window)
        finally:
            while under_way:
                with suppress(Exception):
                    _ended(under_way, window)


def _count_of(batches: Iterable[Any]) -> int | None:
    """How many there are; ``None`` if they do not know: PyTorch's ``DataLoader`` always has ``__len__``, and it may
    raise."""
    try:
        return len(batches) if isinstance(batches, Sized) else None
    except TypeError:
        return None


def _make(pipeline: Pipeline, batch: Batch, step: _Step, after: str, arguments: dict[str, Any]) -> Outcome:
    """One step, from its batch to its outcome. Runs on a thread of its own."""
    handle = pipeline._train_step(batch.inputs, batch.target, step.call, {**arguments, "after": after})
    step.accepted = True
    return pipeline._finish(handle, step.call)


def _ended(under_way: collections.deque[_Step], window: Window) -> Outcome:
    """Waits for the first step. Where it was not accepted, those behind it are given up: they would wait for that."""
    step = under_way.popleft()
    try:
        outcome = step.result()
    except Exception:
        if not step.accepted:
            for later in under_way:
                later.call.deadline.cancel()
        raise
    window.end(outcome)
    return outcome


def _resume(pipeline: Pipeline, keep: int) -> int:
    """Puts the pipeline to its newest complete checkpoint; the step."""
    found = newest_first(pipeline.list_checkpoints())
    for checkpoint in found:
        try:
            # In the order of calls: what a run before has left under way ends first.
            return pipeline.restore_checkpoint(checkpoint.name, force=True).step
        except PenstockError as error:
            pass_over(checkpoint, error, checkpoint is found[-1])
    return pipeline.save_checkpoint(replace=True, keep=keep).step


def _save(pipeline: Pipeline, step: int, keep: int) -> Save:
    for name in names_of(step):
        try:
            return Save(step, pipeline.save_checkpoint(name, keep=keep).name)
        except PenstockError as error:
            if error.reason != "CHECKPOINT_EXISTS":
                warn_of_save(step, error)
                return Save(step, "", error)
    raise AssertionError


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
