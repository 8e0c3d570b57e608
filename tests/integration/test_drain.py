"""SIGTERM under load: accepted work finishes, new work is told to come again, the state is saved, the daemon exits with 0."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import threading
import time

import grpc
import penstock
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock.v1 import pipeline_pb2

from conftest import WITHOUT_JOURNAL, StartDaemon
from daemon_process import Daemon, eventually, writer_of
from small_models import create_gpt, create_mlp, differing, gpt_batch, mlp_batch, state_of

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_an_idle_daemon_ends_at_once(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        create_mlp(client).train_step(*mlp_batch(0))
    began = time.monotonic()
    daemon.stop()
    assert time.monotonic() - began < 10, "it waited for something"


def test_a_signal_ends_the_wait_for_a_config_that_nobody_writes(tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "config"
    os.mkfifo(pipe)
    with subprocess.Popen([os.environ["PENSTOCKD"], "--config", pipe]) as daemon:
        try:
            writer = writer_of(pipe)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == -signal.SIGTERM
            os.close(writer)
        finally:
            daemon.kill()


def test_accepted_work_finishes(start_daemon: StartDaemon) -> None:
    """Steps wait in the queue when the signal comes. Each one that was accepted settles well, and its waiter hears of
    it; each one that was not is refused."""
    daemon = start_daemon(*WITHOUT_JOURNAL)
    accepted: list[penstock.OutcomeHandle] = []
    refusals: list[penstock.PenstockError] = []
    results: list[penstock.Outcome] = []
    failures: list[BaseException] = []
    lock = threading.Lock()

    def work(pipeline: penstock.Pipeline) -> None:
        try:
            while True:
                try:
                    handle = pipeline.submit_train_step(*gpt_batch(0, 16))
                except penstock.PenstockError as error:
                    refusals.append(error)
                    return
                with lock:
                    accepted.append(handle)
                outcome = handle.result(60)
                with lock:
                    results.append(outcome)
        except BaseException as error:
            failures.append(error)

    clients = [penstock.Client(daemon.address, f"worker-{i}", retry_for=0) for i in range(8)]
    name = create_gpt(clients[0]).name
    threads = [threading.Thread(target=work, args=(client.pipeline(name),)) for client in clients]
    for thread in threads:
        thread.start()
    while len(results) < 10:
        assert daemon.alive() and not failures, failures
        time.sleep(0.01)
    daemon.terminate()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert daemon.wait() == 0, daemon.log[-4000:]
    assert not failures, failures
    assert len(accepted) == len(results) and all(outcome.applied for outcome in results)
    assert sorted(outcome.step for outcome in results) == list(range(1, len(results) + 1))
    assert len(refusals) == 8
    for error in refusals:
        # Either the daemon said so itself, or the transport while it closed or when it was gone.
        if error.reason:
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING"), error
        else:
            assert error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
    for client in clients:
        client.close()


def test_health_tells_before_the_end(start_daemon: StartDaemon) -> None:
    """While the end is announced, readiness is gone, liveness is not, and requests are served."""
    daemon = start_daemon("--drain-announce=8s")  # all that follows must happen within it, on a slow machine too
    with grpc.insecure_channel(daemon.address) as channel, penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        health = health_pb2_grpc.HealthStub(channel)
        watches = {
            name: health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=60)
            for name in ("", "readiness", "penstock.v1.WorkService")
        }
        assert all(next(watch).status == SERVING for watch in watches.values())
        assert "200" in _status_line(daemon, "/readyz")
        daemon.terminate()
        assert all(next(watch).status == NOT_SERVING for watch in watches.values())
        assert health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=5).status == SERVING
        assert health.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=5).status == NOT_SERVING
        assert "503" in _status_line(daemon, "/readyz") and "200" in _status_line(daemon, "/healthz")
        assert pipeline.train_step(*mlp_batch(0)).applied
        assert client.server_info().state == "draining"
    assert daemon.wait() == 0


def test_a_second_signal_ends_at_once(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=30s")
    with grpc.insecure_channel(daemon.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert next(watch).status == SERVING
        daemon.terminate()
        assert next(watch).status == NOT_SERVING
        daemon.terminate()
        assert daemon.wait(20) == 1


def test_the_last_state_is_saved_and_goes_on_to_the_last_bit(start_daemon: StartDaemon) -> None:
    """Steps wait in the queue when the signal comes: what is saved is the state after the last of them."""
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        undisturbed = create_mlp(client, "undisturbed", dropout=0.1)
        for step in range(5):
            undisturbed.train_step(*mlp_batch(step))
        wanted = state_of(undisturbed)
        pipeline = create_mlp(client, "trained", dropout=0.1)
        pipeline.train_step(*mlp_batch(0))
        pipeline.save_checkpoint("step-3")  # the name that the end would choose is taken
        for step in (1, 2):
            pipeline.submit_train_step(*mlp_batch(step))
        create_mlp(client, "idle")
    daemon.stop()
    daemon.start()
    with penstock.Client(daemon.address) as client:
        assert create_mlp(client, "idle").list_checkpoints() == []
        pipeline = create_mlp(client, "trained", dropout=0.1)
        (last,) = [checkpoint for checkpoint in pipeline.list_checkpoints() if checkpoint.step == 3]
        assert last.name.endswith("/step-3-end")
        assert pipeline.restore_checkpoint("step-3-end").step == 3
        for step in (3, 4):
            pipeline.train_step(*mlp_batch(step))
        assert not differing(state_of(pipeline), wanted)
    daemon.stop()


def test_a_failing_save_is_told_and_holds_nothing_up(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client:
        create_mlp(client, "trained").train_step(*mlp_batch(0))
    (folder,) = daemon.state_dir.glob("**/checkpoints")
    folder.rmdir()
    folder.write_text("no folder")  # permissions would not stop root
    daemon.terminate()
    assert daemon.wait() == 1
    assert "the state of pipelines is lost" in daemon.log and "trained" in daemon.log


def test_nothing_is_saved_where_there_is_no_time_for_it(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--drain-announce=0s", "--drain-checkpoint=0s", "--journal=off")
    with penstock.Client(daemon.address) as client:
        create_mlp(client, "trained").train_step(*mlp_batch(0))
    daemon.stop()
    (folder,) = daemon.state_dir.glob("**/checkpoints")
    assert not list(folder.iterdir())


def test_a_second_signal_ends_what_nothing_interrupts(start_daemon: StartDaemon) -> None:
    """One operator that is measured: attention over a sequence that is far too long."""
    daemon = start_daemon(*WITHOUT_JOURNAL)
    failures: list[penstock.PenstockError] = []
    progress: list[pipeline_pb2.CreateProgress] = []

    def create() -> None:
        with penstock.Client(daemon.address, retry_for=0) as client:
            shape = {"blocks": 1, "width": 8, "heads": 1, "sequence": 400_000, "vocab": 2}
            with pytest.raises(penstock.PenstockError) as refused:
                client.create_pipeline("long", model="gpt", options=shape, stages=1, progress=progress.append)
            failures.append(refused.value)

    def cpu_seconds() -> float:
        fields = pathlib.Path(f"/proc/{daemon.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    thread = threading.Thread(target=create)
    thread.start()
    while not any(one.phase == "measuring" and one.done > 0 for one in progress):
        assert thread.is_alive() and daemon.alive()
        time.sleep(0.02)
    before = cpu_seconds()
    while cpu_seconds() < before + 4:  # all that is before the attention takes a part of it
        assert thread.is_alive() and daemon.alive()
        time.sleep(0.02)
    daemon.terminate()
    eventually(lambda: "draining" in daemon.log)
    daemon.terminate()
    assert daemon.wait() == 1, daemon.log[-4000:]
    assert "ending by force" in daemon.log
    thread.join(60)
    assert len(failures) == 1


def test_open_streams_do_not_hold_the_daemon(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*WITHOUT_JOURNAL)
    with penstock.Client(daemon.address) as client, grpc.insecure_channel(daemon.address) as channel:
        pipeline = create_mlp(client)
        statistics = pipeline.watch_statistics(interval=0.1)
        next(statistics)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="liveness"))
        next(watch)
        daemon.stop()


def _status_line(daemon: Daemon, path: str) -> str:
    import http.client

    connection = http.client.HTTPConnection(daemon.metrics_address, timeout=10)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return str(status)
