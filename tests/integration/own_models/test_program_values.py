"""Values of exported programs beside eager PyTorch, micro-batch by micro-batch."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import penstock
import pytest
import torch
from penstock.errors import PenstockError
from torch import nn

from own_fixtures import daemon, reference_has_one_thread  # noqa: F401
from small_models import fresh_name


class Several(nn.Module):
    """Gives tensors, None, numbers, and a list of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.first(x)
        return {
            "nothing": None,
            "logits": self.second(hidden.relu()),
            "count": 7,
            "layers": [hidden, hidden * 2],
            "rate": 0.5,
        }


class TwoBatches(nn.Module):
    """Queries and rows of a table: each has a batch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, query: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return self.proj(query) @ table.T


class Scaled(nn.Module):
    """Takes rows, and a number for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.proj(x) * scale


def bring(client: penstock.Client, path: pathlib.Path, **changes: Any) -> penstock.Pipeline:
    arguments: dict[str, Any] = {"stages": 2, "micro_batches": 2, **changes}
    return client.create_pipeline(fresh_name("values"), model=client.models.upload(path), **arguments)


@pytest.fixture
def several(client: penstock.Client, tmp_path: pathlib.Path) -> tuple[penstock.Pipeline, Several]:
    torch.manual_seed(0)
    model = Several().eval()
    path = tmp_path / f"{fresh_name('several')}.pt2"
    batch = torch.export.Dim("batch", min=1, max=4096)
    torch.export.save(torch.export.export(model, (torch.ones(2, 4),), dynamic_shapes={"x": {0: batch}}), path)
    return bring(client, path, loss="cross_entropy"), model


def test_outputs_of_any_kind(several: tuple[penstock.Pipeline, Several]) -> None:
    pipeline, model = several
    outputs = pipeline.signature.outputs
    assert [(one.name, one.any) for one in outputs] == [
        ("nothing", True),
        ("logits", False),
        ("count", True),
        ("layers.0", False),
        ("layers.1", False),
        ("rate", True),
    ]
    x = torch.randn(6, 4)
    with torch.no_grad():
        pieces = [model(piece) for piece in x.chunk(2)]
    answer = pipeline.infer(x)
    assert {name for name in answer} == {one.name for one in outputs}
    for name in ("nothing", "count", "rate"):
        assert answer[name] == [piece[name] for piece in pieces] and type(answer[name][0]) is type(pieces[0][name])
    assert torch.equal(torch.from_numpy(answer["logits"]), torch.cat([piece["logits"] for piece in pieces]))
    for i in range(2):
        assert torch.equal(torch.from_numpy(answer[f"layers.{i}"]), torch.cat([piece["layers"][i] for piece in pieces]))
    assert list(pipeline.infer(x, outputs=["count", "logits"])) == ["logits", "count"]


def test_the_loss_is_of_the_first_tensor(client: penstock.Client, several: tuple[penstock.Pipeline, Several]) -> None:
    pipeline, model = several
    x, labels = torch.randn(4, 4), torch.tensor([0, 1, 2, 1])
    loss = nn.functional.cross_entropy(model(x)["logits"], labels)
    assert pipeline.train_step(x, labels).loss == pytest.approx(loss.item(), rel=1e-6)
    with pytest.raises(PenstockError, match="must be one of logits, layers.0, layers.1, got count") as refused:
        pipeline.train_step(x, labels, loss="cross_entropy", loss_output="count")
    assert refused.value.values["field"] == "loss.output"


def test_rows_that_the_program_does_not_take(several: tuple[penstock.Pipeline, Several]) -> None:
    with pytest.raises(PenstockError, match="must be from 1 to 4096 in what was exported") as refused:
        several[0].infer(torch.ones(0, 4))
    assert refused.value.reason == "TENSOR_SIGNATURE"


def two_batches(tmp_path: pathlib.Path) -> tuple[TwoBatches, pathlib.Path]:
    model = TwoBatches().eval()
    path = tmp_path / f"{fresh_name('two')}.pt2"
    queries, entries = torch.export.Dim("queries", max=64), torch.export.Dim("entries", max=64)
    program = torch.export.export(
        model, (torch.ones(2, 4), torch.ones(3, 4)), dynamic_shapes={"query": {0: queries}, "table": {0: entries}}
    )
    torch.export.save(program, path)
    return model, path


def test_inputs_of_other_rows(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    model, path = two_batches(tmp_path)
    pipeline = bring(client, path, stages=1, micro_batches=5)
    query, table = torch.randn(10, 4), torch.randn(4, 4)
    with torch.no_grad():
        wanted = torch.cat([model(piece, table) for piece in query.chunk(5)])
    answer = pipeline.infer({"query": query, "table": penstock.Whole(table)})
    (output,) = answer.values()
    assert torch.equal(torch.from_numpy(output), wanted)
    # Three and six rows make three micro-batches each, as in PyTorch's pipelines.
    query, table = torch.randn(3, 4), torch.randn(6, 4)
    with torch.no_grad():
        wanted = torch.cat([model(*pieces) for pieces in zip(query.chunk(5), table.chunk(5))])
    (output,) = pipeline.infer({"query": query, "table": table}).values()
    assert torch.equal(torch.from_numpy(output), wanted)
    with pytest.raises(PenstockError, match="Found different number of chunks produced for inputs: 3 and 4"):
        pipeline.infer({"query": query, "table": torch.randn(4, 4)})


def test_the_rows_of_a_batch_are_those_of_the_models_first_input(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    """In whichever order the inputs come."""
    _, path = two_batches(tmp_path)
    query, table, target = torch.randn(3, 4), torch.randn(6, 4), torch.randn(3, 2)
    states = []
    for inputs in ({"query": query, "table": table}, {"table": table, "query": query}):
        pipeline = bring(client, path, stages=1, micro_batches=3, loss="mean_squared_error", seed=1)
        assert pipeline.evaluate(inputs, target).rows == 3
        outcome = pipeline.train_step(inputs, target)
        assert (outcome.rows, outcome.micro_batches, outcome.applied) == (3, 3, True)
        pipeline.forward_backward(inputs, target, total_rows=3)
        with pytest.raises(PenstockError, match="must be at least the number of rows, 3"):
            pipeline.forward_backward(inputs, target, total_rows=2)
        pipeline.optimizer_step()
        states.append(pipeline.read_parameters())
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_what_has_no_rows_is_not_batched_and_a_plan_says_so_too(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"{fresh_name('scaled')}.pt2"
    shapes: dict[str, Any] = {"x": {0: torch.export.Dim("batch", min=1, max=64)}, "scale": {}}
    example = (torch.ones(2, 4), torch.tensor(2.0))
    torch.export.save(torch.export.export(Scaled().eval(), example, dynamic_shapes=shapes), path)
    model = client.models.upload(path)
    spec = penstock.pipeline_spec(model=model, loss="mean_squared_error", dynamic_batching=True)
    for ask in (lambda: client.plan(spec), lambda: client.create_pipeline_from(fresh_name("scaled"), spec)):
        with pytest.raises(PenstockError, match="input scale must have an open number of rows") as told:
            ask()
        assert (told.value.reason, told.value.values["field"]) == ("SPEC_INVALID", "spec.dynamic_batching")
    spec.ClearField("dynamic_batching")
    assert client.plan(spec).candidates
