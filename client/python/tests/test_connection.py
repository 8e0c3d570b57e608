"""Where a client connects to, and under which name."""

from __future__ import annotations

import asyncio
import re

import pytest

import penstock
import penstock.aio
from penstock.channels import Channels, target_of
from penstock.v1 import handle_pb2


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


class _Channel:
    """Remembers what is called over it."""

    def __init__(self, target: str, options: object) -> None:
        self.called: list[str] = []

    def unary_unary(self, path: str, **serializers: object) -> object:
        self.called.append(path.removeprefix("/penstock.v1."))
        return object()

    unary_stream = stream_stream = unary_unary


class _Library:
    insecure_channel = _Channel


def test_calls_that_move_much_data_have_a_connection_of_their_own() -> None:
    channels = Channels(_Library, "localhost")
    much = [
        "WorkService/TrainStep",
        "HandleService/PutTensors",
        "HandleService/FetchHandle",
        "ModelService/UploadModel",
        "StateService/ReadParameters",
        "InsightService/ExportTrace",
    ]
    little = ["HandleService/WaitHandles", "StateService/SaveCheckpoint", "InsightService/WatchStatistics"]
    for method in much + little:
        channels.callable("unary_unary", method, handle_pb2.Handle)
    assert channels.data.called == much and channels.control.called == little
