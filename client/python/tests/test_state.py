"""Weights and optimizer state to files and back; PyTorch is not needed."""

from __future__ import annotations

import asyncio
import itertools
import json
import pathlib
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon

MODEL = "mine.pt2"


@pytest.fixture
def own(client: penstock.Client, daemon: FakeDaemon) -> penstock.Pipeline:
    daemon.tied = {"head.weight": "weight"}
    return client.create_pipeline("own", model=MODEL)


def test_tied_weights_have_all_their_names(own: penstock.Pipeline) -> None:
    state = own.state_arrays()
    assert list(state) == ["weight", "empty", "head.weight"] and state.step == 7
    assert np.array_equal(state["head.weight"], state["weight"])


def test_weights_that_arrive_damaged_are_refused(own: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.damage_chunks = True
    with pytest.raises(penstock.PenstockError, match="DATA_LOSS / CHUNK_CHECKSUM"):
        own.state_arrays()


def test_gradients_have_all_names_of_their_parameters(own: penstock.Pipeline, daemon: FakeDaemon) -> None:
    gradients = own.gradients()
    assert list(gradients) == ["weight", "empty", "head.weight"] and gradients.step == 7
    assert np.array_equal(gradients["head.weight"], -daemon.state["weight"])
    assert list(own.gradients(["empty"])) == ["empty"]
    assert [request.gradients for request in daemon.requests["ReadParameters"]] == [True, True]
    own.state_arrays()
    assert not daemon.requests["ReadParameters"][2].gradients


def test_weights_go_back(own: penstock.Pipeline, daemon: FakeDaemon) -> None:
    state = {name: array + 1 for name, array in own.state_arrays().items()}
    own.load_state_dict(state, step=3)
    assert np.array_equal(daemon.state["weight"], state["weight"]) and daemon.step == 3
    assert daemon.wait_until_released(), "what was uploaded is released"
    own.write_parameters({"weight": state["weight"]}, force=True)
    assert [request.force for request in daemon.requests["WriteParameters"]] == [False, True]


def test_names_that_do_not_fit(own: penstock.Pipeline, daemon: FakeDaemon) -> None:
    state = dict(own.state_arrays())
    with pytest.raises(ValueError, match=r"missing \['empty'\], unknown \['more'\]"):
        own.load_state_dict({"weight": state["weight"], "more": state["weight"]})
    with pytest.raises(ValueError, match="one parameter, and are given different values"):
        own.load_state_dict(state | {"head.weight": state["weight"] + 1})
    assert not daemon.requests["WriteParameters"]
    own.load_state_dict({"weight": state["weight"]}, strict=False)
    with pytest.raises(penstock.PenstockError, match="PARAMETER_NOT_FOUND"):
        own.load_state_dict({"more": state["weight"]}, strict=False)


def test_many_tensors_are_several_uploads(own: penstock.Pipeline, daemon: FakeDaemon) -> None:
    daemon.state = {f"w{i}": np.full(2, i, np.float32) for i in range(150)}
    daemon.tied = {}
    own.load_state_dict({name: array + 1 for name, array in own.state_arrays().items()})
    assert len(daemon.requests["WriteParameters"][0].handles) == 3
    assert all(daemon.state[f"w{i}"][0] == i + 1 for i in range(150))


def test_optimizer_state_has_pytorchs_names(own: penstock.Pipeline, daemon: FakeDaemon) -> None:
    own.load_optimizer_state({"weight": {"exp_avg": np.zeros((2, 3), np.float32)}})
    assert not daemon.optimizer["optimizer/weight/first_moment"].any()
    with pytest.raises(ValueError, match="'nonsense'"):
        own.load_optimizer_state({"weight": {"nonsense": np.zeros(1)}})


class Module:
    """What of a PyTorch module the client asks for."""

    def __init__(self, weight: np.ndarray) -> None:
        self._parameters = {"weight": _Parameter(weight), "frozen": _Parameter(weight)}

    def state_dict(self) -> dict[str, np.ndarray]:
        return {"weight": self._parameters["weight"].value}

    def named_parameters(self) -> Iterator[tuple[str, _Parameter]]:
        yield from self._parameters.items()


class _Parameter:
    def __init__(self, value: np.ndarray) -> None:
        self.value = value


class Optimizer:
    def __init__(self, module: Module, moment: np.ndarray) -> None:
        first, _ = module.named_parameters()
        self.state = {first[1]: {"exp_avg": moment}}


def test_a_module_goes_in_with_the_state_of_its_optimizer(own: penstock.Pipeline, daemon: FakeDaemon) -> None:
    module = Module(np.full((2, 3), 4, np.float32))
    own.load_from(module)  # type: ignore[arg-type]
    assert (daemon.state["weight"] == 4).all()
    assert (daemon.optimizer["optimizer/weight/first_moment"] == 1).all()
    own.load_from(module, Optimizer(module, np.full((2, 3), 5, np.float32)))  # type: ignore[arg-type]
    assert (daemon.optimizer["optimizer/weight/first_moment"] == 5).all()


def test_files_of_safetensors(own: penstock.Pipeline, daemon: FakeDaemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "weights.safetensors"
    assert own.save_safetensors(path, include_optimizer_state=True) == 7
    saved = penstock.read_safetensors(path)
    assert set(saved) == {"weight", "empty", "head.weight", "optimizer/weight/first_moment"}
    kept = {name: array.copy() for name, array in daemon.state.items()}
    daemon.state["weight"] = kept["weight"] * 0
    daemon.optimizer["optimizer/weight/first_moment"] *= 0
    own.load_safetensors(path)
    assert np.array_equal(daemon.state["weight"], kept["weight"])
    assert daemon.optimizer["optimizer/weight/first_moment"].all()
    assert [entry.name for entry in tmp_path.iterdir()] == ["weights.safetensors"]


def test_every_type_survives_a_file(tmp_path: pathlib.Path) -> None:
    types = ["?", "u1", "i1", "<f2", "<i2", "<u2", "<f4", "<i4", "<u4", "<f8", "<i8", "<u8"]
    arrays = {f"of {code}": np.arange(3).astype(code) for code in types} | {"scalar": np.float32(2).reshape(())}
    penstock.write_safetensors(tmp_path / "all", arrays)
    read = penstock.read_safetensors(tmp_path / "all")
    assert all(np.array_equal(read[name], array) and read[name].dtype == array.dtype for name, array in arrays.items())
    sizes = [array.dtype.itemsize for array in read.values()]
    assert sizes == sorted(sizes, reverse=True), "each begins where its type may begin"
    with pytest.raises(TypeError, match="complex"):
        penstock.write_safetensors(tmp_path / "no", {"a": np.zeros(1, complex)})
    assert not (tmp_path / "no").exists()


def test_a_file_that_has_a_name_twice_is_refused(tmp_path: pathlib.Path) -> None:
    entry = '"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    header = f"{{{entry}, {entry}}}".encode()
    path = tmp_path / "twice"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(ValueError, match="twice: no safetensors file: it has the name x twice"):
        penstock.read_safetensors(path)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        penstock.write_safetensors(tmp_path / "taken", {"a": np.zeros(1)})
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{,",
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}      ',
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F99","shape":[0],"data_offsets":[0,0]}}      ',
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,8]}}      ' + b"12345678",
        struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}      ' + b"12345678",
    ],
)
def test_what_is_no_safetensors_file(content: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="bad: no safetensors file"):
        penstock.read_safetensors(path)


