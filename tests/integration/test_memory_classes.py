"""Each class of the memory ledger, filled: what finds no room is refused by the name of its class, and nothing is lost."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import penstock
import pytest
from google.protobuf import duration_pb2
from penstock.v1 import handle_pb2

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon, eventually
from model_files import FOLDER
from raw_calls import Raw, given, infer
from small_models import create_mlp, mlp_batch

MIB = 1 << 20
# What goes with the work and its pipeline.
CLASSES = ("messages", "inputs", "queues", "handles", "snapshots", "traces", "uploads", "models", "pipelines")


def reserved(daemon: Daemon, kind: str) -> float:
    return daemon.metrics().sum("penstock_memory_reserved_bytes", **{"class": kind})


@contextlib.contextmanager
def connected(daemon: Daemon, caller: str = "filler") -> Iterator[penstock.Client]:
    with penstock.Client(daemon.address, caller, retry_for=0, timeout=60) as client:
        yield client


def wide(client: penstock.Client, name: str, layers: int = 2, rows: int = 4) -> penstock.Pipeline:
    """Weights of 4 MiB a layer, and gradients as much."""
    return create_mlp(
        client,
        name,
        options={"layers": layers, "width": 1024},
        micro_batches=1,
        optimizer="sgd",
        optimizer_options={"learning_rate": 0.1},
    )


# Each of these fills a daemon that was started with its flags, until something is refused.


def large_messages(daemon: Daemon, wanted: str) -> None:
    """A message is held as it came and as it is parsed, then its tensors: those of fewer bytes fail later."""
    with connected(daemon) as client:
        wide(client, "filled", layers=2)
        raw = Raw(daemon.address, "filler")
        errors: dict[str, penstock.PenstockError] = {}
        for rows in range(900, 0, -20):
            try:
                raw.call("Infer", infer("pipelines/filled", given(array=np.zeros((rows, 1024), np.float32))))
            except penstock.PenstockError as error:
                errors.setdefault(error.values["memory_class"], error)
        raw.close()
        raise errors[wanted]


def many_calls(daemon: Daemon) -> None:
    with connected(daemon) as client:
        layer = penstock.Layer("delay", options={"forward_ms": 500.0, "features": 4})
        pipeline = client.create_pipeline("slow", model=[layer, layer], balance=[1, 1], schedule="1f1b", micro_batches=1)
        for _ in range(1000):
            pipeline.submit_infer(np.zeros((1, 4), np.float32))


def many_results(daemon: Daemon) -> None:
    with connected(daemon) as client:
        pipeline = create_mlp(client, "filled")
        for _ in range(100):
            pipeline.submit_infer(np.zeros((1000, 16), np.float32)).wait(60)


def a_large_upload(daemon: Daemon) -> None:
    with connected(daemon) as client:
        create_mlp(client, "filled").put({"x": np.zeros(MIB, np.float32)})


def a_read(daemon: Daemon) -> None:
    with connected(daemon) as client:
        pipeline = wide(client, "filled", layers=4)
        pipeline.read_parameters()


def a_save(daemon: Daemon) -> None:
    with connected(daemon) as client:
        wide(client, "filled", layers=4).save_checkpoint("none")


def rings(daemon: Daemon) -> None:
    with connected(daemon) as client:
        create_mlp(client, "none")


def a_capture(daemon: Daemon) -> None:
    with connected(daemon) as client:
        create_mlp(client, "filled").trace()


def a_model(daemon: Daemon) -> None:
    with connected(daemon) as client:
        wide(client, "filled", layers=2)
        client.create_pipeline("none", model="language.pt2", stages=2, micro_batches=2, loss="cross_entropy")


def a_pipeline(daemon: Daemon) -> None:
    with connected(daemon) as client:
        wide(client, "filled", layers=2)
        wide(client, "none", layers=8)


# Class, flags, what fills it, and the reason.
TABLE: dict[str, tuple[str, tuple[str, ...], Callable[[Daemon], None], str]] = {
    "messages": ("messages", ("32MiB", "1MiB"), lambda daemon: large_messages(daemon, "messages"), "HOST_MEMORY"),
    "inputs": ("inputs", ("32MiB", "1MiB"), lambda daemon: large_messages(daemon, "inputs"), "HOST_MEMORY"),
    "queues": ("queues", ("1MiB", "64KiB"), many_calls, "CALLER_QUOTA"),
    "handles": ("handles", ("64MiB", "1MiB"), many_results, "HANDLE_BUDGET"),
    "snapshots of reads": ("snapshots", ("45MiB", "1MiB"), a_read, "HOST_MEMORY"),
    "snapshots of saves": ("snapshots", ("45MiB", "1MiB"), a_save, "HOST_MEMORY"),
    "traces": ("traces", ("64MiB", "1MiB", "--trace-ring-events=1048576"), rings, "HOST_MEMORY"),
    "captures of traces": ("traces", ("48MiB", "1MiB", "--trace-ring-events=65536"), a_capture, "HOST_MEMORY"),
    "uploads": ("uploads", ("64MiB", "1MiB"), a_large_upload, "HANDLE_BUDGET"),
    # Room for the pipeline and 145,000 bytes; the model has 162,737.
    "models": ("models", ("28100935", "64KiB"), a_model, "HOST_MEMORY"),
    "pipelines": ("pipelines", ("64MiB", "1MiB"), a_pipeline, "HOST_MEMORY"),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_finds_no_room_is_refused_by_name(start_daemon: StartDaemon, tmp_path: pathlib.Path, name: str) -> None:
    kind, (limit, handles, *more), fill, reason = TABLE[name]
    root = tmp_path / "models"
    root.mkdir()
    shutil.copy(FOLDER / "language.pt2", root)
    ring = () if any("ring" in flag for flag in more) else ("--trace-ring-events=0",)
    daemon = start_daemon(
        *QUICK_DRAIN,
        f"--memory-limit={limit}",
        f"--handle-bytes={handles}",
        f"--model-root={root}",
        "--max-calls-per-caller=10000",
        *ring,
        *more,
    )
    with pytest.raises(penstock.PenstockError) as raised:
        fill(daemon)
    error = raised.value
    assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED and error.reason == reason, error
    assert error.values["memory_class"] == kind, error
    assert f"no memory for {kind}" in error.message and "are free" in error.message, error.message
    assert int(error.values["free"]) < int(error.values["value"])
    assert int(error.values["used"]) + int(error.values["free"]) == int(error.values["limit_value"])
    assert error.retry_delay, "told when to ask again"
    assert daemon.metrics().sum("penstock_memory_refused_total", **{"class": kind}) > 0

    # What was there works, and who made room finds it.
    with connected(daemon) as client:
        names = [pipeline.name for pipeline in client.list_pipelines()]
        assert "none" not in names
        for pipeline in client.list_pipelines():
            if pipeline.name == "filled":
                rows, target = mlp_batch(0) if name not in WIDE else (np.ones((4, 1024), np.float32),) * 2
                before = pipeline.statistics().step
                for handle in pipeline.list_handles():
                    handle.release()
                assert pipeline.train_step(rows, target).step == before + 1
            pipeline.delete(force=True, purge=True)
    eventually(lambda: all(reserved(daemon, one) == 0 for one in CLASSES))
    if names:
        assert reserved(daemon, "answers") > 0, "who asks again gets the answer, and who is late is told why"
    daemon.stop()


WIDE = {"messages", "inputs", "snapshots of reads", "snapshots of saves", "models", "pipelines"}


def test_a_caller_is_told_of_its_own_holdings_only(start_daemon: StartDaemon) -> None:
    """Where nobody authenticates, names are what clients choose, and all are told."""
    daemon = start_daemon(*QUICK_DRAIN, "--memory-limit=64MiB", "--trace-ring-events=0")
    with connected(daemon, "ann") as ann, connected(daemon, "bob") as bob:
        wide(ann, "hers", layers=2)
        with pytest.raises(penstock.PenstockError) as raised:
            wide(bob, "his", layers=8)
        assert "pipelines (pipeline hers, caller ann)" in raised.value.message


def test_a_fetch_that_waits_holds_no_room(start_daemon: StartDaemon) -> None:
    """Forty chunks would be more than all that messages may take; the last fetch alone has something to send."""
    daemon = start_daemon(*QUICK_DRAIN, "--memory-limit=32MiB", "--trace-ring-events=0")
    with connected(daemon) as client, grpc.insecure_channel(daemon.address) as channel:
        layer = penstock.Layer("delay", options={"forward_ms": 1000.0, "features": 4})
        slow = client.create_pipeline("slow", model=[layer, layer], balance=[1, 1], schedule="1f1b", micro_batches=1)
        rows = np.ones((64, 4), np.float32)
        late = slow.submit_infer(rows, micro_batches=64)
        ready = slow.put({"x": rows})
        fetch = channel.unary_stream(
            "/penstock.v1.HandleService/FetchHandle",
            request_serializer=handle_pb2.FetchHandleRequest.SerializeToString,
            response_deserializer=bytes,
        )

        def request(handle: penstock.Handle) -> handle_pb2.FetchHandleRequest:
            wait = duration_pb2.Duration(seconds=60)
            return handle_pb2.FetchHandleRequest(name=handle.name, chunk_size=MIB, wait_for=wait)

        caller = (("penstock-caller", "filler"),)
        waiting = [fetch(request(late), metadata=caller) for _ in range(40)]
        begun = {"grpc_service": "penstock.v1.HandleService", "grpc_method": "FetchHandle"}
        eventually(lambda: daemon.metrics().sum("grpc_server_started_total", **begun) == len(waiting))
        assert list(fetch(request(ready), metadata=caller)), "it has been sent"
        assert not any(call.done() for call in waiting)
        for call in waiting:
            call.cancel()
        late.cancel()
        eventually(lambda: reserved(daemon, "messages") == 0)
    daemon.stop()
