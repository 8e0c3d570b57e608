"""One step in many ways: several contributions, or a loss of the client, give the same weights as TrainStep."""

from __future__ import annotations

import numpy as np
import penstock
import pytest

from daemon_process import Daemon
from small_models import (
    GPT,
    WIDTH,
    create_gpt,
    create_mlp,
    differing,
    gpt_batch,
    mlp_batch,
    state_of,
    weights_of,
)


@pytest.mark.parametrize("rows_of_calls", [(2, 2, 2, 2), (3, 5), (8,)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_contributions_equal_one_step(client: penstock.Client, rows_of_calls: tuple[int, ...], schedule: str) -> None:
    """Micro-batches of one row each, dropout, clipping, three steps: the same state bit for bit."""
    whole = create_gpt(client, dropout=0.1, schedule=schedule, micro_batches=8, clip_norm=0.5)
    parts = create_gpt(client, dropout=0.1, schedule=schedule, micro_batches=8, clip_norm=0.5)
    assert not differing(state_of(whole), state_of(parts)), "two pipelines of one seed differ before the first step"
    for step in range(3):
        tokens, target = gpt_batch(step)
        expected = whole.train_step(tokens, target)
        begin, losses = 0, []
        for rows in rows_of_calls:
            end = begin + rows
            part = parts.forward_backward(
                tokens[begin:end], target[begin:end], total_rows=len(tokens), micro_batches=rows
            )
            assert part.rows == rows and part.micro_batches == rows and part.step == step
            losses.append(part.loss * rows)
            begin = end
        applied = parts.optimizer_step()
        assert applied.applied and applied.step == expected.step == step + 1
        assert applied.gradient_norm == expected.gradient_norm
        assert sum(losses) / len(tokens) == pytest.approx(expected.loss, rel=1e-6)
    assert not differing(state_of(whole), state_of(parts))
    whole.delete()
    parts.delete()


def test_discarded_contributions_leave_no_trace(client: penstock.Client) -> None:
    """Discarding puts the micro-batch index back, so dropout falls as if nothing had been."""
    one = create_mlp(client, dropout=0.2)
    other = create_mlp(client, dropout=0.2)
    inputs, target = mlp_batch(1)
    one.forward_backward(*mlp_batch(99))
    assert one.optimizer_step(discard=True).step == 0
    one.train_step(inputs, target)
    other.train_step(inputs, target)
    assert not differing(state_of(one), state_of(other))


def test_a_squared_error_of_the_client_gives_the_same_weights(client: penstock.Client) -> None:
    """Rows, width and micro-batches are powers of two, so 2 (y - t) / count is exact but for one subtraction and one
    rounding that both sides do in float32: equal bit for bit, dropout included."""
    server = create_mlp(client, dropout=0.1)
    own = create_mlp(client, dropout=0.1)
    for step in range(3):
        inputs, target = mlp_batch(step)
        outcome = server.train_step(inputs, target)
        forward = own.forward(inputs)
        outputs = forward.outputs.fetch()["output"]
        difference = outputs - target
        assert difference.dtype == np.float32
        assert np.mean(difference.astype(np.float64) ** 2) == pytest.approx(outcome.loss, rel=1e-5)
        contribution = own.backward(forward.graph, difference * np.float32(2.0 / difference.size))
        assert contribution.step == step
        stepped = own.optimizer_step()
        assert stepped.gradient_norm == outcome.gradient_norm
    assert not differing(state_of(server), state_of(own))


def test_a_cross_entropy_of_the_client_gives_nearly_the_same_weights(client: penstock.Client) -> None:
    """numpy's softmax rounds otherwise than the daemon's: weights after a plain gradient step are close, not equal."""
    changes = {"optimizer": "sgd", "optimizer_options": {"learning_rate": 0.1}}
    server = create_gpt(client, **changes)
    own = create_gpt(client, **changes)
    before = own.read_parameters()
    tokens, target = gpt_batch(3)
    outcome = server.train_step(tokens, target)
    forward = own.forward(tokens)
    logits = forward.outputs.fetch()["logits"].astype(np.float64)
    assert logits.shape == (8, GPT["sequence"], GPT["vocab"])
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = shifted / shifted.sum(-1, keepdims=True)
    picked = np.take_along_axis(probabilities, target[..., None], -1)
    assert -np.log(picked).mean() == pytest.approx(outcome.loss, rel=1e-5)
    gradient = probabilities.copy()
    np.put_along_axis(gradient, target[..., None], picked - 1.0, -1)
    own.backward(forward.graph, (gradient / target.size).astype(np.float32))
    own.optimizer_step()
    wanted, got = server.read_parameters(), own.read_parameters()
    for name, array in wanted.items():
        moved = np.abs(array - before[name]).max()
        assert np.abs(got[name] - array).max() <= 1e-4 * moved + 1e-9, name


def test_outputs_of_a_step_are_those_before_it(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    inputs, target = mlp_batch(5)
    before = pipeline.infer(inputs)["output"]
    outcome = pipeline.train_step(inputs, target, outputs=["output"])
    assert outcome.outputs is not None
    with outcome.outputs as handle:
        assert handle.fetch()["output"].tobytes() == before.tobytes()
    assert pipeline.infer(inputs)["output"].tobytes() != before.tobytes()
    assert outcome.loss == pytest.approx(float(np.mean((before - target) ** 2)), rel=1e-5)


def test_training_learns(client: penstock.Client) -> None:
    pipeline = create_gpt(client, optimizer_options={"learning_rate": 0.01})
    tokens, target = gpt_batch(0)
    losses = [pipeline.train_step(tokens, target).loss for _ in range(20)]
    assert losses[0] == pytest.approx(np.log(256), rel=0.1)
    assert losses[-1] < 0.7 * losses[0]


def test_a_loss_that_is_no_number_is_not_applied(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.removeprefix("pipelines/")
    inputs, target = mlp_batch(1)
    pipeline.train_step(inputs, target)
    before = state_of(pipeline)
    counted = daemon.metrics().sum("penstock_nonfinite_steps_total", pipeline=name)
    bad = inputs.copy()
    bad[3, 2] = np.nan
    outcome = pipeline.train_step(bad, target)
    assert outcome.applied is False and outcome.loss is not None and np.isnan(outcome.loss)
    assert not differing(before, state_of(pipeline))
    assert daemon.metrics().sum("penstock_nonfinite_steps_total", pipeline=name) == counted + 1
    pipeline.forward_backward(bad, target)
    assert pipeline.optimizer_step().applied is False
    assert not differing(before, state_of(pipeline))
    again = pipeline.train_step(inputs, target)
    assert again.applied and np.isfinite(again.loss or np.nan)
    assert differing(before, state_of(pipeline))


def test_inputs_by_handle_equal_inputs_in_the_message(client: penstock.Client) -> None:
    one, other = create_mlp(client), create_mlp(client)
    inputs, target = mlp_batch(2)
    one.train_step(inputs, target)
    with other.put({"x": inputs, "y": target}, lease=30) as handle:
        other.train_step((handle, "x"), (handle, "y"))
    assert not differing(weights_of(one), weights_of(other))


def test_an_unfinished_result_is_an_input(client: penstock.Client) -> None:
    """The output of the first call goes into the second without coming here, before it exists."""
    pipeline = create_mlp(client)
    inputs, _ = mlp_batch(4)
    once = pipeline.infer(inputs)["output"]
    first = pipeline.submit_infer(inputs)
    with first, pipeline.submit_infer(first) as second:
        assert second.fetch(30)["output"].tobytes() == pipeline.infer(once)["output"].tobytes()


def test_large_tensors_go_up_and_come_back_whole(client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    rows = np.random.default_rng(0).standard_normal((100_000, WIDTH), np.float32)  # 6.4 MB, above any message
    with pipeline.put({"rows": rows, "none": rows[:0]}) as handle:
        back = handle.fetch()
        assert back["rows"].tobytes() == rows.tobytes() and back["none"].shape == (0, WIDTH)
    whole = pipeline.infer(rows)["output"]
    assert whole.shape == rows.shape
    part = pipeline.infer(rows[:4])["output"]
    assert np.allclose(part, whole[:4], rtol=1e-5, atol=1e-6)


def test_steps_under_way_together_are_those_of_one_after_the_other(client: penstock.Client) -> None:
    batches = [(np.full((4, WIDTH), i, np.float32), np.zeros((4, WIDTH), np.float32)) for i in range(20)]
    losses = []
    for ahead in (0, 8):
        pipeline = create_mlp(client, f"ahead-{ahead}")
        outcomes = list(penstock.outcomes(pipeline, batches, ahead=ahead))
        assert [outcome.step for outcome in outcomes] == list(range(1, 21))
        assert [outcome.sequence for outcome in outcomes] == sorted(outcome.sequence for outcome in outcomes)
        losses.append([outcome.loss for outcome in outcomes])
    assert losses[0] == losses[1]
