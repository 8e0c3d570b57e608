"""A real Prometheus scrapes both ranks of a group, as each is a target of its own in the manifests: every expression of the
dashboard, the rules and the alerts is executed, shows both ranks, and counts nothing twice."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import numpy as np
import penstock
import pytest

import expressions
from daemon_process import eventually
from expressions import Expression, substituted
from prometheus_process import Prometheus
from rank_group import Group

PIPELINE = "both"
MICRO_BATCHES = 4
WIDTH = 64

# What may be empty here, and why.
MAY_BE_EMPTY = {
    "Errors": "only methods with errors have a series, and nothing fails here",
    "Time until the certificate ends": "the daemons here speak plaintext",
}
# What has a label for processes and shows the leader only, and why.
LEADER_ONLY = {
    "Host memory by class": "the leader admits; others reserve nothing, and have no limit that they could come near",
    "Handle store": "results are kept where clients call",
    "Ranks missing": "the leader counts its ranks",
    "Re-formings": "the leader forms the group",
}
# Alerts whose condition may hold for a moment on a machine that is busy or has just begun, and what keeps them silent.
MAY_HOLD_FOR_A_MOMENT = {
    "PenstockStageTimeNotConserved": "a rate over a minute that has hardly begun; it must hold for five",
    "PenstockHighExcessBubble": "others may take the machine from a stage; it must hold for a quarter of an hour",
}


@dataclasses.dataclass
class Watched:
    """A group that has worked, and the Prometheus that watched: from before the work until all rules have seen all of it."""

    prometheus: Prometheus
    leader: str  # both are instances: what Prometheus calls a target
    other: str
    first: float
    last: float

    @property
    def instances(self) -> set[str]:
        return {self.leader, self.other}

    @property
    def window(self) -> str:
        return f"{math.ceil((self.last - self.first) * 1000) + 1}ms"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is missing; deploy/setup.sh --tests fetches it")
    folder = tmp_path_factory.mktemp("live")
    group = Group(folder, 2, devices=[("cpu:0",)] * 2)
    targets = [rank.metrics_address for rank in group.ranks]
    # Prometheus takes five seconds to begin.
    with Prometheus(folder, *targets) as prometheus, group.running(), group.client() as client:
        pipeline = create(client)
        pipeline.save_checkpoint()
        first = min(await_samples(prometheus, "penstock_stage_info", 2, time.time()))
        work(pipeline)
        last = max(await_samples(prometheus, "penstock_stage_info", 2, time.time()))
        # Rules of a group are computed one after the other, by one time.
        last = max(await_samples(prometheus, expressions.rules()[-1].where, 1, last))
        yield Watched(prometheus, targets[0], targets[1], first, last)


def create(client: penstock.Client) -> penstock.Pipeline:
    """A stage on each rank, the second one larger."""
    return client.create_pipeline(
        PIPELINE,
        model="mlp",
        options={"layers": 8, "width": WIDTH},
        balance=[3, 5],
        ranks=[0, 1],
        schedule="1f1b",
        micro_batches=MICRO_BATCHES,
        checkpoint="except_last",
        optimizer="adamw",
        optimizer_options={"learning_rate": 0.001},
        loss="mean_squared_error",
        seed=1,
        bubble_filling=True,
    )


def await_samples(prometheus: Prometheus, metric: str, count: int, moment: float) -> list[float]:
    """Waits until so many series of the pipeline have samples of later; their times."""
    times: list[float] = []

    def seen() -> bool:
        samples = prometheus.query(f'timestamp({metric}{{pipeline="{PIPELINE}"}})', time.time())
        times[:] = [float(sample["value"][1]) for sample in samples]
        return len(times) == count and min(times) > moment

    eventually(seen)
    return times


def work(pipeline: penstock.Pipeline) -> None:
    rows, target = np.random.default_rng(0).standard_normal((2, 32, WIDTH), np.float32)
    for _ in range(3):
        pipeline.train_step(rows, target)
        pipeline.infer(rows[:8])


def check_both_ranks(watched: Watched, samples: list[dict[str, Any]], where: str) -> None:
    """Each label that tells ranks or their lanes apart has all its values."""
    every = {"lane": {"0", "1"}, "src": {"0", "1"}, "from": {"0", "1"}, "instance": watched.instances}
    if where in LEADER_ONLY:
        every["instance"] = {watched.leader}
    for label, values in every.items():
        if any(label in sample["metric"] for sample in samples):
            assert {sample["metric"].get(label) for sample in samples} == values, (label, samples)


@pytest.mark.parametrize("expression", expressions.panel_expressions(), ids=lambda e: e.where)
def test_every_panel_shows_both_ranks(watched: Watched, expression: Expression) -> None:
    samples = watched.prometheus.query(substituted(expression, PIPELINE, watched.window), watched.last)
    if expression.where in MAY_BE_EMPTY:
        return
    # Quantiles of methods and phases that never ran are no numbers.
    finite = [sample for sample in samples if math.isfinite(float(sample["value"][1]))]
    assert finite, "no data"
    assert finite == samples or "histogram_quantile" in expression.text
    check_both_ranks(watched, finite, expression.where)


@pytest.mark.parametrize("rule", expressions.rules(), ids=lambda e: e.where)
def test_every_rule_has_recorded_both_ranks(watched: Watched, rule: Expression) -> None:
    samples = watched.prometheus.query(f'{rule.where}{{pipeline="{PIPELINE}"}}', watched.last)
    assert samples and all(math.isfinite(float(sample["value"][1])) for sample in samples)
    check_both_ranks(watched, samples, rule.where)


@pytest.mark.parametrize("alert", expressions.alerts(), ids=lambda e: e.where)
def test_no_alert_s_condition_holds(watched: Watched, alert: Expression) -> None:
    samples = watched.prometheus.query(alert.text, watched.last)
    assert alert.where in MAY_HOLD_FOR_A_MOMENT or samples == []


def test_no_series_of_a_pipeline_comes_from_two_ranks(watched: Watched) -> None:
    """So that sums over processes count everything once."""
    match = urllib.parse.urlencode({"match[]": f'{{pipeline="{PIPELINE}",instance!=""}}'})
    series = watched.prometheus.get(f"/api/v1/series?{match}")
    apart = [tuple(sorted((name, value) for name, value in one.items() if name != "instance")) for one in series]
    assert len(apart) > 100 and len(apart) == len(set(apart))


def test_the_dashboard_lists_the_pipeline_of_either_rank(watched: Watched) -> None:
    """Whatever rank is chosen: the names are read from a series that each of them has."""
    (variable,) = [one for one in expressions.dashboard()["templating"]["list"] if one["name"] == "pipeline"]
    metric = variable["query"]["query"].split("(")[1].split("{")[0]
    samples = watched.prometheus.query(f'{metric}{{pipeline="{PIPELINE}"}}', watched.last)
    assert {sample["metric"]["instance"] for sample in samples} == watched.instances


def test_both_ranks_are_ready(watched: Watched) -> None:
    for metric in ("penstock_ready", "penstock_ready_condition"):
        samples = watched.prometheus.query(metric, watched.last)
        assert {sample["metric"]["instance"] for sample in samples} == watched.instances
        assert {sample["value"][1] for sample in samples} == {"1"}, samples


def test_the_ideal_bubble_is_that_of_the_plan_for_every_lane(watched: Watched) -> None:
    samples = watched.prometheus.query("penstock_schedule_ideal_bubble_ratio", watched.last)
    assert {sample["metric"]["lane"] for sample in samples} == {"0", "1"}
    for sample in samples:
        assert float(sample["value"][1]) == pytest.approx(1 / (MICRO_BATCHES + 1))


def test_the_time_of_cores_is_that_of_both_lanes(watched: Watched) -> None:
    samples = watched.prometheus.query(f'penstock_device_busy_seconds_total{{pipeline="{PIPELINE}"}}', watched.last)
    assert {sample["metric"]["device"] for sample in samples if float(sample["value"][1]) > 0} == {"cpu:0", "1/cpu:0"}
