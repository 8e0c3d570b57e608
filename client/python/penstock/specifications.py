"""From keyword arguments to the daemon's specification of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Union

from penstock.batching import batching_spec
from penstock.v1 import model_pb2, pipeline_pb2

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


_FILLING_MODES = {
    None: pipeline_pb2.BUBBLE_FILLING_UNSPECIFIED,
    True: pipeline_pb2.BUBBLE_FILLING_ON,
    False: pipeline_pb2.BUBBLE_FILLING_OFF,
}
_PROGRAM_CUTS = {"modules": pipeline_pb2.PROGRAM_CUTS_MODULES, "nodes": pipeline_pb2.PROGRAM_CUTS_NODES}


@dataclass(frozen=True)
class Program:
    """An exported program in the daemon's model root (see :attr:`Client.models`).

    Attributes:
        name: its id, a file name: ``"resnet.pt2"``.
        cuts: where stages may begin: between ``"modules"``, repeated blocks one by one, or between any ``"nodes"``.
        digest: ``sha256:`` and 64 hex digits: the file must be this one; empty: whichever has the name.
    """

    name: str
    cuts: str = "modules"
    digest: str = ""


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


def names_of(given: Sequence[str]) -> Sequence[str]:
    """A list of names. One by itself is a list of one, not of its letters."""
    return [given] if isinstance(given, str) else given


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that the optimizer treats otherwise than the rest; the first group that matches has a parameter.

    Attributes:
        patterns: of names as :meth:`Pipeline.read_names` gives them: ``*`` is any characters, dots too, ``?`` is one:
            ``"*.bias"``, ``"block0.*"``. A tied parameter goes by its first name.
        options: over those of the optimizer; a ``learning_rate`` of its own follows the schedule in proportion.
        frozen: they are not learnt: no gradients, and values and state stay, bit for bit.
    """

    patterns: Sequence[str]
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    frozen: bool = False

    def message(self) -> pipeline_pb2.ParameterGroup:
        return pipeline_pb2.ParameterGroup(
            patterns=names_of(self.patterns),
            options=options_of(self.options),
            frozen=self.frozen,
        )


def option(name: str, value: OptionValue) -> pipeline_pb2.Option:
    """A typed option. Numbers of numpy count as Python's.

    Raises:
        TypeError: an option is a bool, int, float or str.
    """
    plain: Any = value
    if hasattr(plain, "item"):
        plain = plain.item()
    if isinstance(plain, bool):
        return pipeline_pb2.Option(bool_value=plain)
    if isinstance(plain, int):
        return pipeline_pb2.Option(int_value=plain)
    if isinstance(plain, float):
        return pipeline_pb2.Option(double_value=plain)
    if isinstance(plain, str):
        return pipeline_pb2.Option(string_value=plain)
    raise TypeError(f"{name}: an option is a bool, int, float or str, not {type(value).__name__}")


# What a pipeline runs: a reference model or a file (``*.pt2``) by name, layers, or an exported program.
Model = Union[str, Sequence[Layer], Program, model_pb2.Model]


def options_of(values: Mapping[str, OptionValue] | None) -> Mapping[str, pipeline_pb2.Option]:
    return {name: option(name, value) for name, value in (values or {}).items()}


def loss_spec(
    loss: str | None,
    options: Mapping[str, OptionValue] | None = None,
    output: str = "",
    class_weights: Sequence[float] = (),
) -> pipeline_pb2.LossSpec | None:
    """``None`` leaves the choice to the pipeline.

    Raises:
        ValueError: an output, options or class weights without a loss: they would say nothing.
    """
    weights = [float(weight) for weight in class_weights]
    if loss is None:
        if output or options or weights:
            raise ValueError("loss_output, loss_options and class_weights belong to a loss: name it")
        return None
    return pipeline_pb2.LossSpec(name=loss, options=options_of(options), output=output, class_weights=weights)


