"""amtool accepts the routing of alerts, and each alert reaches the receiver of its severity."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml

from expressions import PROMETHEUS

CONFIGURATION = PROMETHEUS.parent / "alertmanager" / "alertmanager.yaml"
RECEIVERS = {"critical": "penstock-on-call", "warning": "penstock-operators"}
ALERTS = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def amtool(*arguments: str) -> str:
    if shutil.which("amtool") is None:
        pytest.skip("amtool is missing; deploy/setup.sh --tests fetches it")
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.strip()


def test_amtool_is_content() -> None:
    told = amtool("check-config", str(CONFIGURATION))
    assert "SUCCESS" in told and "FAILED" not in told


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_is_told_to_those_of_its_severity(rule: dict[str, dict[str, str]]) -> None:
    severity = rule["labels"]["severity"]
    told = amtool(
        "config", "routes", "test", f"--config.file={CONFIGURATION}", f"alertname={rule['alert']}", f"severity={severity}"
    )
    assert told == RECEIVERS[severity]
