"""What operators were promised to find on /metrics: name, type, labels, label values, buckets. Names may only be added."""

from __future__ import annotations

import dataclasses

# Name, type (C counter, G gauge, H and its buckets), labels with their fixed values. L: pipeline lane device. `|` parts
# values.
_TABLE = """
penstock_stage_time_seconds_total                 C  L state
penstock_device_busy_seconds_total                C  L kind=compute|copy_in|copy_out|peer_copy
penstock_phase_duration_seconds                   B1 L phase=forward|backward|backward_input|backward_weight|recompute|optimizer|infer
penstock_stage_info                               G  L device_uuid rank layers
penstock_stage_last_progress_timestamp_seconds    G  L
penstock_stage_flops_total                        C  L
penstock_stage_peak_flops                         G  L
penstock_schedule_info                            G  pipeline schedule stages chunks micro_batches checkpoint_mode
penstock_schedule_ideal_bubble_ratio              G  L
penstock_schedule_predicted_bubble_ratio          G  L
penstock_inflight_micro_batches                    G  L
penstock_recomputed_activation_bytes_total        C  L
penstock_out_of_memory_total                      C  L
penstock_device_memory_bytes                      G  L kind=weights|gradients|optimizer|stash|buffers|undo|handles|other
penstock_device_memory_limit_bytes                G  device
penstock_device_allocator_bytes                   G  device use=allocated|cached
penstock_host_memory_bytes                        G  kind=pinned|spill
penstock_batches_started_total                    C  pipeline mode=train|forward|backward|infer|evaluate
penstock_batches_total                            C  pipeline mode=train|forward|backward|infer|evaluate outcome=ok|failed|cancelled
penstock_samples_total                            C  pipeline mode=train|forward|backward|infer|evaluate
penstock_batch_duration_seconds                   B2 pipeline mode=train|forward|backward|infer|evaluate
penstock_runs_active                              G  pipeline mode=train|forward|backward|infer|evaluate
penstock_step_number                              G  pipeline
penstock_loss                                     G  pipeline
penstock_nonfinite_steps_total                    C  pipeline kind=loss|gradient
penstock_queue_depth                              G  pipeline queue=train|infer
penstock_queue_capacity                           G  pipeline queue=train|infer
penstock_queue_oldest_age_seconds                 G  pipeline queue=train|infer
penstock_queue_wait_seconds                       B2 pipeline queue=train|infer
penstock_admission_rejected_total                 C  pipeline reason=queue_full|quota|memory|deadline|draining|invalid
penstock_batcher_batch_samples                    B4 pipeline
penstock_batcher_padding_samples_total            C  pipeline
penstock_link_bytes_total                         C  pipeline src dst kind=activation|gradient
penstock_link_transfer_seconds_total              C  pipeline src dst kind=activation|gradient
penstock_link_credits                             G  pipeline src dst
penstock_peer_connected                           G  peer
penstock_peer_reconnects_total                    C  peer
penstock_peer_clock_offset_seconds                G  peer
penstock_peer_clock_uncertainty_seconds           G  peer
penstock_group_epoch                              G
penstock_group_ranks                              G
penstock_memory_reserved_bytes                    G  class=messages|inputs|queues|handles|snapshots|traces|uploads|models|pipelines|answers
penstock_memory_refused_total                     C  class=messages|inputs|queues|handles|snapshots|traces|uploads|models|pipelines|answers
penstock_memory_limit_bytes                       G
penstock_memory_process_bytes                     G
penstock_memory_allocator_bytes                   G
penstock_handles                                  G  state=pending|ready|failed
penstock_handle_bytes                             G  tier=device|host|file
penstock_handle_limit_bytes                       G  tier=device|host|file
penstock_handles_ended_total                      C  reason=released|expired|cancelled
penstock_checkpoint_duration_seconds              B3 pipeline operation=save|restore
penstock_checkpoint_failures_total                C  pipeline operation=save|restore
penstock_checkpoint_last_success_timestamp_seconds G pipeline
penstock_checkpoint_size_bytes                    G  pipeline
penstock_journal_bytes                            G  pipeline
penstock_journal_sync_duration_seconds            B1
penstock_journal_replayed_calls_total             C  pipeline
grpc_server_started_total                         C  grpc_type grpc_service grpc_method
grpc_server_msg_received_total                    C  grpc_type grpc_service grpc_method
grpc_server_msg_sent_total                        C  grpc_type grpc_service grpc_method
grpc_server_handled_total                         C  grpc_type grpc_service grpc_method grpc_code
grpc_server_handling_seconds                      B2 grpc_type grpc_service grpc_method
penstock_ready                                    G
penstock_ready_condition                          G  condition=config|model|peers|admission
penstock_certificate_expiry_timestamp_seconds     G  certificate
penstock_credential_files_refused_total           C
penstock_calls_denied_total                       C  reason=credential_missing|credential_invalid|credential_expired|role_missing
penstock_audit_records_total                      C  outcome=written|dropped|failed
penstock_build_info                               G  version commit cuda torch
penstock_log_messages_total                       C  level
penstock_log_dropped_total                        C  cause=rate|full|failed
penstock_trace_dropped_events_total               C
penstock_state_clamped_seconds_total              C
penstock_metrics_collect_seconds                  G
process_cpu_seconds_total                         C
process_resident_memory_bytes                     G
process_open_fds                                  G
process_max_fds                                   G
process_start_time_seconds                        G
"""


def _steps(least: float, most: float) -> list[float]:
    """1, 2, 5, 10 and so on."""
    exponents = range(-4, 4)
    return [x for e in exponents for x in (float(f"{d}e{e}") for d in (1, 2, 5)) if least <= x <= most]


_BUCKETS = {
    "B1": _steps(0.0001, 10),
    "B2": _steps(0.001, 200),
    "B3": _steps(0.1, 1000),
    "B4": [float(2**n) for n in range(11)],
}
_TYPES = {"C": "counter", "G": "gauge"}


@dataclasses.dataclass
class Promise:
    type: str
    labels: dict[str, list[str]]  # in their order; no values: free ones, or a table of their own
    buckets: list[float]


def _promise(kind: str, labels: list[str]) -> Promise:
    named: dict[str, list[str]] = {}
    for label in labels:
        for one in ("pipeline", "lane", "device") if label == "L" else (label,):
            name, _, values = one.partition("=")
            named[name] = values.split("|") if values else []
    return Promise(_TYPES.get(kind, "histogram"), named, _BUCKETS.get(kind, []))


PROMISED = {
    name: _promise(kind, labels) for name, kind, *labels in (line.split() for line in _TABLE.strip().splitlines())
}

# Exported beside them, and why.
BEYOND: dict[str, str] = {
    "penstock_group_ranks_expected": "against it the ranks that take part are too few, or not",
    "penstock_group_generation": "a group that is formed again and again stands out",
    "penstock_group_reformings_total": "how often work had to begin anew",
    "penstock_group_refused_total": "why a rank that runs does not take part",
    "penstock_peer_received_bytes_total": "what came from each other rank, by what carried it",
    "penstock_peer_received_messages_total": "the same, by number",
    "penstock_peer_dropped_messages_total": "strangers, and messages of a group that is over",
    "penstock_inference_runs_total": "against the requests that started: how many ran as one",
    "penstock_trace_spans_total": "spans are sent in the background: only a count tells that some are lost",
}
