"""The daemon's fixtures of tests/integration, and the tables of the binary."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))
sys.path.insert(0, str(ROOT / "client/python"))

import daemon_process  # noqa: E402


@pytest.fixture(scope="session")
def metrics_table() -> dict[str, dict[str, Any]]:
    """What the binary exports: name to row, the parts of histograms under their own names too."""
    text = subprocess.run([daemon_process.BINARY, "--dump=metrics"], capture_output=True, text=True, check=True).stdout
    table: dict[str, dict[str, Any]] = {}
    for row in json.loads(text):
        names = [row["name"]]
        if row["type"] == "histogram":
            names = [row["name"] + suffix for suffix in ("_bucket", "_sum", "_count")]
        for name in names:
            table[name] = row
    return table
