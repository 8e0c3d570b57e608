"""Where a client connects to, and under which name."""

from __future__ import annotations

import asyncio
import re

import pytest

import penstock
import penstock.aio
from penstock.channels import target_of


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("localhost", "localhost:8470"),
        ("localhost:9000", "localhost:9000"),
        ("10.0.0.1", "10.0.0.1:8470"),
        ("[::1]", "[::1]:8470"),
        ("[::1]:9000", "[::1]:9000"),
        ("unix:/run/penstock.sock", "unix:/run/penstock.sock"),
        ("dns:///host:1", "dns:///host:1"),
    ],
)
def test_a_host_without_a_port_means_the_daemons_usual_one(address: str, target: str) -> None:
    assert target_of(address) == target


@pytest.mark.parametrize("address", ["", "host:", "host:port", "::1", "http://host:8470"])
def test_what_is_no_address_is_refused_with_its_value(address: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"address: must be HOST, HOST:PORT or unix:PATH, got {address!r}")):
        target_of(address)


@pytest.mark.parametrize("caller", ["Jürgen", "two words", "", "x" * 129])
def test_a_caller_that_the_daemon_would_refuse_is_refused_here(caller: str) -> None:
    with pytest.raises(ValueError, match=re.escape("caller: must be 1 to 128") + ".*" + re.escape(repr(caller))):
        penstock.Client(caller=caller)

    async def connect() -> None:
        penstock.aio.Client(caller=caller)

    with pytest.raises(ValueError, match="caller: must be 1 to 128"):
        asyncio.run(connect())
