"""What `cmake --install` gives, used as the pages say, in a folder outside of the source tree: the C++ client, and a layer in
C++ that trains as PyTorch's plain loop does."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import penstock
import pytest
import torch
from torch import nn
from torch.nn import functional

import daemon_process
from conftest import QUICK_DRAIN
from daemon_process import Daemon
from own_fixtures import reference_has_one_thread  # noqa: F401
from small_models import fresh_name, state_of

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = os.environ["PENSTOCK_BUILD"]


def shell(*command: str | pathlib.Path, **more: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **more)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
    output: str = done.stdout
    return output


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def project(page: str, source: str, folder: pathlib.Path) -> pathlib.Path:
    """Writes the page's project into a folder."""
    folder.mkdir()
    (lists,) = blocks(page, "cmake")
    (code,) = blocks(page, "cpp")
    (folder / "CMakeLists.txt").write_text(lists)
    (folder / source).write_text(code)
    return folder


def header_project(prefix: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """A source that includes every installed header of ours, against both components."""
    headers = prefix / "include" / "penstock"
    found = [path.relative_to(headers) for room in ("client", "engine") for path in (headers / room).rglob("*.h")]
    assert len(found) > 20
    folder.mkdir()
    (folder / "headers.cc").write_text("".join(f'#include "{path}"\n' for path in sorted(found)))
    (folder / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(headers LANGUAGES CXX)\n"
        "find_package(Penstock REQUIRED COMPONENTS client layers)\nadd_library(headers OBJECT headers.cc)\n"
        "target_link_libraries(headers PRIVATE penstock::client penstock::layers)\n"
    )
    return folder


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder: pathlib.Path = tmp_path_factory.mktemp("prefix")
    shell("cmake", "--install", BUILD, "--prefix", folder)
    return folder


@pytest.fixture(scope="module")
def consumers(prefix: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """All projects, built at the same time."""
    top: pathlib.Path = tmp_path_factory.mktemp("consumers")
    building = []
    for folder in (
        project("install.md", "train.cc", top / "client"),
        project("own_layers.md", "gated_block.cc", top / "layers"),
        header_project(prefix, top / "headers"),
    ):
        shell("cmake", "-S", ".", "-B", "build", "-D", f"CMAKE_PREFIX_PATH={prefix}", cwd=folder)
        command = ["cmake", "--build", "build"]
        building.append(
            subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    for one in building:
        output = one.communicate(timeout=600)[0]
        assert one.returncode == 0, output
    return top


@pytest.fixture(scope="module")
def daemon(prefix: pathlib.Path, consumers: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The installed daemon with the library; it must live to the end and then exit with 0."""
    library = consumers / "layers" / "build" / "libgated_block.so"
    in_tree, daemon_process.BINARY = daemon_process.BINARY, str(prefix / "bin" / "penstockd")
    try:
        shared = Daemon(tmp_path_factory.mktemp("daemon"), *QUICK_DRAIN, f"--layer-library={library}")
    finally:
        daemon_process.BINARY = in_tree
    with shared.running():
        yield shared


def falls(output: str) -> None:
    """Ten lines of step and loss."""
    steps = [line.split() for line in output.splitlines()]
    assert [int(step) for step, _ in steps] == list(range(1, 11))
    assert float(steps[-1][1]) < float(steps[0][1])


def test_the_client_of_the_page_trains(daemon: Daemon, consumers: pathlib.Path) -> None:
    falls(shell(consumers / "client" / "build" / "train", daemon.address))


def test_the_layer_of_the_page_trains(daemon: Daemon, prefix: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (program,) = blocks("own_layers.md", "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
    falls(shell(sys.executable, "-c", program.replace("127.0.0.1:8470", daemon.address), cwd=tmp_path, env=environment))
    assert "gated_block" in shell(prefix / "bin" / "penstock", "--server", daemon.address, "status", "-o", "wide")


class GatedBlock(nn.Module):
    """The page's layer, in PyTorch."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Parameter(weights[name]) for name in ("gate", "up", "down"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = functional.silu(functional.linear(x, self.gate)) * functional.linear(x, self.up)
        return x + functional.linear(hidden, self.down)


def gated(client: penstock.Client, checkpoint: str, balance: list[int], dropout: float = 0.0) -> penstock.Pipeline:
    options = {"width": 16, "inner": 32, "dropout": dropout}
    return client.create_pipeline(
        fresh_name("gated"),
        model=[penstock.Layer("gated_block", name, options) for name in ("first", "second", "third")],
        balance=balance,
        schedule="1f1b",
        checkpoint=checkpoint,
        micro_batches=4,
        optimizer="sgd",
        optimizer_options={"learning_rate": 0.1, "momentum": 0.9},
        loss="mean_squared_error",
        seed=3,
    )


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(16, 16), torch.randn(16, 16)) for _ in range(count)]


@pytest.mark.parametrize(("checkpoint", "balance"), [("always", [1, 1, 1]), ("never", [2, 1])])
def test_the_layer_equals_the_plain_loop(client: penstock.Client, checkpoint: str, balance: list[int]) -> None:
    """Losses, parameters and outputs of PyTorch with one thread, bit for bit."""
    pipeline = gated(client, checkpoint, balance)
    start = {name: torch.from_numpy(array.copy()) for name, array in pipeline.read_parameters().items()}
    model = nn.Sequential()
    for layer in ("first", "second", "third"):
        model.add_module(layer, GatedBlock({name: start[f"{layer}.{name}"] for name in ("gate", "up", "down")}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    for rows, target in batches(5):
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, wanted in zip(rows.chunk(4), target.chunk(4)):
            loss = functional.mse_loss(model(part), wanted) * 0.25
            loss.backward()
            total += loss.detach()
        optimizer.step()
        assert pipeline.train_step(rows.numpy(), target.numpy()).loss == pytest.approx(total.item(), rel=1e-6)
    trained = pipeline.read_parameters()
    expected = dict(model.named_parameters())
    assert trained.keys() == expected.keys()
    for name, parameter in expected.items():
        assert torch.equal(torch.from_numpy(trained[name]), parameter.detach()), name
    rows, _ = batches(1)[0]
    with torch.no_grad():
        assert torch.equal(torch.from_numpy(pipeline.infer(rows.numpy(), micro_batches=1)["output"]), model(rows))


def test_neither_cut_nor_recomputation_changes_a_bit_with_dropout(client: penstock.Client) -> None:
    states = []
    for checkpoint, balance in (("never", [3]), ("always", [1, 1, 1]), ("except_last", [1, 2])):
        pipeline = gated(client, checkpoint, balance, dropout=0.3)
        for rows, target in batches(3):
            pipeline.train_step(rows.numpy(), target.numpy())
        states.append(state_of(pipeline))
    assert states[0] == states[1] == states[2]


def test_a_library_of_another_build_is_refused_by_the_installed_daemon(
    prefix: pathlib.Path, consumers: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The consumer's build, for a LibTorch that the daemon hasn't."""
    good = (consumers / "layers" / "build" / "libgated_block.so").read_bytes()
    other = tmp_path / "other.so"
    other.write_bytes(good.replace(b" and LibTorch 2.", b" and LibTorch 1."))
    done = subprocess.run(
        [prefix / "bin" / "penstockd", "--check-config", f"--layer-library={other}"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "LibTorch 1.11.0, but this daemon is of Penstock" in done.stderr and str(other) in done.stderr
