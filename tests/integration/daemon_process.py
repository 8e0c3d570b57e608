"""A real penstockd in a folder of its own: start, watch, kill, stop."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import IO

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

BINARY = os.environ.get("PENSTOCKD", "")
START_SECONDS = 60.0  # a cold disk is slow
STOP_SECONDS = 60.0
_PORTS_DIR = pathlib.Path(tempfile.gettempdir()) / f"penstock-test-ports-{os.getuid()}"

_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def eventually(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds; fails if it does not within 20 s."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def writer_of(pipe: pathlib.Path) -> int:
    """The other end of a named pipe, once somebody reads there."""
    writers: list[int] = []

    def opened() -> bool:
        try:
            writers.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            assert error.errno == errno.ENXIO
        return bool(writers)

    eventually(opened)
    return writers[0]


class Daemon:
    """One daemon at a time on fixed free ports, with one state folder over all its starts.

    Args:
        folder: for state and log; it must exist.
        flags: further flags, for example ``--device-memory=cpu:0=64MiB``.
        prefix: a command that starts the daemon, for example ``unshare``.
        devices: what it computes on, as ``--device`` takes it: ``cpu:0=1`` is pinned to core 1.
        listen: the address of its API; default: a free port of loopback.
        host: the address of its metrics.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *flags: str,
        prefix: tuple[str, ...] = (),
        devices: tuple[str, ...] = ("cpu:0", "cpu:1"),
        listen: str = "",
        host: str = "127.0.0.1",
    ) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        self.log_path = folder / "penstockd.log"
        api, metrics, admin = free_ports(3)
        self.address = listen or f"127.0.0.1:{api}"
        self.metrics_address = f"{host}:{metrics}"
        self.admin_address = f"127.0.0.1:{admin}"
        self.probe_address = self.address  # which tells in plaintext when it is ready
        self._command = [
            *prefix,
            BINARY,
            f"--listen={self.address}",
            f"--metrics-listen={self.metrics_address}",
            f"--admin-listen={self.admin_address}",
            f"--state-dir={self.state_dir}",
            *(f"--device={device}" for device in devices),
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def add_flags(self, *flags: str) -> None:
        """For the next start."""
        self._command += flags

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def launch(self) -> None:
        """Starts it and does not wait."""
        self.state_dir.mkdir(exist_ok=True)
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start(self) -> None:
        """Starts it and waits until it says that it is ready."""
        self.launch()
        self.await_ready()

    def await_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        with grpc.insecure_channel(self.probe_address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while True:
                assert self.alive(), f"the daemon has ended while it started:\n{self.log}"
                assert time.monotonic() < deadline, f"the daemon is not ready:\n{self.log}"
                try:
                    answer = health.Check(
                        health_pb2.HealthCheckRequest(service="readiness"), timeout=5, wait_for_ready=True
                    )
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
                except grpc.RpcError as error:
                    last = error.code()
                    assert last in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
                time.sleep(0.02)

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def terminate(self) -> None:
        """Sends SIGTERM and does not wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = STOP_SECONDS) -> int:
        """Waits for its end; the exit code."""
        assert self._process is not None
        return self._process.wait(timeout)

    def stop(self) -> None:
        """Ends it as an operator would; it must exit with 0."""
        if self._process is None:
            return
        assert self.alive(), f"the daemon has died:\n{self.log[-4000:]}"
        self.terminate()
        code = self.wait()
        assert code == 0, f"exit code {code}:\n{self.log[-4000:]}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Daemon]:
        """Starts it; it must live to the end of the block and then exit with 0."""
        try:
            self.start()
            yield self
            self.stop()
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends it without a chance to do anything."""
        if self._process is not None and self.alive():
            self._process.kill()
            self._process.wait()

    def page(self, path: str) -> str:
        """What the metrics port answers to a GET."""
        with urllib.request.urlopen(f"http://{self.metrics_address}{path}", timeout=10) as answer:
            text: str = answer.read().decode()
            return text

    def metrics(self) -> Metrics:
        """One scrape."""
        return Metrics(self.page("/metrics"))

    def resident_bytes(self) -> int:
        """Memory of the process."""
        pages = int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def peak_growth(self, work: Callable[[], object]) -> int:
        """Bytes by which the process's memory rises at most while `work` is done."""
        before = self.resident_bytes()
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # the peak starts anew
        work()
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024 - before


class Metrics:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples: list[tuple[str, dict[str, str], float]] = []
        for line in text.splitlines():
            if line and not line.startswith("#"):
                match = _SAMPLE.match(line)
                assert match, f"no sample: {line!r}"
                self._samples.append((match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])))

    def select(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """All samples of a name with these labels among theirs."""
        return [(have, value) for got, have, value in self._samples if got == name and labels.items() <= have.items()]

    def sum(self, name: str, **labels: str) -> float:
        """The sum of these samples; there must be one."""
        samples = self.select(name, **labels)
        assert samples, f"no sample {name} with {labels}"
        return sum(value for _, value in samples)


def free_ports(count: int) -> list[int]:
    """Ports that nobody else gets: neither from the kernel, one of whose own choice could be taken, while the daemon is
    down, by a client that tries to reach it (and then even talks to itself), nor from another call of this, here or in a
    test beside it. They are this process's until it ends."""
    free: list[int] = []
    while len(free) < count:
        port = random.randrange(12_000, 30_000)
        if _reserved(port) and _unbound(port):
            free.append(port)
    return free


_reservations: list[IO[bytes]] = []


def _reserved(port: int) -> bool:
    """Takes the port among all tests that run on this machine."""
    _PORTS_DIR.mkdir(exist_ok=True)
    reservation = open(_PORTS_DIR / str(port), "ab")  # noqa: SIM115: held until this process ends
    try:
        fcntl.flock(reservation, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        reservation.close()
        return False
    _reservations.append(reservation)
    return True


def _unbound(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
