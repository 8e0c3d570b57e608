"""A pipeline, for asyncio, and its training loop; pairs with :mod:`penstock.pipelines`.

Written by hand: the steps under way are tasks here, and threads in :mod:`penstock.training`.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from penstock import requests
from penstock.aio.handles import Outcome
from penstock.aio.work import PipelineWork
from penstock.data import Batch, batches_of
from penstock.errors import PenstockError
from penstock.resuming import check_keep, names_of, newest_first, pass_over, warn_of_save
from penstock.window import Window

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Pipeline(PipelineWork):
    """One pipeline of a daemon. Belongs to the event loop of its client."""

    async def train(
        self,
        batches: Iterable[Any] | AsyncIterable[Any],
        *,
        ahead: int = 2,
        steps: int | None = None,
        save_every: int = 0,
        keep: int = 0,
        resume: bool = False,
        **arguments: Unpack[requests.LoopArguments],
    ) -> AsyncIterator[Outcome]:
        """Makes one step of each batch and gives the outcomes in order; see :func:`penstock.outcomes`. Batches may come
        from an ``async for``, too. ``save_every``, ``keep`` and ``resume`` are those of :func:`penstock.train`; a
        checkpoint is saved before its step's outcome is given, and one that can't be is warned of."""
        check_keep(keep)
        done = await self._resume(keep) if resume else 0
        window = Window(ahead, save_every, (await self.refresh()).step if save_every else 0)
        under_way: collections.deque[asyncio.Task[Outcome]] = collections.deque()
        last = ""
        accepted: set[asyncio.Task[Outcome]] = set()

        async def make(batch: Batch, call: requests.Call, own: dict[str, Any]) -> Outcome:
            handle = await self._train_step(batch.inputs, batch.target, call, own)
            accepted.add(asyncio.current_task())  # type: ignore[arg-type]
            return await self._finish(handle, call)

        async def ended() -> Outcome:
            task = under_way.popleft()
            try:
                outcome = await task
                window.end(outcome)
                if window.is_due(outcome):
                    await self._save(outcome.step, keep)
                return outcome
            except BaseException:  # the end of whoever takes the outcomes, too
                give_up_behind(task)
                raise
            finally:
                accepted.discard(task)

        def give_up_behind(task: asyncio.Task[Outcome]) -> None:
            """Where it was not accepted: the steps behind it would wait for that."""
            if task not in accepted:
                for later in under_way:
                    later.cancel()

        try:
            number = 0
            async for batch in _batches(batches, steps):
                number += 1
                if number <= done:
                    continue
                call, own = requests.split(requests.LoopArguments, True, arguments)
                under_way.append(asyncio.create_task(make(batch, call, {**own, "after": last})))
                last = call.request_id
                while len(under_way) >= window.room():
                    yield await ended()
            while under_way:
                yield await ended()
        finally:
            try:
                while under_way:
                    task = under_way.popleft()
                    await asyncio.gather(task, return_exceptions=True)
                    give_up_behind(task)
            finally:  # cancelled once more
                for task in under_way:
                    task.cancel()

    async def _resume(self, keep: int) -> int:
        """Puts it to its newest complete checkpoint; the step."""
        found = newest_first(await self.list_checkpoints())
        for checkpoint in found:
            try:
                # In the order of calls: what a run before has left under way ends first.
                return (await self.restore_checkpoint(checkpoint.name, force=True)).step
            except PenstockError as error:
                pass_over(checkpoint, error, checkpoint is found[-1])
        return (await self.save_checkpoint(replace=True, keep=keep)).step

    async def _save(self, step: int, keep: int) -> None:
        for name in names_of(step):
            try:
                await self.save_checkpoint(name, keep=keep)
                return
            except PenstockError as error:
                if error.reason != "CHECKPOINT_EXISTS":
                    return warn_of_save(step, error)


async def _batches(source: Iterable[Any] | AsyncIterable[Any], steps: int | None) -> AsyncIterator[Batch]:
    """So many batches; takes none beyond them from the source."""
    if not isinstance(source, AsyncIterable):
        for batch in itertools.islice(batches_of(source), steps):
            yield batch
        return
    if steps == 0:
        return
    taken = 0
    async for item in source:
        for batch in batches_of([item]):
            yield batch
        taken += 1
        if taken == steps:
            return
