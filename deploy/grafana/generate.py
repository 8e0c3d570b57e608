#!/usr/bin/env python3
"""Writes penstock.json, the dashboard of the rows in panels.py.

Usage: generate.py [--check]     (with --check it only says whether the file is up to date)
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from panels import ROWS, D, Panel, S, read_states

FOLDER = pathlib.Path(__file__).resolve().parent
RUNBOOK = "docs/runbook.md"
WIDTH = 24
DATASOURCE = {"type": "prometheus", "uid": "$datasource"}


def variable(name: str, query: str, label: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "sort": 3,
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }


def overrides(panel: Panel) -> list[dict[str, Any]]:
    if not panel.states:
        return []
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/ {state}$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}],
        }
        for state, _, colour in read_states()
    ]


def panel_json(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    custom: dict[str, Any] = {}
    if panel.kind == "timeseries":
        custom = {
            "lineWidth": 1,
            "fillOpacity": 80 if panel.stacked else 10,
            "showPoints": "never",
            "stacking": {"mode": panel.stacked or "none", "group": "A"},
        }
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        options = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "heatmap":
        options = {"calculate": False, "yAxis": {"unit": "s"}, "color": {"mode": "scheme", "scheme": "Oranges"}}
    defaults: dict[str, Any] = {"unit": panel.unit, "custom": custom}
    if panel.kind == "status-history":
        defaults.update({"color": {"mode": "continuous-BlPu"}, "min": 0, "max": 1})
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": DATASOURCE,
        "gridPos": grid,
        "description": f"{panel.description} More: {RUNBOOK}#{panel.anchor}",
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": DATASOURCE,
                "expr": expression,
                "legendFormat": legend,
                **({"format": "heatmap"} if panel.kind == "heatmap" else {}),
            }
            for i, (expression, legend) in enumerate(panel.targets)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": overrides(panel)},
        "options": options,
    }


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for question, row in ROWS:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": question,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        y += 1
        width = WIDTH // len(row)
        for i, panel in enumerate(row):
            panels.append(panel_json(panel, len(panels) + 1, {"x": i * width, "y": y, "w": width, "h": 8}))
        y += 8
    return {
        "uid": "penstock",
        "title": "Penstock",
        "tags": ["penstock"],
        "editable": False,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                },
                variable("job", "label_values(penstock_build_info, job)", "Job"),
                variable("instance", 'label_values(penstock_build_info{job=~"$job"}, instance)', "Daemon"),
                variable("pipeline", f"label_values(penstock_stage_info{{{D}}}, pipeline)", "Pipeline"),
                variable("lane", f"label_values(penstock_stage_info{{{S}}}, lane)", "Lane"),
            ]
        },
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    path = FOLDER / "penstock.json"
    if "--check" in sys.argv:
        sys.exit(0 if path.read_text() == text() else f"{path.name} is not what generate.py writes")
    path.write_text(text())
