"""Reference models train through the daemon: the loss falls, and the cut changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import penstock
import pytest

from small_models import differing, fresh_name, state_of

ROWS, CLASSES = 8, 4

# The smallest of each kind, and the edge of its images.
CLASSIFIERS: dict[str, tuple[dict[str, Any], int]] = {
    "resnet": (
        {"depth": 50, "blocks1": 1, "blocks2": 1, "blocks3": 1, "blocks4": 1, "width": 8, "classes": CLASSES, "image": 32},
        32,
    ),
    "amoebanet": ({"layers": 3, "filters": 16, "classes": CLASSES, "image": 32}, 32),
}
UNET = {"depth": 2, "convs": 1, "channels": 4, "dropout": 0.0, "image": 16}


def images(edge: int) -> np.ndarray:
    """Those of one class look alike."""
    random = np.random.default_rng(0)
    looks = random.standard_normal((CLASSES, 3, edge, edge), np.float32)
    noise = random.standard_normal((ROWS, 3, edge, edge), np.float32)
    return (looks[np.arange(ROWS) % CLASSES] + np.float32(0.3) * noise).astype(np.float32)


def create(client: penstock.Client, model: str, options: dict[str, Any], loss: str, **changes: Any) -> penstock.Pipeline:
    arguments: dict[str, Any] = {
        "stages": 2,
        "micro_batches": 2,
        "deferred_batch_norm": True,
        "optimizer": "adamw",
        "optimizer_options": {"learning_rate": 0.01},
        "seed": 7,
    }
    return client.create_pipeline(
        fresh_name(model), model=model, options=options, loss=loss, **{**arguments, **changes}
    )


def losses(pipeline: penstock.Pipeline, inputs: np.ndarray, target: np.ndarray, steps: int) -> list[float]:
    result = []
    for _ in range(steps):
        outcome = pipeline.train_step(inputs, target)
        assert outcome.applied and outcome.loss is not None and np.isfinite(outcome.loss)
        result.append(outcome.loss)
    return result


@pytest.mark.parametrize("model", CLASSIFIERS)
def test_a_classifier_learns(client: penstock.Client, model: str) -> None:
    options, edge = CLASSIFIERS[model]
    pipeline = create(client, model, options, "cross_entropy")
    assert len(pipeline.plan.stages) == 2 and pipeline.message.parameters > 0
    series = losses(pipeline, images(edge), np.arange(ROWS) % CLASSES, 15)
    assert series[-1] < 0.5 * series[0], series
    logits = pipeline.infer(images(edge))
    (scores,) = logits.values()
    assert scores.shape == (ROWS, CLASSES)


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_unet_learns_with_its_skips_over_stages(client: penstock.Client, checkpoint: str) -> None:
    pipeline = create(client, "unet", UNET, "mean_squared_error", checkpoint=checkpoint, stages=0, balance=[16, 13])
    assert pipeline.plan.skips, "the cut crosses no skip"
    assert all(skip.bytes > 0 for skip in pipeline.plan.skips)
    picture = images(16)
    target = np.tanh(picture.mean(1, keepdims=True))
    series = losses(pipeline, picture, target, 20)
    assert series[-1] < 0.7 * series[0], series


@pytest.mark.parametrize("model", [*CLASSIFIERS, "unet"])
def test_the_cut_changes_nothing(client: penstock.Client, model: str) -> None:
    """Bit for bit, in one stage and in two, with and without recomputation."""
    options, edge = CLASSIFIERS.get(model, (UNET, 16))
    target: np.ndarray = np.arange(ROWS) % CLASSES
    loss = "cross_entropy"
    if model == "unet":
        target, loss = np.tanh(images(16).mean(1, keepdims=True)), "mean_squared_error"
    whole = create(client, model, options, loss, stages=1, checkpoint="never")
    parts = create(client, model, options, loss, checkpoint="always")
    assert losses(whole, images(edge), target, 2) == losses(parts, images(edge), target, 2)
    assert not differing(state_of(whole), state_of(parts))
