"""What operators load names what the daemon exports: metrics, labels, values, states, colours, sections of the runbook."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest

import daemon_process
import expressions
from expressions import ROOT, Expression
from promised_metrics import BEYOND, PROMISED, Promise

Table = dict[str, dict[str, Any]]

# Exported for whoever looks closer; no panel, rule or alert has them.
DIAGNOSTIC = {
    "penstock_schedule_info": "joins the schedule's name to a series",
    "penstock_stage_info": "joins layers and device to a stage; the dashboard's variables read it",
    "penstock_build_info": "which version runs where; the dashboard's variables read it",
    "penstock_device_busy_seconds_total": "against the work states: what others took of a core",
    "penstock_recomputed_activation_bytes_total": "the share of time is on the dashboard; bytes tell which layers",
    "penstock_out_of_memory_total": "a failed batch says so by itself",
    "penstock_batches_started_total": "attempts, beside what ended",
    "penstock_batch_duration_seconds": "calls are on the dashboard, by method",
    "penstock_step_number": "progress of one training",
    "penstock_queue_wait_seconds": "its buckets are on the dashboard",
    "penstock_handles": "bytes are what runs out",
    "penstock_handles_ended_total": "leases that are too short show here",
    "penstock_checkpoint_duration_seconds": "how long a save holds training up",
    "penstock_checkpoint_failures_total": "the runbook asks for it",
    "penstock_checkpoint_size_bytes": "disk planning",
    "grpc_server_msg_received_total": "streams",
    "grpc_server_msg_sent_total": "streams",
    "penstock_group_epoch": "which life of the leader; the alert has the generation",
    "penstock_group_refused_total": "the runbook asks for it",
    "penstock_peer_received_messages_total": "the bytes, by number",
    "penstock_peer_dropped_messages_total": "strangers and stale messages; none of them does harm",
    "penstock_ready_condition": "which condition does not hold",
    "penstock_memory_refused_total": "the caller is told at once; the alert comes before",
    "penstock_log_messages_total": "a burst of warnings",
    "penstock_log_dropped_total": "how much of a burst the log does not show",
    "penstock_trace_dropped_events_total": "a full ring drops all the time",
    "penstock_trace_spans_total": "whether collectors take what is sent, where tracing is on",
    "penstock_state_clamped_seconds_total": "how far clocks were put right",
    "penstock_metrics_collect_seconds": "what a scrape costs",
    "process_cpu_seconds_total": "for dashboards of hosts",
    "process_open_fds": "for dashboards of hosts",
    "process_max_fds": "for dashboards of hosts",
    "process_start_time_seconds": "for dashboards of hosts",
}
# Labels that Prometheus adds when it scrapes.
TARGET_LABELS = {"job", "instance", "pod", "namespace", "group"}

EVERYTHING = expressions.rules() + expressions.alerts() + expressions.panel_expressions()


def identifier(expression: Expression) -> str:
    return expression.where


@pytest.mark.parametrize("expression", EVERYTHING, ids=identifier)
def test_every_name_and_value_is_exported(metrics_table: Table, expression: Expression) -> None:
    recorded = {rule.where for rule in expressions.rules()}
    named = expressions.selectors(expression.text)
    assert named, "names no metric"
    for name, matchers in named:
        if name in recorded:
            continue
        assert name in metrics_table, f"{name} is not exported"
        labels = {label["name"]: label["values"] for label in metrics_table[name]["labels"]}
        for label, operator, value in matchers:
            if label in TARGET_LABELS:
                continue
            assert label in labels, f"{name} has no label {label}"
            if value.startswith("$") or not labels[label]:
                continue
            for one in value.split("|") if operator in ("=~", "!~") else [value]:
                assert one in labels[label], f"{name} has no {label}={one!r}"


@pytest.mark.parametrize("expression", EVERYTHING, ids=identifier)
def test_labels_of_aggregations_exist(metrics_table: Table, expression: Expression) -> None:
    known = set(TARGET_LABELS) | {"le"}
    for row in metrics_table.values():
        known |= {label["name"] for label in row["labels"]}
    for clause in re.findall(r"\b(?:by|without|on|ignoring|group_left)\s*\(([^)]*)\)", expression.text):
        for label in filter(None, (part.strip() for part in clause.split(","))):
            assert label in known, label


def test_every_exported_name_is_used_or_diagnostic(metrics_table: Table) -> None:
    used = {name for expression in EVERYTHING for name, _ in expressions.selectors(expression.text)}
    names = {row["name"] for row in metrics_table.values()}
    families = {row["name"] for name, row in metrics_table.items() if name in used}
    assert names - families - set(DIAGNOSTIC) == set(), "neither used nor listed as diagnostic"
    assert set(DIAGNOSTIC) - names == set(), "listed as diagnostic, but not exported"


def not_exported() -> dict[str, set[str]]:
    """What docs/observability.md says is not exported, each with a reason: name to label values, none for all of it."""
    section = (ROOT / "docs/observability.md").read_text().split("### Not exported")[1].split("\n#")[0]
    missing: dict[str, set[str]] = {}
    for names, reason in re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", section, re.MULTILINE):
        assert len(reason) > 20, f"{names}: no reason"
        for name, value in re.findall(r'`(\w+)(?:\{\w+="(\w+)"\})?`', names):
            missing.setdefault(name, set()).update({value} - {""})
    return missing


@pytest.mark.parametrize(("name", "promise"), PROMISED.items(), ids=PROMISED)
def test_what_was_promised_is_exported_or_says_why_not(metrics_table: Table, name: str, promise: Promise) -> None:
    missing = not_exported()
    row = next((row for row in metrics_table.values() if row["name"] == name), None)
    if name in missing and not missing[name]:
        assert row is None, "exported, and listed as not"
        return
    assert row is not None, "neither exported nor listed with a reason"
    assert row["type"] == promise.type
    assert row["buckets"] == promise.buckets
    assert [label["name"] for label in row["labels"]] == list(promise.labels)
    for label in row["labels"]:
        if promise.labels[label["name"]]:
            assert label["values"] == [v for v in promise.labels[label["name"]] if v not in missing.get(name, set())]


def test_nothing_else_is_exported_or_excused(metrics_table: Table) -> None:
    assert {row["name"] for row in metrics_table.values()} - set(PROMISED) == set(BEYOND)
    assert set(not_exported()) - set(PROMISED) == set(), "listed as not exported, but nobody was promised it"
    for name, values in not_exported().items():
        assert values <= {value for of in PROMISED[name].labels.values() for value in of}, name


@pytest.mark.parametrize("expression", EVERYTHING, ids=identifier)
def test_counters_stand_inside_rates(metrics_table: Table, expression: Expression) -> None:
    bare = re.sub(r"\b(rate|irate|increase)\(\w+(\{[^}]*\})?\[[^\]]*\]\)", "", expression.text)
    for name, _ in expressions.selectors(bare):
        if name in metrics_table:
            kind = metrics_table[name]["type"]
            assert kind == "gauge", f"{name} is a {kind} outside of rate and increase"


def test_each_state_is_in_exactly_one_class(metrics_table: Table) -> None:
    """The regular expressions of the rules and the panels are the classes of the code's table, and together all states."""
    sys.path.insert(0, str(ROOT / "deploy/grafana"))
    import panels

    states = next(
        label["values"]
        for label in metrics_table["penstock_stage_time_seconds_total"]["labels"]
        if label["name"] == "state"
    )
    classes = {
        of: [name for name, its, _ in panels.read_states() if its == of] for _, of, _ in panels.read_states()
    }
    assert sorted(sum(classes.values(), [])) == sorted(states)
    work, outside = "|".join(classes["Work"]), "|".join(classes["OutsideStep"])
    text = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    assert set(re.findall(r'state=~"([^"]*)"', text)) == {work}
    assert set(re.findall(r'state!~"([^"]*)"', text)) == {outside}
    colours = {name: colour for name, _, colour in panels.read_states()}
    for panel in expressions.panels():
        for override in panel["fieldConfig"]["overrides"]:
            state = override["matcher"]["options"].strip("/ $")
            assert override["properties"][0]["value"]["fixedColor"] == colours[state]


