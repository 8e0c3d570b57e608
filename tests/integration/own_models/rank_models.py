"""Groups of ranks for tests of models that PyTorch knows too, one per number of ranks and file of tests."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import penstock
import pytest
import torch
from penstock import Layer
from torch import nn

from daemon_process import Metrics
from rank_group import Group
from small_models import fresh_name

CARRIERS = {2: "ucx", 3: "grpc", 4: "ucx"}


class Ranks:
    """A group with a client of its leader. Every rank takes programs from one folder, and has the layers that fail."""

    def __init__(self, group: Group, client: penstock.Client) -> None:
        self.group = group
        self.client = client

    def create(self, model: Any, devices: Sequence[str], **changes: Any) -> penstock.Pipeline:
        """One stage per device; SGD with the rate 1, so that a step subtracts the gradient."""
        arguments: dict[str, Any] = {
            "devices": devices,
            "schedule": "1f1b",
            "micro_batches": 1,
            "loss": "mean_squared_error",
            "optimizer": "sgd",
            "optimizer_options": {"learning_rate": 1.0},
        }
        return self.client.create_pipeline(fresh_name("ranks"), model=model, **{**arguments, **changes})

    def upload(self, module: nn.Module, inputs: Any, folder: pathlib.Path, cuts: str = "modules") -> penstock.Program:
        """Exports a module and puts it into the folder of models."""
        path = folder / f"{fresh_name('module')}.pt2"
        penstock.export(module, inputs, path)
        self.client.models.upload(path)
        return penstock.Program(path.name, cuts=cuts)

    def own(self, rank: int, pipeline: penstock.Pipeline, name: str, /, **labels: str) -> float:
        """The sum of a metric over the lanes of a pipeline that stand on a rank, as that rank tells it; 0 without any."""
        page = Metrics(self.group.ranks[rank].page("/metrics"))
        short = pipeline.name.removeprefix("pipelines/")
        return sum(value for _, value in page.select(name, pipeline=short, **labels))

    def weights(self, rank: int, pipeline: penstock.Pipeline) -> float:
        """Bytes of parameters and buffers that a rank holds."""
        return self.own(rank, pipeline, "penstock_device_memory_bytes", kind="weights")


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """A group of so many ranks, started when it is first asked for. All must live to the end and then exit with 0."""
    flags = ["--allow-model-upload", "--peer-timeout=60s", "--journal=off"]
    if "PENSTOCK_TEST_LAYERS" in os.environ:
        flags.append(f"--layer-library={os.environ['PENSTOCK_TEST_LAYERS']}")
    made: dict[int, Ranks] = {}
    with contextlib.ExitStack() as running:

        def of(size: int) -> Ranks:
            if size not in made:
                models = f"--model-root={tmp_path_factory.mktemp('models')}"
                group = Group(tmp_path_factory.mktemp("group"), size, CARRIERS[size], models, *flags)
                running.enter_context(group.running())
                made[size] = Ranks(group, running.enter_context(group.client()))
            return made[size]

        yield of


@pytest.fixture
def used(ranks_of: Callable[[int], Ranks]) -> Iterator[Callable[[int], Ranks]]:
    """Groups for one test; their pipelines go with it, and their logs into the report of a failure."""
    asked: dict[int, Ranks] = {}

    def of(size: int) -> Ranks:
        asked[size] = ranks_of(size)
        return asked[size]

    yield of
    for ranks in asked.values():
        print(ranks.group.log())
        for pipeline in ranks.client.list_pipelines():
            pipeline.delete(force=True, purge=True)


@pytest.fixture
def two(used: Callable[[int], Ranks]) -> Ranks:
    return used(2)


@pytest.fixture
def three(used: Callable[[int], Ranks]) -> Ranks:
    return used(3)


@pytest.fixture
def four(used: Callable[[int], Ranks]) -> Ranks:
    return used(4)


def over(ranks: int) -> list[str]:
    """One device of each rank."""
    return [f"{rank}/cpu:0" for rank in range(ranks)]


def layers_of(module: nn.Sequential) -> list[Layer]:
    """The same layers here, under the same names."""
    made = []
    for name, layer in module.named_children():
        if isinstance(layer, nn.Linear):
            made.append(Layer("linear", name, {"in": layer.in_features, "out": layer.out_features}))
        else:
            made.append(Layer(type(layer).__name__.lower(), name))
    return made


def give_weights(pipeline: penstock.Pipeline, module: nn.Module) -> None:
    pipeline.write_parameters({name: value.detach().numpy() for name, value in module.state_dict().items()})


def same_bits(arrays: Mapping[str, Any], tensors: Mapping[str, torch.Tensor | None]) -> list[str]:
    """Names under which they differ. What has no gradient in PyTorch is left out."""
    wanted = {name: value.detach().numpy() for name, value in tensors.items() if value is not None}
    assert arrays.keys() == wanted.keys()
    return [name for name, value in wanted.items() if not np.array_equal(arrays[name], value)]


def gradients_of(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}
