"""The dashboard's rows: each panel with its question, its expressions and what bad looks like.

States, their classes and colours come from the one table in engine/observe/stage_state.cc.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any

STATES = pathlib.Path(__file__).resolve().parents[2] / "engine/observe/stage_state.cc"

T = "penstock_stage_time_seconds_total"
S = 'job=~"$job",instance=~"$instance",pipeline=~"$pipeline"'
D = 'job=~"$job",instance=~"$instance"'
R = "[$__rate_interval]"


def read_states() -> list[tuple[str, str, str]]:
    """Name, class and colour of each state, in the order of the table."""
    found = re.findall(r'\{k\w+, "(\w+)", Class::k(\w+), "(#[0-9a-f]{6})"\}', STATES.read_text())
    assert len(found) == 24, f"{STATES}: read {len(found)} states"
    return found


def of_class(name: str) -> str:
    return "|".join(state for state, of, _ in read_states() if of == name)


WORK, IDLE, OUTSIDE = of_class("Work"), of_class("IdleInStep"), of_class("OutsideStep")


@dataclasses.dataclass
class Panel:
    title: str
    description: str  # what it shows, and what bad looks like
    unit: str
    targets: list[tuple[str, str]]  # expression, legend
    kind: str = "timeseries"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    anchor: str = "what-the-time-of-a-stage-is-made-of"
    stacked: str = ""  # "normal" or "percent"
    states: bool = False  # series are states: they get their colours


def busy(more: str = "") -> str:
    return f'sum by (pipeline, lane) (rate({T}{{{S},state=~"{WORK}{more}"}}{R}))'


def over(part: str, whole: str) -> str:
    return f"{part} / ({whole} > 0)"


ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Is it healthy?",
        [
            Panel(
                "Ready daemons",
                "Daemons that take work. Bad: fewer than you run.",
                "short",
                [(f"sum(penstock_ready{{{D}}})", "ready")],
                kind="stat",
                anchor="penstocknotready",
            ),
            Panel(
                "Samples per second",
                "What callers get done. Bad: it falls while queues fill.",
                "ops",
                [(f"sum by (pipeline, mode) (rate(penstock_samples_total{{{S}}}{R}))", "{{pipeline}} {{mode}}")],
                anchor="penstockqueuesaturated",
            ),
            Panel(
                "Error ratio",
                "Accepted batches that failed. Bad: anything above 1 %.",
                "percentunit",
                [
                    (
                        over(
                            f'sum by (pipeline) (rate(penstock_batches_total{{{S},outcome="failed"}}{R}))',
                            f"sum by (pipeline) (rate(penstock_batches_total{{{S}}}{R}))",
                        ),
                        "{{pipeline}}",
                    )
                ],
                anchor="penstockerrorratiohigh",
            ),
            Panel(
                "Bubble: measured, predicted, ideal",
                "The share of step time without work. Bad: measured far above predicted (the machine), or predicted far "
                "above ideal (the cut).",
                "percentunit",
                [
                    (
                        "1 - "
                        + over(
                            f'sum by (pipeline) (rate({T}{{{S},state=~"{WORK}"}}{R}))',
                            f'sum by (pipeline) (rate({T}{{{S},state!~"{OUTSIDE}"}}{R}))',
                        ),
                        "{{pipeline}} measured",
                    ),
                    (f"avg by (pipeline) (penstock_schedule_predicted_bubble_ratio{{{S}}})", "{{pipeline}} predicted"),
                    (f"avg by (pipeline) (penstock_schedule_ideal_bubble_ratio{{{S}}})", "{{pipeline}} ideal"),
                ],
                anchor="penstockhighexcessbubble",
            ),
        ],
    ),
    (
        "Where does the time go?",
        [
            Panel(
                "Stage time by state",
                "Every second of every stage by what it did. Bad: much red and orange.",
                "s",
                [
                    (
                        f'sum by (pipeline, lane, state) (rate({T}{{{S},lane=~"$lane"}}{R}))',
                        "{{pipeline}} {{lane}} {{state}}",
                    )
                ],
                stacked="percent",
                states=True,
            ),
            Panel(
                "Bubble filled by inference",
                "The share of bubbles that inference used. Bad: near 0 while inference waits.",
                "percentunit",
                [
                    (
                        over(
                            f'sum by (pipeline) (rate({T}{{{S},state="filled"}}{R}))',
                            f'sum by (pipeline) (rate({T}{{{S},state=~"filled|{IDLE}"}}{R}))',
                        ),
                        "{{pipeline}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Why idle?",
        [
            Panel(
                "Idle time by cause",
                "What stages wait for inside steps. Bad: one cause on one stage stands out.",
                "s",
                [
                    (
                        f'sum by (pipeline, lane, state) (rate({T}{{{S},state=~"{IDLE}"}}{R}))',
                        "{{pipeline}} {{lane}} {{state}}",
                    )
                ],
                stacked="normal",
                states=True,
            ),
            Panel(
                "Blocked minus starved",
                "Above 0 a stage is too fast for the one behind it, below 0 too fast for the one before it. Bad: far from 0.",
                "s",
                [
                    (
                        f'sum by (pipeline, lane) (rate({T}{{{S},state="blocked"}}{R})) - '
                        f'sum by (pipeline, lane) (rate({T}{{{S},state="wait_activation"}}{R}))',
                        "{{pipeline}} {{lane}}",
                    )
                ],
            ),
            Panel(
                "Queue wait",
                "How long calls waited before they ran. Bad: the bright band moves up.",
                "s",
                [(f"sum by (le) (increase(penstock_queue_wait_seconds_bucket{{{S}}}{R}))", "{{le}}")],
                kind="heatmap",
                anchor="penstockqueuesaturated",
            ),
            Panel(
                "Requests per run of inference",
                "How many requests ran as one. Bad: near 1 with dynamic batching while calls wait.",
                "none",
                [
                    (
                        over(
                            f'sum by (pipeline) (rate(penstock_batches_started_total{{{S},mode="infer"}}{R}))',
                            f"sum by (pipeline) (rate(penstock_inference_runs_total{{{S}}}{R}))",
                        ),
                        "{{pipeline}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Which stage is slow?",
        [
            Panel(
                "Busy share",
                "The share of time in which a stage works. Bad: one row dark, the others pale.",
                "percentunit",
                [(busy("|infer|filled"), "{{pipeline}} {{lane}}")],
                kind="status-history",
            ),
            Panel(
                "Imbalance",
                "The busiest stage against the average. Bad: above 1.2, the cut is unequal.",
                "none",
                [(f"max by (pipeline) ({busy()}) / (avg by (pipeline) ({busy()}) > 0)", "{{pipeline}}")],
                anchor="penstockhighexcessbubble",
            ),
            Panel(
                "Duration of actions",
                "p50 and p99 of one action on one micro-batch. Bad: p99 far from p50.",
                "s",
                [
                    (
                        f"histogram_quantile({q}, sum by (le, pipeline, lane, phase) "
                        f"(rate(penstock_phase_duration_seconds_bucket{{{S}}}{R})))",
                        f"{{{{pipeline}}}} {{{{lane}}}} {{{{phase}}}} p{round(q * 100)}",
                    )
                    for q in (0.5, 0.99)
                ],
            ),
        ],
    ),
    (
        "Does memory fit?",
        [
            Panel(
                "Memory by kind",
                "What pipelines keep on each device. Bad: it grows from step to step.",
                "bytes",
                [
                    (
                        f"sum by (instance, device, kind) (penstock_device_memory_bytes{{{S}}})",
                        "{{instance}} {{device}} {{kind}}",
                    )
                ],
                stacked="normal",
                anchor="penstockdevicememorylow",
            ),
            Panel(
                "Headroom",
                "What is left of each device's limit. Bad: below 5 %.",
                "percentunit",
                [
                    (
                        f'1 - (max by (instance, device) (penstock_device_allocator_bytes{{{D}, use="allocated"}}) or '
                        f"sum by (instance, device) (penstock_device_memory_bytes{{{S}}})) / "
                        f"sum by (instance, device) (penstock_device_memory_limit_bytes{{{D}}})",
                        "{{instance}} {{device}}",
                    )
                ],
                anchor="penstockdevicememorylow",
            ),
            Panel(
                "Host memory by class",
                "What is reserved of the host's memory, and what the process takes. Bad: near the limit, or far from what is "
                "reserved.",
                "bytes",
                [
                    (f"sum by (instance, class) (penstock_memory_reserved_bytes{{{D}}})", "{{instance}} {{class}}"),
                    (f"sum by (instance) (penstock_memory_limit_bytes{{{D}}})", "{{instance}} limit"),
                    (
                        f"sum by (instance) (process_resident_memory_bytes{{{D}}}) - "
                        f"sum by (instance) (penstock_memory_process_bytes{{{D}}}) - "
                        f"sum by (instance) (penstock_memory_allocator_bytes{{{D}}})",
                        "{{instance}} resident beyond the process itself and what its allocator keeps",
                    ),
                ],
                anchor="penstockmemorynearlyfull",
            ),
            Panel(
                "Recompute share of work",
                "What saving memory costs. Bad: above a third.",
                "percentunit",
                [
                    (
                        over(f'sum by (pipeline, lane) (rate({T}{{{S},state="recompute"}}{R}))', busy()),
                        "{{pipeline}} {{lane}}",
                    )
                ],
            ),
            Panel(
                "Micro-batches in flight",
                "Forwards whose backward has not run. Bad: more than the schedule holds.",
                "none",
                [(f"sum by (pipeline, lane) (penstock_inflight_micro_batches{{{S}}})", "{{pipeline}} {{lane}}")],
            ),
        ],
    ),
    (
        "Do callers get answers?",
        [
            Panel(
                "Requests",
                "Calls that began, by method.",
                "ops",
                [(f"sum by (grpc_method) (rate(grpc_server_started_total{{{D}}}{R}))", "{{grpc_method}}")],
                anchor="penstockqueuesaturated",
            ),
            Panel(
                "Errors",
                "Calls that ended with an error, by method and code. Bad: UNAVAILABLE, INTERNAL.",
                "ops",
                [
                    (
                        f'sum by (grpc_method, grpc_code) (rate(grpc_server_handled_total{{{D},grpc_code!="OK"}}{R})) > 0',
                        "{{grpc_method}} {{grpc_code}}",
                    )
                ],
                anchor="penstockerrorratiohigh",
            ),
            Panel(
                "p99 of calls",
                "How long the slowest hundredth took, by method.",
                "s",
                [
                    (
                        f"histogram_quantile(0.99, sum by (le, grpc_method) (rate(grpc_server_handling_seconds_bucket{{{D}}}{R})))",
                        "{{grpc_method}}",
                    )
                ],
                anchor="penstockqueuesaturated",
            ),
            Panel(
                "Refused; oldest queued",
                "Calls that were refused, and how long the first in line has waited. Bad: it rises.",
                "none",
                [
                    (
                        f"sum by (reason) (rate(penstock_admission_rejected_total{{{S}}}{R}))",
                        "refused: {{reason}} per second",
                    ),
                    (
                        f"max by (pipeline, queue) (penstock_queue_oldest_age_seconds{{{S}}})",
                        "{{pipeline}} {{queue}}: oldest, seconds",
                    ),
                ],
                anchor="penstockqueuesaturated",
            ),
        ],
    ),
    (
        "Is state safe?",
        [
            Panel(
                "Age of checkpoints",
                "Time since the last good save. Bad: longer than you can afford to lose.",
                "s",
                [
                    (
                        f"time() - max by (pipeline) (penstock_checkpoint_last_success_timestamp_seconds{{{S}}})",
                        "{{pipeline}}",
                    )
                ],
                anchor="penstockcheckpointstale",
            ),
            Panel(
                "Handle store",
                "Results that stay on the server against what they may take. Bad: above 90 %.",
                "percentunit",
                [
                    (
                        f"sum by (instance, tier) (penstock_handle_bytes{{{D}}}) / "
                        f"(sum by (instance, tier) (penstock_handle_limit_bytes{{{D}}}) > 0)",
                        "{{instance}} {{tier}}",
                    )
                ],
                anchor="penstockhandlestorenearlyfull",
            ),
            Panel(
                "Loss",
                "Of the last training batch. Bad: gaps, or it rises.",
                "none",
                [(f"max by (pipeline) (penstock_loss{{{S}}})", "{{pipeline}}")],
                anchor="penstocklossnotfinite",
            ),
        ],
    ),
    (
        "What goes between stages?",
        [
            Panel(
                "Link throughput",
                "Bytes from lane to lane, counted by the sender.",
                "Bps",
                [
                    (
                        f"sum by (pipeline, src, dst, kind) (rate(penstock_link_bytes_total{{{S}}}{R}))",
                        "{{pipeline}} {{src}} to {{dst}} {{kind}}",
                    )
                ],
            ),
            Panel(
                "Time spent sending",
                "Seconds per second that a lane is held by sending. Bad: more than a few percent.",
                "percentunit",
                [
                    (
                        f"sum by (pipeline, src) (rate(penstock_link_transfer_seconds_total{{{S}}}{R}))",
                        "{{pipeline}} {{src}}",
                    )
                ],
            ),
        ],
    ),
    (
        "Is the group of ranks whole?",
        [
            Panel(
                "Ranks missing",
                "Ranks that the group needs and that do not take part. Bad: above 0; pipelines with a stage there stand still.",
                "none",
                [
                    (
                        f"max by (instance) (penstock_group_ranks_expected{{{D}}} - penstock_group_ranks{{{D}}})",
                        "{{instance}}",
                    )
                ],
                anchor="penstockrankmissing",
            ),
            Panel(
                "Re-formings",
                "How often the group was complete again, after it had lost a rank or an edge. Bad: again and again.",
                "none",
                [(f"sum by (instance) (increase(penstock_group_reformings_total{{{D}}}{R}))", "{{instance}}")],
                anchor="penstockgroupunstable",
            ),
            Panel(
                "Bytes by link",
                "Tensors that come from one rank to another, counted by the receiver. Bad: a link that is flat while others move.",
                "Bps",
                [
                    (
                        f"sum by (from, to, carrier) (rate(penstock_peer_received_bytes_total{{{D}}}{R}))",
                        "{{from}} to {{to}} by {{carrier}}",
                    )
                ],
                anchor="penstockgroupunstable",
            ),
        ],
    ),
    (
        "Who gets in?",
        [
            Panel(
                "Denied calls",
                "Calls that were not let in, by reason. Bad: many of one reason; somebody tries, or a credential has ended.",
                "none",
                [(f"sum by (instance, reason) (rate(penstock_calls_denied_total{{{D}}}{R}))", "{{instance}} {{reason}} per second")],
            ),
            Panel(
                "Time until the certificate ends",
                "Of the API. Bad: less than 14 days.",
                "s",
                [
                    (
                        f"min by (instance, certificate) (penstock_certificate_expiry_timestamp_seconds{{{D}}}) - time()",
                        "{{instance}} {{certificate}}",
                    )
                ],
                anchor="penstockcertificateexpires",
            ),
            Panel(
                "Refused files, lost records",
                "Credential files that had changed and could not be used; records that the audit log lacks. Bad: any.",
                "none",
                [
                    (
                        f"sum by (instance) (increase(penstock_credential_files_refused_total{{{D}}}{R}))",
                        "{{instance}}: files refused",
                    ),
                    (
                        f'sum by (instance, outcome) (increase(penstock_audit_records_total{{{D},outcome!="written"}}{R}))',
                        "{{instance}}: audit records {{outcome}}",
                    ),
                ],
                anchor="penstockcredentialfilerefused",
            ),
        ],
    ),
]
