"""The package as a stranger installs it, and as mypy sees it."""

from __future__ import annotations

import importlib.util
import inspect
import pathlib
import shutil
import subprocess
import sys
import zipfile

import grpc
import penstock
import pytest
from penstock.spec_arguments import SpecArguments

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if not importlib.util.find_spec("setuptools"):
        pytest.skip("setuptools is missing")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # pip writes beside the sources
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".mypy_cache"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source],
        check=True,
    )
    (built,) = folder.glob("penstock-*.whl")
    return built


def test_the_wheel_works_in_a_clean_environment(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Its requirements alone are there; PyTorch is not."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True)
    python = tmp_path / "clean" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", wheel], check=True)
    (packages,) = (tmp_path / "clean" / "lib").glob("python3*/site-packages")
    (packages / "requirements.pth").write_text(str(pathlib.Path(grpc.__file__).parents[1]))
    program = """
import sys
sys.modules["torch"] = None
import penstock, penstock.aio
from penstock.v1 import model_pb2, state_service_pb2
print(penstock.__file__, penstock.__version__)
client = penstock.Client("127.0.0.1:1", retry_for=0)
try:
    client.server_info()
except penstock.PenstockError as error:
    print(error.code.name)
"""
    result = subprocess.run([python, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True)
    where, unreachable = result.stdout.splitlines()
    assert where.startswith(str(packages)) and where.endswith(penstock.__version__), where
    assert unreachable == "UNAVAILABLE"


def test_the_wheel_holds_code_types_and_messages(wheel: pathlib.Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "penstock").rglob("*") if path.suffix in (".py", ".pyi")}
    assert wanted | {"penstock/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests")]


def test_mypy_is_content(tmp_path: pathlib.Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_pyright_is_content() -> None:
    """With PyTorch's own types, which the environment of the exported models has."""
    python = ROOT.parents[1] / "build/deps/torch-venv/bin/python"
    assert python.exists(), "deploy/setup.sh --tests makes it"
    result = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--project", "pyproject.toml", "--pythonpath", python], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_is_passed_on_is_what_a_specification_takes() -> None:
    assert list(SpecArguments.__annotations__) == list(inspect.signature(penstock.pipeline_spec).parameters)