def rate_spec(
    name: str = "constant",
    warmup_steps: int = 0,
    total_steps: int = 0,
    final_ratio: float = 0.0,
    step_size: int = 0,
    gamma: float | None = None,
    power: float | None = None,
) -> pipeline_pb2.LearningRateSpec:
    """How the learning rate changes; the arguments are those of :meth:`Client.create_pipeline`."""
    return pipeline_pb2.LearningRateSpec(
        name=name,
        warmup_steps=warmup_steps,
        total_steps=total_steps,
        final_ratio=final_ratio,
        step_size=step_size,
        gamma=gamma,
        power=power,
    )


class OptimizerSettings(TypedDict, total=False):
    """What :meth:`Pipeline.update_optimizer` may change; the names are those of :meth:`Client.create_pipeline`."""

    optimizer_options: Mapping[str, OptionValue]
    clip_norm: float
    learning_rate_schedule: str
    warmup_steps: int
    total_steps: int
    final_ratio: float
    step_size: int
    gamma: float
    power: float
    groups: Sequence[ParameterGroup]


def changed_optimizer(spec: pipeline_pb2.OptimizerSpec, settings: Mapping[str, Any]) -> pipeline_pb2.OptimizerSpec:
    """The settings, those of :class:`OptimizerSettings`, over ``spec``: options one by one, the schedule and the groups
    as a whole.

    Raises:
        TypeError: a setting is none of an optimizer.
        ValueError: parts of a schedule without its name.
    """
    for name in settings:
        if name not in OptimizerSettings.__annotations__:
            raise TypeError(f"{name}: no setting of an optimizer, got {settings[name]!r}")
    changed = pipeline_pb2.OptimizerSpec()
    changed.CopyFrom(spec)
    for name, value in options_of(settings.get("optimizer_options")).items():
        changed.options[name].CopyFrom(value)
    if "clip_norm" in settings:
        changed.clip_norm = settings["clip_norm"]
    schedule = {name: value for name, value in settings.items() if name in _SCHEDULE}
    if "learning_rate_schedule" in settings:
        changed.learning_rate_schedule.CopyFrom(rate_spec(settings["learning_rate_schedule"], **schedule))
    elif schedule:
        raise ValueError(f"{', '.join(schedule)}: belong to a learning_rate_schedule: name it")
    if "groups" in settings:
        del changed.groups[:]
        changed.groups.extend(group.message() for group in settings["groups"])
    return changed


_SCHEDULE = ("warmup_steps", "total_steps", "final_ratio", "step_size", "gamma", "power")


def _chosen(argument: str, word: str, words: Mapping[str, Any]) -> Any:
    if word not in words:
        raise ValueError(f"{argument} is one of {', '.join(words)}, not {word!r}")
    return words[word]


def model_spec(model: Model | None, options: Mapping[str, OptionValue] | None = None) -> pipeline_pb2.ModelSpec:
    """The part of a specification that says what to run; ``None`` leaves it open."""
    if model is None:
        return pipeline_pb2.ModelSpec(options=options_of(options))
    if isinstance(model, model_pb2.Model):
        model = Program(model.name.removeprefix("models/"), digest=model.digest)
    elif isinstance(model, str) and model.endswith(".pt2"):
        model = Program(model.removeprefix("models/"))
    if isinstance(model, Program):
        return pipeline_pb2.ModelSpec(
            program=model.name,
            program_cuts=_chosen("cuts", model.cuts, _PROGRAM_CUTS),
            program_digest=model.digest,
            options=options_of(options),
        )
    if isinstance(model, str):
        return pipeline_pb2.ModelSpec(name=model, options=options_of(options))
    return pipeline_pb2.ModelSpec(options=options_of(options), layers=[layer.message() for layer in model])


