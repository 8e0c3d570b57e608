"""Requests of inference that run as one, in a whole daemon: what each gets, who fails, and how it is seen."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import numpy as np
import penstock
import pytest

from daemon_process import Daemon
from small_models import MLP, SEQUENCE, VOCABULARY, WIDTH, create_gpt, create_mlp, fresh_name

REQUESTS = 6
PATIENT = {"batch_delay": 30.0}  # nobody runs before a batch is full, however slow the machine


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((2 * REQUESTS, WIDTH)).astype(np.float32)


def output_of(outputs: dict[str, np.ndarray]) -> np.ndarray:
    (output,) = outputs.values()
    return output


def at_once(pipeline: penstock.Pipeline, inputs: list[Any]) -> list[Any]:
    """What each request has come to, all sent together: its output, or its error."""

    def one(value: Any) -> Any:
        try:
            return output_of(pipeline.infer(value))
        except penstock.PenstockError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(len(inputs)) as pool:
        return list(pool.map(one, inputs))


def runs(daemon: Daemon, pipeline: penstock.Pipeline) -> tuple[float, float]:
    """Requests that started, and runs for them."""
    metrics, name = daemon.metrics(), pipeline.name.partition("/")[2]
    return (
        metrics.sum("penstock_batches_started_total", pipeline=name, mode="infer"),
        metrics.sum("penstock_inference_runs_total", pipeline=name),
    )


@pytest.mark.parametrize("stages", [1, 2])
def test_each_request_gets_what_it_gets_by_itself(
    daemon: Daemon, client: penstock.Client, rows: np.ndarray, stages: int
) -> None:
    alone = create_mlp(client, stages=stages)
    batched = create_mlp(client, stages=stages, batch_rows=2 * REQUESTS, batch_micro_batch_rows=5, **PATIENT)
    parts = [rows[2 * k : 2 * k + 2] for k in range(REQUESTS)]
    for own, expected in zip(at_once(batched, parts), at_once(alone, parts)):
        np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6)
    assert runs(daemon, batched) == (REQUESTS, 1)
    assert runs(daemon, alone) == (REQUESTS, REQUESTS)


def test_only_the_request_to_blame_fails(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_gpt(client, batch_rows=3, **PATIENT)
    good = np.zeros((1, SEQUENCE), np.int64)
    bad = np.full((1, SEQUENCE), VOCABULARY + 7, np.int64)
    first, error, last = at_once(pipeline, [good, bad, good])
    assert isinstance(error, penstock.PenstockError) and error.reason == "TENSOR_SIGNATURE", error
    np.testing.assert_allclose(first, last, rtol=1e-5)


def test_requests_of_other_shapes_and_wishes_run_beside_each_other(
    daemon: Daemon, client: penstock.Client
) -> None:
    pipeline = create_gpt(client, batch_rows=2, **PATIENT)
    short, long = np.zeros((1, 3), np.int64), np.zeros((1, SEQUENCE), np.int64)
    got = at_once(pipeline, [short, long, short, long])
    assert [output.shape[1] for output in got] == [3, SEQUENCE, 3, SEQUENCE]
    assert runs(daemon, pipeline) == (4, 2)
    assert output_of(pipeline.infer(long, micro_batches=1)).shape[1] == SEQUENCE  # does not wait for others


def test_weights_of_one_step_are_seen_beside_training(client: penstock.Client, rows: np.ndarray) -> None:
    pipeline = create_mlp(client, dynamic_batching=True)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        training = pool.submit(lambda: [pipeline.train_step(rows, rows) for _ in range(20)])
        answers = list(pool.map(lambda k: output_of(pipeline.infer(rows[k % 4 : k % 4 + 1])), range(60)))
        assert all(outcome.applied for outcome in training.result(60))
    assert {answer.shape for answer in answers} == {(1, WIDTH)}


@pytest.mark.parametrize(
    ("bounds", "field"),
    [
        ({"batch_rows": 0}, "max_rows"),
        ({"batch_rows": -1}, "max_rows"),
        ({"batch_rows": 65537}, "max_rows"),
        ({"batch_rows": 4, "batch_micro_batch_rows": 5}, "micro_batch_rows"),
        ({"batch_micro_batch_rows": 0}, "micro_batch_rows"),
        ({"batch_delay": -0.5}, "max_delay_seconds"),
        ({"batch_delay": float("nan")}, "max_delay_seconds"),
    ],
)
def test_what_can_not_be_batched_is_refused_by_name(
    client: penstock.Client, bounds: dict[str, Any], field: str
) -> None:
    spec = penstock.pipeline_spec(model="mlp", options={**MLP, "dropout": 0.0}, loss="mean_squared_error", **bounds)
    for ask in (lambda: client.create_pipeline_from(fresh_name("bad"), spec), lambda: client.plan(spec)):
        with pytest.raises(penstock.PenstockError) as told:
            ask()
        assert (told.value.reason, told.value.values["field"]) == ("SPEC_INVALID", f"spec.dynamic_batching.{field}")
        assert told.value.values["value"] in str(told.value)


def test_who_is_cancelled_while_others_are_awaited_ends_at_once(
    daemon: Daemon, client: penstock.Client, rows: np.ndarray
) -> None:
    pipeline = create_mlp(client, batch_rows=4, **PATIENT)
    gone = pipeline.submit_infer(rows[:2])
    assert gone.cancel()
    with pytest.raises(penstock.PenstockError) as told:
        gone.fetch()
    assert told.value.reason == "WORK_CANCELLED"
    assert [output.shape for output in at_once(pipeline, [rows[:2], rows[2:4]])] == [(2, WIDTH)] * 2
    assert runs(daemon, pipeline) == (2, 1)
