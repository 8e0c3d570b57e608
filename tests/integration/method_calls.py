"""Every method of the API: its least role, whether it changes something, and a harmless call of it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import grpc
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2, status_pb2
from penstock.v1 import admin_pb2, role_pb2

OURS = ("admin", "handle", "insight", "model", "pipeline", "state", "work")
OTHERS = {
    "inference.GRPCInferenceService/ServerLive": "viewer",
    "inference.GRPCInferenceService/ServerReady": "viewer",
    "inference.GRPCInferenceService/ServerMetadata": "viewer",
    "inference.GRPCInferenceService/ModelReady": "viewer",
    "inference.GRPCInferenceService/ModelMetadata": "viewer",
    "inference.GRPCInferenceService/ModelInfer": "infer",
    "inference.GRPCInferenceService/ModelStreamInfer": "infer",
    "inference.GRPCInferenceService/ModelConfig": "viewer",
    "inference.GRPCInferenceService/ModelStatistics": "viewer",
    "inference.GRPCInferenceService/RepositoryIndex": "viewer",
    "inference.GRPCInferenceService/RepositoryModelLoad": "train",
    "inference.GRPCInferenceService/RepositoryModelUnload": "train",
    "inference.GRPCInferenceService/SystemSharedMemoryStatus": "viewer",
    "inference.GRPCInferenceService/SystemSharedMemoryRegister": "infer",
    "inference.GRPCInferenceService/SystemSharedMemoryUnregister": "infer",
    "inference.GRPCInferenceService/CudaSharedMemoryStatus": "viewer",
    "inference.GRPCInferenceService/CudaSharedMemoryRegister": "infer",
    "inference.GRPCInferenceService/CudaSharedMemoryUnregister": "infer",
    "inference.GRPCInferenceService/TraceSetting": "viewer",
    "inference.GRPCInferenceService/LogSettings": "viewer",
    "grpc.health.v1.Health/Check": "viewer",
    "grpc.health.v1.Health/Watch": "viewer",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "viewer",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "viewer",
}
# Where an empty message would do something: what does nothing.
HARMLESS = {"penstock.v1.AdminService/Drain": admin_pb2.DrainRequest(abort=True).SerializeToString()}


def _own() -> Iterator[tuple[str, descriptor_pb2.MethodOptions]]:
    for name in OURS:
        module = importlib.import_module(f"penstock.v1.{name}_service_pb2")
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                options = descriptor_pb2.MethodOptions.FromString(method.GetOptions().SerializeToString())
                yield f"{service.full_name}/{method.name}", options


def methods() -> dict[str, str]:
    """Every method with its least role."""
    table = dict(OTHERS)
    for method, options in _own():
        table[method] = role_pb2.Role.Name(options.Extensions[role_pb2.role]).removeprefix("ROLE_").lower()
    return table


def changing() -> set[str]:
    """Every method that says of itself that it changes state, and those of others that do."""
    others = {f"inference.GRPCInferenceService/{method}" for method in ("RepositoryModelLoad", "RepositoryModelUnload")}
    return others | {method for method, options in _own() if options.Extensions[role_pb2.changes_state]}


def reason_of(error: grpc.RpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = error_details_pb2.ErrorInfo()
            status_pb2.Status.FromString(value).details[0].Unpack(info)
            return info.reason
    return (error.details() or "").split(":")[0]  # of a stranger: no details


def call(channel: grpc.Channel, method: str, token: str = "") -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call with an empty or harmless message; OK for a stream that goes on."""
    headers = (("authorization", f"Bearer {token}"),) if token else ()
    stream = channel.stream_stream(f"/{method}")(iter([HARMLESS.get(method, b"")]), timeout=30, metadata=headers)
    try:
        next(stream, None)
        return grpc.StatusCode.OK, ""
    except grpc.RpcError as error:
        return error.code(), reason_of(error)
    finally:
        stream.cancel()
