"""Fixtures: one daemon for all files of a run, or one for a test alone, and clients of it."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Callable, Iterator

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python"))

import penstock  # noqa: E402

import daemon_process  # noqa: E402
from daemon_process import Daemon  # noqa: E402
from raw_calls import ROWS, Raw  # noqa: E402
from small_models import create_gpt, create_mlp  # noqa: E402

# Drain's first phase waits so that load balancers notice; nothing here does.
QUICK_DRAIN = ("--drain-announce=0s",)

# What a restart leaves then is what was saved.
WITHOUT_JOURNAL = (*QUICK_DRAIN, "--journal=off")

StartDaemon = Callable[..., Daemon]


def pytest_configure(config: pytest.Config) -> None:
    if not daemon_process.BINARY or not os.access(daemon_process.BINARY, os.X_OK):
        pytest.exit(f"PENSTOCKD must name the daemon, got {daemon_process.BINARY!r}", returncode=2)


@pytest.fixture(scope="session")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """It must live to the end of the run and then exit with 0."""
    with Daemon(tmp_path_factory.mktemp("daemon"), *QUICK_DRAIN).running() as shared:
        yield shared


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """A daemon that all tests of the file share, and other files of the run after it: each finds it empty."""
    yield shared_daemon
    with penstock.Client(shared_daemon.address) as connected:
        for pipeline in connected.list_pipelines():
            pipeline.delete(force=True, purge=True)
    assert shared_daemon.metrics().sum("penstock_handles") == 0


@pytest.fixture
def start_daemon(tmp_path: pathlib.Path) -> Iterator[StartDaemon]:
    """Starts daemons for one test; what still runs at its end is killed."""
    started: list[Daemon] = []

    def start(*flags: str, prefix: tuple[str, ...] = ()) -> Daemon:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        one = Daemon(folder, *(flags or QUICK_DRAIN), prefix=prefix)
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[penstock.Client]:
    """Its pipelines are deleted at the end of the test."""
    with penstock.Client(daemon.address) as connected:
        before = {pipeline.name for pipeline in connected.list_pipelines()}
        yield connected
        if daemon.alive():
            for pipeline in connected.list_pipelines():
                if pipeline.name not in before:
                    pipeline.delete(force=True)


@pytest.fixture(autouse=True)
def log_of_a_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """The daemon's last lines go into the report of a failed test."""
    yield
    if "daemon" in request.fixturenames:
        shared: Daemon = request.getfixturevalue("daemon")
        print("\n".join(shared.log.splitlines()[-30:]))


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline(daemon: Daemon) -> Iterator[penstock.Pipeline]:
    """A multi-layer perceptron called `victim` that no test may train."""
    with penstock.Client(daemon.address) as connected:
        yield create_mlp(connected, "victim")


@pytest.fixture(scope="module")
def words(daemon: Daemon) -> Iterator[penstock.Pipeline]:
    """A GPT called `words`."""
    with penstock.Client(daemon.address) as connected:
        yield create_gpt(connected, "words")


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[Raw]:
    calls = Raw(daemon.address)
    yield calls
    calls.close()


@pytest.fixture(scope="module")
def right_answer(pipeline: penstock.Pipeline) -> bytes:
    return pipeline.infer(ROWS)["output"].tobytes()


@pytest.fixture
def next_request_is_served(daemon: Daemon, pipeline: penstock.Pipeline, right_answer: bytes) -> Iterator[None]:
    """After the test: the daemon lives, nothing was trained, and a good request gets the right answer."""
    yield
    assert daemon.alive(), daemon.log[-4000:]
    assert pipeline.infer(ROWS, timeout=30)["output"].tobytes() == right_answer
