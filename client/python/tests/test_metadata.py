"""What every call says of itself."""

from __future__ import annotations

import penstock
import pytest
from fake_daemon import FakeDaemon


def test_the_caller_is_named(client: penstock.Client, daemon: FakeDaemon) -> None:
    client.server_info()
    assert daemon.metadata["GetServerInfo"]["penstock-caller"] == "tester"


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_is_passed_on(daemon: FakeDaemon) -> None:
    asked = iter([TRACEPARENT, None])
    with penstock.Client(daemon.address, traceparent=lambda: next(asked)) as client:
        client.server_info()
        assert daemon.metadata["GetServerInfo"]["traceparent"] == TRACEPARENT
        client.server_info()
        assert "traceparent" not in daemon.metadata["GetServerInfo"]


@pytest.mark.parametrize(
    ("variable", "sent"),
    [(TRACEPARENT, TRACEPARENT), ("", None), ("b\u00e4d", None)],
    ids=["good", "empty", "not to be sent"],
)
def test_a_trace_is_inherited(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, variable: str, sent: str | None
) -> None:
    monkeypatch.setenv("TRACEPARENT", variable)
    with penstock.Client(daemon.address) as client:
        client.server_info()
    assert daemon.metadata["GetServerInfo"].get("traceparent") == sent
