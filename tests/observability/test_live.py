"""A real Prometheus scrapes a real daemon that runs an unbalanced pipeline: every expression of the dashboard, the rules and
the alerts is executed, and the figures are those of the daemon's own trace."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import penstock
import pytest

import expressions
from daemon_process import Daemon
from expressions import Expression, substituted
from prometheus_process import Prometheus

LOAD_SECONDS = 16.0
WORK = {"forward", "backward", "backward_input", "backward_weight", "recompute", "optimizer"}
OUTSIDE = {"infer", "infer_wait", "checkpoint", "wait_client", "no_work", "paused", "setup"}

# What may be empty here, and why.
MAY_BE_EMPTY = {
    "Errors": "only methods with errors have a series, and nothing fails here",
    "Bytes by link": "the daemon here is alone",
    "Time until the certificate ends": "the daemon here speaks plaintext",
}


@dataclasses.dataclass
class Loaded:
    """A daemon that has worked for a while, its trace of that time, and the Prometheus that watched."""

    prometheus: Prometheus
    first: float  # the times of two scrapes, seconds of the epoch: the last before the load and the first after it
    last: float
    trace: dict[str, Any]

    @property
    def window(self) -> str:
        """From scrape to scrape, so that a rate is the difference of the two by their time, and nothing is extrapolated."""
        return f"{math.ceil((self.last - self.first) * 1000) + 1}ms"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is missing; deploy/setup.sh --tests fetches it")
    folder = tmp_path_factory.mktemp("live")
    daemon = Daemon(
        folder, "--drain-announce=0s", "--device=cpu:2=0", "--device=cpu:3=1", "--trace-ring-events=1048576"
    )
    with (
        daemon.running(),
        penstock.Client(daemon.address) as client,
        Prometheus(folder, daemon.metrics_address) as prometheus,
    ):
        pipeline = create(client)
        pipeline.save_checkpoint()
        # Work stands still while the first and the last scrape read it, so that it matters not how long they take.
        first = scraped_after(prometheus, time.time())
        begin = time.time()
        work(pipeline, LOAD_SECONDS)
        end = time.time()
        last = scraped_after(prometheus, end)
        assert end - begin < 120
        path = folder / "trace.json"
        pipeline.trace(str(path))
        yield Loaded(prometheus, first, last, json.loads(path.read_text()))


def create(client: penstock.Client) -> penstock.Pipeline:
    """Four stages whose last has most of the layers."""
    return client.create_pipeline(
        "uneven",
        model="mlp",
        options={"layers": 12, "width": 192},
        balance=[2, 2, 3, 5],
        schedule="1f1b",
        micro_batches=8,
        checkpoint="except_last",
        optimizer="adamw",
        optimizer_options={"learning_rate": 0.001},
        loss="mean_squared_error",
        seed=1,
        bubble_filling=True,
    )


def scraped_after(prometheus: Prometheus, moment: float, seconds: float = 60.0) -> float:
    """Waits for a whole scrape that began later; the time at which it began, which its samples bear."""
    deadline = time.monotonic() + seconds
    while True:
        samples = prometheus.query('timestamp(penstock_step_number{pipeline="uneven"})', time.time())
        if samples and float(samples[0]["value"][1]) > moment:
            return float(samples[0]["value"][1])
        assert time.monotonic() < deadline, "Prometheus has not seen it"
        time.sleep(0.2)


def work(pipeline: penstock.Pipeline, seconds: float) -> None:
    """Trains, with inference beside it for the gaps."""
    random = np.random.default_rng(0)
    rows, target = random.standard_normal((2, 64, 192), np.float32)
    stop = time.monotonic() + seconds

    def infer() -> None:
        while time.monotonic() < stop:
            pipeline.infer(rows[:8])

    others = [threading.Thread(target=infer) for _ in range(2)]
    for other in others:
        other.start()
    while time.monotonic() < stop:
        pipeline.train_step(rows, target)
    for other in others:
        other.join()


# --- Every expression. ---


@pytest.mark.parametrize("expression", expressions.panel_expressions(), ids=lambda e: e.where)
def test_every_panel_shows_something(loaded: Loaded, expression: Expression) -> None:
    samples = loaded.prometheus.query(substituted(expression, "uneven", loaded.window), loaded.last)
    if expression.where in MAY_BE_EMPTY:
        return
    assert samples, "no data"
    values = [float(sample["value"][1]) for sample in samples]
    # Quantiles of methods and phases that never ran are no numbers; some did run.
    if "histogram_quantile" in expression.text:
        assert any(math.isfinite(value) for value in values)
    else:
        assert all(math.isfinite(value) for value in values), values


@pytest.mark.parametrize("rule", expressions.rules(), ids=lambda e: e.where)
def test_every_rule_has_recorded_something(loaded: Loaded, rule: Expression) -> None:
    samples = loaded.prometheus.query(f'{rule.where}{{pipeline="uneven"}}', loaded.last)
    assert samples and all(math.isfinite(float(sample["value"][1])) for sample in samples)


def test_every_rule_was_evaluated_without_an_error(loaded: Loaded) -> None:
    rules = [rule for group in loaded.prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(expressions.rules()) + len(expressions.alerts())
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


def test_no_alert_fires(loaded: Loaded) -> None:
    assert loaded.prometheus.query('ALERTS{alertstate="firing"}', loaded.last) == []


# --- The same figures as the trace's. ---


def traced(loaded: Loaded) -> dict[int, dict[str, float]]:
    """Seconds by lane and state, of the time between the two scrapes."""
    other = loaded.trace["otherData"]
    offset = float(other["clock_offset_nanos"]) * 1e-9
    lanes: dict[Any, int] = {}
    for event in loaded.trace["traceEvents"]:
        if event.get("ph") == "M" and event["name"] == "thread_name" and event["args"]["name"] == "state":
            lanes[(event["pid"], event["tid"])] = len(lanes)
    times: dict[int, dict[str, float]] = {lane: {} for lane in lanes.values()}
    for event in loaded.trace["traceEvents"]:
        place = (event.get("pid"), event.get("tid"))
        if event.get("ph") != "X" or place not in lanes:
            continue
        begin = event["ts"] * 1e-6 + offset
        inside = min(begin + event["dur"] * 1e-6, loaded.last) - max(begin, loaded.first)
        if inside > 0:
            times[lanes[place]][event["name"]] = times[lanes[place]].get(event["name"], 0.0) + inside
    return times


def panel(loaded: Loaded, title: str, **labels: str) -> float:
    expression = next(e for e in expressions.panel_expressions() if e.where == title)
    for sample in loaded.prometheus.query(substituted(expression, "uneven", loaded.window), loaded.last):
        if labels.items() <= sample["metric"].items():
            return float(sample["value"][1])
    raise AssertionError(f"{title}: no sample with {labels}")


def total(times: dict[int, dict[str, float]], states: set[str]) -> float:
    return sum(seconds for lane in times.values() for state, seconds in lane.items() if state in states)


def test_the_trace_reaches_back_to_the_first_scrape(loaded: Loaded) -> None:
    assert not loaded.trace["otherData"]["incomplete"]
    for lane in traced(loaded).values():
        assert sum(lane.values()) == pytest.approx(loaded.last - loaded.first, rel=0.005)


def test_the_bubble_is_that_of_the_trace(loaded: Loaded) -> None:
    times = traced(loaded)
    inside = total(times, {state for lane in times.values() for state in lane} - OUTSIDE)
    bubble = 1 - total(times, WORK) / inside
    assert 0.05 < bubble < 0.95
    assert panel(loaded, "Bubble: measured, predicted, ideal") == pytest.approx(bubble, rel=0.02)


def test_the_fill_ratio_is_that_of_the_trace(loaded: Loaded) -> None:
    times = traced(loaded)
    states = {state for lane in times.values() for state in lane}
    filled = total(times, {"filled"})
    assert filled > 0, "no inference ran in a gap"
    ratio = filled / total(times, states - OUTSIDE - WORK)
    assert panel(loaded, "Bubble filled by inference") == pytest.approx(ratio, rel=0.02)


def test_recompute_and_busy_shares_are_those_of_the_trace(loaded: Loaded) -> None:
    for lane, times in traced(loaded).items():
        work_seconds = sum(seconds for state, seconds in times.items() if state in WORK)
        busy = work_seconds + times.get("infer", 0.0) + times.get("filled", 0.0)
        assert panel(loaded, "Busy share", lane=str(lane)) == pytest.approx(busy / (loaded.last - loaded.first), rel=0.02)
        assert times["recompute"] > 0
        share = times["recompute"] / work_seconds
        assert panel(loaded, "Recompute share of work", lane=str(lane)) == pytest.approx(share, rel=0.02)


def longest_scrape(loaded: Loaded) -> float:
    """Seconds: a sample bears the time at which its scrape began, and tells of one before its end."""
    samples = loaded.prometheus.query(f'scrape_duration_seconds{{job="penstock"}}[{loaded.window}]', loaded.last)
    return max(float(value) for sample in samples for _, value in sample["values"])


def test_states_add_up_to_a_second_per_second(loaded: Loaded) -> None:
    exact = 0.001 + 2 * longest_scrape(loaded) / (loaded.last - loaded.first)
    text = f'sum by (lane) (rate(penstock_stage_time_seconds_total{{pipeline="uneven"}}[{loaded.window}]))'
    for sample in loaded.prometheus.query(text, loaded.last):
        assert float(sample["value"][1]) == pytest.approx(1, rel=exact)
