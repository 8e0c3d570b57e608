"""What calls answer: inference, training steps and their parts, evaluation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon
from penstock.v1 import work_pb2

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_infer_answers_arrays_and_leaves_no_handle(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    assert np.array_equal(pipeline.infer(ROWS)["output"], 2 * ROWS)
    assert daemon.wait_until_released() and not daemon.requests["FetchHandle"]


def test_train_step_answers_its_outcome(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    outcome = pipeline.train_step(
        ROWS, ROWS, loss="mean_squared_error", learning_rate=0.5, micro_batches=2, expected_state="token"
    )
    assert (outcome.step, outcome.loss, outcome.applied, outcome.gradient_norm) == (1, 0.5, True, None)
    request = daemon.requests["TrainStep"][0]
    assert request.target.name == "target" and request.loss.name == "mean_squared_error"
    assert request.learning_rate == 0.5 and request.micro_batches == 2 and request.expected_state == "token"
    assert not request.HasField("clip_norm")
    assert daemon.wait_until_released(), "the outcome was not released"


def test_evaluate_answers_what_was_found(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.step = 5
    found = pipeline.evaluate(
        ROWS, ROWS, metrics=["accuracy"], loss="cross_entropy", loss_options={"ignore_index": 0}, micro_batches=3, priority=2
    )
    assert (found.step, found.state_token, found.counted, found.rows) == (5, "token-5", ROWS.size, len(ROWS))
    assert found.loss == pytest.approx(ROWS.mean()) and found.metrics == {"accuracy": pytest.approx(ROWS.mean())}
    assert found.perplexity == pytest.approx(np.exp(ROWS.mean()))
    (request,) = daemon.requests["Evaluate"]
    assert list(request.metrics) == ["accuracy"] and request.priority == 2 and request.micro_batches == 3
    assert request.loss.name == "cross_entropy" and request.target.name == "target"
    assert daemon.wait_until_released(), "the outcome was not released"


def test_an_evaluation_takes_labels_for_the_target(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.evaluate({"input": ROWS, "labels": ROWS}, loss="mean_squared_error")
    (request,) = daemon.requests["Evaluate"]
    assert len(request.inputs) == 1 and request.HasField("target")


def test_an_evaluation_of_many_batches_weighs_what_counts(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    batches = [(np.full((rows, 4), value, np.float32), np.full((rows, 4), -value, np.float32))
               for rows, value in ((2, 1.0), (6, 5.0), (1, 0.0))]  # fmt: skip
    found = penstock.evaluate(pipeline, batches, metrics=["accuracy"], ahead=1)
    assert found.loss == pytest.approx((2 * 1.0 + 6 * 5.0) / 9)
    assert found.metrics == {"accuracy": pytest.approx(-(2 * 1.0 + 6 * 5.0) / 9)}
    assert (found.rows, found.counted, found.micro_batches, found.seconds) == (9, 36, 6, 1.5)
    assert daemon.wait_until_released()
    with pytest.raises(ValueError, match="no mini-batch"):
        penstock.evaluate(pipeline, [])
    with pytest.raises(TypeError, match="request_id"):
        penstock.evaluate(pipeline, batches, request_id="1")


def test_joined_metrics_have_the_weight_of_their_own_elements(pipeline: penstock.Pipeline) -> None:
    found = pipeline.evaluate(ROWS, ROWS, metrics=["accuracy"])
    parts = [
        dataclasses.replace(found, loss=loss, metrics={"accuracy": accuracy}, counted=counted, metric_elements=elements)
        for loss, accuracy, counted, elements in ((1.0, 1.0, 1.0, 3), (0.0, 0.0, 9.0, 1))
    ]
    joined = penstock.Evaluation.joined(parts)
    assert joined.metrics == {"accuracy": pytest.approx(0.75)} and joined.loss == pytest.approx(0.1)


class Counted:
    """A pipeline, its connection and its results at once, which counts the evaluations under way."""

    name = "handles/1"

    def __init__(self, found: penstock.Evaluation) -> None:
        self.found = found
        self.under_way = 0
        self.most = 0
        self._connection = self

    def submit_evaluate(self, *batch: Any, **arguments: Any) -> Counted:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return self

    def result(self, timeout: float | None) -> penstock.Evaluation:
        self.under_way -= 1
        return self.found

    def release_later(self, names: list[str]) -> None:
        pass


@pytest.mark.parametrize("ahead", [0, 2])
def test_so_many_evaluations_are_sent_ahead(pipeline: penstock.Pipeline, ahead: int) -> None:
    counted = Counted(pipeline.evaluate(ROWS, ROWS))
    penstock.evaluate(counted, [(ROWS, ROWS)] * 5, ahead=ahead)  # type: ignore[arg-type]
    assert counted.most == ahead + 1 and counted.under_way == 0


def test_an_evaluation_that_fails_leaves_nothing(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    batches = [(ROWS, ROWS), (ROWS, ROWS), (ROWS, np.full_like(ROWS, np.nan)), (ROWS, ROWS)]
    with pytest.raises(penstock.PenstockError, match="TENSOR_SIGNATURE"):
        penstock.evaluate(pipeline, batches, ahead=4)
    assert len(daemon.requests["Evaluate"]) == 3
    assert daemon.wait_until_released()


def test_outputs_of_a_step_come_with_the_outcome(pipeline: penstock.Pipeline) -> None:
    outcome = pipeline.train_step(ROWS, ROWS, outputs=["output"])
    assert outcome.outputs is not None
    assert np.array_equal(outcome.outputs.fetch()["output"], ROWS)


def test_a_step_of_several_contributions(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    pipeline.forward_backward(ROWS, ROWS, total_rows=4)
    pipeline.forward_backward(ROWS, ROWS, total_elements=16)
    assert pipeline.optimizer_step(clip_norm=0.0).step == 1
    assert pipeline.optimizer_step(discard=True)
    first, second = daemon.requests["ForwardBackward"]
    assert first.total_rows == 4 and not first.HasField("total_elements")
    assert second.total_elements == 16 and not second.HasField("total_rows")
    step, discard = daemon.requests["OptimizerStep"]
    assert step.HasField("clip_norm") and step.action == work_pb2.OptimizerStepRequest.ACTION_APPLY
    assert discard.action == work_pb2.OptimizerStepRequest.ACTION_DISCARD


def test_a_loss_of_the_client(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    forward = pipeline.forward(ROWS)
    outputs = forward.outputs.fetch()["output"]
    pipeline.backward(forward.graph, outputs - ROWS, retain_graph=True)
    request = daemon.requests["Backward"][0]
    assert request.graph == forward.graph.name and request.gradients[0].name == "output" and request.retain_graph


def test_gradients_of_inputs_come_with_the_outcome(pipeline: penstock.Pipeline, daemon: FakeDaemon) -> None:
    forward = pipeline.forward(ROWS, input_gradients=True)
    outcome = pipeline.backward(forward.graph, ROWS, input_gradients=True)
    assert outcome.input_gradients is not None
    assert np.array_equal(outcome.input_gradients.fetch()["input"], -ROWS)
    assert pipeline.backward(forward.graph, ROWS).input_gradients is None
    assert [request.input_gradients for request in daemon.requests["Backward"]] == [True, False]
    assert daemon.requests["Forward"][0].input_gradients
