"""How a pipeline is asked for, and how far its making is, for who waits for it. Makes no calls."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TextIO

import grpc

from penstock.deadline import Deadline
from penstock.errors import DeadlineError, PenstockError
from penstock.inputs import INLINE_BYTES, Inputs, InputValue, Prepared
from penstock.requests import new_request_id
from penstock.v1 import pipeline_pb2

Progress = Callable[[pipeline_pb2.CreateProgress], object]

POLL_SECONDS = 0.05  # between two questions whether it is ready
PROGRESS_SECONDS = 0.2  # between two looks
PATIENCE_SECONDS = 1.0  # of one look
_PLANNING_SECONDS = 20.0  # the daemon's default
_OTHER_SECONDS = 100.0  # for what is made before it, its file and its weights
_BAR_CELLS = 20


def planning_deadline(spec: pipeline_pb2.PipelineSpec, timeout: float | None) -> Deadline:
    """The caller's time for a plan or a creation; where it gives none, what the planner may take and 100 s beside it."""
    if timeout is not None:
        return Deadline(timeout)
    planning = spec.planning_seconds if spec.HasField("planning_seconds") else _PLANNING_SECONDS
    # The daemon refuses any other time at once.
    return Deadline(_OTHER_SECONDS + (planning if 0 < planning < math.inf else 0.0), given=False)


def create_request(
    name: str,
    spec: pipeline_pb2.PipelineSpec,
    *,
    validate_only: bool = False,
    from_checkpoint: str = "",
    exist_ok: bool = False,
    sample: Inputs = None,
    sample_target: InputValue = None,
) -> pipeline_pb2.CreatePipelineRequest:
    return pipeline_pb2.CreatePipelineRequest(
        pipeline_id=name,
        spec=spec,
        validate_only=validate_only,
        from_checkpoint=from_checkpoint,
        exist_ok=exist_ok,
        request_id=new_request_id(),
        sample=_sample_message(sample, sample_target),
    )


def update_request(
    pipeline: pipeline_pb2.Pipeline,
    spec: pipeline_pb2.PipelineSpec,
    no_batching: bool,
    sample: Inputs,
    sample_target: InputValue,
    if_unchanged: bool,
) -> pipeline_pb2.UpdatePipelineRequest:
    return pipeline_pb2.UpdatePipelineRequest(
        name=pipeline.name,
        spec=spec,
        no_dynamic_batching=no_batching,
        request_id=new_request_id(),
        etag=pipeline.etag if if_unchanged else "",
        sample=_sample_message(sample, sample_target),
    )


def plan_request(
    spec: pipeline_pb2.PipelineSpec,
    kinds: Sequence[str],
    max_chunks: int,
    micro_batches: Sequence[int],
    mini_batch_rows: int,
    sample: Inputs,
    sample_target: InputValue,
) -> pipeline_pb2.PlanPipelineRequest:
    return pipeline_pb2.PlanPipelineRequest(
        spec=spec,
        limits=pipeline_pb2.SearchLimits(
            kinds=kinds, max_chunks=max_chunks, micro_batches=micro_batches, mini_batch_rows=mini_batch_rows
        ),
        sample=_sample_message(sample, sample_target),
    )


def _sample_message(sample: Inputs, target: InputValue) -> pipeline_pb2.PlanningSample | None:
    if sample is None:
        if target is not None:
            raise ValueError("sample_target: needs a sample")
        return None
    values = dict(sample) if isinstance(sample, Mapping) else {"": sample}
    inputs = Prepared(values)
    targets = Prepared({} if target is None else {"target": target})
    if inputs.nbytes + targets.nbytes > INLINE_BYTES:
        raise ValueError(f"sample: has more than {INLINE_BYTES} bytes; a few rows are enough, they are used in turn")
    return pipeline_pb2.PlanningSample(inputs=inputs.messages(), target=next(iter(targets.messages()), None))


def not_ready(name: str, timeout: float | None) -> DeadlineError:
    return DeadlineError(
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "PIPELINE_NOT_READY",
        f"{name} is not ready in {timeout} s",
        {"pipeline": name},
    )


# States in which a pipeline takes no work, and nothing may be known of it but its name.
_UNREADY: Mapping[int, str] = {
    pipeline_pb2.PIPELINE_STATE_CREATING: "is being created",
    pipeline_pb2.PIPELINE_STATE_DELETING: "is being deleted",
    pipeline_pb2.PIPELINE_STATE_REFORMING: "has lost a rank, and is made again when the group is complete",
}


def unready(message: pipeline_pb2.Pipeline) -> bool:
    """Whether the daemon refuses work of the pipeline as it was then, whatever it is."""
    if message.state == pipeline_pb2.PIPELINE_STATE_REFORMING:  # what was known before the loss is true after it
        return not message.HasField("signature")
    return message.state in _UNREADY


def refusal(message: pipeline_pb2.Pipeline) -> PenstockError:
    """As the daemon refuses work of a pipeline that is not ready."""
    name = message.name
    reforming = message.state == pipeline_pb2.PIPELINE_STATE_REFORMING
    return PenstockError(
        grpc.StatusCode.UNAVAILABLE if reforming else grpc.StatusCode.FAILED_PRECONDITION,
        "PIPELINE_REFORMING" if reforming else "PIPELINE_NOT_READY",
        f"{name} {_UNREADY[message.state]}",
        {"pipeline": name.removeprefix("pipelines/")},
        retry_delay=1.0 if reforming else None,
    )


@contextlib.contextmanager
def shown(name: str, progress: bool | Progress, stream: TextIO | None = None) -> Iterator[Progress | None]:
    """What is called with each look; ``None``: nobody wants to look.

    Args:
        stream: where a bar is drawn: in one line on a terminal, else in a line for each phase; ``None``: stderr.
    """
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield None
    else:
        bar = _Bar(name, stream or sys.stderr)
        try:
            yield bar.show
        finally:
            bar.close()


class _Bar:
    def __init__(self, name: str, stream: TextIO) -> None:
        self._name = name
        self._stream = stream
        self._rewrites = stream.isatty()
        self._phase = ""

    def show(self, progress: pipeline_pb2.CreateProgress) -> None:
        if not self._rewrites and progress.phase == self._phase:
            return
        self._phase = progress.phase
        cells = int(progress.done * _BAR_CELLS)
        bar = ("=" * cells + ">")[:_BAR_CELLS].ljust(_BAR_CELLS)
        line = (
            f"creating {self._name}: {progress.phase:<10} [{bar}] {progress.done:4.0%}, {progress.elapsed_seconds:.0f} s"
        )
        self._stream.write(f"\r{line}\x1b[K" if self._rewrites else f"{line}\n")
        self._stream.flush()

    def close(self) -> None:
        if self._rewrites and self._phase:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
