"""Requests of work calls, from the arguments of :class:`penstock.Pipeline` and :class:`penstock.aio.Pipeline`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TypedDict

from penstock.handles import seconds
from penstock.specifications import OptionValue, loss_spec
from penstock.v1 import pipeline_pb2, tensor_pb2, work_pb2

FIRST_WAIT = 30.0  # seconds that a call waits inside the daemon
_INLINE_REPLY = 1 << 20  # bytes

Messages = Sequence[tensor_pb2.Input]


class WaitArguments(TypedDict, total=False):
    """Of every work call."""

    timeout: float | None
    lease: float


class InferArguments(WaitArguments, total=False):
    outputs: Sequence[str]
    micro_batches: int | None
    priority: int


class ForwardArguments(WaitArguments, total=False):
    outputs: Sequence[str]
    micro_batches: int | None


class LossArguments(WaitArguments, total=False):
    loss: str | None
    loss_options: Mapping[str, OptionValue] | None
    loss_output: str
    micro_batches: int | None
    outputs: Sequence[str]
    expected_state: str


class StepArguments(WaitArguments, total=False):
    learning_rate: float | None
    clip_norm: float | None
    expected_state: str


class TrainArguments(LossArguments, total=False):
    learning_rate: float | None
    clip_norm: float | None


class ContributionArguments(LossArguments, total=False):
    total_rows: int | None
    total_elements: int | None


class BackwardArguments(WaitArguments, total=False):
    retain_graph: bool
    input_gradients: bool
    expected_state: str


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


def first_wait(wait: bool, timeout: float | None) -> float:
    """Seconds that the first call waits inside the daemon."""
    if not wait:
        return 0.0
    return FIRST_WAIT if timeout is None else min(timeout, FIRST_WAIT)


def _reply(wait: bool, timeout: float | None, lease: float) -> work_pb2.ReplyOptions:
    return work_pb2.ReplyOptions(
        wait_for=seconds(first_wait(wait, timeout)), inline_bytes=_INLINE_REPLY if wait else 0, lease=seconds(lease)
    )


def infer(
    pipeline: str,
    inputs: Messages,
    wait: bool,
    *,
    outputs: Sequence[str] = (),
    micro_batches: int | None = None,
    priority: int = 0,
    timeout: float | None = None,
    lease: float = 0.0,
) -> work_pb2.InferRequest:
    return work_pb2.InferRequest(
        pipeline=pipeline,
        inputs=inputs,
        outputs=outputs,
        micro_batches=micro_batches,
        priority=priority,
        request_id=new_request_id(),
        reply=_reply(wait, timeout, lease),
    )


def train_step(
    pipeline: str,
    inputs: Messages,
    target: tensor_pb2.Input | None,
    wait: bool,
    *,
    loss: str | None = None,
    loss_options: Mapping[str, OptionValue] | None = None,
    loss_output: str = "",
    micro_batches: int | None = None,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    outputs: Sequence[str] = (),
    expected_state: str = "",
    timeout: float | None = None,
    lease: float = 0.0,
) -> work_pb2.TrainStepRequest:
    return work_pb2.TrainStepRequest(
        pipeline=pipeline,
        inputs=inputs,
        target=target,
        loss=loss_spec(loss, loss_options, loss_output),
        micro_batches=micro_batches,
        outputs=outputs,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        request_id=new_request_id(),
        expected_state=expected_state,
        reply=_reply(wait, timeout, lease),
    )


def forward_backward(
    pipeline: str,
    inputs: Messages,
    target: tensor_pb2.Input | None,
    wait: bool,
    *,
    loss: str | None = None,
    loss_options: Mapping[str, OptionValue] | None = None,
    loss_output: str = "",
    total_rows: int | None = None,
    total_elements: int | None = None,
    micro_batches: int | None = None,
    outputs: Sequence[str] = (),
    expected_state: str = "",
    timeout: float | None = None,
    lease: float = 0.0,
) -> work_pb2.ForwardBackwardRequest:
    return work_pb2.ForwardBackwardRequest(
        pipeline=pipeline,
        inputs=inputs,
        target=target,
        loss=loss_spec(loss, loss_options, loss_output),
        total_rows=total_rows,
        total_elements=total_elements,
        micro_batches=micro_batches,
        outputs=outputs,
        request_id=new_request_id(),
        expected_state=expected_state,
        reply=_reply(wait, timeout, lease),
    )


def forward(
    pipeline: str,
    inputs: Messages,
    wait: bool,
    *,
    outputs: Sequence[str] = (),
    micro_batches: int | None = None,
    input_gradients: bool = False,
    timeout: float | None = None,
    lease: float = 0.0,
) -> work_pb2.ForwardRequest:
    return work_pb2.ForwardRequest(
        pipeline=pipeline,
        inputs=inputs,
        mode=work_pb2.ForwardRequest.MODE_TRAIN,
        micro_batches=micro_batches,
        request_id=new_request_id(),
        reply=_reply(wait, timeout, lease),
        outputs=outputs,
        input_gradients=input_gradients,
    )


def backward(
    pipeline: str,
    graph: str,
    gradients: Messages,
    wait: bool,
    *,
    retain_graph: bool = False,
    input_gradients: bool = False,
    expected_state: str = "",
    timeout: float | None = None,
    lease: float = 0.0,
) -> work_pb2.BackwardRequest:
    return work_pb2.BackwardRequest(
        pipeline=pipeline,
        graph=graph,
        gradients=gradients,
        retain_graph=retain_graph,
        input_gradients=input_gradients,
        request_id=new_request_id(),
        expected_state=expected_state,
        reply=_reply(wait, timeout, lease),
    )


def optimizer_step(
    pipeline: str,
    wait: bool,
    *,
    discard: bool = False,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    expected_state: str = "",
    timeout: float | None = None,
    lease: float = 0.0,
) -> work_pb2.OptimizerStepRequest:
    action = work_pb2.OptimizerStepRequest.ACTION_DISCARD if discard else work_pb2.OptimizerStepRequest.ACTION_APPLY
    return work_pb2.OptimizerStepRequest(
        pipeline=pipeline,
        action=action,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        request_id=new_request_id(),
        expected_state=expected_state,
        reply=_reply(wait, timeout, lease),
    )


def with_target(
    values: dict[str, object], signature: pipeline_pb2.ModelSignature, target: object
) -> list[tensor_pb2.TensorSignature]:
    """Adds the target to the inputs, as the last one; answers the signatures of all.

    Raises:
        ValueError: an input has the target's name.
    """
    wanted = list(signature.inputs)
    if target is not None:
        name = signature.targets[0].name if signature.targets else "target"
        if name in values:
            raise ValueError(f"the target is given twice: {name!r} is among the inputs")
        values[name] = target
        wanted.extend(signature.targets)
    return wanted
