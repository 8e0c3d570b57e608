"""Pipelines and mini-batches small enough for many tests, and how to compare them."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import numpy as np
import penstock

WIDTH = 16
SEQUENCE = 16
VOCABULARY = 256

MLP = {"layers": 4, "width": WIDTH}
GPT = {"blocks": 2, "width": 32, "heads": 2, "sequence": SEQUENCE, "vocab": VOCABULARY}

_numbers = itertools.count()


def fresh_name(prefix: str) -> str:
    """A pipeline's name that no other test has."""
    return f"{prefix}-{next(_numbers)}"


def request_id() -> str:
    return str(uuid.uuid4())


def create_mlp(client: penstock.Client, name: str = "", dropout: float = 0.0, **changes: Any) -> penstock.Pipeline:
    """Four linear layers in two stages; mean squared error; inputs and targets float32 [rows, 16]."""
    arguments: dict[str, Any] = {
        "model": "mlp",
        "options": {**MLP, "dropout": dropout},
        "stages": 2,
        "schedule": "1f1b",
        "micro_batches": 4,
        "optimizer": "adamw",
        "optimizer_options": {"learning_rate": 0.01},
        "loss": "mean_squared_error",
        "seed": 7,
    }
    return client.create_pipeline(name or fresh_name("mlp"), **{**arguments, **changes})


def create_gpt(client: penstock.Client, name: str = "", dropout: float = 0.0, **changes: Any) -> penstock.Pipeline:
    """Two blocks in two stages; cross-entropy; tokens and targets int64 [rows, 16] below 256."""
    arguments: dict[str, Any] = {
        "model": "gpt",
        "options": {**GPT, "dropout": dropout},
        "stages": 2,
        "schedule": "1f1b",
        "micro_batches": 4,
        "optimizer": "adamw",
        "optimizer_options": {"learning_rate": 0.001},
        "loss": "cross_entropy",
        "seed": 7,
    }
    return client.create_pipeline(name or fresh_name("gpt"), **{**arguments, **changes})


def mlp_batch(seed: int, rows: int = 8) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return (
        random.standard_normal((rows, WIDTH), np.float32),
        random.standard_normal((rows, WIDTH), np.float32),
    )


def gpt_batch(seed: int, rows: int = 8) -> tuple[np.ndarray, np.ndarray]:
    text = np.random.default_rng(seed).integers(0, VOCABULARY, (rows, SEQUENCE + 1))
    return text[:, :-1], text[:, 1:]


def state_of(pipeline: penstock.Pipeline) -> dict[str, bytes]:
    """Parameters and optimizer state, bit for bit."""
    return bits(pipeline.read_parameters(include_optimizer_state=True))


def weights_of(pipeline: penstock.Pipeline) -> dict[str, bytes]:
    """Parameters, bit for bit."""
    return bits(pipeline.read_parameters())


def bits(arrays: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """The names under which two states are not the same; empty if they are equal."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