def pipeline_spec(
    *,
    model: Model | None = "gpt",
    options: Mapping[str, OptionValue] | None = None,
    stages: int = 0,
    balance: Sequence[int] = (),
    ranks: Sequence[int] = (),
    starts: Sequence[str] = (),
    cut_cost: str = "",
    cut_method: str = "",
    parameter_scale: float | None = None,
    devices: Sequence[str] = (),
    layer_devices: Mapping[str, str] | None = None,
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
    actions: str = "",
    optimizer: str = "",
    optimizer_options: Mapping[str, OptionValue] | None = None,
    clip_norm: float = 0.0,
    learning_rate_schedule: str = "",
    warmup_steps: int = 0,
    total_steps: int = 0,
    final_ratio: float = 0.0,
    step_size: int = 0,
    gamma: float | None = None,
    power: float | None = None,
    groups: Sequence[ParameterGroup] = (),
    loss: str | None = None,
    loss_options: Mapping[str, OptionValue] | None = None,
    loss_output: str = "",
    class_weights: Sequence[float] = (),
    seed: int = 0,
    bubble_filling: bool | None = None,
    inference_share: float | None = None,
    inference_max_wait: float | None = None,
    dynamic_batching: bool | None = None,
    batch_rows: int | None = None,
    batch_micro_batch_rows: int | None = None,
    batch_delay: float | None = None,
    planning_seconds: float | None = None,
) -> pipeline_pb2.PipelineSpec:
    """A specification; the arguments are those of :meth:`Client.create_pipeline`. A model of ``None`` leaves it open, for
    a pipeline that is made from a checkpoint.

    Raises:
        TypeError: dynamic_batching or one of its bounds is of another type.
        ValueError: the checkpoint mode, cuts, cut_cost or cut_method is unknown, or a bound of batches is given beside a
            dynamic_batching of ``False``. Everything else is the daemon's to judge.
    """
    what = model_spec(model, options)
    what.ties.extend(pipeline_pb2.TieSpec(parameters=parameters) for parameters in ties)
    what.layer_devices.update(layer_devices or {})
    what.deferred_batch_norm = deferred_batch_norm
    what.tuple_as_one_argument = tuple_as_one_argument
    what.dtype = dtype
    what.autocast = autocast
    rate = rate_spec(learning_rate_schedule, warmup_steps, total_steps, final_ratio, step_size, gamma, power)
    return pipeline_pb2.PipelineSpec(
        model=what,
        cut=pipeline_pb2.Cut(
            balance=balance,
            ranks=ranks,
            starts=names_of(starts),
            stages=0 if balance or starts else stages,
            cost=_chosen("cut_cost", cut_cost, _CUT_COSTS) if cut_cost else None,
            method=_chosen("cut_method", cut_method, _CUT_METHODS) if cut_method else None,
            parameter_scale=parameter_scale,
        ),
        devices=names_of(devices),
        schedule=pipeline_pb2.ScheduleSpec(
            kind=schedule,
            micro_batches=micro_batches,
            checkpoint=_chosen("checkpoint", checkpoint, _CHECKPOINT_MODES) if checkpoint else None,
            chunks=chunks,
            lag=lag,
            live_limit=live_limit,
            mini_batch_rows=mini_batch_rows,
            actions=actions,
        ),
        optimizer=pipeline_pb2.OptimizerSpec(
            name=optimizer,
            options=options_of(optimizer_options),
            clip_norm=clip_norm,
            learning_rate_schedule=rate if rate.ByteSize() else None,
            groups=[group.message() for group in groups],
        ),
        loss=loss_spec(loss, loss_options, loss_output, class_weights),
        seed=seed,
        bubble_filling=pipeline_pb2.BubbleFillingSpec(
            mode=_FILLING_MODES[bubble_filling],
            inference_share=inference_share,
            max_wait_seconds=inference_max_wait,
        ),
        planning_seconds=planning_seconds,
        dynamic_batching=batching_spec(dynamic_batching, batch_rows, batch_micro_batch_rows, batch_delay),
    )
