"""Reads of parameters, from a pipeline that lives or from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.aio.attempts import collect
from penstock.aio.connection import Connection
from penstock.deadline import Deadline
from penstock.parameters import Parameters
from penstock.v1 import model_pb2, state_pb2


async def read_parameters(
    connection: Connection, request: state_pb2.ReadParametersRequest, deadline: Deadline | None
) -> Parameters:
    """All that the request names; from the start again where the connection broke."""
    method = "StateService/ReadParameters"
    result = Parameters()

    async def attempt() -> None:
        result.clear()
        await collect(connection.stream(method, request, state_pb2.ReadParametersResponse, deadline), result.accept)
        result.end()

    await connection.retry(attempt, method, deadline)
    return result


async def tied_names(connection: Connection, program: str, deadline: Deadline | None) -> Mapping[str, str]:
    """Other names of parameters in the ``state_dict()`` of the module that was exported; none without a program."""
    if not program:
        return {}
    request = model_pb2.GetModelRequest(name=f"models/{program}")
    return (await connection.unary("ModelService/GetModel", request, model_pb2.Model, deadline)).tied_names
