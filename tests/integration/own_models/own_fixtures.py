"""A daemon that takes models, and the real models, each exported once per file of tests."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import penstock
import pytest

from conftest import QUICK_DRAIN
from daemon_process import Daemon
from torch_models import Programs, one_thread


@pytest.fixture(scope="session", autouse=True)
def reference_has_one_thread() -> None:
    one_thread()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """It must live to the end and then exit with 0."""
    root: pathlib.Path = tmp_path_factory.mktemp("models")
    with Daemon(tmp_path_factory.mktemp("daemon"), *QUICK_DRAIN, f"--model-root={root}", "--allow-model-upload").running() as shared:
        yield shared


@pytest.fixture(scope="module")
def programs(daemon: Daemon) -> Iterator[Programs]:
    with penstock.Client(daemon.address) as client, Programs(client) as brought:
        yield brought
