"""A daemon that works in memory: inference doubles its input, training counts steps.

It keeps every request, and fails calls on demand: see ``fail`` and ``refuse``. What it does not know it refuses.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from penstock import tensors
from penstock.checksum import crc32c
from penstock.v1 import (
    admin_pb2,
    admin_service_pb2,
    handle_pb2,
    handle_service_pb2,
    insight_pb2,
    insight_service_pb2,
    model_pb2,
    model_service_pb2,
    pipeline_pb2,
    pipeline_service_pb2,
    state_pb2,
    state_service_pb2,
    tensor_pb2,
    work_pb2,
    work_service_pb2,
)

CREDIT = 1100 << 10  # bytes: a little more than one chunk


def status(
    code: grpc.StatusCode, reason: str, message: str, retry_delay: float | None = None, **values: str
) -> status_pb2.Status:
    """An error as the daemon makes them."""
    result = status_pb2.Status(code=code.value[0], message=message)
    result.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="penstock.v1", metadata=values))
    if values.get("field"):
        violation = error_details_pb2.BadRequest.FieldViolation(field=values["field"], description=message)
        result.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if retry_delay is not None:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(int(retry_delay * 1e9))
        result.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return result


class FakeDaemon:
    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = collections.defaultdict(list)  # by method, in order
        self.metadata: dict[str, dict[str, Any]] = {}  # of the last call of a method
        self.time_left: dict[str, list[float]] = collections.defaultdict(list)  # of each call, when it came
        self.trained: list[float] = []  # the first number of each mini-batch, in the order of acceptance
        self.answer_together = 0  # training steps that are answered when so many calls have come
        self.accept_after = 0  # the first training step is accepted when so many calls have come
        self.lose_answers = 0  # of the next training steps, which the daemon makes
        self.stopping = threading.Event()
        self.silent: set[str] = set()  # methods that are never answered
        self.checkpoints: set[str] = set()
        self.listed = [state_pb2.Checkpoint(name="pipelines/demo/checkpoints/c", step=1)]
        self.double: Callable[[Any], Any] = lambda value: 2 * value
        self.handles: dict[str, handle_pb2.Handle] = {}
        self.values: dict[str, dict[str, np.ndarray]] = {}
        self.step = 0
        self.progress: list[pipeline_pb2.CreateProgress] = []  # what the next creation tells before it is answered
        self._made = 0
        self.settle_after = 0  # waits that find work handles PENDING
        self.result_error: status_pb2.Status | None = None  # how the next work ends
        self.damage_chunks = False
        self.break_fetch_at: int | None = None  # bytes after which the next fetch breaks off
        self.break_put_at: int | None = None
        self.break_upload_at: int | None = None
        self.uploaded: dict[str, bytearray] = {}
        self.tied: dict[str, str] = {}
        self.state: dict[str, np.ndarray] = {
            "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
            "empty": np.zeros((0, 3), np.float32),
        }
        self.optimizer: dict[str, np.ndarray] = {"optimizer/weight/first_moment": np.ones((2, 3), np.float32)}
        self._failures: dict[str, list[status_pb2.Status | grpc.StatusCode]] = collections.defaultdict(list)
        self._refusals: dict[str, status_pb2.Status] = {}
        self._partial: dict[str, bytearray] = {}
        self._put: dict[str, handle_pb2.Handle] = {}  # by request id
        self._accepted: dict[str, Any] = {}  # answers to training steps by request id
        self._order = threading.Condition()
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=40))
        for module in (
            admin_service_pb2,
            handle_service_pb2,
            insight_service_pb2,
            model_service_pb2,
            pipeline_service_pb2,
            state_service_pb2,
            work_service_pb2,
        ):
            for service in module.DESCRIPTOR.services_by_name.values():
                self._add(service, module)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self.stopping.set()
        self._server.stop(None).wait()

    def wait_until_released(self) -> bool:
        """Whether all handles are given back, at the latest in a while: clients do it in the background."""
        deadline = time.monotonic() + 10
        while self.handles and time.monotonic() < deadline:
            time.sleep(0.001)
        return not self.handles

    def fail(self, method: str, *errors: status_pb2.Status | grpc.StatusCode) -> None:
        """The next calls of a method fail in this order; a bare code comes without details, as from the transport."""
        self._failures[method].extend(errors)

    def refuse(self, method: str, error: status_pb2.Status) -> None:
        """All calls of a method fail, as often as a client repeats them."""
        self._refusals[method] = error

    # --- plumbing -----------------------------------------------------------------------------------------------------

    def _add(self, service: Any, module: Any) -> None:
        handlers = {}
        for method in service.methods:
            request = _message_class(method.input_type)
            kind = ("stream" if method.client_streaming else "unary") + (
                "_stream" if method.server_streaming else "_unary"
            )
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            handlers[method.name] = make(
                self._stream_handler(method.name) if method.server_streaming else self._unary_handler(method.name),
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    def _enter(self, name: str, context: grpc.ServicerContext) -> None:
        self.metadata[name] = dict(context.invocation_metadata())
        self.time_left[name].append(context.time_remaining() or float("inf"))
        if name in self.silent:
            self.stopping.wait()
        with self._lock:
            error = self._failures[name].pop(0) if self._failures[name] else self._refusals.get(name)
        if isinstance(error, status_pb2.Status):
            refuse(context, error)
        if error is not None:
            context.abort(error, "the transport failed")

    def _unary_handler(self, name: str) -> Any:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            self.requests[name].append(request)
            self._enter(name, context)
            return getattr(self, name)(request, context)

        return handle

    def _stream_handler(self, name: str) -> Any:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            self.requests[name].append(request)
            self._enter(name, context)
            yield from getattr(self, name)(request, context)

        return handle

    # --- pipelines and server -----------------------------------------------------------------------------------------

    def GetServerInfo(self, request: Any, context: Any) -> Any:
        return admin_pb2.ServerInfo(version="0.1.0", models=["mlp", "gpt"])

    def CreatePipeline(self, request: Any, context: Any) -> Any:
        while self.progress and not self.stopping.wait(0.001):  # until all of it was seen
            pass
        signature = pipeline_pb2.ModelSignature(
            inputs=[tensor_pb2.TensorSignature(name="input", type="DATA_TYPE_FP32", shape=[-1, 4])],
            outputs=[tensor_pb2.TensorSignature(name="output", type="DATA_TYPE_FP32", shape=[-1, 4])],
            targets=[tensor_pb2.TensorSignature(name="target", type="DATA_TYPE_FP32", shape=[-1, 4])],
        )
        self.pipeline = pipeline_pb2.Pipeline(
            name=f"pipelines/{request.pipeline_id}",
            spec=request.spec,
            state="PIPELINE_STATE_CREATING",
            signature=signature,
        )
        return self.pipeline

    def PlanPipeline(self, request: Any, context: Any) -> Any:
        schedule = pipeline_pb2.ScheduleSpec(kind="zb-h1", micro_batches=8, chunks=1)
        candidate = pipeline_pb2.PlanCandidate(schedule=schedule, balance=[2, 1], makespan_seconds=0.5)
        return pipeline_pb2.PlanPipelineResponse(candidates=[candidate], considered=1, complete=True)

    def GetPipeline(self, request: Any, context: Any) -> Any:
        if self.progress:
            now = self.progress.pop(0)
            return pipeline_pb2.Pipeline(name=request.name, state="PIPELINE_STATE_CREATING", progress=now)
        self.pipeline.state = pipeline_pb2.PIPELINE_STATE_READY
        self.pipeline.step = self.step
        return self.pipeline

    def ListPipelines(self, request: Any, context: Any) -> Any:
        if not request.page_token:
            return pipeline_pb2.ListPipelinesResponse(
                pipelines=[pipeline_pb2.Pipeline(name="pipelines/a")], next_page_token="more"
            )
        return pipeline_pb2.ListPipelinesResponse(pipelines=[pipeline_pb2.Pipeline(name="pipelines/b")])

    def UpdateOptimizer(self, request: Any, context: Any) -> Any:
        self.pipeline.spec.optimizer.CopyFrom(request.optimizer)
        return self.pipeline

    def DeletePipeline(self, request: Any, context: Any) -> Any:
        return pipeline_pb2.DeletePipelineResponse()

    def WatchStatistics(self, request: Any, context: Any) -> Any:
        for _ in range(request.max_updates):
            yield insight_pb2.PipelineStatistics(step=self.step)

    def GetSchedule(self, request: Any, context: Any) -> Any:
        """Four actions, three to a page."""
        first = int(request.page_token or 0)
        page = insight_pb2.GetScheduleResponse(kind="1f1b", step=request.step or self.step)
        page.actions.extend(
            insight_pb2.ScheduledAction(action=action) for action in ["0F0", "0B0", "1F0", "1B0"][first : first + 3]
        )
        page.next_page_token = "3" if first == 0 else ""
        return page

    def ExportTrace(self, request: Any, context: Any) -> Any:
        yield insight_pb2.ExportTraceResponse(summary=insight_pb2.TraceSummary(steps=request.steps or 2, lanes=2))
        for piece in (b'{"traceEvents":', b"[]}"):
            yield insight_pb2.ExportTraceResponse(data=piece)

    # --- work ---------------------------------------------------------------------------------------------------------

    def new_handle(self, kind: int, values: dict[str, np.ndarray] | None = None) -> handle_pb2.Handle:
        self._made += 1
        name = f"{self.pipeline.name}/handles/00000001-{self._made:032x}"
        handle = handle_pb2.Handle(name=name, kind=kind, state=handle_pb2.HANDLE_STATE_READY)
        if values is not None:
            self.values[name] = values
            handle.tensors.extend(tensors.header_of(key, value) for key, value in values.items())
        if kind == handle_pb2.HANDLE_KIND_OUTCOME:
            handle.outcome.step = self.step
            handle.outcome.loss = 0.5
            handle.outcome.applied = True
        if self.result_error is not None:
            handle.state = handle_pb2.HANDLE_STATE_FAILED
            handle.error.CopyFrom(self.result_error)
        self.handles[name] = handle
        return handle

    def result(self, handle: handle_pb2.Handle, reply: work_pb2.ReplyOptions) -> handle_pb2.Result:
        """What a call answers: the settled handle if it waited and nothing delays it, tensors inside if they fit."""
        if self.settle_after or not (reply.wait_for.seconds or reply.wait_for.nanos):
            return handle_pb2.Result(handle=handle_pb2.Handle(name=handle.name, state="HANDLE_STATE_PENDING"))
        result = handle_pb2.Result(handle=handle)
        values = self.values.get(handle.name, {})
        if sum(value.nbytes for value in values.values()) <= reply.inline_bytes:
            result.tensors.extend(tensors.encode(key, value) for key, value in values.items())
        return result

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
            if any(given.HasField("plain") for given in request.inputs):
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

    # --- handles ------------------------------------------------------------------------------------------------------

    def find(self, name: str) -> handle_pb2.HandleAnswer:
        if name not in self.handles:
            gone = status(grpc.StatusCode.NOT_FOUND, "HANDLE_RELEASED", "the handle was released", handle=name)
            return handle_pb2.HandleAnswer(name=name, error=gone)
        if self.settle_after:
            pending = handle_pb2.Handle(name=name, state="HANDLE_STATE_PENDING")
            return handle_pb2.HandleAnswer(name=name, handle=pending)
        return handle_pb2.HandleAnswer(name=name, handle=self.handles[name])

    def _still_there(self, name: str, context: Any) -> None:
        answer = self.find(name)
        if answer.HasField("error"):
            refuse(context, answer.error)

    def GetHandle(self, request: Any, context: Any) -> Any:
        self._still_there(request.name, context)
        return self.find(request.name).handle

    def WaitHandles(self, request: Any, context: Any) -> Any:
        answer = handle_pb2.WaitHandlesResponse(handles=[self.find(name) for name in request.names])
        if self.settle_after:
            time.sleep(min(0.01, request.wait_for.ToTimedelta().total_seconds()))
            self.settle_after = max(0, self.settle_after - 1)  # it may be 0 by now
        return answer

    def ListHandles(self, request: Any, context: Any) -> Any:
        return handle_pb2.ListHandlesResponse(handles=self.handles.values())

    def RenewHandles(self, request: Any, context: Any) -> Any:
        return handle_pb2.RenewHandlesResponse(handles=[self.find(name) for name in request.names])

    def ReleaseHandles(self, request: Any, context: Any) -> Any:
        for name in request.names:
            self.handles.pop(name, None)
        return handle_pb2.ReleaseHandlesResponse()

    def CancelHandles(self, request: Any, context: Any) -> Any:
        answers = [
            handle_pb2.CancelHandlesResponse.Answer(name=name, effect="EFFECT_NOT_CANCELLABLE")
            for name in request.names
        ]
        return handle_pb2.CancelHandlesResponse(answers=answers)

    def FetchHandle(self, request: Any, context: Any) -> Any:
        yield handle_pb2.FetchHandleResponse(handle=self.handles[request.name])
        data = bytes(tensors.bytes_of(self.values[request.name][request.tensor]))
        for offset in range(request.offset, len(data), 64 << 10):
            if self.break_fetch_at is not None and offset >= self.break_fetch_at:
                self.break_fetch_at = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            piece = data[offset : offset + (64 << 10)]
            checksum = crc32c(piece) ^ (1 if self.damage_chunks else 0)
            chunk = handle_pb2.TensorChunk(offset=offset, data=piece, crc32c=checksum)
            yield handle_pb2.FetchHandleResponse(chunk=chunk)

    def PutTensors(self, requests: Any, context: Any) -> Any:
        start = next(requests).start
        self.requests["PutStart"].append(start)
        headers = start.tensors
        sizes = [header.byte_size for header in headers]
        buffer = self._partial.setdefault(start.request_id, bytearray())
        index, offset = position(len(buffer), sizes)
        yield handle_pb2.PutTensorsResponse(
            credit=handle_pb2.PutCredit(bytes=CREDIT, next_tensor=index, next_offset=offset)
        )
        received, granted = 0, CREDIT
        arrived: queue.Queue[handle_pb2.TensorChunk] = queue.Queue()

        def receive() -> None:
            with contextlib.suppress(grpc.RpcError):  # the client has ended the stream
                for request in requests:
                    arrived.put(request.chunk)

        threading.Thread(target=receive, daemon=True).start()
        while len(buffer) < sum(sizes):
            chunk = arrived.get(timeout=5)
            received += len(chunk.data)
            assert (chunk.tensor, chunk.offset) == position(len(buffer), sizes), "a gap"
            assert crc32c(chunk.data) == chunk.crc32c
            buffer.extend(chunk.data)
            if self.break_put_at is not None and len(buffer) >= self.break_put_at:
                self.break_put_at = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            time.sleep(0.002)  # so that what was sent beyond the credit arrives
            ahead = sum(len(item.data) for item in list(arrived.queue))
            if received + ahead > granted:
                refuse(context, status(grpc.StatusCode.INVALID_ARGUMENT, "STREAM_PROTOCOL", "overdraft"))
            granted += len(chunk.data)
            yield handle_pb2.PutTensorsResponse(credit=handle_pb2.PutCredit(bytes=len(chunk.data)))
        values = {}
        done = 0
        for header in headers:
            array = tensors.empty(header)
            tensors.bytes_of(array)[:] = buffer[done : done + header.byte_size]
            done += header.byte_size
            values[header.name] = array
        if start.request_id not in self._put:
            self._put[start.request_id] = self.new_handle(handle_pb2.HANDLE_KIND_VALUE, values)
        self._still_there(self._put[start.request_id].name, context)
        yield handle_pb2.PutTensorsResponse(handle=self._put[start.request_id])

    # --- state --------------------------------------------------------------------------------------------------------

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

    # --- models -------------------------------------------------------------------------------------------------------

    def UploadModel(self, requests: Any, context: Any) -> Any:
        start = next(requests).start
        self.requests["UploadStart"].append(start)
        file = self.uploaded.setdefault(start.model_id, bytearray())
        credit = model_pb2.UploadModelCredit(bytes=CREDIT, next_offset=len(file))
        yield model_pb2.UploadModelResponse(credit=credit)
        while len(file) < start.byte_size:
            chunk = next(requests).chunk
            assert chunk.offset == len(file) and crc32c(chunk.data) == chunk.crc32c
            file.extend(chunk.data)
            if self.break_upload_at is not None and len(file) >= self.break_upload_at:
                self.break_upload_at = None
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone for a moment")
            yield model_pb2.UploadModelResponse(credit=model_pb2.UploadModelCredit(bytes=len(chunk.data)))
        name = f"models/{start.model_id}"
        yield model_pb2.UploadModelResponse(model=model_pb2.Model(name=name, digest=start.digest))

    def GetModel(self, request: Any, context: Any) -> Any:
        return model_pb2.Model(name=request.name, tied_names=self.tied)

    def ListModels(self, request: Any, context: Any) -> Any:
        first = request.page_token == ""
        model = model_pb2.Model(name="models/a.pt2" if first else "models/b.pt2")
        return model_pb2.ListModelsResponse(models=[model], next_page_token="more" if first else "")

    def DeleteModel(self, request: Any, context: Any) -> Any:
        return model_pb2.DeleteModelResponse()


def position(done: int, sizes: list[int]) -> tuple[int, int]:
    """Where so many bytes end: tensor and offset. Empty tensors are passed over."""
    index = 0
    while index < len(sizes) and done >= sizes[index]:
        done -= sizes[index]
        index += 1
    return index, done


def refuse(context: grpc.ServicerContext, error: status_pb2.Status) -> None:
    context.set_trailing_metadata((("grpc-status-details-bin", error.SerializeToString()),))
    codes = {code.value[0]: code for code in grpc.StatusCode}
    context.abort(codes[error.code], error.message)


def _message_class(descriptor: Any) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor)
