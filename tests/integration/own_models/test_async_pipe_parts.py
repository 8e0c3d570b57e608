"""AsyncPipe's tests of what a rank holds, by their names, over processes: which layers and parameters stand where, who
builds them, who may ask for it, and that its optimizer works on all ranks."""

from __future__ import annotations

import pathlib

import grpc
import numpy as np
import penstock
import pytest
import torch
from penstock import Layer
from torch import nn

from own_fixtures import reference_has_one_thread  # noqa: F401
from rank_models import (  # noqa: F401
    Ranks, four, give_weights, gradients_of, layers_of, over, ranks_of, same_bits, three, two, used
)

FLOAT = 4  # bytes


def linears(*widths: int) -> list[Layer]:
    return [Layer("linear", f"l{k}", {"in": i, "out": o}) for k, (i, o) in enumerate(zip(widths, widths[1:]))]


def bytes_of(*shapes: tuple[int, int]) -> int:
    """Of linear layers with these inputs and outputs."""
    return sum(FLOAT * (i * o + o) for i, o in shapes)


def stand_on(pipeline: penstock.Pipeline) -> list[tuple[int, list[str]]]:
    """Rank and layers of each stage."""
    return [(stage.rank, list(stage.layers)) for stage in pipeline.plan.stages]


@pytest.mark.parametrize("owner", [0, 1])
def test_parameters(two: Ranks, owner: int) -> None:
    """Only the rank of a stage has its parameters, whichever it is; a client reads them by rank 0."""
    pipeline = two.create(linears(1, 1), [f"{owner}/cpu:0"])
    assert two.weights(owner, pipeline) == bytes_of((1, 1))
    assert two.weights(1 - owner, pipeline) == 0
    shapes = {name: value.shape for name, value in pipeline.read_parameters().items()}
    assert shapes == {"l0.weight": (1, 1), "l0.bias": (1,)}


def test_devices(four: Ranks) -> None:
    """A rank that no stage needs has nothing of the pipeline, stays, and serves the next one."""
    three = four.create(linears(1, 1, 1, 1), [], balance=[1, 1, 1], ranks=[0, 1, 2])
    assert [rank for rank, _ in stand_on(three)] == [0, 1, 2]
    assert four.own(3, three, "penstock_stage_info") == 0 and four.weights(3, three) == 0
    rows = np.ones((4, 1), np.float32)
    assert three.train_step(rows, rows).step == 1
    last = four.create(linears(1, 1), ["3/cpu:0"])
    assert last.train_step(rows, rows).step == 1 and four.weights(3, last) == bytes_of((1, 1))
    assert all(rank.alive() for rank in four.group.ranks)


@pytest.mark.parametrize(("balance", "stages"), [([2], [(0, ["l0", "l1"])]), ([1, 1], [(0, ["l0"]), (1, ["l1"])])])
def test_sequential_like(two: Ranks, balance: list[int], stages: list[tuple[int, list[str]]]) -> None:
    """Layers by number, from the end too, are those of the model; each rank tells which are its own."""
    pipeline = two.create(linears(1, 1, 1), over(len(balance)), balance=balance)
    layers = [layer.name for layer in pipeline.plan.layers]
    assert layers == ["l0", "l1"] and (layers[-1], layers[-2]) == ("l1", "l0")
    assert stand_on(pipeline) == stages
    for rank in (0, 1):
        begins = sum(balance[:rank])
        assert two.own(rank, pipeline, "penstock_stage_info") == (1 if rank < len(balance) else 0)
        for count in balance[rank : rank + 1]:
            mine = {"rank": str(rank), "layers": f"{begins}-{begins + count - 1}"}
            assert two.own(rank, pipeline, "penstock_stage_info", **mine) == 1
    with pytest.raises(penstock.PenstockError, match="partitions.0.K.parameter with K below") as outside:
        pipeline.read_parameters(["partitions.0.2.weight"])
    assert outside.value.code == grpc.StatusCode.OUT_OF_RANGE


