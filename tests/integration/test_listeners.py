"""The status pages' port under clients that mean ill: work and metrics go on, and descriptors stay bounded."""

from __future__ import annotations

import socket
import urllib.request

import penstock

from conftest import StartDaemon
from daemon_process import Daemon
from small_models import create_gpt, create_mlp, gpt_batch, mlp_batch

QUICK = "--drain-announce=0s"
CONNECTIONS = 64 + 3  # that a listener holds at once: those that wait, and those that are served
OTHERS = 32  # descriptors that calls and devices open meanwhile


def connect(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=60)


def status_page(daemon: Daemon, path: str = "/statusz?format=json") -> bytes:
    with urllib.request.urlopen(f"http://{daemon.admin_address}{path}", timeout=60) as answer:
        text: bytes = answer.read()
        return text


def test_half_open_connections_hold_up_no_work_and_few_descriptors(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(QUICK)
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        pipeline.train_step(*mlp_batch(0))
        before = daemon.metrics().sum("process_open_fds")
        flood = []
        try:
            for i in range(300):
                flood.append(connect(daemon.admin_address))
                if i % 2:
                    flood[-1].sendall(b"GET /sta")
                if i % 100 == 99:
                    pipeline.train_step(*mlp_batch(i))
                    assert daemon.metrics().sum("process_open_fds") <= before + CONNECTIONS + OTHERS
        finally:
            for one in flood:
                one.close()
        assert b"epoch" in status_page(daemon)
    daemon.stop()


def test_slow_readers_hold_up_no_work(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(QUICK)
    slow = []
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client)
        try:
            for i in range(50):
                slow.append(socket.socket())
                slow[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                host, port = daemon.admin_address.rsplit(":", 1)
                slow[-1].connect((host, int(port)))
                slow[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            pipeline.train_step(*mlp_batch(0))
            assert "penstock_ready 1" in daemon.page("/metrics")
        finally:
            for one in slow:
                one.close()
        assert b"epoch" in status_page(daemon)
    daemon.stop()


def test_a_daemon_without_trace_rings_trains_and_says_so(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(QUICK, "--trace-ring-events=0")
    with penstock.Client(daemon.address) as client:
        pipeline = create_gpt(client)
        outcome = pipeline.train_step(*gpt_batch(0, 8))
        assert outcome.measured_bubble is not None, "states are counted all the same"
        for ask in (pipeline.trace, lambda: pipeline.trace(steps=1), lambda: pipeline.schedule(measured=True)):
            try:
                ask()
            except penstock.PenstockError as error:
                assert error.reason == "FEATURE_DISABLED" and "--trace-ring-events" in str(error)
            else:
                raise AssertionError("there is no trace")
        name = pipeline.name.removeprefix("pipelines/")
        assert status_page(daemon, f"/pipeline?name={name}&format=json")
        assert status_page(daemon, "/tracez")
        assert daemon.metrics().sum("penstock_trace_dropped_events_total") == 0
    daemon.stop()
