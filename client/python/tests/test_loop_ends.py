"""How training loops end: early, by an error of the batches, after so many steps."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon

ROWS = np.ones((2, 4), np.float32)
GOOD = (ROWS, ROWS)
REFUSED = (object(), ROWS)  # before it is sent: the call that follows it waits for ever


class Broken(Exception):
    """Of a source of batches."""


def refused_then_broken(daemon: FakeDaemon) -> Iterator[Any]:
    yield REFUSED
    yield GOOD
    while not daemon.requests["TrainStep"]:  # the good one asks whether its predecessor was accepted
        threading.Event().wait(0.001)
    raise Broken


def ends(call: Callable[[], object]) -> object:
    """What a call gives in 10 seconds; a call that hangs goes on beside the test."""
    future: concurrent.futures.Future[object] = concurrent.futures.Future()

    def make() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    return future.result(10)


def test_an_error_of_the_batches_ends_the_loop_whatever_is_under_way(
    pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    with pytest.raises(Broken):
        ends(lambda: penstock.train(pipeline, refused_then_broken(daemon), ahead=4))


def test_a_loop_that_is_left_ends_whatever_is_under_way(pipeline: penstock.Pipeline) -> None:
    loop = penstock.outcomes(pipeline, [GOOD, REFUSED, GOOD, GOOD], ahead=3)
    assert next(loop).step == 1
    ends(loop.close)  # type: ignore[attr-defined]


@pytest.mark.parametrize("left", [False, True], ids=["broken", "left"])
def test_so_it_is_with_asyncio(daemon: FakeDaemon, left: bool) -> None:
    async def broken() -> AsyncIterator[Any]:
        yield REFUSED
        yield GOOD
        while not daemon.requests["TrainStep"]:
            await asyncio.sleep(0.001)
        raise Broken

    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as client, asyncio.timeout(10):
            pipeline = await client.create_pipeline("demo")
            if not left:
                async for _ in pipeline.train(broken(), ahead=4):
                    pass
            loop = pipeline.train([GOOD, REFUSED, GOOD, GOOD], ahead=3)
            assert (await anext(loop)).step == 1
            await loop.aclose()  # type: ignore[attr-defined]

    if left:
        asyncio.run(main())
    else:
        with pytest.raises(Broken):
            asyncio.run(main())


def test_no_batch_is_taken_beyond_the_steps(daemon: FakeDaemon) -> None:
    taken: list[int] = []

    async def source() -> AsyncIterator[Any]:
        for number in range(9):
            taken.append(number)
            yield GOOD

    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as client:
            pipeline = await client.create_pipeline("demo")
            batches = source()
            assert len([one async for one in pipeline.train(batches, steps=2)]) == 2 and taken == [0, 1]
            assert len([one async for one in pipeline.train(batches, steps=0)]) == 0 and taken == [0, 1]
            assert len([one async for one in pipeline.train(batches, steps=3)]) == 3 and taken == [0, 1, 2, 3, 4]
            plain = iter([GOOD] * 5)
            assert len([one async for one in pipeline.train(plain, steps=2)]) == 2 and len(list(plain)) == 3

    asyncio.run(main())


def test_batches_that_do_not_know_how_many_they_are(pipeline: penstock.Pipeline) -> None:
    class OfAnIterable:
        """As PyTorch's DataLoader over an iterable data set."""

        def __len__(self) -> int:
            raise TypeError("object of type 'Stream' has no len()")

        def __iter__(self) -> Iterator[Any]:
            return iter([GOOD] * 3)

    assert len(penstock.train(pipeline, OfAnIterable(), progress=False)) == 3