def test_partitions(two: Ranks) -> None:
    """Each rank's part has names by stage and place, which mean the same tensors as the layers' names."""
    pipeline = two.create(linears(2, 3, 1), over(2))
    assert stand_on(pipeline) == [(0, ["l0"]), (1, ["l1"])]
    plain = pipeline.read_parameters(["l0.weight", "l1.weight"])
    for rank in (0, 1):
        (part,) = pipeline.read_parameters([f"partitions.{rank}.0.weight"]).values()
        assert np.array_equal(part, plain[f"l{rank}.weight"])
    for beyond in ("partitions.0.1.weight", "partitions.2.0.weight"):
        with pytest.raises(penstock.PenstockError) as refused:
            pipeline.read_parameters([beyond])
        assert refused.value.code == grpc.StatusCode.OUT_OF_RANGE


def test_named_children(two: Ranks) -> None:
    """Names are kept on every rank, and are not those of places."""
    named = [Layer("linear", name, {"in": 1, "out": 1}) for name in ("a", "b")]
    pipeline = two.create(named, over(2))
    assert stand_on(pipeline) == [(0, ["a"]), (1, ["b"])]
    assert pipeline.read_names() == ["a.weight", "a.bias", "b.weight", "b.bias"]
    by_name = pipeline.read_parameters(["partitions.1.b.bias"])
    assert [value.tobytes() for value in by_name.values()] == [pipeline.read_parameters(["b.bias"])["b.bias"].tobytes()]
    with pytest.raises(penstock.PenstockError) as refused:
        pipeline.read_parameters(["l0.weight"])
    assert refused.value.reason == "PARAMETER_NOT_FOUND"


def test_lazy_construction(two: Ranks) -> None:
    """Of four layers each rank builds its two, with the weights that they have wherever they stand."""
    widths = (2, 3, 5, 7, 4)
    pipeline = two.create(linears(*widths), over(2), balance=[2, 2], seed=11)
    shapes = list(zip(widths, widths[1:]))
    for rank, own in enumerate((shapes[:2], shapes[2:])):
        assert two.weights(rank, pipeline) == bytes_of(*own)
        assert two.own(rank, pipeline, "penstock_stage_info", layers=f"{2 * rank}-{2 * rank + 1}") == 1
        assert two.own(rank, pipeline, "penstock_stage_info") == 1
    together = two.create(linears(*widths), ["cpu:0"], seed=11)
    built = together.read_parameters()
    assert [name for name, value in pipeline.read_parameters().items() if not np.array_equal(value, built[name])] == []


def test_deny_moving(two: Ranks) -> None:
    """No call moves a stage: AsyncPipe lets each rank move its part, which nothing here could hold it to. A pipeline of
    the same name on other devices is another one, and refused. Another type of parameters is chosen at its making."""
    rows = np.ones((4, 1), np.float32)
    devices = ["cpu:0", "1/cpu:0"]
    arguments = {"balance": [1, 1], "micro_batches": 2, "loss": "mean_squared_error", "optimizer": "sgd"}
    pipeline = two.client.create_pipeline("stays", model=linears(1, 1, 1), devices=devices, **arguments)
    for others in (["1/cpu:0", "cpu:0"], ["cpu:0", "cpu:1"], ["cpu:0", "1/cpu:1"]):
        with pytest.raises(penstock.PenstockError, match="devices") as refused:
            two.client.create_pipeline("stays", model=linears(1, 1, 1), devices=others, exist_ok=True, **arguments)
        assert refused.value.reason == "PIPELINE_EXISTS"
    same = two.client.create_pipeline("stays", model=linears(1, 1, 1), devices=devices, exist_ok=True, **arguments)
    assert [stage.device for stage in same.plan.stages] == devices
    assert pipeline.train_step(rows, rows).step == 1
    for dtype, size in (("fp16", 2), ("bf16", 2), ("fp64", 8)):
        cast = two.create(linears(1, 1, 1), devices, dtype=dtype)
        assert [two.weights(rank, cast) for rank in (0, 1)] == [2 * size, 2 * size]


