"""Random models, and random ways to lay them over ranks; the same ones for a seed, on every machine. Some layers are of
the library of layers for tests: they give tuples, lists, None and numbers to the next one."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
from penstock import Isolate, Layer, ParameterGroup

# Kinds by the fewest and most chunks, and how many micro-batches each lane needs.
SCHEDULES = {
    "gpipe": (1, 1, 0),
    "1f1b": (1, 1, 0),
    "interleaved-1f1b": (1, 3, 0),
    "looped-bfs": (1, 3, 0),
    "zb-h1": (1, 1, 0),
    "zb-h2": (1, 1, 0),
    "lag": (1, 1, 0),
    "interleaved-zb": (1, 3, 0),
    "zbv": (2, 2, 0),
    "dualpipe-v": (2, 2, 2),
    "auto": (1, 1, 0),
}
MOST_LANES = 5
DEVICES_OF_A_RANK = 2


@dataclasses.dataclass
class Case:
    """What a pipeline is, whatever it stands on.

    Attributes:
        arguments: of ``create_pipeline``: model, optimizer, loss, seed.
        layers: how many the model has.
        inputs: shape of a row; of integers below ``vocabulary``, if that is not 0.
        outputs: shape of a row of outputs; the loss compares classes, if ``classes``.
    """

    seed: int
    arguments: dict[str, Any]
    layers: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    vocabulary: int
    classes: bool

    def batch(self, number: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        values = np.random.default_rng((self.seed, number))
        shape = (rows, *self.inputs)
        given = values.integers(0, self.vocabulary, shape) if self.vocabulary else values.standard_normal(shape, np.float32)
        if not self.classes:
            return given, values.standard_normal((rows, *self.outputs), np.float32)
        return given, values.integers(0, self.outputs[-1], (rows, *self.outputs[:-1]))


class _Rows:
    """Layers that take and give [rows, width], whose widths fit."""

    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.layers: list[Layer] = []
        self.width = self.first = pick.choice([1, 3, 8, 16, 33])
        self.stashed: list[tuple[str, str, int]] = []  # name, namespace, width
        self.squares: dict[int, list[str]] = {}  # weights by the width that they take and give

    def add(self, kind: str, options: dict[str, Any], **fields: Any) -> None:
        self.layers.append(Layer(kind, f"l{len(self.layers)}", options, **fields))

    def linear(self, out: int) -> None:
        if out == self.width:
            self.squares.setdefault(out, []).append(f"l{len(self.layers)}.weight")
        self.add("linear", {"in": self.width, "out": out, "bias": self.pick.random() < 0.7})
        self.width = out

    def stash(self) -> None:
        name, namespace = self.pick.choice("ab"), f"ns{len(self.layers)}"
        self.add("stash", {"name": name}, isolate=(Isolate(namespace),))
        self.stashed.append((name, namespace, self.width))

    def pop(self) -> None:
        name, namespace, width = self.stashed.pop(self.pick.randrange(len(self.stashed)))
        if width != self.width:
            self.linear(width)
        self.add("pop_add", {"name": name}, isolate=(Isolate(namespace),))

    def any(self) -> None:
        width = self.width
        kinds = "linear square relu gelu dropout layer_norm batch_norm mlp_block nest stash pop test_values test_list"
        kind = self.pick.choice(kinds.split())
        if kind == "linear":
            self.linear(self.pick.choice([1, 2, 5, 8, 16, 33]))
        elif kind == "square":
            self.linear(width)
        elif kind in ("relu", "gelu"):
            self.add(kind, {})
        elif kind == "dropout":
            self.add(kind, {"p": self.pick.choice([0.1, 0.5])})
        elif kind == "layer_norm":
            self.add(kind, {"width": width})
        elif kind == "batch_norm":
            self.add(kind, {"features": width, "cumulative": self.pick.random() < 0.3})
        elif kind == "mlp_block":
            self.add(kind, {"width": width, "dropout": self.pick.choice([0.0, 0.3])})
        elif kind == "nest":
            inner = [Layer("linear", "inner", {"in": width, "out": width}), Layer("dropout", "drop", {"p": 0.2})]
            self.add("sequential", {}, layers=inner)
        elif kind.startswith("test_"):
            self.add(kind, {})
            self.add(f"{kind}_sum", {})
        elif kind == "stash":
            self.stash()
        elif self.stashed:
            self.pop()

    def ties(self) -> list[list[str]]:
        return [names for names in self.squares.values() if len(names) > 1 and self.pick.random() < 0.7]


def _rows_model(pick: random.Random) -> dict[str, Any]:
    rows = _Rows(pick)
    rows.linear(pick.choice([4, 8, 16]))
    for _ in range(pick.randint(3, 12)):
        rows.any()
    while rows.stashed:
        rows.pop()
    rows.linear(pick.choice([2, 4, 8]))
    return {
        "arguments": {"model": rows.layers, "ties": rows.ties(), "deferred_batch_norm": pick.random() < 0.5},
        "layers": len(rows.layers),
        "inputs": (rows.first,),
        "outputs": (rows.width,),
        "vocabulary": 0,
        "classes": pick.random() < 0.5,
    }


def _words_model(pick: random.Random) -> dict[str, Any]:
    width, vocabulary, sequence, blocks = pick.choice([8, 16]), 32, 6, pick.randint(1, 5)
    dropout = pick.choice([0.0, 0.1])
    options = {"width": width, "heads": 2, "dropout": dropout}
    symbols = {"vocab": vocabulary, "width": width}
    layers = [Layer("gpt_embedding", "embed", {**symbols, "sequence": sequence, "dropout": dropout})]
    layers += [Layer("gpt_block", f"block{number}", options) for number in range(blocks)]
    layers.append(Layer("gpt_head", "head", symbols))
    return {
        "arguments": {"model": layers},
        "layers": len(layers),
        "inputs": (sequence,),
        "outputs": (sequence, vocabulary),
        "vocabulary": vocabulary,
        "classes": True,
    }


def _images_model(pick: random.Random) -> dict[str, Any]:
    channels, classes = pick.choice([2, 4]), 3
    layers = [Layer("conv2d", "first", {"in": 3, "out": channels, "padding": 1, "image": 6})]
    for number in range(pick.randint(1, 4)):
        layers += [
            Layer("stash", f"keep{number}", {"name": f"s{number}"}),
            Layer("batch_norm", f"norm{number}", {"features": channels}),
            Layer("relu", f"bend{number}"),
            Layer("conv2d", f"conv{number}", {"in": channels, "out": channels, "padding": 1}),
            Layer("pop_add", f"join{number}", {"name": f"s{number}"}),
        ]
    layers += [Layer("global_avg_pool", "pool"), Layer("flatten", "flat"), Layer("linear", "head", {"in": channels, "out": classes})]
    return {
        "arguments": {"model": layers, "deferred_batch_norm": pick.random() < 0.5},
        "layers": len(layers),
        "inputs": (3, 6, 6),
        "outputs": (classes,),
        "vocabulary": 0,
        "classes": True,
    }


def _optimizer(pick: random.Random) -> dict[str, Any]:
    name = pick.choice(["adagrad", "adam", "adamw", "lion", "nadam", "rmsprop", "sgd"])
    arguments: dict[str, Any] = {"optimizer": name, "optimizer_options": {"learning_rate": 0.01}}
    if name in ("sgd", "rmsprop"):
        arguments["optimizer_options"]["momentum"] = pick.choice([0.0, 0.9])
    if pick.random() < 0.5:
        arguments["clip_norm"] = pick.choice([0.01, 1.0])
    if pick.random() < 0.3:
        arguments["groups"] = [ParameterGroup(["*.bias"], {"weight_decay": 0.2}, frozen=pick.random() < 0.5)]
    return arguments


def make_case(seed: int) -> Case:
    pick = random.Random(seed)
    made = pick.choices([_rows_model, _words_model, _images_model], [6, 2, 2])[0](pick)
    made["arguments"] |= _optimizer(pick)
    made["arguments"]["loss"] = "cross_entropy" if made["classes"] else "mean_squared_error"
    made["arguments"]["seed"] = seed
    return Case(seed=seed, **made)


def make_layout(pick: random.Random, layers: int, ranks: int) -> dict[str, Any]:
    """Arguments of ``create_pipeline``: where a model of so many layers stands, and in which order it runs."""
    kinds = [kind for kind, (least, _, _) in SCHEDULES.items() if least <= layers]
    kind = pick.choice(kinds)
    least, most, per_lane = SCHEDULES[kind]
    chunks = pick.randint(least, min(most, layers))
    lanes = pick.randint(1, min(MOST_LANES, layers // chunks))
    if ranks > 1 and pick.random() < 0.8:  # most cases have work for several ranks
        lanes = max(lanes, min(ranks, layers // chunks))
    known = [f"{rank}/cpu:{core}" for rank in range(ranks) for core in range(DEVICES_OF_A_RANK)]
    stages = lanes * chunks
    cuts = sorted(pick.sample(range(1, layers), stages - 1))
    many_times = pick.random() < 0.3
    devices = [pick.choice(known) for _ in range(lanes)] if many_times else pick.sample(known, min(lanes, len(known)))
    layout: dict[str, Any] = {
        "balance": [end - begin for begin, end in zip([0, *cuts], [*cuts, layers])],
        "devices": devices + [pick.choice(known) for _ in range(lanes - len(devices))],
        "schedule": kind,
        "micro_batches": max(per_lane * lanes, 1) + pick.randint(0, 4),
        "checkpoint": pick.choice(["always", "except_last", "never", "skip_adjacent"]),
    }
    if most > 1:
        layout["chunks"] = chunks
    if kind == "lag":
        layout["lag"] = pick.randint(0, 2 * lanes)
    return layout
