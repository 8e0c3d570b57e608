"""Requests of work calls, from the arguments of :class:`penstock.Pipeline` and :class:`penstock.aio.Pipeline`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

from penstock.deadline import Deadline
from penstock.inputs import Inputs, InputValue
from penstock.results import seconds
from penstock.specifications import OptionValue, loss_spec, names_of
from penstock.v1 import pipeline_pb2, tensor_pb2, work_pb2

_INLINE_REPLY = 1 << 20  # bytes

Messages = Sequence[tensor_pb2.Input]


class CallArguments(TypedDict, total=False):
    """Of every work call."""

    timeout: float | None
    lease: float
    request_id: str


class InferArguments(CallArguments, total=False):
    outputs: Sequence[str]
    micro_batches: int | None
    priority: int


class EvaluateArguments(CallArguments, total=False):
    metrics: Sequence[str]
    loss: str | None
    loss_options: Mapping[str, OptionValue] | None
    loss_output: str
    class_weights: Sequence[float]
    weights: InputValue
    micro_batches: int | None
    priority: int


class ForwardArguments(CallArguments, total=False):
    outputs: Sequence[str]
    micro_batches: int | None
    input_gradients: bool


class LossOptions(TypedDict, total=False):
    """Of calls with a loss."""

    loss: str | None
    loss_options: Mapping[str, OptionValue] | None
    loss_output: str
    class_weights: Sequence[float]
    micro_batches: int | None
    outputs: Sequence[str]
    expected_state: str


class StepArguments(CallArguments, total=False):
    discard: bool
    force: bool
    learning_rate: float | None
    clip_norm: float | None
    expected_state: str


class LoopArguments(LossOptions, total=False):
    """Of every step of a training loop: what a step takes but for what belongs to one call."""

    timeout: float | None
    lease: float
    learning_rate: float | None
    clip_norm: float | None


class TrainArguments(LoopArguments, total=False):
    weights: InputValue
    request_id: str
    after: str


class ContributionArguments(LossOptions, CallArguments, total=False):
    weights: InputValue
    total_rows: int | None
    total_elements: float | None
    accumulation_lease: float


class BackwardArguments(CallArguments, total=False):
    retain_graph: bool
    input_gradients: bool
    expected_state: str
    accumulation_lease: float


def new_request_id() -> str:
    return str(uuid.uuid4())


def checkpoint_name(pipeline: str, checkpoint: str) -> str:
    """The full name of a checkpoint of a pipeline, given short or full.

    Raises:
        ValueError: it is a checkpoint of another pipeline.
    """
    folder = f"{pipeline}/checkpoints/"
    if "/" not in checkpoint:
        return folder + checkpoint
    if not checkpoint.startswith(folder):
        raise ValueError(f"checkpoint_id: must be a checkpoint of {pipeline}, got {checkpoint}")
    return checkpoint


@dataclass(frozen=True)
class Call:
    """What every work call has beside its own arguments.

    Attributes:
        wait: whether the daemon holds the reply until the results settle.
        deadline: of all parts of the call.
        request_id: of the call; a second call with it gets the answer of the first.
        lease: seconds that results are kept without renewal.
    """

    wait: bool
    deadline: Deadline
    request_id: str
    lease: float

    @classmethod
    def of(cls, wait: bool, timeout: float | None = None, lease: float = 0.0, request_id: str = "") -> Call:
        return cls(wait, Deadline(timeout), request_id or new_request_id(), lease)

    def reply(self) -> work_pb2.ReplyOptions:
        return work_pb2.ReplyOptions(
            wait_for=seconds(self.deadline.hold() if self.wait else 0.0),
            inline_bytes=_INLINE_REPLY if self.wait else 0,
            lease=seconds(self.lease),
        )


def split(allowed: type, wait: bool, arguments: Mapping[str, Any]) -> tuple[Call, dict[str, Any]]:
    """What is every work call's of its keyword arguments, and the method's own rest.

    Args:
        allowed: what may be given, as a TypedDict.

    Raises:
        TypeError: an argument is not among them.
    """
    for name in arguments:
        if name not in allowed.__annotations__:
            raise TypeError(f"{name}: no argument of this call, got {arguments[name]!r}")
    shared = CallArguments.__annotations__
    own = {name: value for name, value in arguments.items() if name not in shared}
    return Call.of(wait, **{name: value for name, value in arguments.items() if name in shared}), own


def infer(
    pipeline: str,
    inputs: Messages,
    call: Call,
    *,
    outputs: Sequence[str] = (),
    micro_batches: int | None = None,
    priority: int = 0,
) -> work_pb2.InferRequest:
    return work_pb2.InferRequest(
        pipeline=pipeline,
        inputs=inputs,
        outputs=names_of(outputs),
        micro_batches=micro_batches,
        priority=priority,
        request_id=call.request_id,
        reply=call.reply(),
    )


def evaluate(
    pipeline: str,
    inputs: Messages,
    of_loss: LossInputs,
    call: Call,
    *,
    metrics: Sequence[str] = (),
    loss: str | None = None,
    loss_options: Mapping[str, OptionValue] | None = None,
    loss_output: str = "",
    class_weights: Sequence[float] = (),
    micro_batches: int | None = None,
    priority: int = 0,
) -> work_pb2.EvaluateRequest:
    return work_pb2.EvaluateRequest(
        pipeline=pipeline,
        inputs=inputs,
        target=of_loss.target,
        weights=of_loss.weights,
        loss=loss_spec(loss, loss_options, loss_output, class_weights),
        micro_batches=micro_batches,
        metrics=names_of(metrics),
        priority=priority,
        request_id=call.request_id,
        reply=call.reply(),
    )


def train_step(
    pipeline: str,
    inputs: Messages,
    of_loss: LossInputs,
    call: Call,
    *,
    loss: str | None = None,
    loss_options: Mapping[str, OptionValue] | None = None,
    loss_output: str = "",
    class_weights: Sequence[float] = (),
    micro_batches: int | None = None,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    outputs: Sequence[str] = (),
    expected_state: str = "",
    after: str = "",
) -> work_pb2.TrainStepRequest:
    return work_pb2.TrainStepRequest(
        pipeline=pipeline,
        inputs=inputs,
        target=of_loss.target,
        weights=of_loss.weights,
        loss=loss_spec(loss, loss_options, loss_output, class_weights),
        micro_batches=micro_batches,
        outputs=names_of(outputs),
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        request_id=call.request_id,
        expected_state=expected_state,
        reply=call.reply(),
        after_request_id=after,
    )


def forward_backward(
    pipeline: str,
    inputs: Messages,
    of_loss: LossInputs,
    call: Call,
    *,
    loss: str | None = None,
    loss_options: Mapping[str, OptionValue] | None = None,
    loss_output: str = "",
    class_weights: Sequence[float] = (),
    total_rows: int | None = None,
    total_elements: float | None = None,
    micro_batches: int | None = None,
    outputs: Sequence[str] = (),
    expected_state: str = "",
    accumulation_lease: float = 0.0,
) -> work_pb2.ForwardBackwardRequest:
    return work_pb2.ForwardBackwardRequest(
        pipeline=pipeline,
        accumulation_lease=seconds(accumulation_lease, "accumulation_lease"),
        inputs=inputs,
        target=of_loss.target,
        weights=of_loss.weights,
        loss=loss_spec(loss, loss_options, loss_output, class_weights),
        total_rows=total_rows,
        total_elements=total_elements,
        micro_batches=micro_batches,
        outputs=names_of(outputs),
        request_id=call.request_id,
        expected_state=expected_state,
        reply=call.reply(),
    )


def forward(
    pipeline: str,
    inputs: Messages,
    call: Call,
    *,
    outputs: Sequence[str] = (),
    micro_batches: int | None = None,
    input_gradients: bool = False,
) -> work_pb2.ForwardRequest:
    return work_pb2.ForwardRequest(
        pipeline=pipeline,
        inputs=inputs,
        mode=work_pb2.ForwardRequest.MODE_TRAIN,
        micro_batches=micro_batches,
        request_id=call.request_id,
        reply=call.reply(),
        outputs=names_of(outputs),
        input_gradients=input_gradients,
    )


def backward(
    pipeline: str,
    graph: str,
    gradients: Messages,
    call: Call,
    *,
    retain_graph: bool = False,
    input_gradients: bool = False,
    expected_state: str = "",
    accumulation_lease: float = 0.0,
) -> work_pb2.BackwardRequest:
    return work_pb2.BackwardRequest(
        pipeline=pipeline,
        accumulation_lease=seconds(accumulation_lease, "accumulation_lease"),
        graph=graph,
        gradients=gradients,
        retain_graph=retain_graph,
        input_gradients=input_gradients,
        request_id=call.request_id,
        expected_state=expected_state,
        reply=call.reply(),
    )


def optimizer_step(
    pipeline: str,
    call: Call,
    *,
    discard: bool = False,
    force: bool = False,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    expected_state: str = "",
) -> work_pb2.OptimizerStepRequest:
    action = work_pb2.OptimizerStepRequest.ACTION_DISCARD if discard else work_pb2.OptimizerStepRequest.ACTION_APPLY
    return work_pb2.OptimizerStepRequest(
        pipeline=pipeline,
        action=action,
        force=force,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        request_id=call.request_id,
        expected_state=expected_state,
        reply=call.reply(),
    )


def with_labels(
    inputs: Inputs, target: InputValue, signature: pipeline_pb2.ModelSignature, loss: str | None
) -> tuple[Inputs, InputValue]:
    """Takes ``labels`` of a mapping for the target, where the loss needs one, none is given, and the model has no input
    of that name.

    Args:
        loss: of the call; ``None``: the pipeline's.
    """
    takes_target = bool(signature.targets) if loss is None else loss != "scalar_output"
    names = [one.name for one in signature.inputs]
    if target is not None or not takes_target or not isinstance(inputs, Mapping) or "labels" not in inputs:
        return inputs, target
    if "labels" in names or names in ([], [""]):  # what takes any number of values takes these
        return inputs, target
    return {name: value for name, value in inputs.items() if name != "labels"}, inputs["labels"]


class LossInputs(NamedTuple):
    """What a loss compares an output with, as messages or before."""

    target: Any = None
    weights: Any = None

    @classmethod
    def of(cls, target: InputValue, arguments: Mapping[str, Any]) -> tuple[LossInputs, dict[str, Any]]:
        """With the weights among a call's arguments, and the other arguments."""
        others = dict(arguments)
        return cls(target, others.pop("weights", None)), others

    def add_to(self, values: dict[str, InputValue], signature: pipeline_pb2.ModelSignature) -> None:
        """Adds them to the inputs, as the last ones.

        Raises:
            ValueError: an input has the name of one.
        """
        names = LossInputs(signature.targets[0].name if signature.targets else "target", "weights")
        for name, value in zip(names, self):
            if value is None:
                continue
            if name in values:
                raise ValueError(f"{name!r} is given twice: it is among the inputs")
            values[name] = value

    def apart(self, messages: list[tensor_pb2.Input]) -> tuple[Messages, LossInputs]:
        """The inputs, and what was added to them."""
        own = list(messages)
        weights = None if self.weights is None else own.pop()
        target = None if self.target is None else own.pop()
        return own, LossInputs(target, weights)
