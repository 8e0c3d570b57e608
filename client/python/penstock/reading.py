# Written by client/python/tools/unasync.py from penstock/aio/reading.py; change that file instead.
"""Reads of parameters, from a pipeline that lives or from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.attempts import collect
from penstock.connection import Connection
from penstock.deadline import Deadline
from penstock.parameters import Parameters
from penstock.v1 import model_pb2, state_pb2


def read_parameters(
    connection: Connection, request: state_pb2.ReadParametersRequest, deadline: Deadline | None
) -> Parameters:
    """All that the request names; from the start again where the connection broke."""
    method = "StateService/ReadParameters"
    result = Parameters()

    def attempt() -> None:
        result.clear()
        collect(connection.stream(method, request, state_pb2.ReadParametersResponse, deadline), result.accept)
        result.end()

    connection.retry(attempt, method, deadline)
    return result


def tied_names(connection: Connection, program: str, deadline: Deadline | None) -> Mapping[str, str]:
    """Other names of parameters in the ``state_dict()`` of the module that was exported; none without a program."""
    if not program:
        return {}
    request = model_pb2.GetModelRequest(name=f"models/{program}")
    return (connection.unary("ModelService/GetModel", request, model_pb2.Model, deadline)).tied_names
