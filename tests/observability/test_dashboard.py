"""The dashboard as a file: variables, data source, units, titles, the grid."""

from __future__ import annotations

import itertools
import re

import expressions


def test_it_is_not_edited_in_place() -> None:
    dashboard = expressions.dashboard()
    assert (dashboard["uid"], dashboard["editable"], dashboard["graphTooltip"]) == ("penstock", False, 1)
    assert [v["name"] for v in dashboard["templating"]["list"]] == [
        "datasource",
        "job",
        "instance",
        "pipeline",
        "lane",
    ]
    assert all(v["refresh"] == 2 for v in dashboard["templating"]["list"] if v["type"] == "query")


def test_panels_are_complete() -> None:
    for panel in expressions.panels():
        assert panel["title"] and panel["targets"] and panel["fieldConfig"]["defaults"]["unit"]
        assert "docs/runbook.md#" in panel["description"]
        assert panel["datasource"]["uid"] == "$datasource"
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "$datasource"
            assert target["legendFormat"]


def test_every_selector_uses_the_variables() -> None:
    for expression in expressions.panel_expressions():
        for name, matchers in expressions.selectors(expression.text):
            assert {("job", "=~", "$job"), ("instance", "=~", "$instance")} <= set(matchers), (expression.where, name)
        assert all(r == "$__rate_interval" for r in re.findall(r"\[([^\]]*)\]", expression.text)), expression.where


def test_nothing_overlaps() -> None:
    panels = expressions.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    rows = [panel["gridPos"]["y"] for panel in panels if panel["type"] != "row"]
    assert max(rows.count(y) for y in rows) <= 5
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
