"""Who calls which daemon: what a client is made of, and calls that come after its end or are interrupted."""

from __future__ import annotations

import asyncio
import inspect
import math
import signal
import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from fake_daemon import FakeDaemon

ROWS = np.ones((2, 4), np.float32)
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "unary": lambda client, pipeline: client.server_info(),
    "work": lambda client, pipeline: pipeline.infer(ROWS),
    "upload": lambda client, pipeline: pipeline.put({"a": ROWS}),
    "stream": lambda client, pipeline: pipeline.read_parameters(),
}


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_times_that_are_none_are_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="^timeout: must be more than 0 seconds, got"):
        penstock.Client(timeout=value)
    if value != 0.0:
        with pytest.raises(ValueError, match="^retry_for: must be at least 0 seconds, got"):
            penstock.Client(retry_for=value)


@pytest.mark.parametrize("endless", [math.inf, 1e300])
def test_a_time_without_an_end_is_none(daemon: FakeDaemon, endless: float) -> None:
    """gRPC takes such a time for one that is over."""
    with penstock.Client(daemon.address, timeout=endless) as client:
        client.server_info()
        assert client.create_pipeline("demo", timeout=endless).infer(ROWS, timeout=endless)
        assert client.plan(penstock.pipeline_spec(), timeout=endless).complete
    assert all(left > 1e9 for method in daemon.time_left.values() for left in method), daemon.time_left


def test_a_client_of_asyncio_belongs_to_a_loop() -> None:
    with pytest.raises(RuntimeError, match="made inside the event loop that uses it"):
        penstock.aio.Client()


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_client_says_so(daemon: FakeDaemon, name: str) -> None:
    with penstock.Client(daemon.address) as client:
        pipeline = client.create_pipeline("demo")
    with pytest.raises(penstock.PenstockError, match="the client was closed") as raised:
        CALLS[name](client, pipeline)
    assert raised.value.code == grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("name", CALLS)
def test_a_closed_client_of_asyncio_says_so(daemon: FakeDaemon, name: str) -> None:
    async def main() -> None:
        async with penstock.aio.Client(daemon.address) as client:
            pipeline = await client.create_pipeline("demo")
        made = CALLS[name](client, pipeline)
        assert inspect.isawaitable(made)
        await made

    with pytest.raises(penstock.PenstockError, match="the client was closed"):
        asyncio.run(main())


def test_handles_of_several_clients_are_not_asked_for_together(client: penstock.Client, daemon: FakeDaemon) -> None:
    with penstock.Client(daemon.address) as other:
        handles = [one.create_pipeline("demo").submit_infer(ROWS) for one in (client, other)]
        with pytest.raises(ValueError, match="^handles: must all be of one client"):
            penstock.gather(*handles)
    assert not daemon.requests["WaitHandles"]


def test_an_interrupt_ends_the_call_that_it_interrupts(
    pipeline: penstock.Pipeline, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the daemon works on for nobody, as long as a traceback holds the call."""
    ended = threading.Event()
    under_way = threading.Event()

    def infer(request: Any, context: grpc.ServicerContext) -> Any:
        context.add_callback(ended.set)
        under_way.set()
        ended.wait(120)

    monkeypatch.setattr(daemon, "Infer", infer, raising=False)
    main = threading.get_ident()

    def interrupt() -> None:
        under_way.wait(60)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs behind
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as held:
        pipeline.infer(ROWS)
    thread.join()
    signal.signal(signal.SIGINT, before)
    assert ended.wait(60), f"the call goes on after {held}"
