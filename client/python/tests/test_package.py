"""The package as a stranger installs it, and as mypy sees it."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.skipif(not importlib.util.find_spec("setuptools"), reason="setuptools is missing")
def test_the_wheel_holds_code_types_and_messages(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"  # pip writes beside the sources
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".mypy_cache"))
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source],
        check=True,
    )
    (wheel,) = tmp_path.glob("penstock-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "penstock").rglob("*") if path.suffix in (".py", ".pyi")}
    assert wanted | {"penstock/py.typed"} <= names
    assert not [name for name in names if name.startswith("tests")]


@pytest.mark.skipif(not importlib.util.find_spec("mypy"), reason="mypy is missing")
def test_mypy_is_content(tmp_path: pathlib.Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
