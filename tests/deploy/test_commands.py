"""top, bench and doctor against a real daemon that trains and infers."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator

import penstock
import pytest
from conftest import PENSTOCK
from daemon_process import Daemon
from small_models import create_gpt, create_mlp, differing, mlp_batch, state_of


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), "--drain-announce=0s").running() as shared:
        yield shared


def run(daemon: Daemon, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
    command = [PENSTOCK, "--server", daemon.address, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode in codes, (arguments, done.returncode, done.stderr)
    return done.stdout


def test_top_shows_where_the_time_goes(daemon: Daemon) -> None:
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "watched")
        over = threading.Event()

        def train() -> None:
            while not over.is_set():
                pipeline.train_step(*mlp_batch(0))

        trainer = threading.Thread(target=train)
        trainer.start()
        try:
            looks = [
                json.loads(line)
                for line in run(daemon, "top", "watched", "--interval", "1", "--looks", "2", "-o", "jsonl").splitlines()
            ]
            text = run(daemon, "top", "--looks", "1")
        finally:
            over.set()
            trainer.join()
        assert len(looks) == 2
        for look in looks:
            (seen,) = look["pipelines"]
            assert [lane["lane"] for lane in seen["lanes"]] == [0, 1]
            for lane in seen["lanes"]:
                assert abs(sum(lane["states"].values()) - 1) < 1e-9 and lane["states"].get("forward", 0) > 0
                assert 0 < lane["busy"] <= 1 and 0 <= lane["bubble"] < 1
        assert looks[1]["pipelines"][0]["step"] > looks[0]["pipelines"][0]["step"]
        assert "watched  step" in text and "F forward" in text and "\x1b" not in text
        pipeline.delete(force=True)


def visible(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def test_top_is_as_wide_as_the_terminal_and_q_ends_it(daemon: Daemon) -> None:
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "wide")
        screen, terminal = pty.openpty()

        def look(columns: int) -> str:
            """The first whole look after the terminal has this width."""
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
            shown = ""
            while shown.count("\x1b[H") < 4:  # two that may have begun before, one whole one, and the next one's begin
                shown += os.read(screen, 65536).decode()
            return shown.split("\x1b[H")[-2]

        command = [PENSTOCK, "--server", daemon.address, "top", "--interval", "0.1"]
        environment = {**os.environ, "TERM": "xterm"}
        process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
        try:
            bars = []
            for columns in (100, 70, 140):
                lines = visible(look(columns)).replace("\r", "").splitlines()
                assert max(map(len, lines)) <= columns
                (bar,) = (line.split("|")[1] for line in lines if line.startswith("   0 "))
                bars.append(len(bar))
            assert bars == [38, 8, 78]
            os.write(screen, b"xq")
            assert process.wait(30) == 0
            assert termios.tcgetattr(terminal)[3] & termios.ECHO, "the terminal is as it was"
        finally:
            process.kill()
            process.wait()
            os.close(screen)
            os.close(terminal)
        pipeline.delete(force=True)


def test_bench_leaves_nothing_behind(daemon: Daemon) -> None:
    brief = ("--warm-up", "0.2", "--window", "0.3", "--max-windows", "3", "--stability-percentage")
    quick = (*brief, "200")  # three windows are always within twice their mean
    with penstock.Client(daemon.address) as client:
        for name, create, more in (("numbers", create_mlp, ()), ("words", create_gpt, ("--sequence", "16"))):
            create(client, name)
            report = json.loads(run(daemon, "bench", name, "--concurrency", "1:2", *more, *quick, "-o", "json"))
            assert [point["concurrency"] for point in report["points"]] == [1, 2]
            for point in report["points"]:
                assert point["calls"] > 0 and point["failures"] == 0
                latency = point["latency_seconds"]
                assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["most"]
                assert 0 < point["server"]["busy"] <= 1
            table = run(daemon, "bench", name, "--rate", "20", "--poisson", *more, *quick)
            assert table.startswith("RATE")
            assert json.loads(run(daemon, "handle", "list", name, "-o", "json")) in ([], {"handles": []}) or not run(
                daemon, "handle", "list", name, "-o", "name"
            )
        # A load that no machine serves in time: the search says so.
        report = json.loads(run(daemon, "bench", "numbers", "--latency-threshold", "0.0001", *quick, "-o", "json"))
        assert report["highest_load_within_threshold"] == 0
        assert run(daemon, "bench", "numbers", *brief, "0", codes=(7,)), "no three windows are equal"
        assert run(daemon, "bench", "nobody", *quick, codes=(1,)) == ""


def test_an_interrupt_ends_top_and_bench(daemon: Daemon) -> None:
    with penstock.Client(daemon.address) as client:
        create_mlp(client, "interrupted")
    for arguments in (("top",), ("bench", "interrupted", "--window", "60")):
        process = subprocess.Popen(
            [PENSTOCK, "--server", daemon.address, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if arguments == ("top",):
            assert process.stdout.readline().startswith("PIPELINE")
        else:
            while not daemon.metrics().sum("penstock_batches_started_total", pipeline="interrupted", mode="infer"):
                assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == (0 if arguments == ("top",) else 1), arguments


def test_doctor_finds_the_daemon(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    report = json.loads(run(daemon, "doctor", "--state-dir", str(tmp_path), "-o", "json", codes=(0, 1)))
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["daemon"]["level"] == "ok" and daemon.address in checks["daemon"]["detail"]
    assert checks["state folder"]["level"] in ("ok", "warn") and not any(tmp_path.iterdir()), "it cleans up"


def test_what_params_read_gives_params_write_takes(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    """Weights, buffers and the optimizer's state, so that the other pipeline trains on as this one would."""
    with penstock.Client(daemon.address) as client:
        trained, other = create_mlp(client, "trained"), create_mlp(client, "other", seed=8)
        for step in range(3):
            trained.train_step(*mlp_batch(step))
        file = tmp_path / "state.safetensors"
        run(daemon, "params", "read", "trained", "--optimizer-state", "--to", str(file))
        written = run(daemon, "params", "write", "other", "--from", str(file), "--step", "3", "-o", "json")
        assert json.loads(written)["step"] == "3" or json.loads(written)["step"] == 3
        for pipeline in (trained, other):
            pipeline.train_step(*mlp_batch(3))
        assert not differing(state_of(trained), state_of(other)) and other.refresh().step == 4

        other.forward_backward(*mlp_batch(4))
        before = state_of(other)
        run(daemon, "params", "write", "other", "--from", str(file), codes=(1,))  # gradients wait
        assert not differing(before, state_of(other))
        run(daemon, "params", "write", "other", "--from", str(file), "--force")
        broken = tmp_path / "broken.safetensors"
        broken.write_bytes(file.read_bytes()[:-1])
        run(daemon, "params", "write", "other", "--from", str(broken), codes=(2,))
        assert not other.handles()
        for pipeline in (trained, other):
            pipeline.delete(force=True)
