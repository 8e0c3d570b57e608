"""Batches, the training loop, futures."""

from __future__ import annotations

import concurrent.futures
import io
import queue

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon, status

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)
TARGET = np.arange(10)


def test_an_epoch_is_a_permutation() -> None:
    batches = penstock.Batches(ROWS, TARGET, rows=2, epochs=3, seed=1)
    made = list(batches)
    assert len(made) == len(batches) == 15
    seen = [np.concatenate([np.asarray(batch.target) for batch in made[i : i + 5]]) for i in (0, 5, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in seen)
    assert seen[0].tolist() != seen[1].tolist() != seen[2].tolist()
    assert all(np.array_equal(np.asarray(inputs)[:, 0], 4 * target) for inputs, target in made), "rows stay together"
    again = list(penstock.Batches(ROWS, TARGET, rows=2, epochs=3, seed=1, start=7))
    assert [batch.target.tolist() for batch in again] == [batch.target.tolist() for batch in made[7:]]


def test_what_is_left_over() -> None:
    assert len(penstock.Batches(ROWS, rows=4)) == 2
    kept = list(penstock.Batches({"x": ROWS, "y": TARGET}, rows=4, drop_last=False, shuffle=False))
    assert [len(batch.inputs["y"]) for batch in kept] == [4, 4, 2]  # type: ignore[index,call-overload]
    assert kept[0].target is None
    for wrong in ({"rows": 11}, {"rows": 0}):
        with pytest.raises(ValueError, match="rows must be"):
            penstock.Batches(ROWS, **wrong)
    with pytest.raises(ValueError, match="as many rows, got {'inputs': 10, 'target': 9}"):
        penstock.Batches(ROWS, TARGET[:9], rows=2)


def test_steps_are_under_way_ahead(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    loop = penstock.outcomes(pipeline, penstock.Batches(ROWS, ROWS, rows=2), ahead=2, learning_rate=0.5)
    assert next(loop).step == 1
    requests = daemon.requests["TrainStep"]
    assert len(requests) == 3 and all(request.learning_rate == 0.5 for request in requests)
    assert [outcome.step for outcome in loop] == [2, 3, 4, 5]
    assert not daemon.handles, "all are released"


def test_a_loop_that_ends_early_leaves_nothing(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    loop = penstock.outcomes(pipeline, [(ROWS, ROWS)] * 9, ahead=1)
    next(loop)
    loop.close()  # type: ignore[attr-defined]
    assert len(daemon.requests["TrainStep"]) == 2 and not daemon.handles


def test_the_first_failure_ends_the_loop(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail("TrainStep", status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "no"))
    with pytest.raises(penstock.PenstockError, match="TENSOR_SIGNATURE"):
        penstock.train(pipeline, [(ROWS, ROWS)])
    with pytest.raises(TypeError, match="not int"):
        penstock.train(pipeline, [1])


def test_training_shows_saves_and_ends(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    text = io.StringIO()
    seen: list[int] = []
    made = penstock.train(
        pipeline,
        penstock.Batches(ROWS, ROWS, rows=2),
        steps=4,
        progress=penstock.Progress(text, interval=0.0),
        save_every=2,
        on_step=lambda outcome: seen.append(outcome.step),
    )
    assert [outcome.step for outcome in made] == seen == [1, 2, 3, 4]
    assert len(daemon.requests["SaveCheckpoint"]) == 2
    lines = text.getvalue().splitlines()
    assert "4/4" in lines[-1] and "loss 0.5000" in lines[-1] and "[####################]" in lines[-1]


def test_a_handle_is_a_future(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 3
    handles = [pipeline.infer(ROWS * i, wait=False) for i in range(3)]
    futures = {handle.future(): i for i, handle in enumerate(handles)}
    called: queue.SimpleQueue[int] = queue.SimpleQueue()
    for future, i in futures.items():
        future.add_done_callback(lambda _, i=i: called.put(i))  # type: ignore[misc]
    for future in concurrent.futures.as_completed(futures, timeout=20):
        assert np.array_equal(future.result()["output"], 2 * ROWS * futures[future])
    # A future tells those that wait for it before it calls back.
    assert sorted(called.get(timeout=20) for _ in handles) == [0, 1, 2]
    assert handles[0].exception() is None


def test_a_future_carries_the_error(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.result_error = status(grpc.StatusCode.INTERNAL, "STAGE_FAILED", "broken")
    handle = pipeline.infer(ROWS, wait=False)
    assert isinstance(handle.future().exception(20), penstock.PenstockError)
    error = handle.exception()
    assert error is not None and error.reason == "STAGE_FAILED"
    daemon.result_error = None
    gone = pipeline.infer(ROWS, wait=False)
    gone.release()
    error = gone.future().exception(20)  # type: ignore[assignment]
    assert isinstance(error, penstock.PenstockError) and error.reason == "HANDLE_RELEASED"
