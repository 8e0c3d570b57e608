"""Random pipelines over one to four ranks, by both carriers, have the bits of the same model in one process and one stage.

PENSTOCK_RANK_CASES says how many: 50 in the suite, 2,000 behind ``tests/run.sh --long``; PENSTOCK_RANK_SEED is the seed of
the first one (1). Cases go round the groups, which are made one after the other. Some move to another layout in between.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import penstock
import pytest

from rank_group import Group
from random_pipelines import Case, make_case, make_layout
from small_models import bits, differing, state_of

CASES = int(os.environ.get("PENSTOCK_RANK_CASES", "50"))
FIRST = int(os.environ.get("PENSTOCK_RANK_SEED", "1"))
# One rank has nobody to send to.
GROUPS = [("ucx", 1), *((carrier, ranks) for ranks in (2, 3, 4) for carrier in ("ucx", "grpc"))]
STEPS = 2


@pytest.fixture(scope="module", params=range(len(GROUPS)), ids=[f"{carrier}-{ranks}" for carrier, ranks in GROUPS])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Group]]:
    """A group, and its number."""
    carrier, ranks = GROUPS[request.param]
    flags = ["--peer-timeout=60s", "--journal=off", f"--layer-library={os.environ['PENSTOCK_TEST_LAYERS']}"]
    with Group(tmp_path_factory.mktemp("group"), ranks, carrier, *flags).running() as group:
        yield request.param, group


Move = Callable[[penstock.Pipeline], penstock.Pipeline]


def work(pipeline: penstock.Pipeline, case: Case, move: Move) -> tuple[dict[str, Any], penstock.Pipeline]:
    """What a client sees of steps, of a gradient of its own, and of inference; and the pipeline that it has then: it
    moves before the last step."""
    pick = random.Random(case.seed)
    seen: dict[str, Any] = {}
    for step in range(STEPS):
        if step == STEPS - 1:
            pipeline = move(pipeline)
        outcome = pipeline.train_step(*case.batch(step, pick.randint(1, 12)))
        seen[f"step {step}"] = (outcome.loss, outcome.gradient_norm, outcome.applied, outcome.micro_batches)
        seen[f"state {step}"] = state_of(pipeline)
    inputs, _ = case.batch(STEPS, pick.randint(1, 12))
    forward = pipeline.forward(inputs, input_gradients=not case.vocabulary)
    outputs = forward.outputs.fetch()
    gradients = {
        name: np.cos(np.arange(array.size, dtype=np.float32)).reshape(array.shape) for name, array in outputs.items()
    }
    outcome = pipeline.backward(forward.graph, gradients, input_gradients=not case.vocabulary)
    seen["outputs"] = bits(outputs)
    if outcome.input_gradients is not None:
        seen["input gradients"] = bits(outcome.input_gradients.fetch())
    seen["gradients"] = bits(pipeline.gradients())
    seen["own step"] = pipeline.optimizer_step().gradient_norm
    seen["inference"] = bits(pipeline.infer(inputs))
    seen["last state"] = state_of(pipeline)
    return seen, pipeline


def unlike(apart: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    """What of it is not the same, with the first names that differ."""
    told = []
    for what, value in whole.items():
        if isinstance(value, dict):
            names = differing(apart[what], value)
            told += [f"{what}: {names[:3]}"] if names else []
        elif repr(apart[what]) != repr(value):  # so that what is no number equals itself
            told.append(f"{what}: {apart[what]} instead of {value}")
    return told


def run_whole(client: penstock.Client, case: Case, micro_batches: int) -> dict[str, Any]:
    """One stage in one process, which recomputes nothing."""
    one = {"devices": ["cpu:0"], "balance": [case.layers], "micro_batches": micro_batches, "checkpoint": "never"}
    pipeline = client.create_pipeline(f"case-{case.seed}", **case.arguments, **one)
    seen, _ = work(pipeline, case, lambda same: same)
    pipeline.delete(force=True, purge=True)
    return seen


def run_apart(client: penstock.Client, case: Case, layouts: list[dict[str, Any]]) -> tuple[dict[str, Any], set[int]]:
    """As it is laid; in the second way from a checkpoint on, if there is one. Also the ranks that have stages."""
    ranks: set[int] = set()

    def laid(layout: dict[str, Any], **from_where: Any) -> penstock.Pipeline:
        made = client.create_pipeline(f"case-{case.seed}", **case.arguments, **layout, **from_where)
        ranks.update(stage.rank for stage in made.plan.stages)
        return made

    def move(pipeline: penstock.Pipeline) -> penstock.Pipeline:
        for layout in layouts[1:]:
            saved = pipeline.save_checkpoint("before")
            pipeline.delete()
            return laid(layout, from_checkpoint=saved.name)
        return pipeline

    seen, pipeline = work(laid(layouts[0]), case, move)
    pipeline.delete(force=True, purge=True)
    return seen, ranks


def make_layouts(seed: int, layers: int, ranks: int) -> list[dict[str, Any]]:
    """One, or two of as many micro-batches."""
    pick = random.Random(seed)
    layouts = [make_layout(pick, layers, ranks)]
    if pick.random() < 0.3:
        other = make_layout(pick, layers, ranks)
        layouts[0]["micro_batches"] = other["micro_batches"] = max(other["micro_batches"], layouts[0]["micro_batches"])
        layouts.append(other)
    return layouts


def test_random_pipelines_have_the_bits_of_one_process(place: tuple[int, Group]) -> None:
    number, group = place
    failed, elsewhere, cases = [], 0, 0
    with group.client() as client:
        for seed in range(FIRST, FIRST + CASES):
            if seed % len(GROUPS) != number:
                continue
            case = make_case(seed)
            layouts = make_layouts(seed, case.layers, len(group.ranks))
            try:
                apart, ranks = run_apart(client, case, layouts)
                told = unlike(apart, run_whole(client, case, layouts[0]["micro_batches"]))
            except penstock.PenstockError as error:
                pytest.fail(f"seed {seed}: {error}\n{layouts}\n{case.arguments}\n{group.log()}")
            cases += 1
            elsewhere += ranks != {0}
            if told:
                failed.append(f"seed {seed}: {told}\n{layouts}\n{case.arguments}")
    assert not failed, "\n".join(failed)
    if len(group.ranks) > 1 and cases > 3:
        assert elsewhere > cases / 2, "most have stages on other ranks than the leader's"
