"""Where the time goes: the states of each stage add up to wall time, and bubbles agree wherever they are told."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import time

import numpy as np
import penstock
import pytest

from daemon_process import Daemon, Metrics
from small_models import create_gpt, create_mlp, gpt_batch, mlp_batch
from stage_states import OUTSIDE_STEP, STAGE_TIME, WORK, seconds_by_state, work_and_step


def mixed_load(pipeline: penstock.Pipeline, steps: int) -> None:
    for step in range(steps):
        tokens, target = gpt_batch(step, 16)
        pipeline.train_step(tokens, target)
        pipeline.infer(tokens)
        pipeline.forward_backward(tokens, target)
        pipeline.optimizer_step()


def stage_sums(metrics: Metrics, pipeline: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for labels, value in metrics.select(STAGE_TIME, pipeline=pipeline):
        sums[labels["lane"]] = sums.get(labels["lane"], 0.0) + value
    return sums


def test_the_states_of_a_stage_add_up_to_wall_time(daemon: Daemon, client: penstock.Client) -> None:
    """Between two scrapes the sum grows by what passed: at least from the end of the first to the start of the second,
    at most from the start of the first to the end of the second, and 0.1 % aside."""
    pipeline = create_gpt(client)
    name = pipeline.name.removeprefix("pipelines/")
    before = time.monotonic()
    first = daemon.metrics()
    first_done = time.monotonic()
    mixed_load(pipeline, 10)
    second_start = time.monotonic()
    second = daemon.metrics()
    after = time.monotonic()
    begin, end = stage_sums(first, name), stage_sums(second, name)
    assert set(begin) == set(end) == {"0", "1"}
    for stage in begin:
        grown = end[stage] - begin[stage]
        assert 0.999 * (second_start - first_done) <= grown <= 1.001 * (after - before), stage


def test_the_states_of_the_statistics_add_up_to_their_age(client: penstock.Client) -> None:
    """Here the daemon tells the time of both readings itself, so the bound is tight."""
    pipeline = create_gpt(client)
    first = pipeline.statistics()
    mixed_load(pipeline, 10)
    second = pipeline.statistics()
    passed = second.time.ToNanoseconds() - first.time.ToNanoseconds()
    assert len(first.lanes) == 2
    for begin, end in zip(first.lanes, second.lanes):
        grown = sum(end.state_seconds.values()) - sum(begin.state_seconds.values())
        assert grown == pytest.approx(passed / 1e9, rel=1e-3)
        assert sum(end.state_seconds[state] for state in WORK) > sum(begin.state_seconds[state] for state in WORK)


def bubble(before: Metrics, after: Metrics, pipeline: str) -> float:
    """1 - work / in-step time, over all stages, of what lies between two scrapes."""
    work, in_step = work_and_step(seconds_by_state(before, after, pipeline))
    return 1 - work / in_step


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_of_two_scrapes_is_that_of_the_executor(
    daemon: Daemon, client: penstock.Client, schedule: str
) -> None:
    pipeline = create_gpt(client, schedule=schedule, micro_batches=8)
    name = pipeline.name.removeprefix("pipelines/")
    pipeline.train_step(*gpt_batch(0, 32))
    before = daemon.metrics()
    for step in range(5):
        outcome = pipeline.train_step(*gpt_batch(step, 32))
        after = daemon.metrics()
        assert outcome.measured_bubble is not None and 0 < outcome.measured_bubble < 1
        assert bubble(before, after, name) == pytest.approx(outcome.measured_bubble, rel=0.02)
        before = after


def test_the_bubble_since_creation_is_that_of_one_scrape(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_gpt(client, micro_batches=8)
    name = pipeline.name.removeprefix("pipelines/")
    for step in range(5):
        pipeline.train_step(*gpt_batch(step, 16))
    metrics = daemon.metrics()
    work = sum(v for labels, v in metrics.select(STAGE_TIME, pipeline=name) if labels["state"] in WORK)
    in_step = sum(v for labels, v in metrics.select(STAGE_TIME, pipeline=name) if labels["state"] not in OUTSIDE_STEP)
    statistics = pipeline.statistics()
    assert 1 - work / in_step == pytest.approx(statistics.measured_bubble, rel=0.02)
    assert statistics.ideal_bubble == pytest.approx(1 / 9)  # (p - 1) / (m + p - 1)
    assert statistics.step == 5 and statistics.samples == 5 * 16
    assert metrics.sum("penstock_schedule_ideal_bubble_ratio", pipeline=name, lane="0") == pytest.approx(1 / 9)


def test_counters_of_work(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    name = pipeline.name.removeprefix("pipelines/")
    fresh = daemon.metrics()
    assert fresh.sum("penstock_batches_total", pipeline=name) == 0, "a label set must start at 0"
    for step in range(3):
        pipeline.train_step(*mlp_batch(step))
    pipeline.infer(mlp_batch(0)[0])
    metrics = daemon.metrics()
    assert metrics.sum("penstock_batches_total", pipeline=name, mode="train", outcome="ok") == 3
    assert metrics.sum("penstock_batches_total", pipeline=name, mode="infer", outcome="ok") == 1
    assert metrics.sum("penstock_samples_total", pipeline=name, mode="train") == 24
    assert metrics.sum("penstock_step_number", pipeline=name) == 3
    # Two stages, four micro-batches, three steps.
    forwards = metrics.sum("penstock_phase_duration_seconds_count", pipeline=name, phase="forward")
    assert forwards == 2 * 4 * 3
    handled = metrics.sum("grpc_server_handled_total", grpc_method="TrainStep", grpc_code="OK")
    assert handled >= 3
    pipeline.delete()
    assert not daemon.metrics().select("penstock_batches_total", pipeline=name), "its series outlived the pipeline"


def test_a_device_is_busy_while_it_computes_and_not_while_it_sleeps(daemon: Daemon, client: penstock.Client) -> None:
    """A second measure of work, by the kernel's account; a layer that sleeps is at work and does not have the core."""
    computing = create_gpt(client)
    sleep = {"features": 4, "forward_ms": 5.0, "input_ms": 5.0, "weight_ms": 5.0}
    sleeping = client.create_pipeline(
        "sleeping",
        model=[penstock.Layer("delay", f"layer{i}", sleep) for i in range(2)],
        balance=[1, 1],
        micro_batches=4,
        optimizer="sgd",
        optimizer_options={"learning_rate": 0.1},
        loss="mean_squared_error",
    )
    for step in range(5):
        computing.train_step(*gpt_batch(step, 32))
        sleeping.train_step(np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32))
    metrics = daemon.metrics()
    for pipeline in (computing, sleeping):
        name = pipeline.name.removeprefix("pipelines/")
        for stage in ("0", "1"):
            lane = {"pipeline": name, "lane": stage}
            busy = metrics.sum("penstock_device_busy_seconds_total", kind="compute", **lane)
            states = metrics.select(STAGE_TIME, **lane)
            work = sum(seconds for labels, seconds in states if labels["state"] in WORK)
            assert 0 < busy <= 1.01 * work
            if pipeline is sleeping:
                assert busy < 0.5 * work


def test_promtool_has_no_complaint(daemon: Daemon, client: penstock.Client, tmp_path: pathlib.Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing; deploy/setup.sh --tests fetches it")
    pipeline = create_mlp(client)
    pipeline.train_step(*mlp_batch(0))
    result = subprocess.run(
        [promtool, "check", "metrics"], input=daemon.page("/metrics"), capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_pages_for_probes(daemon: Daemon) -> None:
    assert daemon.page("/healthz") and daemon.page("/readyz")
