"""From keyword arguments to the daemon's specification of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from penstock.v1 import pipeline_pb2

OptionValue = Union[bool, int, float, str]

_CHECKPOINT_MODES = {
    "always": pipeline_pb2.CHECKPOINT_MODE_ALWAYS,
    "except_last": pipeline_pb2.CHECKPOINT_MODE_EXCEPT_LAST,
    "never": pipeline_pb2.CHECKPOINT_MODE_NEVER,
}


@dataclass(frozen=True)
class Layer:
    """One layer of an explicit model: a registered kind (see ``Client.server_info().layers``) with its options."""

    kind: str
    name: str = ""
    options: Mapping[str, OptionValue] = field(default_factory=dict)


def option(value: OptionValue) -> pipeline_pb2.Option:
    """A typed option. Numbers of numpy count as Python's.

    Raises:
        TypeError: an option is a bool, int, float or str.
    """
    plain: Any = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool):
        return pipeline_pb2.Option(bool_value=plain)
    if isinstance(plain, int):
        return pipeline_pb2.Option(int_value=plain)
    if isinstance(plain, float):
        return pipeline_pb2.Option(double_value=plain)
    if isinstance(plain, str):
        return pipeline_pb2.Option(string_value=plain)
    raise TypeError(f"an option is a bool, int, float or str, not {type(value).__name__}")


def options_of(values: Mapping[str, OptionValue] | None) -> Mapping[str, pipeline_pb2.Option]:
    return {name: option(value) for name, value in (values or {}).items()}


def loss_spec(loss: str | None, options: Mapping[str, OptionValue] | None = None) -> pipeline_pb2.LossSpec | None:
    """``None`` leaves the choice to the pipeline."""
    return None if loss is None else pipeline_pb2.LossSpec(name=loss, options=options_of(options))


def pipeline_spec(
    *,
    model: str | Sequence[Layer] = "gpt",
    options: Mapping[str, OptionValue] | None = None,
    stages: int = 0,
    balance: Sequence[int] = (),
    devices: Sequence[str] = (),
    schedule: str = "1f1b",
    micro_batches: int = 1,
    checkpoint: str = "except_last",
    optimizer: str = "adamw",
    optimizer_options: Mapping[str, OptionValue] | None = None,
    clip_norm: float = 0.0,
    learning_rate_schedule: str = "constant",
    warmup_steps: int = 0,
    total_steps: int = 0,
    final_ratio: float = 0.0,
    loss: str | None = None,
    loss_options: Mapping[str, OptionValue] | None = None,
    seed: int = 0,
) -> pipeline_pb2.PipelineSpec:
    """A specification; the arguments are those of :meth:`Client.create_pipeline`.

    Raises:
        ValueError: the checkpoint mode is unknown. Everything else is the daemon's to judge.
    """
    if checkpoint not in _CHECKPOINT_MODES:
        raise ValueError(f"checkpoint is one of {', '.join(_CHECKPOINT_MODES)}, not {checkpoint!r}")
    if isinstance(model, str):
        model_spec = pipeline_pb2.ModelSpec(name=model, options=options_of(options))
    else:
        layers = [
            pipeline_pb2.LayerSpec(kind=layer.kind, name=layer.name, options=options_of(layer.options))
            for layer in model
        ]
        model_spec = pipeline_pb2.ModelSpec(options=options_of(options), layers=layers)
    return pipeline_pb2.PipelineSpec(
        model=model_spec,
        cut=pipeline_pb2.Cut(balance=balance, stages=0 if balance else stages),
        devices=devices,
        schedule=pipeline_pb2.ScheduleSpec(
            kind=schedule, micro_batches=micro_batches, checkpoint=_CHECKPOINT_MODES[checkpoint]
        ),
        optimizer=pipeline_pb2.OptimizerSpec(
            name=optimizer,
            options=options_of(optimizer_options),
            clip_norm=clip_norm,
            learning_rate_schedule=pipeline_pb2.LearningRateSpec(
                name=learning_rate_schedule,
                warmup_steps=warmup_steps,
                total_steps=total_steps,
                final_ratio=final_ratio,
            ),
        ),
        loss=loss_spec(loss, loss_options),
        seed=seed,
    )
