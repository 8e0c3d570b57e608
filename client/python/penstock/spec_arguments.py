"""Names and types of what a specification is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from penstock.specifications import Model, OptionValue, ParameterGroup


class SpecArguments(TypedDict, total=False):
    """The arguments of :func:`penstock.pipeline_spec`, for what passes them on; :meth:`Client.create_pipeline` tells what
    each means."""

    model: Model | None
    options: Mapping[str, OptionValue] | None
    stages: int
    balance: Sequence[int]
    ranks: Sequence[int]
    starts: Sequence[str]
    cut_cost: str
    cut_method: str
    parameter_scale: float | None
    devices: Sequence[str]
    layer_devices: Mapping[str, str] | None
    ties: Sequence[Sequence[str]]
    deferred_batch_norm: bool
    tuple_as_one_argument: bool
    dtype: str
    autocast: str
    schedule: str
    micro_batches: int | None
    checkpoint: str
    chunks: int | None
    lag: int | None
    live_limit: int | None
    mini_batch_rows: int | None
    actions: str
    optimizer: str
    optimizer_options: Mapping[str, OptionValue] | None
    clip_norm: float
    learning_rate_schedule: str
    warmup_steps: int
    total_steps: int
    final_ratio: float
    step_size: int
    gamma: float | None
    power: float | None
    groups: Sequence[ParameterGroup]
    loss: str | None
    loss_options: Mapping[str, OptionValue] | None
    loss_output: str
    class_weights: Sequence[float]
    seed: int
    bubble_filling: bool | None
    inference_share: float | None
    inference_max_wait: float | None
    dynamic_batching: bool | None
    batch_rows: int | None
    batch_micro_batch_rows: int | None
    batch_delay: float | None
    planning_seconds: float | None
