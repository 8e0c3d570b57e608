"""Explicit models for tests: lists of layers that take and give float32 [rows, 16]."""

from __future__ import annotations

from typing import Any

import penstock
from penstock import Layer

from small_models import WIDTH, fresh_name


def linear(name: str, into: int = WIDTH, out: int = WIDTH, **fields: Any) -> Layer:
    return Layer("linear", name, {"in": into, "out": out}, **fields)


def stash(name: str, skip: str = "skip", **fields: Any) -> Layer:
    return Layer("stash", name, {"name": skip}, **fields)


def pop_add(name: str, skip: str = "skip", **fields: Any) -> Layer:
    return Layer("pop_add", name, {"name": skip}, **fields)


# A skip from the second layer to the last but one, past whatever stages lie between.
WITH_SKIP = [
    linear("first"),
    stash("keep"),
    linear("second"),
    Layer("relu", "bend"),
    Layer("dropout", "drop", {"p": 0.1}),
    linear("third"),
    pop_add("join"),
    linear("last"),
]


def create(client: penstock.Client, layers: Any, **changes: Any) -> penstock.Pipeline:
    """Mean squared error, four micro-batches; one stage unless the changes or the layers say otherwise."""
    named = any(layer.device for layer in layers)
    arguments: dict[str, Any] = {
        "model": layers,
        "stages": 0 if named or "balance" in changes else 1,
        "micro_batches": 4,
        "optimizer": "adamw",
        "optimizer_options": {"learning_rate": 0.01},
        "loss": "mean_squared_error",
        "seed": 7,
    }
    return client.create_pipeline(fresh_name("layers"), **{**arguments, **changes})
