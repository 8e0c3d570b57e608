"""The expressions of rules, alerts and the dashboard, and what they name."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"

_RULE = re.compile(r"^ +- (record|alert): (\S+)\n +expr: (.+)$", re.MULTILINE)
_SELECTOR = re.compile(r"\b([a-z_][a-z0-9_:]*)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


@dataclasses.dataclass
class Expression:
    where: str  # the rule, alert or panel that has it
    text: str


def rules() -> list[Expression]:
    """Of the recording rules: `where` is the name of the series."""
    return [Expression(name, text) for _, name, text in _RULE.findall((PROMETHEUS / "rules.yaml").read_text())]


def alerts() -> list[Expression]:
    return [Expression(name, text) for _, name, text in _RULE.findall((PROMETHEUS / "alerts.yaml").read_text())]


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GRAFANA / "penstock.json").read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    """Without the rows that head them."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def panel_expressions() -> list[Expression]:
    return [Expression(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def substituted(expression: Expression, pipeline: str, window: str) -> str:
    """A panel's expression with the values of the dashboard's variables: one pipeline, and all the rest."""
    text = expression.text
    for name, value in (("job", "penstock"), ("instance", ".*"), ("pipeline", pipeline), ("lane", ".*")):
        text = text.replace(f"${name}", value)
    return text.replace("$__rate_interval", window)


def selectors(text: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Every metric that an expression names, with its matchers: label, operator, value."""
    return [
        (name, _MATCHER.findall(matchers))
        for name, matchers in _SELECTOR.findall(text)
        if name.startswith(("penstock_", "grpc_server_", "process_")) or ":" in name
    ]