def test_the_client_needs_no_pytorch() -> None:
    program = "import sys; sys.modules['torch'] = None; import penstock; penstock.export"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=pathlib.Path(__file__).parents[1])


def test_without_pytorch_export_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        penstock.export(None, None, tmp_path / "x.pt2")  # type: ignore[arg-type]


def test_weights_that_end_too_early_are_refused(
    own: penstock.Pipeline, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = daemon.ReadParameters
    monkeypatch.setattr(daemon, "ReadParameters", lambda *call: itertools.islice(whole(*call), 1), raising=False)
    with pytest.raises(penstock.PenstockError, match="CHUNK_SIZE.*24 bytes too early"):
        own.read_parameters()


@pytest.mark.parametrize("shape", [[10**12], [10**30], [0, 10**30]], ids=["large", "too large", "empty"])
def test_a_header_of_huge_arrays_asks_for_no_memory(shape: list[int], tmp_path: pathlib.Path) -> None:
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0 if 0 in shape else 4]}
    text = json.dumps({"a": entry}).encode()
    (tmp_path / "bad").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(ValueError, match="no safetensors file"):
        penstock.read_safetensors(tmp_path / "bad")


def test_files_are_written_and_read_beside_the_event_loop(
    daemon: FakeDaemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def noted(module: Any, name: str) -> None:
        function = getattr(module, name)

        def note(*arguments: Any) -> Any:
            threads[name] = threading.get_ident()
            return function(*arguments)

        monkeypatch.setattr(module, name, note)

    noted(penstock.safetensors, "write_safetensors")
    noted(penstock.safetensors, "arrays_of")
    noted(penstock.aio.resources, "write_trace")

    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as client:
            pipeline = await client.create_pipeline("demo")
            await pipeline.save_safetensors(tmp_path / "w")
            await pipeline.load_safetensors(tmp_path / "w")
            await pipeline.trace(tmp_path / "t.json.gz")

    asyncio.run(main())
    assert len(threads) == 3 and threading.get_ident() not in threads.values()
