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
from google.protobuf import timestamp_pb2
from penstock.v1 import state_pb2

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
    for number in ({"start": -1}, {"epochs": -1}):
        with pytest.raises(ValueError, match="epochs and start must be at least 0"):
            penstock.Batches(ROWS, rows=2, **number)
    with pytest.raises(ValueError, match="target: must have rows, got the number 3"):
        penstock.Batches(ROWS, np.int64(3), rows=2)


def test_steps_are_under_way_ahead(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.answer_together = 3  # the first answer comes when three calls are under way
    loop = penstock.outcomes(pipeline, penstock.Batches(ROWS, ROWS, rows=2), ahead=2, learning_rate=0.5)
    assert next(loop).step == 1
    requests = daemon.requests["TrainStep"]
    assert len(requests) == 3 and all(request.learning_rate == 0.5 for request in requests)
    assert [outcome.step for outcome in loop] == [2, 3, 4, 5]
    assert len(requests) == 5 and not daemon.requests["WaitHandles"], "one call for each step"
    assert daemon.wait_until_released(), "all are released"


def test_steps_are_accepted_in_their_order(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.accept_after = 6  # the first one is accepted when five others have come
    batches = [(np.full((2, 4), i, np.float32), ROWS) for i in range(9)]
    assert [outcome.step for outcome in penstock.outcomes(pipeline, batches, ahead=5)] == list(range(1, 10))
    assert daemon.trained == list(range(9))
    requests = {request.request_id: request for request in daemon.requests["TrainStep"]}
    assert len({request.after_request_id for request in requests.values()}) == 9, "each follows another one"


def test_uploads_are_under_way_together_too(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    large = np.ones((200_000, 4), np.float32)
    daemon.answer_together = 3
    made = penstock.train(pipeline, [(large * i, ROWS) for i in range(4)], ahead=2)
    assert [outcome.step for outcome in made] == [1, 2, 3, 4] and daemon.trained == [0, 1, 2, 3]
    assert daemon.wait_until_released()


def test_a_loop_that_ends_early_leaves_nothing(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    loop = penstock.outcomes(pipeline, [(ROWS, ROWS)] * 9, ahead=1)
    next(loop)
    loop.close()  # type: ignore[attr-defined]
    assert len(daemon.requests["TrainStep"]) == 2 and daemon.wait_until_released()


def test_the_first_failure_ends_the_loop(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail("TrainStep", status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "no"))
    with pytest.raises(penstock.PenstockError, match="TENSOR_SIGNATURE"):
        penstock.train(pipeline, [(ROWS, ROWS)])
    daemon.refuse("TrainStep", status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "no"))
    with pytest.raises(penstock.PenstockError, match="TENSOR_SIGNATURE"):
        penstock.train(pipeline, [(ROWS, ROWS)] * 9, ahead=4)
    assert daemon.step == 0 and not daemon.handles
    with pytest.raises(TypeError, match="not int"):
        penstock.train(pipeline, [1])


@pytest.mark.parametrize("name", ["request_id", "after"])
def test_a_loop_refuses_what_belongs_to_one_call(pipeline: penstock.Pipeline, daemon: FakeDaemon, name: str) -> None:
    with pytest.raises(TypeError, match=f"{name}: no argument of this call, got 'x'"):
        penstock.train(pipeline, penstock.Batches(ROWS, ROWS, rows=2), **{name: "x"})  # type: ignore[arg-type]
    assert not daemon.requests["TrainStep"]


def test_what_follows_a_refused_step_is_never_made(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    bad = {"input": ROWS, "more": penstock.Plain("no")}  # a name of the fake's refusals
    with pytest.raises(penstock.PenstockError, match="TENSOR_SIGNATURE"):
        penstock.train(pipeline, [(ROWS, ROWS), (bad, ROWS), (ROWS, ROWS), (ROWS, ROWS)], ahead=3)
    assert daemon.step == 1


def test_training_shows_and_ends(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    text = io.StringIO()
    seen: list[int] = []
    made = penstock.train(
        pipeline,
        penstock.Batches(ROWS, ROWS, rows=2),
        steps=4,
        progress=penstock.Progress(text, interval=0.0),
        on_step=lambda outcome: seen.append(outcome.step),
    )
    assert [outcome.step for outcome in made] == seen == [1, 2, 3, 4]
    assert not made.saves and not daemon.requests["SaveCheckpoint"]
    lines = text.getvalue().splitlines()
    assert "4/4" in lines[-1] and "loss 0.5000" in lines[-1] and "[####################]" in lines[-1]


NAN = np.full((2, 4), np.nan, np.float32)
GOOD = np.ones((2, 4), np.float32)


@pytest.mark.parametrize("ahead", [0, 1, 4, 9])
def test_the_steps_asked_for_are_saved(pipeline: penstock.Pipeline, daemon: FakeDaemon, ahead: int) -> None:
    made = penstock.train(pipeline, [(GOOD, GOOD)] * 17, ahead=ahead, save_every=5)
    assert [(save.step, save.name.split("/")[-1]) for save in made.saves] == [
        (5, "step-5"),
        (10, "step-10"),
        (15, "step-15"),
    ]
    assert daemon.checkpoints == {"step-5", "step-10", "step-15"} and len(made) == 17


@pytest.mark.parametrize("ahead", [0, 3])
def test_batches_that_are_not_applied_make_no_step_to_save(
    pipeline: penstock.Pipeline, daemon: FakeDaemon, ahead: int
) -> None:
    batches = [(NAN if i in (1, 2, 4, 5, 8) else GOOD, GOOD) for i in range(12)]  # 7 of them are applied
    made = penstock.train(pipeline, batches, ahead=ahead, save_every=2)
    assert [outcome.step for outcome in made] == [1, 1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 7]
    assert daemon.checkpoints == {"step-2", "step-4", "step-6"}
    assert [save.step for save in made.saves] == [2, 4, 6]


def test_saves_go_on_by_the_number_of_the_step(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.step = 7  # restored
    daemon.checkpoints = {"step-10", "step-10-v2"}
    made = penstock.train(pipeline, [(GOOD, GOOD)] * 9, ahead=4, save_every=5)
    assert [(save.step, save.name.split("/")[-1]) for save in made.saves] == [(10, "step-10-v3"), (15, "step-15")]


def checkpoint(name: str, step: int, **facts: object) -> state_pb2.Checkpoint:
    made = state_pb2.Checkpoint(name=f"pipelines/demo/checkpoints/{name}", step=step, state="CHECKPOINT_STATE_COMPLETE")
    made.MergeFrom(state_pb2.Checkpoint(**facts))  # type: ignore[arg-type]
    return made


def numbered(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.full((2, 4), number, np.float32), GOOD) for number in range(count)]


def test_resuming_restores_the_newest_complete_one_and_leaves_out_what_is_done(
    pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    daemon.step = 9  # what a run before has left
    daemon.listed = [
        checkpoint("a", 4, create_time=timestamp_pb2.Timestamp(seconds=2)),
        checkpoint("b", 4, create_time=timestamp_pb2.Timestamp(seconds=3)),
        checkpoint("c", 2, create_time=timestamp_pb2.Timestamp(seconds=9)),
        checkpoint("d", 7, state="CHECKPOINT_STATE_WRITING"),
    ]
    made = penstock.train(pipeline, numbered(10), steps=8, save_every=3, keep=2, resume=True)
    (restored,) = daemon.requests["RestoreCheckpoint"]
    assert restored.name.endswith("/b") and restored.force
    assert made.resumed_step == 4 and [outcome.step for outcome in made] == [5, 6, 7, 8]
    assert daemon.trained == [4, 5, 6, 7]
    assert [save.name.rsplit("/", 1)[1] for save in made.saves] == ["step-6"]
    assert [request.keep for request in daemon.requests["SaveCheckpoint"]] == [2]


def test_resuming_without_a_checkpoint_saves_one_first(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.listed = []
    made = penstock.train(pipeline, numbered(2), resume=True, keep=3)
    assert daemon.checkpoints == {"step-0"} and daemon.requests["SaveCheckpoint"][0].keep == 3
    assert made.resumed_step == 0 and daemon.trained == [0, 1]
    assert penstock.train(pipeline, numbered(1)).resumed_step is None


def test_resuming_passes_over_damaged_ones(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    for known in ("COMPLETE", "DAMAGED"):  # the daemon finds out when it reads one
        damaged = checkpoint("b", 2, digest="wrong", state=f"CHECKPOINT_STATE_{known}")
        daemon.listed = [checkpoint("a", 1), damaged]
        with pytest.warns(RuntimeWarning, match="checkpoints/b is damaged"):
            assert penstock.train(pipeline, numbered(2), resume=True).resumed_step == 1
        daemon.listed = [damaged]
        with pytest.raises(penstock.PenstockError, match="CHECKPOINT_CORRUPT"):
            penstock.train(pipeline, numbered(2), resume=True)
    assert not daemon.requests["SaveCheckpoint"], "it does not begin anew over what is there"


@pytest.mark.parametrize("keep", [-1, 10_001])
def test_a_number_of_kept_ones_that_no_save_could_have_is_refused(
    keep: int, pipeline: penstock.Pipeline, daemon: FakeDaemon
) -> None:
    with pytest.raises(ValueError, match=f"keep must be from 0 to 10000, got {keep}"):
        penstock.train(pipeline, numbered(2), save_every=1, keep=keep)
    assert not daemon.trained


def test_resuming_passes_over_no_other_fault(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.listed = [checkpoint("a", 1), checkpoint("b", 2)]
    daemon.fail("RestoreCheckpoint", status(grpc.StatusCode.FAILED_PRECONDITION, "MODEL_MISMATCH", "another model"))
    with pytest.raises(penstock.PenstockError, match="MODEL_MISMATCH"):
        penstock.train(pipeline, numbered(2), resume=True)
    assert len(daemon.requests["RestoreCheckpoint"]) <= 1 and not daemon.trained


def test_a_save_that_fails_is_told_and_the_training_goes_on(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.fail("SaveCheckpoint", status(grpc.StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FULL", "no room"))
    with pytest.warns(RuntimeWarning, match="step 2 could not be saved.*STORAGE_FULL"):
        made = penstock.train(pipeline, [(GOOD, GOOD)] * 4, save_every=2)
    assert [outcome.step for outcome in made] == [1, 2, 3, 4]
    assert [(save.step, save.name.split("/")[-1]) for save in made.saves] == [(2, ""), (4, "step-4")]
    assert made.saves[0].error is not None and made.saves[0].error.reason == "STORAGE_FULL"


def test_a_handle_is_a_future(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 3
    handles = [pipeline.submit_infer(ROWS * i) for i in range(3)]
    futures = {handle.future(): i for i, handle in enumerate(handles)}
    called: queue.SimpleQueue[int] = queue.SimpleQueue()
    for future, i in futures.items():
        future.add_done_callback(lambda _, i=i: called.put(i))  # type: ignore[misc]
    for future in concurrent.futures.as_completed(futures, timeout=20):
        assert np.array_equal(future.result()["output"], 2 * ROWS * futures[future])
    # A future tells those that wait for it before it calls back.
    assert sorted(called.get(timeout=20) for _ in handles) == [0, 1, 2]
    assert handles[0].exception() is None


def test_many_handles_are_gathered_with_few_calls(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.settle_after = 2
    handles = [pipeline.submit_infer(ROWS * i) for i in range(3)]
    results = penstock.gather(*handles, timeout=20)
    assert [result["output"][0, 1] for result in results] == [0, 2, 4]
    assert all(len(request.names) == 3 for request in daemon.requests["WaitHandles"])
    assert penstock.gather() == []


def test_a_future_carries_the_error(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.result_error = status(grpc.StatusCode.INTERNAL, "STAGE_FAILED", "broken")
    handle = pipeline.submit_infer(ROWS)
    assert isinstance(handle.future().exception(20), penstock.PenstockError)
    error = handle.exception()
    assert error is not None and error.reason == "STAGE_FAILED"
    daemon.result_error = None
    gone = pipeline.submit_infer(ROWS)
    gone.release()
    error = gone.future().exception(20)  # type: ignore[assignment]
    assert isinstance(error, penstock.PenstockError) and error.reason == "HANDLE_RELEASED"
    assert np.array_equal(pipeline.submit_infer(ROWS).future().result(20)["output"], 2 * ROWS), "others go on"
