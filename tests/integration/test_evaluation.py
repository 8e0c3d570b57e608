"""Evaluation by a real daemon: loss and metrics of what the model says, without a step, beside training."""

from __future__ import annotations

import math
import threading

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import work_pb2

from daemon_process import Daemon, eventually
from raw_calls import Raw, given, refused, request_id, waiting
from small_models import create_gpt, create_mlp, differing, gpt_batch, mlp_batch, state_of

SCHEDULES = [
    {"stages": 1, "schedule": "gpipe"},
    {"stages": 2, "schedule": "1f1b"},
    {"stages": 4, "schedule": "interleaved-1f1b", "chunks": 2, "devices": ["cpu:0", "cpu:1"]},
]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def test_loss_and_metrics_are_those_of_the_outputs(client: penstock.Client) -> None:
    """What the daemon computes is what numpy computes from the logits; the target is shifted and partly ignored."""
    pipeline = create_gpt(client, dropout=0.2)
    for step in range(3):
        pipeline.train_step(*gpt_batch(step))
    tokens, target = gpt_batch(50, rows=7)
    target = target.copy()
    target[2:4, 3:] = -100
    logits = pipeline.infer(tokens)["logits"]
    counts = target != -100
    picked = np.take_along_axis(log_softmax(logits), np.where(counts, target, 0)[..., None], -1)[..., 0]
    best = np.argsort(-logits, -1, kind="stable")
    before = state_of(pipeline)

    found = pipeline.evaluate(tokens, target, metrics=["accuracy", "top_5_accuracy"])
    assert found.loss == pytest.approx(-picked[counts].mean(), rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(found.loss))
    assert found.counted == counts.sum() and found.rows == 7 and found.micro_batches == 4
    assert found.metrics["accuracy"] == pytest.approx((best[..., 0] == target)[counts].mean())
    assert found.metrics["top_5_accuracy"] == pytest.approx((best[..., :5] == target[..., None]).any(-1)[counts].mean())
    assert found.step == 3 and found.state_token
    assert not differing(state_of(pipeline), before)
    # The token fits until something changes the state.
    pipeline.forward_backward(tokens, target, expected_state=found.state_token)
    with pytest.raises(penstock.PenstockError, match="STATE_MISMATCH"):
        pipeline.forward_backward(tokens, target, expected_state=found.state_token)


def test_it_is_the_same_for_every_cut_and_schedule(client: penstock.Client) -> None:
    tokens, target = gpt_batch(7)
    losses = set()
    for changes in SCHEDULES:
        pipeline = create_gpt(client, dropout=0.1, options={"blocks": 4, "width": 32, "heads": 2, "sequence": 16, "vocab": 256}, **changes)
        pipeline.train_step(*gpt_batch(1))
        losses.add(pipeline.evaluate(tokens, target).loss)
    assert len(losses) == 1


