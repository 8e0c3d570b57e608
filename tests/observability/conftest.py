"""Fixtures: a daemon that a file's tests share, daemons of their own, and the tables of the binary."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/integration"))
sys.path.insert(0, str(ROOT / "client/python"))

import daemon_process  # noqa: E402
from daemon_process import Daemon  # noqa: E402

# Drain's first phase waits so that load balancers notice; nothing here does.
QUICK_DRAIN = ("--drain-announce=0s",)

StartDaemon = Callable[..., Daemon]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that all tests of the file share; it must live to the end and then exit with 0."""
    with Daemon(tmp_path_factory.mktemp("daemon"), *QUICK_DRAIN).running() as shared:
        yield shared


@pytest.fixture
def start_daemon(tmp_path: pathlib.Path) -> Iterator[StartDaemon]:
    """Starts daemons for one test; what still runs at its end is killed."""
    started: list[Daemon] = []

    def start(*flags: str) -> Daemon:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        one = Daemon(folder, *flags)
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.kill()


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
