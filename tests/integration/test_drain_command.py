"""A drain that a caller asks for: `penstock drain`, Client.drain(), and what an upgrade needs of it."""

from __future__ import annotations

import json
import os
import subprocess
import threading

import grpc
import penstock
import pytest
from penstock.v1 import admin_pb2

from conftest import QUICK_DRAIN, WITHOUT_JOURNAL, StartDaemon
from daemon_process import Daemon, eventually
from identity_files import Identities, TlsDaemon
from small_models import create_mlp, differing, mlp_batch, state_of

PENSTOCK = os.environ.get("PENSTOCK", "penstock")
NAME = "trained"
SLOW = ("--drain-announce=300s",)


def create_slow(client: penstock.Client) -> penstock.Pipeline:
    """A step takes 60 ms and more."""
    waits = {"features": 16, "forward_ms": 20.0, "input_ms": 20.0, "weight_ms": 20.0}
    return client.create_pipeline(
        NAME,
        model=[penstock.Layer("delay", f"layer{i}", waits) for i in range(2)],
        balance=[1, 1],
        micro_batches=1,
        optimizer="sgd",
        loss="mean_squared_error",
    )


def drain(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [PENSTOCK, "--server", daemon.address, "drain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def journal_calls(daemon: Daemon) -> int:
    """Calls that a start would make again, from the files."""
    command = [PENSTOCK, "journal", "show", NAME, "--state-dir", str(daemon.state_dir), "--limit", "1000", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    calls = json.loads(done.stdout)["calls"]
    assert calls, "the outcomes are still known"
    return sum(not call.get("cut", False) for call in calls)


@pytest.mark.parametrize("arguments", [(), ("--for-upgrade",)])
def test_under_load_no_acknowledged_call_is_lost(start_daemon: StartDaemon, arguments: tuple[str, ...]) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        create_mlp(client, NAME, dropout=0.1)
    steps: list[int] = []
    failures: list[BaseException] = []
    inferred = threading.Event()

    def ended(error: penstock.PenstockError) -> bool:
        return error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    def train() -> None:
        try:
            with penstock.Client(daemon.address, "trainer", retry_for=0) as client:
                pipeline = client.pipeline(NAME)
                while True:
                    try:
                        handle = pipeline.submit_train_step(*mlp_batch(len(steps)))
                    except penstock.PenstockError as error:
                        assert ended(error), error
                        return
                    steps.append(handle.result(60).step)
        except BaseException as error:
            failures.append(error)

    def infer() -> None:
        try:
            with penstock.Client(daemon.address, "reader", retry_for=0) as client:
                pipeline = client.pipeline(NAME)
                while True:
                    try:
                        handle = pipeline.submit_infer(mlp_batch(0)[0])
                    except penstock.PenstockError as error:
                        assert ended(error), error
                        return
                    handle.result(60)
                    inferred.set()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train), threading.Thread(target=infer)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(steps) > 4 and inferred.is_set())
    done = drain(daemon, *arguments)
    assert done.returncode == 0, done.stderr
    assert "the daemon has ended" in done.stderr
    assert daemon.wait() == 0, daemon.log[-4000:]
    for thread in threads:
        thread.join(60)
    assert not failures, failures
    assert steps == list(range(1, len(steps) + 1))
    left = journal_calls(daemon)
    if arguments:
        assert left == 0 and "the journal is empty" in daemon.log
    else:
        assert left == len(steps)
    daemon.start()
    assert "calls of the journal made again" not in daemon.log
    with penstock.Client(daemon.address) as client:
        undisturbed = create_mlp(client, "undisturbed", dropout=0.1)
        for step in range(len(steps) + 1):
            undisturbed.train_step(*mlp_batch(step))
        pipeline = client.pipeline(NAME)
        assert pipeline.train_step(*mlp_batch(len(steps))).step == len(steps) + 1
        assert not differing(state_of(pipeline), state_of(undisturbed))
    daemon.stop()


def test_an_aborted_drain_serves_on(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*SLOW)
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME)
        first = client.drain()
        assert first.phase == admin_pb2.DRAIN_PHASE_ANNOUNCE and not first.final
        again = client.drain()
        assert (again.phase, again.deadline) == (first.phase, first.deadline)
        assert client.server_info().state == "draining"
        assert client.server_info().drain.deadline == first.deadline
        done = drain(daemon, "--abort")
        assert done.returncode == 0 and "the daemon serves" in done.stderr, done.stderr
        assert client.server_info().state == "ready" and not client.server_info().HasField("drain")
        assert pipeline.train_step(*mlp_batch(0)).step == 1
        create_mlp(client, "another")
        assert daemon.metrics().sum("penstock_ready") == 1
        assert drain(daemon, "--no-wait").returncode == 0  # one may come after it
        assert drain(daemon, "--abort").returncode == 0
    assert daemon.alive()