def test_many_batches_are_as_one(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    inputs, target = mlp_batch(3, rows=22)
    whole = pipeline.evaluate(inputs, target, metrics=["mean_absolute_error"])
    assert pipeline.evaluate(inputs, target, metrics="mean_absolute_error").metrics == whole.metrics
    held_out = penstock.Batches(inputs, target, rows=8, shuffle=False, drop_last=False)
    parts = penstock.evaluate(pipeline, held_out, metrics=["mean_absolute_error"])
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert parts.metrics["mean_absolute_error"] == pytest.approx(whole.metrics["mean_absolute_error"], rel=1e-6)
    assert (parts.rows, parts.counted) == (22, inputs.size)
    eventually(lambda: not pipeline.handles())  # outcomes are released in the background


def test_many_weighted_batches_are_as_one(client: penstock.Client) -> None:
    """The loss by what the elements weigh, the metrics by how many there are."""
    weights_of_classes = [0.1 + (label % 7) for label in range(256)]
    pipeline = create_gpt(client, class_weights=weights_of_classes, optimizer_options={"learning_rate": 0.01})
    tokens, target = gpt_batch(50, rows=7)
    for _ in range(10):
        pipeline.train_step(tokens[:4], target[:4])
    whole = pipeline.evaluate(tokens, target, metrics=["accuracy"])
    held_out = penstock.Batches(tokens, target, rows=3, shuffle=False, drop_last=False)
    parts = penstock.evaluate(pipeline, held_out, metrics=["accuracy"], micro_batches=2)
    weights = np.random.default_rng(1).random(target.shape, np.float32)
    weighted = pipeline.evaluate(tokens, target, weights=weights, metrics=["accuracy"])
    joined = penstock.Evaluation.joined(
        [
            pipeline.evaluate(tokens[rows], target[rows], weights=weights[rows], metrics=["accuracy"], micro_batches=1)
            for rows in (slice(0, 2), slice(2, 7))
        ]
    )
    for found, expected in ((parts, whole), (joined, weighted)):
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.counted == pytest.approx(expected.counted, rel=1e-6)
        assert found.metrics == pytest.approx(expected.metrics, rel=1e-12)
        assert found.metric_elements == target.size != pytest.approx(found.counted)
    assert weighted.loss != whole.loss and weighted.metrics == whole.metrics and whole.metrics["accuracy"] > 0.1


def test_it_runs_while_a_step_waits_and_while_gradients_are_open(client: penstock.Client) -> None:
    pipeline = create_mlp(client, dropout=0.1)
    alone = create_mlp(client, dropout=0.1)
    batches = [mlp_batch(seed) for seed in range(30)]
    stop = threading.Event()
    found: list[penstock.Evaluation] = []

    def evaluate() -> None:
        while not stop.is_set():
            found.append(pipeline.evaluate(*mlp_batch(99)))

    watcher = threading.Thread(target=evaluate)
    watcher.start()
    try:
        for inputs, target in batches:
            pipeline.forward_backward(inputs, target)
            pipeline.optimizer_step()
    finally:
        stop.set()
        watcher.join()
    by_step = {0: alone.evaluate(*mlp_batch(99)).loss}
    for step, (inputs, target) in enumerate(batches):
        alone.train_step(inputs, target)
        by_step[step + 1] = alone.evaluate(*mlp_batch(99)).loss
    assert found and all(one.loss == by_step[one.step] for one in found)
    assert not differing(state_of(pipeline), state_of(alone)), "evaluation has changed nothing"


def test_it_is_counted_and_named_as_a_call_of_its_own(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    handle = pipeline.submit_evaluate(*mlp_batch(1))
    assert handle.result().rows == 8
    assert handle.message.method == "Evaluate" and handle.state == "READY"
    handle.release()
    metrics = daemon.metrics()
    name = pipeline.name.removeprefix("pipelines/")
    assert metrics.sum("penstock_batches_total", pipeline=name, mode="evaluate", outcome="ok") == 1
    assert metrics.sum("penstock_samples_total", pipeline=name, mode="evaluate") == 8
    assert metrics.sum("grpc_server_handled_total", grpc_method="Evaluate", grpc_code="OK") >= 1


def evaluation(pipeline: str, **changes: object) -> work_pb2.EvaluateRequest:
    fields = {"pipeline": pipeline, "inputs": [given()], "target": given("target"), "reply": waiting(), **changes}
    return work_pb2.EvaluateRequest(**fields)  # type: ignore[arg-type]


@pytest.mark.usefixtures("next_request_is_served")
@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"metrics": ["accuracy"]}, "metrics[0]", "accuracy"),
        ({"metrics": ["mean_absolute_error"] * 2}, "metrics[1]", "mean_absolute_error"),
        ({"metrics": [""]}, "metrics[0]", ""),
        ({"metrics": ["x" * 100_000]}, "metrics[0]", "xxx"),
        ({"metrics": ["mean_absolute_error"] * 65}, "metrics", "65"),
        ({"micro_batches": 0}, "micro_batches", "0"),
        ({"target": None}, "target", ""),
        ({"request_id": "one"}, "request_id", "one"),
        ({"reply": waiting(61)}, "reply.wait_for", "61"),
    ],
)
def test_bad_evaluations_are_refused_by_field(
    raw: Raw, pipeline: penstock.Pipeline, changes: dict[str, object], field: str, value: str
) -> None:
    refused(lambda: raw.call("Evaluate", evaluation(pipeline.name, **changes)), field=field, value=value)


@pytest.mark.usefixtures("next_request_is_served")
def test_a_retry_gets_the_first_answer_and_another_payload_is_refused(raw: Raw, pipeline: penstock.Pipeline) -> None:
    request = evaluation(pipeline.name, request_id=request_id())
    first = raw.call("Evaluate", request)
    assert raw.call("Evaluate", request).outcome.handle.name == first.outcome.handle.name
    request.metrics.append("mean_absolute_error")
    refused(lambda: raw.call("Evaluate", request), reason="REQUEST_ID_REUSED")


def test_a_pipeline_without_a_loss_asks_for_one(client: penstock.Client) -> None:
    pipeline = create_mlp(client, loss=None)
    inputs, target = mlp_batch(1)
    with pytest.raises(penstock.PenstockError) as raised:
        pipeline.evaluate(inputs, target)
    assert raised.value.reason == "LOSS_UNKNOWN"
    assert pipeline.evaluate(inputs, target, loss="mean_squared_error").loss > 0


def test_gradients_are_read_as_the_step_would_take_them(client: penstock.Client) -> None:
    """With plain SGD the step is the weights less the rate times what was read."""
    pipeline = create_mlp(client, optimizer="sgd", optimizer_options={"learning_rate": 0.5})
    for seed in (1, 2):
        pipeline.forward_backward(*mlp_batch(seed), total_rows=16)
    gradients = pipeline.gradients()
    before = pipeline.read_parameters()
    assert list(gradients) == list(before) and gradients.step == 0
    assert list(pipeline.gradients([list(before)[1]])) == [list(before)[1]]
    pipeline.optimizer_step()
    after = pipeline.read_parameters()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(after[name], before[name] - np.float32(0.5) * gradient, atol=1e-7)
    with pytest.raises(penstock.PenstockError, match="ACCUMULATION_EMPTY"):
        pipeline.gradients()


def test_gradients_are_read_in_the_order_of_calls_by_their_holder(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    alone = create_mlp(client)
    for seed in range(5):
        alone.forward_backward(*mlp_batch(seed))
        pipeline.submit_forward_backward(*mlp_batch(seed))
    read = pipeline.gradients()  # although none of the five may have run
    expected = alone.gradients()
    assert all(np.array_equal(read[name], expected[name]) for name in expected)
    with penstock.Client(daemon.address, caller="stranger") as stranger:
        with pytest.raises(penstock.PenstockError) as raised:
            stranger.pipeline(pipeline.name).gradients()
    assert raised.value.code == grpc.StatusCode.FAILED_PRECONDITION and raised.value.reason == "ACCUMULATION_HELD"
    with pytest.raises(penstock.PenstockError, match="PARAMETER_NOT_FOUND"):
        pipeline.gradients(["nobody.weight"])
