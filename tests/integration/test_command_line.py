"""The program penstock as a process: signals, pipes, terminals and full disks."""

from __future__ import annotations

import os
import pathlib
import pty
import signal
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator

import pytest

import penstock
from daemon_process import Daemon, writer_of
from small_models import create_gpt

SECONDS = 15  # after which a command that should have ended counts as one that never does

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(daemon: Daemon) -> Iterator[Start]:
    """Starts the program, in a shell's settings if there are some (a preexec_fn would run in a fork of this process, which
    gRPC's threads do not survive); what still runs at the test's end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, settings: str = "", **options: object) -> subprocess.Popen[bytes]:
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        command = [os.environ["PENSTOCK"], "--server", daemon.address, *words]
        if settings:
            command = ["sh", "-c", f'{settings}; exec "$@"', "sh", *command]
        one = subprocess.Popen(command, **options)  # type: ignore[call-overload]
        started.append(one)
        return one

    yield begin
    for one in started:
        one.kill()
        one.wait()
        for stream in (one.stdin, one.stdout, one.stderr):
            if stream is not None:
                stream.close()


class PseudoTerminal:
    """A terminal of which the test has the other end, and what was written to it."""

    def __init__(self) -> None:
        self.keys, self.device = pty.openpty()
        self._written = bytearray()
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while piece := os.read(self.keys, 4096):
                with self._more:
                    self._written += piece
                    self._more.notify_all()
        except OSError:
            pass  # the test is over

    def await_text(self, text: bytes) -> None:
        with self._more:
            assert self._more.wait_for(lambda: text in self._written, SECONDS), bytes(self._written)

    def flags(self) -> int:
        return int(termios.tcgetattr(self.device)[3])

    def options(self) -> dict[str, object]:
        """Of a process that has it as its terminal."""
        environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
        streams = {"stdin": self.device, "stdout": self.device, "stderr": self.device}
        return {**streams, "env": environment, "start_new_session": True}

    def close(self) -> None:
        os.close(self.device)
        os.close(self.keys)


@pytest.fixture
def terminal() -> Iterator[PseudoTerminal]:
    one = PseudoTerminal()
    yield one
    one.close()


def test_top_ends_when_nobody_reads_it(client: penstock.Client, start: Start) -> None:
    create_gpt(client)
    top = start("top", "--interval", "0.1", "-o", "jsonl")
    assert top.stdout is not None and top.stdout.readline().startswith(b"{")
    top.stdout.close()
    assert top.wait(SECONDS) == 1


HEADER = b'{"x": {"dtype": "U8", "shape": [1073741824], "data_offsets": [0, 1073741824]}}'
# The beginning of a safetensors file, of more bytes than a pipe holds: who has taken all of them reads.
UNFINISHED = len(HEADER).to_bytes(8, "little") + HEADER + bytes(1 << 20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_that_reads_stdin(client: penstock.Client, start: Start, number: int) -> None:
    pipeline = create_gpt(client)
    put = start("handle", "put", pipeline.name, "-", stdin=subprocess.PIPE)
    assert put.stdin is not None
    put.stdin.write(UNFINISHED)
    put.stdin.flush()
    put.send_signal(number)
    assert put.wait(SECONDS) == 1
    assert put.stderr is not None and b"WORK_CANCELLED" in put.stderr.read()


def test_ctrl_c_ends_the_wait_for_a_pipe_that_nobody_writes(start: Start, tmp_path: pathlib.Path) -> None:
    pipe = tmp_path / "spec"
    os.mkfifo(pipe)
    create = start("pipeline", "create", "x", "--spec", str(pipe))
    writer = writer_of(pipe)
    create.send_signal(signal.SIGINT)
    assert create.wait(SECONDS) == 1
    assert create.stderr is not None and b"interrupted while it read" in create.stderr.read()
    os.close(writer)


def test_what_nohup_ignores_stays_ignored(client: penstock.Client, start: Start) -> None:
    pipeline = create_gpt(client)
    put = start("handle", "put", pipeline.name, "-", settings="trap '' HUP", stdin=subprocess.PIPE)
    assert put.stdin is not None and put.stderr is not None
    put.stdin.write(UNFINISHED)
    put.stdin.flush()
    put.send_signal(signal.SIGHUP)
    put.stdin.close()
    put.wait(SECONDS)
    text = put.stderr.read()
    assert b"interrupted" not in text and b"WORK_CANCELLED" not in text


def test_ctrl_c_ends_a_question(client: penstock.Client, start: Start, terminal: PseudoTerminal) -> None:
    pipeline = create_gpt(client)
    delete = start("pipeline", "delete", pipeline.name, **terminal.options())
    terminal.await_text(b"[y/N]")
    delete.send_signal(signal.SIGINT)
    assert delete.wait(SECONDS) == 1
    terminal.await_text(b"WORK_CANCELLED")
    assert client.pipeline(pipeline.name).state == "READY"


@pytest.mark.parametrize("numbers", [(signal.SIGHUP,), (signal.SIGQUIT,), (signal.SIGINT, signal.SIGTERM)])
def test_top_leaves_the_terminal_as_it_was(
    client: penstock.Client, start: Start, terminal: PseudoTerminal, numbers: tuple[int, ...]
) -> None:
    create_gpt(client)
    before = terminal.flags()
    assert before & termios.ECHO
    top = start("top", "--interval", "0.1", **terminal.options())
    terminal.await_text(b"PIPELINE")
    assert not terminal.flags() & termios.ECHO, "top takes keys unseen"
    for number in numbers:
        top.send_signal(number)
    top.wait(SECONDS)
    assert terminal.flags() == before


FULL_DISK = "trap '' XFSZ; ulimit -f 1"  # files hold no more than a block


@pytest.mark.parametrize("words", [("params", "read", "--to"), ("trace", "-O")])
def test_a_full_disk_leaves_the_old_file(
    client: penstock.Client, start: Start, tmp_path: pathlib.Path, words: tuple[str, ...]
) -> None:
    pipeline = create_gpt(client)
    file = tmp_path / "file"
    file.write_text("precious")
    *command, option = words
    read = start(*command, pipeline.name, option, str(file), settings=FULL_DISK)
    assert read.wait(SECONDS) == 1
    assert read.stderr is not None
    text = read.stderr.read()
    assert b"File too large" in text and str(file).encode() in text and b"--help" not in text
    assert file.read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("words", [("--help",), ("pipeline", "create", "--help"), ("--dump=commands",), ("version",)])
def test_what_can_not_be_written_is_an_error(start: Start, words: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        assert start(*words, stdout=full).wait(SECONDS) == 1


def test_a_batch_that_fits_nowhere_is_refused(client: penstock.Client, start: Start, tmp_path: pathlib.Path) -> None:
    pipeline = create_gpt(client)
    text = tmp_path / "text"
    text.write_text("to be or not to be " * 100)
    for batch in ("100000000000", "100000000", "9223372036854775807"):
        train = start("train", pipeline.name, "--text", str(text), "--batch", batch, "--steps", "1")
        assert train.wait(SECONDS) == 2
        assert train.stderr is not None and b"--batch" in train.stderr.read()
