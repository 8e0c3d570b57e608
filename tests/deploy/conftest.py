"""Where tests of the deployment find the programs, the tests of the daemon and the Python client."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "tests" / "integration")]

PENSTOCKD = os.environ.get("PENSTOCKD", "")
PENSTOCK = os.environ.get("PENSTOCK", "")


def pytest_configure(config: pytest.Config) -> None:
    for name, program in (("PENSTOCKD", PENSTOCKD), ("PENSTOCK", PENSTOCK)):
        if not os.access(program, os.X_OK):
            pytest.exit(f"{name} must name a program, got {program!r}", returncode=2)


@pytest.fixture(scope="session")
def flags() -> dict[str, dict[str, Any]]:
    """The daemon's own table of flags, by name."""
    table = subprocess.run([PENSTOCKD, "--dump=flags"], capture_output=True, text=True, check=True).stdout
    return {flag["name"]: flag for flag in json.loads(table)}