def test_an_abort_while_work_finishes_loses_nothing(start_daemon: StartDaemon) -> None:
    """Many steps wait in the queue."""
    daemon = start_daemon("--drain-announce=0s", "--drain-finish=300s")
    with penstock.Client(daemon.address, retry_for=0) as client:
        pipeline = create_slow(client)
        rows, target = mlp_batch(0)
        handles = [pipeline.submit_train_step(rows, target) for _ in range(64)]
        client.drain()
        eventually(lambda: client.server_info().drain.phase >= admin_pb2.DRAIN_PHASE_FINISH)
        with pytest.raises(penstock.PenstockError) as refused:
            pipeline.submit_train_step(rows, target)
        assert refused.value.reason == "DRAINING"
        state = client.drain(abort=True)
        assert state.phase == admin_pb2.DRAIN_PHASE_UNSPECIFIED
        eventually(lambda: client.server_info().state == "ready")
        assert [handle.result(60).step for handle in handles] == list(range(1, 65))
        assert pipeline.train_step(rows, target).step == 65
    daemon.stop()


def test_what_a_signal_asks_for_is_final(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*SLOW)
    with penstock.Client(daemon.address) as client:
        client.drain()
        daemon.terminate()  # joins it
        eventually(lambda: client.server_info().drain.final)
        with pytest.raises(penstock.PenstockError) as refused:
            client.drain(abort=True)
        assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "DRAIN_FINAL")
    daemon.terminate()
    assert daemon.wait() == 1, "a second signal hurries"


def test_an_open_graph_is_named_before_an_upgrade_begins(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME)
        pipeline.train_step(*mlp_batch(0))
        inputs, target = mlp_batch(1)
        made = pipeline.forward(inputs)
        done = drain(daemon, "--for-upgrade")
        assert done.returncode == 1 and "GRAPH_OPEN" in done.stderr and NAME in done.stderr, done.stderr
        assert client.server_info().state == "ready"
        pipeline.backward(made.graph, {"output": target})
        assert drain(daemon, "--for-upgrade").returncode == 0
    assert daemon.wait() == 0
    assert journal_calls(daemon) == 0


def test_a_graph_that_opens_during_the_drain_stays_in_the_journal(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=3s")
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, NAME)
        client.drain(for_upgrade=True)
        pipeline.forward_backward(*mlp_batch(0))
        made = pipeline.forward(mlp_batch(1)[0])
        assert daemon.wait() == 1
        assert made.graph
    assert "the journal is not empty" in daemon.log and "GRAPH_OPEN" in daemon.log
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert client.pipeline(NAME).optimizer_step().step == 1
    daemon.stop()


def test_without_a_journal_the_last_state_is_saved(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        create_mlp(client, NAME).train_step(*mlp_batch(0))
    assert drain(daemon, "--for-upgrade").returncode == 0
    assert daemon.wait() == 0
    assert list(daemon.state_dir.glob("**/checkpoints/step-1"))


def test_a_daemon_that_may_not_save_empties_no_journal(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=0s", "--drain-checkpoint=0s")
    done = drain(daemon, "--for-upgrade")
    assert done.returncode == 1 and "FEATURE_DISABLED" in done.stderr, done.stderr
    daemon.stop()


def test_while_it_starts_it_ends_at_once_and_the_journal_is_whole(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=0s", "--drain-checkpoint=0s")
    steps = 60
    with penstock.Client(daemon.address) as client:
        pipeline = create_slow(client)
        handles = [pipeline.submit_train_step(*mlp_batch(step)) for step in range(steps)]
        for handle in handles:
            handle.result(120)
    daemon.stop()
    daemon.launch()
    with penstock.Client(daemon.address) as client:
        state = client.drain()  # waits until somebody answers
    assert state.final and state.phase == admin_pb2.DRAIN_PHASE_CLOSE
    assert daemon.wait() == 0
    assert "stopped while it started" in daemon.log
    daemon.start()
    assert f"repeated={steps}" in daemon.log.replace('"', "")
    with penstock.Client(daemon.address) as client:
        assert client.pipeline(NAME).train_step(*mlp_batch(0)).step == steps + 1
    daemon.stop()


def test_only_an_admin_may(tmp_path_factory: pytest.TempPathFactory) -> None:
    identities = Identities(tmp_path_factory.mktemp("identities"))
    folder = tmp_path_factory.mktemp("tls")
    with TlsDaemon(folder, identities, f"--audit-log={folder}/audit", *QUICK_DRAIN).running() as daemon:
        for role in ("infer", "train"):
            token = folder / f"{role}.token"
            token.write_text(f"secret-{role}\n")
            token.chmod(0o600)
            ca = identities.folder / "ca.crt"
            done = drain(daemon, "--no-wait", "--tls-ca", str(ca), "--token-file", str(token))
            assert done.returncode == 5 and "ROLE_MISSING" in done.stderr, done.stderr
        log = (folder / "audit").read_text()
        assert log.count("penstock.v1.AdminService/Drain") == 2 and "draining" not in daemon.log
