"""promtool reads rules, alerts and the configuration without a word, and its unit tests pass."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest

from expressions import PROMETHEUS

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Rules and their tests side by side, as promtool wants them."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is missing; deploy/setup.sh --tests fetches it")
    for file in [*PROMETHEUS.glob("*.yaml"), *HERE.glob("*_test.yaml")]:
        shutil.copy(file, tmp_path)
    return tmp_path


def promtool(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "rules.yaml", "alerts.yaml"),
        ("check", "config", "prometheus.yaml"),
        ("test", "rules", "rules_test.yaml"),
        ("test", "rules", "alerts_test.yaml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(folder: pathlib.Path, arguments: tuple[str, ...]) -> None:
    result = promtool(folder, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "FAILED" not in result.stdout + result.stderr


def test_an_alert_that_stays_silent_is_found(folder: pathlib.Path) -> None:
    """The unit tests can fail: a threshold out of reach, and an alert that always fires."""
    alerts = folder / "alerts.yaml"
    text = alerts.read_text()
    for before, after in (("> 0.95", "> 95"), ("penstock_ready == 0", "penstock_ready >= 0")):
        assert before in text
        alerts.write_text(text.replace(before, after))
        assert promtool(folder, "test", "rules", "alerts_test.yaml").returncode != 0


def test_the_golden_rule_test_can_fail(folder: pathlib.Path) -> None:
    rules = folder / "rules.yaml"
    rules.write_text(rules.read_text().replace("backward_weight|recompute", "backward_weight|wait_gradient|recompute"))
    assert promtool(folder, "test", "rules", "rules_test.yaml").returncode != 0
