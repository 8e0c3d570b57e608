"""What was last heard of a pipeline. Makes no calls."""

from __future__ import annotations

import grpc

from penstock.creation import refusal
from penstock.errors import PenstockError
from penstock.v1 import pipeline_pb2


class PipelineFacts:
    """What was last heard of a pipeline.

    Attributes:
        name: ``pipelines/{pipeline}``.
        message: the daemon's last word on it.
    """

    def __init__(self, message: pipeline_pb2.Pipeline) -> None:
        self.message = message
        self.name = message.name

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {self.state}, step {self.message.step})"

    @property
    def state(self) -> str:
        """``CREATING``, ``READY``, ``REFORMING``, ``DRAINING``, ``UNLOADING``, ``UNLOADED``, ``DELETING`` or ``FAILED``
        (PIPELINE_BROKEN)."""
        return pipeline_pb2.PipelineState.Name(self.message.state).replace("PIPELINE_STATE_", "")

    @property
    def signature(self) -> pipeline_pb2.ModelSignature:
        """Names, types and shapes of inputs, outputs and targets; -1 is the batch.

        Raises:
            PenstockError: the daemon could not make the pipeline again after a restart; it says why. PIPELINE_NOT_READY,
                if the pipeline was unloaded when it was asked for last; PIPELINE_REFORMING, if it waited for its group and
                nothing was known of it.
        """
        if self.state == "FAILED" and not self.message.HasField("signature"):
            raise PenstockError.from_status(self.message.error)
        if self.state == "REFORMING" and not self.message.HasField("signature"):
            raise refusal(self.message)
        if self.state in ("UNLOADING", "UNLOADED") and not self.message.HasField("signature"):
            short = self.name.rpartition("/")[2]
            raise PenstockError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "PIPELINE_NOT_READY",
                f"pipeline {short} is unloaded; load() makes it ready again, and refresh() looks whether somebody has",
                {"pipeline": short},
            )
        return self.message.signature

    @property
    def plan(self) -> pipeline_pb2.Plan:
        """Stages with their devices and layers, and what is predicted of a step."""
        return self.message.plan
