"""penstock.export: what it writes, what it leaves alone, and what it says when it can't."""

from __future__ import annotations

import io
import json
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import penstock
import pytest
import torch
import transformers
from torch import nn

from own_fixtures import daemon, programs, reference_has_one_thread  # noqa: F401
from small_models import fresh_name
from torch_models import infer


class Net(nn.Module):
    """Batch norm and dropout, two inputs, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scale: torch.Tensor, cached: bool = True) -> dict[str, Any]:
        hidden = self.drop(self.norm(self.first(x * scale)))
        return {"logits": self.second(hidden), "hidden": hidden, "cache": object() if cached else None}


INPUTS = (torch.ones(3, 4), torch.ones(3, 4))
CHOICE: dict[str, Any] = {"outputs": ["logits", "hidden"], "fixed": {"cached": False}}


def record(path: pathlib.Path, name: str) -> Any:
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        (found,) = [one for one in archive.namelist() if one.endswith(name)]
        return json.loads(archive.read(found))


def test_both_graphs_and_the_model_as_it_was(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(0)
    model = Net()
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path / "folder" / "net.pt2"
    exported = penstock.export(model, INPUTS, path, **CHOICE)
    assert exported.inputs == ("x", "scale") and exported.outputs == ("logits", "hidden")
    assert exported.nodes["training"] > exported.nodes["evaluation"], "the counter of batch norm"
    assert exported.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert exported.byte_size == path.stat().st_size and [one.name for one in path.parent.iterdir()] == ["net.pt2"]
    assert model.training and not model.norm.training and "forward" not in vars(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    program = torch.export.load(path)
    assert program.state_dict.keys() == before.keys()
    text = path.read_bytes()
    assert b"site-packages" not in text and str(pathlib.Path(__file__).parent).encode() not in text
    batch = record(path, "model.json")["range_constraints"]
    assert [(one["min_val"], one["max_val"]) for one in batch.values()] == [(1, 4096)]


def test_any_batch_through_the_daemon(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    """From an example of one row."""
    model = Net()
    path = tmp_path / f"{fresh_name('net')}.pt2"
    one_row = {"x": torch.ones(1, 4), "scale": torch.ones(1, 4)}
    penstock.export(model, one_row, path, **CHOICE)
    brought = client.models.upload(path)
    assert [one.name for one in brought.signature.outputs] == ["logits", "hidden"]
    pipeline = client.create_pipeline(
        fresh_name("net"), model=brought, stages=2, micro_batches=1, loss="cross_entropy", loss_output="logits"
    )
    model.eval()
    for rows in (1, 5, 64):
        inputs = {"x": torch.randn(rows, 4), "scale": torch.rand(rows, 4)}
        with torch.no_grad():
            assert torch.equal(infer(pipeline, inputs), model(**inputs)["logits"])
    assert (
        pipeline.train_step({"x": torch.ones(6, 4).numpy(), "scale": torch.ones(6, 4).numpy()}, [0, 1, 2] * 2).step == 1
    )
    pipeline.delete()
    client.models.delete(brought.name)
    assert brought.name not in [one.name for one in client.models.list()]


class Simple(nn.Module):
    """The model of other servers' examples: names in capitals, whole numbers, nothing to learn."""

    def forward(self, INPUT0: torch.Tensor, INPUT1: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: N803
        return {"OUTPUT0": INPUT0 + INPUT1, "OUTPUT1": INPUT0 - INPUT1}


NUMBERS = (torch.ones(2, 16, dtype=torch.int32), torch.ones(2, 16, dtype=torch.int32))


@pytest.mark.parametrize("modes", [("evaluation", "training"), ("training",)])
def test_names_are_the_authors(client: penstock.Client, tmp_path: pathlib.Path, modes: tuple[str, ...]) -> None:
    path = tmp_path / f"{fresh_name('simple')}.pt2"
    exported = penstock.export(Simple(), NUMBERS, path, modes=modes)
    assert exported.inputs == ("INPUT0", "INPUT1") and exported.outputs == ("OUTPUT0", "OUTPUT1")
    brought = client.models.upload(path)
    pipeline = client.create_pipeline(fresh_name("simple"), model=brought, stages=1, micro_batches=1)
    assert [one.name for one in pipeline.signature.inputs] == ["INPUT0", "INPUT1"]
    given = {"INPUT0": np.arange(16, dtype=np.int32)[None], "INPUT1": np.ones((1, 16), np.int32)}
    answer = pipeline.infer(given)
    assert answer["OUTPUT0"].tolist() == (given["INPUT0"] + given["INPUT1"]).tolist()
    assert answer["OUTPUT1"].tolist() == (given["INPUT0"] - given["INPUT1"]).tolist()
    with pytest.raises(penstock.PenstockError, match="input0"):
        pipeline.infer({"input0": given["INPUT0"], "INPUT1": given["INPUT1"]})
    pipeline.delete()
    client.models.delete(brought.name)


def test_names_can_be_chosen(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"{fresh_name('net')}.pt2"
    names: dict[str, Any] = {"input_names": ["serving default/x:0", "X"], "output_names": ["Logits", "logits"]}
    exported = penstock.export(Net(), INPUTS, path, **CHOICE, **names)
    assert exported.inputs == ("serving default/x:0", "X") and exported.outputs == ("Logits", "logits")
    brought = client.models.upload(path)
    assert [one.name for one in brought.signature.inputs] == names["input_names"]
    assert [one.name for one in brought.signature.outputs] == names["output_names"]
    pipeline = client.create_pipeline(fresh_name("net"), model=brought, stages=2, micro_batches=1)
    rows = np.ones((3, 4), np.float32)
    answer = pipeline.infer({"serving default/x:0": rows, "X": rows})
    assert answer["Logits"].shape == (3, 3) and answer["logits"].shape == (3, 8)
    pipeline.delete()
    client.models.delete(brought.name)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ({"input_names": ["x"]}, r"input_names: must name each of \['x', 'scale'\], got \['x'\]"),
        ({"input_names": "xy"}, "input_names: must name each of .*, got 'xy'"),
        ({"input_names": ["x", "x"]}, r"input_names\[1\]: must not repeat, got 'x'"),
        ({"input_names": ["x", ""]}, r"input_names\[1\]: must be 1 to 128 printable ASCII characters, got ''"),
        ({"output_names": ["a\nb", "c"]}, r"output_names\[0\]: must be 1 to 128 printable ASCII characters, got 'a\\n"),
        ({"output_names": ["c", "x" * 129]}, r"output_names\[1\]: must be 1 to 128 printable"),
        ({"output_names": ["c", 7]}, r"output_names\[1\]: must be 1 to 128 printable ASCII characters, got 7"),
    ],
)
def test_bad_names_are_told(names: dict[str, Any], says: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(penstock.ExportError, match=says):
        penstock.export(Net(), INPUTS, tmp_path / "x.pt2", **CHOICE, **names)
    assert not list(tmp_path.iterdir())


def test_experts_of_transformers(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    """Of the ways to run them one works, and the refusals of the others name it."""
    config = transformers.MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=16,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    inputs = {"input_ids": torch.arange(16).reshape(2, 8)}
    path = tmp_path / f"{fresh_name('experts')}.pt2"
    choice: dict[str, Any] = {"outputs": ["logits"], "fixed": {"use_cache": False}}
    works = r"model\.set_experts_implementation\('batched_mm'\)"

    model.set_experts_implementation("eager")
    with pytest.raises(penstock.ExportError, match=works):
        penstock.export(model, inputs, path, **choice)

    model.set_experts_implementation("grouped_mm")
    penstock.export(model, inputs, path, **choice)
    with pytest.raises(penstock.PenstockError, match=r"grouped_mm_fallback\.default; experts .*" + works) as refused:
        client.models.upload(path)
    assert refused.value.reason == "SPEC_INVALID" and refused.value.values["field"] == "operators"

    model.set_experts_implementation("batched_mm")
    penstock.export(model, inputs, path, **choice)
    brought = client.models.upload(path)
    pipeline = client.create_pipeline(fresh_name("experts"), model=brought, stages=2, micro_batches=1, cut_cost="size")
    pipeline.load_from(model)
    with torch.no_grad():
        assert torch.equal(infer(pipeline, inputs), model(**inputs, use_cache=False).logits)
    pipeline.delete()
    client.models.delete(brought.name)


class Decides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class FixedRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(3, 4) + torch.ones(3, 4)


class Blocks(nn.Module):
    """Takes texts whose length is a multiple of 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        return x.reshape(rows, length // 8, 8, width).sum(2)


class FixedLength(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(16, 4)


class Caches(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x, object()


class Numpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * 2)


VARYING = {"dynamic_shapes": {"x": {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("sequence", max=64)}}}


@pytest.mark.parametrize(
    ("make", "inputs", "arguments", "says"),
    [
        (Decides, torch.ones(3, 4), {}, r"depends on the values of a tensor.*torch\.where"),
        (FixedRows, torch.ones(3, 4), {}, "works for the example's batch only.*dynamic_batch=False"),
        (
            Blocks,
            torch.ones(2, 16, 4),
            VARYING,
            r"dynamic_shapes says that sequence may vary.*Dim\.DYNAMIC.*PyTorch says: Not all values of sequence .*; "
            r"sequence = 8\*_sequence$",
        ),
        (
            FixedLength,
            torch.ones(2, 16, 4),
            VARYING,
            r"dynamic_shapes says that sequence may vary.*PyTorch says: You marked sequence as dynamic but your code "
            r"specialized it to be a constant \(16\).*; sequence = 16$",
        ),
        (Caches, torch.ones(3, 4), {}, "gives something that is no tensor.*outputs="),
        (Numpy, torch.ones(3, 4), {}, "can't trace: numpy"),
        (Net, torch.ones(3, 4), {}, "example_inputs don't fit the arguments of forward"),
        (Net, INPUTS * 2, CHOICE, "4 are given, and forward takes 2 by name: x, scale"),
        (
            Net,
            {"x": torch.ones(3, 4), "scale": torch.ones(2, 4)},
            CHOICE,
            "all must have as many rows, got .*'scale': 2",
        ),
        (
            Net,
            INPUTS,
            {"outputs": ["absent"], "fixed": {"cached": False}},
            "the model gives no 'absent'; known: .*logits",
        ),
        (Net, {"x": 3}, {}, "no tensor is among them"),
    ],
)
def test_why_not_in_plain_words(
    make: Callable[[], nn.Module], inputs: Any, arguments: dict[str, Any], says: str, tmp_path: pathlib.Path
) -> None:
    model = make()
    with pytest.raises(penstock.ExportError, match=says):
        penstock.export(model, inputs, tmp_path / "x.pt2", **arguments)
    assert not list(tmp_path.iterdir()) and "forward" not in vars(model) and model.training


def test_dynamic_lets_pytorch_find_the_sizes(tmp_path: pathlib.Path) -> None:
    dynamic = torch.export.Dim.DYNAMIC
    assert penstock.export(
        Blocks(), torch.ones(2, 16, 4), tmp_path / "x.pt2", dynamic_shapes={"x": {0: dynamic, 1: dynamic}}
    ).nodes


def test_parameters_counts_what_is_learned(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    assert penstock.export(model, torch.ones(3, 3), tmp_path / "x.pt2").parameters == 4 * 2 + 2


def test_a_fixed_batch_works_where_one_is_needed(tmp_path: pathlib.Path) -> None:
    assert penstock.export(FixedRows(), torch.ones(3, 4), tmp_path / "x.pt2", dynamic_batch=False).nodes
    with pytest.raises(ValueError, match="modes are"):
        penstock.export(FixedRows(), torch.ones(3, 4), tmp_path / "x.pt2", modes=["testing"])


class Shares(nn.Module):
    """Divides by what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((1000 // x + 1000 % x).float())


def test_a_model_that_divides_by_its_integers_is_made(client: penstock.Client, tmp_path: pathlib.Path) -> None:
    """The planner measures with integers: not with zeros alone."""
    model = Shares().eval()
    path = tmp_path / f"{fresh_name('shares')}.pt2"
    penstock.export(model, {"x": torch.ones(2, 2, dtype=torch.int64)}, path)
    pipeline = client.create_pipeline(
        fresh_name("shares"), model=client.models.upload(path), stages=1, micro_batches=1, loss="cross_entropy"
    )
    rows = torch.arange(1, 7).reshape(3, 2)
    (output,) = pipeline.infer(rows.numpy()).values()
    torch.testing.assert_close(torch.from_numpy(output), model(rows))
    pipeline.delete()
