"""Calls of every service: they are kept, and answered by the method of their name, or fail on demand."""

from __future__ import annotations

import collections
import threading
from concurrent import futures
from typing import Any

import grpc
from google.rpc import status_pb2
from penstock.v1 import (
    admin_service_pb2,
    handle_service_pb2,
    insight_service_pb2,
    model_service_pb2,
    pipeline_pb2,
    pipeline_service_pb2,
    state_service_pb2,
    work_service_pb2,
)

from fake_daemon.errors import refuse


class Server:
    """A server whose services are this object's methods. It has one pipeline, which ``step`` training steps have
    changed."""

    def __init__(self) -> None:
        self.requests: dict[str, list[Any]] = collections.defaultdict(list)  # by method, in order
        self.metadata: dict[str, dict[str, Any]] = {}  # of the last call of a method
        self.time_left: dict[str, list[float]] = collections.defaultdict(list)  # of each call, when it came
        self.stopping = threading.Event()
        self.silent: set[str] = set()  # methods that are never answered
        self.step = 0
        self.pipeline = pipeline_pb2.Pipeline()
        self._failures: dict[str, list[status_pb2.Status | grpc.StatusCode]] = collections.defaultdict(list)
        self._refusals: dict[str, status_pb2.Status] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=40))

    def start(self) -> None:
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

    def fail(self, method: str, *errors: status_pb2.Status | grpc.StatusCode) -> None:
        """The next calls of a method fail in this order; a bare code comes without details, as from the transport."""
        self._failures[method].extend(errors)

    def refuse(self, method: str, error: status_pb2.Status) -> None:
        """All calls of a method fail, as often as a client repeats them."""
        self._refusals[method] = error

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


def _message_class(descriptor: Any) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor)
