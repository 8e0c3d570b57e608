"""Checkpoints, weights and optimizer state."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
from penstock import tensors
from penstock.checksum import crc32c
from penstock.v1 import handle_pb2, pipeline_pb2, state_pb2

from fake_daemon.errors import refuse, status
from fake_daemon.handles import Handles


class State(Handles):
    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: set[str] = set()
        self.listed = [state_pb2.Checkpoint(name="pipelines/demo/checkpoints/c", step=1)]
        self.state: dict[str, np.ndarray] = {
            "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "empty": np.zeros((0, 3), np.float32),
        }
        self.optimizer: dict[str, np.ndarray] = {"optimizer/weight/first_moment": np.ones((2, 3), np.float32)}

    def SaveCheckpoint(self, request: Any, context: Any) -> Any:
        name = request.checkpoint_id or f"step-{self.step}"
        if name in self.checkpoints and not request.replace:
            refuse(context, status(grpc.StatusCode.ALREADY_EXISTS, "CHECKPOINT_EXISTS", "there is one"))
        self.checkpoints.add(name)
        return state_pb2.Checkpoint(name=f"{request.pipeline}/checkpoints/{name}", step=self.step)

    def CopyCheckpoint(self, request: Any, context: Any) -> Any:
        name = request.checkpoint_id or request.source.rsplit("/", 1)[1]
        return state_pb2.Checkpoint(name=f"{request.destination}/checkpoints/{name}", step=1)

    def RestoreCheckpoint(self, request: Any, context: Any) -> Any:
        for checkpoint in self.listed:
            if checkpoint.name == request.name:
                if checkpoint.digest == "wrong":
                    refuse(context, status(grpc.StatusCode.DATA_LOSS, "CHECKPOINT_CORRUPT", "damaged"))
                self.step = checkpoint.step
        return state_pb2.RestoreCheckpointResponse(step=self.step)

    def PublishCheckpoint(self, request: Any, context: Any) -> Any:
        self.pipeline.ClearField("published")
        if request.checkpoint_id:
            name = f"{request.pipeline}/checkpoints/{request.checkpoint_id}"
            self.pipeline.published.CopyFrom(pipeline_pb2.PublishedCheckpoint(checkpoint=name, step=1, version="2"))
        return self.pipeline

    def DeleteCheckpoint(self, request: Any, context: Any) -> Any:
        return state_pb2.DeleteCheckpointResponse()

    def ListCheckpoints(self, request: Any, context: Any) -> Any:
        first = request.page_token == ""
        return state_pb2.ListCheckpointsResponse(
            checkpoints=self.listed[:1] if first else self.listed[1:],
            next_page_token="more" if first and len(self.listed) > 1 else "",
        )

    def ReadParameters(self, request: Any, context: Any) -> Any:
        weights = self.state | (self.optimizer if request.include_optimizer_state else {})
        if request.gradients:
            weights = {name: -array for name, array in self.state.items() if not request.names or name in request.names}
        headers = [tensors.header_of(name, array) for name, array in weights.items()]
        yield state_pb2.ReadParametersResponse(start=state_pb2.ReadParametersResponse.Start(step=7, tensors=headers))
        for index, array in enumerate(weights.values()):
            if array.nbytes:
                data = array.tobytes()
                checksum = crc32c(data) ^ (1 if self.damage_chunks else 0)
                chunk = handle_pb2.TensorChunk(tensor=index, offset=0, data=data, crc32c=checksum)
                yield state_pb2.ReadParametersResponse(chunk=chunk)

    def WriteParameters(self, request: Any, context: Any) -> Any:
        for handle in request.handles:
            for name, array in self.values[handle].items():
                assert "/" not in name
                if name.startswith("optimizer."):
                    name = "optimizer/" + "/".join(name.removeprefix("optimizer.").rsplit(".", 1))
                place = self.optimizer if name.startswith("optimizer/") else self.state
                if name not in place:
                    refuse(context, status(grpc.StatusCode.NOT_FOUND, "PARAMETER_NOT_FOUND", "unknown", value=name))
                place[name] = array
        if request.HasField("step"):
            self.step = request.step
        return state_pb2.WriteParametersResponse(step=self.step)