def test_the_dashboard_is_what_its_generator_writes() -> None:
    subprocess.run([sys.executable, ROOT / "deploy/grafana/generate.py", "--check"], check=True)


def test_every_alert_has_a_section_of_the_runbook() -> None:
    text = (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in (ROOT / "docs/runbook.md").read_text().splitlines()
        if line.startswith("#")
    }
    names = [alert.where for alert in expressions.alerts()]
    urls = re.findall(r"runbook_url: (\S+)", text)
    assert urls == [f"docs/runbook.md#{name.lower()}" for name in names]
    assert {name.lower() for name in names} <= headings
    assert len(re.findall("severity: (?:warning|critical)$", text, re.MULTILINE)) == len(names)
    assert len(re.findall("^ +summary: ", text, re.MULTILINE)) == len(names)
    for panel in expressions.panels():
        assert re.search(r"docs/runbook\.md#(\S+)$", panel["description"])[1] in headings  # type: ignore[index]


def test_every_alert_has_a_firing_and_a_silent_test() -> None:
    text = (ROOT / "tests/observability/alerts_test.yaml").read_text()
    for alert in expressions.alerts():
        assert f'alertname="{alert.where}",alertstate="firing"' in text
        assert f"alertname: {alert.where}\n" in text


def test_the_runbook_names_what_exists() -> None:
    flags = subprocess.run([daemon_process.BINARY, "--dump=flags"], capture_output=True, text=True, check=True).stdout
    text = (ROOT / "docs/runbook.md").read_text()
    for flag in re.findall(r"`--([a-z-]+)`", text):
        assert f'"name":"{flag}"' in flags, flag
