"""Errors as the daemon makes them."""

from __future__ import annotations

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2


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


def refuse(context: grpc.ServicerContext, error: status_pb2.Status) -> None:
    context.set_trailing_metadata((("grpc-status-details-bin", error.SerializeToString()),))
    codes = {code.value[0]: code for code in grpc.StatusCode}
    context.abort(codes[error.code], error.message)
