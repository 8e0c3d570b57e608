"""Fixtures: a fake daemon in this process and a client of it."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import penstock  # noqa: E402
from fake_daemon import FakeDaemon  # noqa: E402


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    fake = FakeDaemon()
    yield fake
    fake.stop()


@pytest.fixture
def client(daemon: FakeDaemon) -> Iterator[penstock.Client]:
    with penstock.Client(daemon.address, caller="tester", timeout=5.0, retry_for=5.0) as connected:
        yield connected


@pytest.fixture
def pipeline(client: penstock.Client) -> penstock.Pipeline:
    return client.create_pipeline("demo", model="mlp", options={"layers": 4}, stages=2)
