"""AsyncPipe's tests of errors, by their names, over processes: the caller gets the error of whichever rank, the others
stop, and nothing of the call is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import penstock
import pytest
from penstock import Layer

from rank_models import Ranks, four, over, ranks_of, three, used  # noqa: F401
from small_models import differing, state_of

WIDTH = 4
ROWS = 20
MICRO_BATCHES = 10


def batch(large: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows and a target. The last layer fails at values above 1000."""
    rows = np.random.default_rng(1).random((ROWS, WIDTH), np.float32) + 1
    return (rows * 1e8 if large else rows), np.zeros((ROWS, WIDTH), np.float32)


def delay(name: str, forward_ms: float = 0.0) -> Layer:
    """It learns one number, and gives what it gets before it has learnt."""
    return Layer("delay", name, {"features": WIDTH, "forward_ms": forward_ms, "input_ms": 0.0, "weight_ms": 0.0})


RAISE = Layer("test_faulty", "raise", {"fault": "large"})


def create(ranks: Ranks, *layers: Layer, devices: list[str], schedule: str) -> penstock.Pipeline:
    slow = {"optimizer_options": {"learning_rate": 0.01}}
    return ranks.create(list(layers), devices, schedule=schedule, micro_batches=MICRO_BATCHES, **slow)


CALLS: dict[str, Callable[[penstock.Pipeline], Any]] = {
    "train_step": lambda pipeline: pipeline.train_step(*batch(large=True), timeout=60),
    "forward": lambda pipeline: pipeline.forward(batch(large=True)[0], timeout=60),
    "infer": lambda pipeline: pipeline.infer(batch(large=True)[0], timeout=60),
    "evaluate": lambda pipeline: pipeline.evaluate(*batch(large=True), timeout=60),
}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_exception_no_hang(three: Ranks, schedule: str) -> None:
    """Whatever is called, the error says where it happened. A pipeline that has seen errors goes on as one that has
    not."""
    layers = (delay("first"), delay("second"), RAISE)
    pipeline = create(three, *layers, devices=over(3), schedule=schedule)
    spared = create(three, *layers, devices=over(3), schedule=schedule)
    for call in CALLS.values():
        with pytest.raises(penstock.PenstockError, match="layer raise: this layer fails on purpose") as failed:
            call(pipeline)
        assert failed.value.reason == "LAYER_FAILED"
        where = {"rank": "2", "stage": "2", "micro_batch": "0", "action": "2F0", "field": "raise"}
        assert where.items() <= failed.value.values.items()
        assert pipeline.train_step(*batch(), timeout=60).loss == spared.train_step(*batch()).loss
    assert differing(state_of(pipeline), state_of(spared)) == []
    assert spared.refresh().state_token.endswith(f"-{len(CALLS)}")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_exception_early_stop_asap(four: Ranks, schedule: str) -> None:
    """The rank before the one that fails, which takes its time, does not go through all micro-batches; with 1f1b it
    can't begin more than two, as there."""
    layers = (delay("pass"), Layer("identity", "pass_on"), delay("count", 100.0), RAISE)
    pipeline = create(four, *layers, devices=over(4), schedule=schedule)
    with pytest.raises(penstock.PenstockError, match="layer raise: this layer fails on purpose") as failed:
        pipeline.train_step(*batch(large=True), timeout=60)
    assert (failed.value.values["rank"], failed.value.values["micro_batch"]) == ("3", "0")
    ran = [four.own(rank, pipeline, "penstock_phase_duration_seconds_count", phase="forward") for rank in range(4)]
    assert 1 <= ran[2] <= (2 if schedule == "1f1b" else MICRO_BATCHES - 1) and ran[3] <= 1, ran
    assert all(four.own(rank, pipeline, "penstock_inflight_micro_batches") == 0 for rank in range(4))
    assert pipeline.train_step(*batch(), timeout=60).step == 1
