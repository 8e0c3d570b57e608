"""Packages of the build under test, for those who try what is made of them."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from conftest import ROOT

PACK = ROOT / "deploy" / "package" / "pack.py"
TORCH = next((ROOT / "build/deps/venv/lib").glob("python3*/site-packages"), pathlib.Path())


def pack(out: pathlib.Path, *words: str, umask: int = 0o022, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["/usr/bin/python3", "-B", str(PACK), "--build", os.environ["PENSTOCK_BUILD"], "--out", str(out), *words]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **more}
    return subprocess.run(command, env=environment, umask=umask, capture_output=True, text=True)


def packed(scratch: pathlib.Path) -> pathlib.Path:
    """The folder with the packages: PENSTOCK_PACKAGES, or what is packed in `scratch` with gRPC and the like as shared
    libraries."""
    for tool in ("patchelf", "strip", "readelf"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool} here: nothing can be packed")
    if given := os.environ.get("PENSTOCK_PACKAGES"):
        return pathlib.Path(given)
    done = pack(scratch, "--shared")
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return scratch
