"""Inference and training."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from penstock import tensors
from penstock.v1 import handle_pb2, tensor_pb2, work_pb2

from fake_daemon.errors import refuse, status
from fake_daemon.handles import Handles


class Work(Handles):
    def __init__(self) -> None:
        super().__init__()
        self.trained: list[float] = []  # the first number of each mini-batch, in the order of acceptance
        self.answer_together = 0  # training steps that are answered when so many calls have come
        self.accept_after = 0  # the first training step is accepted when so many calls have come
        self.lose_answers = 0  # of the next training steps, which the daemon makes
        self.double: Callable[[Any], Any] = lambda value: 2 * value
        self._accepted: dict[str, Any] = {}  # answers to training steps by request id
        self._order = threading.Condition()

    def array(self, given: tensor_pb2.Input) -> np.ndarray:
        if given.HasField("tensor"):
            return tensors.decode(given.tensor)
        values = self.values[given.handle.handle]
        return values[given.handle.tensor] if given.handle.tensor else next(iter(values.values()))

    def Infer(self, request: Any, context: Any) -> Any:
        doubled = self.double(self.array(request.inputs[0]))
        handle = self.new_handle(handle_pb2.HANDLE_KIND_VALUE, {"output": doubled})
        return work_pb2.InferResponse(request_id=request.request_id, outputs=self.result(handle, request.reply))

    def Evaluate(self, request: Any, context: Any) -> Any:
        """The loss is the mean of the first input, every metric that of the target; as much counts as the target has."""
        target = self.array(request.target)
        if not np.isfinite(target).all():
            refuse(context, status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "target"))
        handle = self.new_handle(handle_pb2.HANDLE_KIND_OUTCOME)
        handle.outcome.Clear()
        handle.outcome.MergeFrom(
            handle_pb2.Outcome(
                step=self.step,
                state_token=f"token-{self.step}",
                loss=float(self.array(request.inputs[0]).mean()),
                counted_elements=target.size,
                metric_elements=target.size,
                metrics={name: float(target.mean()) for name in request.metrics},
                rows=len(target),
                micro_batches=2,
                seconds=0.5,
            )
        )
        return work_pb2.EvaluateResponse(request_id=request.request_id, outcome=self.result(handle, request.reply))

    def Forward(self, request: Any, context: Any) -> Any:
        outputs = self.new_handle(handle_pb2.HANDLE_KIND_VALUE, {"output": self.array(request.inputs[0])})
        graph = self.new_handle(handle_pb2.HANDLE_KIND_GRAPH)
        return work_pb2.ForwardResponse(
            outputs=self.result(outputs, request.reply), graph=self.result(graph, request.reply)
        )

    def _outcome(self, request: Any, applied: bool = True) -> handle_pb2.Result:
        handle = self.new_handle(handle_pb2.HANDLE_KIND_OUTCOME)
        handle.outcome.applied = applied
        return self.result(handle, request.reply)

    def Backward(self, request: Any, context: Any) -> Any:
        response = work_pb2.BackwardResponse(outcome=self._outcome(request))
        if request.input_gradients:
            gradients = {"input": -self.array(request.gradients[0])}
            handle = self.new_handle(handle_pb2.HANDLE_KIND_VALUE, gradients)
            response.input_gradients.CopyFrom(self.result(handle, request.reply))
        return response

    def ForwardBackward(self, request: Any, context: Any) -> Any:
        return work_pb2.ForwardBackwardResponse(outcome=self._outcome(request))

    def OptimizerStep(self, request: Any, context: Any) -> Any:
        self.step += 1
        return work_pb2.OptimizerStepResponse(outcome=self._outcome(request))

    def TrainStep(self, request: Any, context: Any) -> Any:
        """Once for a request id, and after the one that it follows."""
        with self._order:
            self._order.notify_all()
            came = self.requests["TrainStep"]
            after, wait = request.after_request_id, request.reply.wait_for.ToTimedelta().total_seconds()
            if not after:
                assert self._order.wait_for(lambda: len(came) >= self.accept_after, 10), f"{len(came)} calls together"
            if after and not self._order.wait_for(lambda: after in self._accepted, wait):
                refuse(context, status(grpc.StatusCode.DEADLINE_EXCEEDED, "PREDECESSOR_PENDING", "not yet"))
            if any(given.HasField("value") for given in request.inputs):
                refuse(context, status(grpc.StatusCode.INVALID_ARGUMENT, "TENSOR_SIGNATURE", "no tensor"))
            if request.request_id not in self._accepted:
                for given in request.inputs:
                    if given.HasField("handle"):
                        self._still_there(given.handle.handle, context)
                self._accepted[request.request_id] = self._train(request)
                self._order.notify_all()
            together = self._order.wait_for(lambda: len(came) >= self.answer_together, 10)
            assert together, f"{len(came)} calls together"
            if self.lose_answers:
                self.lose_answers -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            return self._accepted[request.request_id]

    def _train(self, request: Any) -> Any:
        self.trained.append(float(self.array(request.inputs[0]).flat[0]))
        applied = bool(np.isfinite(self.array(request.inputs[0])).all())
        self.step += applied
        response = work_pb2.TrainStepResponse(outcome=self._outcome(request, applied))
        if request.outputs:
            values = {name: self.array(request.inputs[0]) for name in request.outputs}
            handle = self.new_handle(handle_pb2.HANDLE_KIND_VALUE, values)
            response.outputs.CopyFrom(self.result(handle, request.reply))
        return response