def test_construct_only_rank_zero(two: Ranks) -> None:
    """Another rank has no API to make a pipeline by; what rank 0 makes has its stages there."""
    with penstock.Client(two.group.ranks[1].address, retry_for=0) as client:
        with pytest.raises(penstock.PenstockError) as refused:
            client.create_pipeline("mine", model=linears(10, 10), stages=1)
    assert refused.value.code == grpc.StatusCode.UNAVAILABLE
    pipeline = two.create([*linears(10, 10), Layer("relu", "bend")], over(2))
    assert stand_on(pipeline) == [(0, ["l0"]), (1, ["bend"])]
    assert [one.name for one in two.client.list_pipelines()] == [pipeline.name]


class Surrogate(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.module(x))


def test_verify_module_duplicate_parameters_on_distinct_partitions(two: Ranks, tmp_path: pathlib.Path) -> None:
    """AsyncPipe means to refuse it, and can't tell. Here the parameter is one, wherever its uses stand: its gradient is the
    sum over the ranks, as PyTorch's. A layer that stands twice is refused, by name."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 3, 1)
    module = nn.Sequential(Surrogate(conv), Surrogate(conv))
    x, target = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    pipeline = two.create(two.upload(module, x, tmp_path, "nodes"), over(2), starts=["conv2d_1"])
    assert [stage.rank for stage in pipeline.plan.stages] == [0, 1]
    assert sorted(pipeline.read_parameters()) == ["0.module.bias", "0.module.weight"]
    nn.functional.mse_loss(module(x), target).backward()
    pipeline.forward_backward(x, target)
    gradients = pipeline.gradients()
    assert sorted(gradients) == ["0.module.bias", "0.module.weight", "1.module.bias", "1.module.weight"]
    for name, value in gradients.items():
        torch.testing.assert_close(torch.from_numpy(value), module.get_parameter(name).grad, atol=1e-7, rtol=1e-5)
    pipeline.optimizer_step()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= parameter.grad
        after = module(x)
    torch.testing.assert_close(torch.from_numpy(pipeline.infer(x)["output"]), after, atol=1e-6, rtol=1e-5)
    with pytest.raises(penstock.PenstockError, match="module with duplicate children is not supported: .* got l0"):
        two.create([*linears(1, 1), *linears(1, 1)], over(2))


def test_basic_rpc(two: Ranks) -> None:
    """A loss of the caller's, its gradient back to the last rank, an optimizer on every rank, then inference."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 10), nn.ReLU())
    options = {"learning_rate": 0.01, "momentum": 0.9}
    pipeline = two.create(layers_of(module), over(2), optimizer_options=options)
    give_weights(pipeline, module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    x = torch.rand(1, 10)
    for _ in range(3):
        wanted = module(x)
        wanted.retain_grad()
        optimizer.zero_grad()
        wanted.mean().backward()
        optimizer.step()
        forward = pipeline.forward(x)
        assert np.array_equal(forward.outputs.fetch()["output"], wanted.detach().numpy())
        pipeline.backward(forward.graph, wanted.grad)
        assert same_bits(pipeline.gradients(), gradients_of(module)) == []
        pipeline.optimizer_step()
    module.eval()
    assert same_bits(pipeline.read_parameters(), module.state_dict()) == []
    assert np.array_equal(pipeline.infer(x)["output"], module(x).detach().numpy())


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_rpc_optimizer(three: Ranks, checkpoint: str) -> None:
    """Outputs before and after a step are exactly PyTorch's. A model that uses a layer twice is refused by name: two
    layers with tied weights take its place."""
    torch.manual_seed(0)
    module = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(10, 10), nn.ReLU())))
    options = {"learning_rate": 0.01, "momentum": 0.9}
    pipeline = three.create(
        layers_of(module), over(3), balance=[2, 2, 2], optimizer_options=options, checkpoint=checkpoint
    )
    give_weights(pipeline, module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    x, target = torch.rand(1, 10), torch.rand(1, 10)
    assert np.array_equal(pipeline.infer(x)["output"], module(x).detach().numpy())
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), target)
        loss.backward()
        optimizer.step()
        assert pipeline.train_step(x, target).loss == loss.item()
    assert np.array_equal(pipeline.infer(x)["output"], module(x).detach().numpy())
    reused = [Layer("linear", "r", {"in": 10, "out": 10}), Layer("relu", "bend")] * 2
    with pytest.raises(penstock.PenstockError, match="module with duplicate children is not supported"):
        three.create(reused, over(3), balance=[2, 1, 1])
