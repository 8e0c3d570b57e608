"""top, bench and doctor against a real daemon that trains and infers."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import threading
from collections.abc import Iterator

import penstock
import pytest
from conftest import PENSTOCK
from daemon_process import Daemon
from small_models import create_gpt, create_mlp, mlp_batch


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    shared = Daemon(tmp_path_factory.mktemp("daemon"), "--drain-announce=0s")
    shared.start()
    try:
        yield shared
        shared.stop()
    finally:
        shared.kill()


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
