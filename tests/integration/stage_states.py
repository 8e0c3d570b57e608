"""Where the time of a pipeline's stages went between two scrapes: states, and which of them are work, or outside of any step."""

from __future__ import annotations

from daemon_process import Metrics

STAGE_TIME = "penstock_stage_time_seconds_total"
WORK = {"forward", "backward", "backward_input", "backward_weight", "recompute", "optimizer"}
OUTSIDE_STEP = {"infer", "infer_wait", "checkpoint", "wait_client", "no_work", "paused", "setup"}


def seconds_by_state(before: Metrics, after: Metrics, pipeline: str) -> dict[str, float]:
    """Of all stages together."""
    older = {tuple(sorted(labels.items())): value for labels, value in before.select(STAGE_TIME, pipeline=pipeline)}
    seconds: dict[str, float] = {}
    for labels, value in after.select(STAGE_TIME, pipeline=pipeline):
        passed = value - older[tuple(sorted(labels.items()))]
        assert passed >= 0, labels
        seconds[labels["state"]] = seconds.get(labels["state"], 0.0) + passed
    return seconds


def work_and_step(seconds: dict[str, float]) -> tuple[float, float]:
    """Seconds of work and seconds inside of steps: what lies between is bubble, filled or idle."""
    in_step = sum(value for state, value in seconds.items() if state not in OUTSIDE_STEP)
    return sum(seconds[state] for state in WORK), in_step
