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
    "skip_adjacent": pipeline_pb2.CHECKPOINT_MODE_SKIP_ADJACENT,
}


_CUT_COSTS = {"time": pipeline_pb2.CUT_COST_TIME, "size": pipeline_pb2.CUT_COST_SIZE}
_CUT_METHODS = {
    "exact": pipeline_pb2.CUT_METHOD_EXACT,
    "block_partition": pipeline_pb2.CUT_METHOD_BLOCK_PARTITION,
}


@dataclass(frozen=True)
class Isolate:
    """Puts skip names of a layer into a namespace, so that a layer that stands in a model several times does not meet
    itself. ``only`` these names; empty: all of the layer."""

    namespace: str
    only: Sequence[str] = ()


@dataclass(frozen=True)
class Layer:
    """One layer of an explicit model: a registered kind (see ``Client.server_info().layers``) with its options.

    Attributes:
        name: unique in the model; empty: kind and position.
        device: where it must stand: ``"cpu"``, ``"cpu:1"``, ``"cuda:0"``; empty: with the layer before it. If any layer
            names one, the devices decide how the model is cut.
        isolate: namespaces of its skips; a later one wins.
        layers: of kind ``"sequential"`` only: what it runs, in order.
    """

    kind: str
    name: str = ""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    device: str = ""
    isolate: Sequence[Isolate] = ()
    layers: Sequence[Layer] = ()

    def message(self) -> pipeline_pb2.LayerSpec:
        return pipeline_pb2.LayerSpec(
            kind=self.kind,
            name=self.name,
            options=options_of(self.options),
            device=self.device,
            isolate=[pipeline_pb2.SkipIsolation(skip_namespace=one.namespace, only=one.only) for one in self.isolate],
            layers=[layer.message() for layer in self.layers],
        )


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


def _chosen(argument: str, word: str, words: Mapping[str, Any]) -> Any:
    if word not in words:
        raise ValueError(f"{argument} is one of {', '.join(words)}, not {word!r}")
    return words[word]


def pipeline_spec(
    *,
    model: str | Sequence[Layer] = "gpt",
    options: Mapping[str, OptionValue] | None = None,
    stages: int = 0,
    balance: Sequence[int] = (),
    ranks: Sequence[int] = (),
    cut_cost: str = "time",
    cut_method: str = "exact",
    parameter_scale: float | None = None,
    devices: Sequence[str] = (),
    ties: Sequence[Sequence[str]] = (),
    deferred_batch_norm: bool = False,
    tuple_as_one_argument: bool = False,
    dtype: str = "",
    autocast: str = "",
    schedule: str = "",
    micro_batches: int | None = None,
    checkpoint: str = "",
    chunks: int | None = None,
    lag: int | None = None,
    live_limit: int | None = None,
    mini_batch_rows: int | None = None,
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
    bubble_filling: bool = True,
    inference_share: float | None = None,
    inference_max_wait: float | None = None,
) -> pipeline_pb2.PipelineSpec:
    """A specification; the arguments are those of :meth:`Client.create_pipeline`.

    Raises:
        ValueError: the checkpoint mode, cut_cost or cut_method is unknown. Everything else is the daemon's to judge.
    """
    return pipeline_pb2.PipelineSpec(
        model=pipeline_pb2.ModelSpec(
            name=model if isinstance(model, str) else "",
            options=options_of(options),
            layers=[] if isinstance(model, str) else [layer.message() for layer in model],
            ties=[pipeline_pb2.TieSpec(parameters=parameters) for parameters in ties],
            deferred_batch_norm=deferred_batch_norm,
            tuple_as_one_argument=tuple_as_one_argument,
            dtype=dtype,
            autocast=autocast,
        ),
        cut=pipeline_pb2.Cut(
            balance=balance,
            ranks=ranks,
            stages=0 if balance else stages,
            cost=_chosen("cut_cost", cut_cost, _CUT_COSTS),
            method=_chosen("cut_method", cut_method, _CUT_METHODS),
            parameter_scale=parameter_scale,
        ),
        devices=devices,
        schedule=pipeline_pb2.ScheduleSpec(
            kind=schedule,
            micro_batches=micro_batches,
            checkpoint=_chosen("checkpoint", checkpoint, _CHECKPOINT_MODES) if checkpoint else None,
            chunks=chunks,
            lag=lag,
            live_limit=live_limit,
            mini_batch_rows=mini_batch_rows,
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
        bubble_filling=pipeline_pb2.BubbleFillingSpec(
            mode=pipeline_pb2.BUBBLE_FILLING_ON if bubble_filling else pipeline_pb2.BUBBLE_FILLING_OFF,
            inference_share=inference_share,
            max_wait_seconds=inference_max_wait,
        ),
    )
