"""Parameters, buffers and optimizer state by name: as the daemon has them and as PyTorch knows them. Makes no calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np

from penstock import tensors
from penstock.checksum import crc32c
from penstock.chunks import Chunk
from penstock.errors import PenstockError
from penstock.requests import new_request_id
from penstock.tensors import Array, as_array
from penstock.v1 import state_pb2

OPTIMIZER_PREFIX = "optimizer/"
# What PyTorch's optimizers call the slots.
_SLOTS = {
    "first_moment": "exp_avg",
    "second_moment": "exp_avg_sq",
    "momentum": "momentum_buffer",
    "momentum_product": "mu_product",
    "square_average": "square_avg",
    "gradient_average": "grad_avg",
    "square_sum": "sum",
    "step": "step",
}
_DAEMONS_SLOTS = {torchs: daemons for daemons, torchs in _SLOTS.items()}
_TENSORS_OF_AN_UPLOAD = 64  # the daemon takes so many at once


class Parameters(dict[str, Array]):
    """Arrays by name, in model order.

    Attributes:
        step: finished optimizer steps of the snapshot.
    """

    step: int = 0
    _missing: int = 0  # bytes that are still to come

    def accept(self, answer: state_pb2.ReadParametersResponse | Chunk) -> None:
        """Takes one answer of the stream, in order.

        Raises:
            PenstockError: CHUNK_CHECKSUM.
        """
        if not isinstance(answer, Chunk):
            self.step = answer.start.step
            self._arrays = [tensors.empty(header) for header in answer.start.tensors]
            self._missing = sum(array.nbytes for array in self._arrays)
            self.update(zip((header.name for header in answer.start.tensors), self._arrays))
            return
        chunk, data = answer, answer.data
        if crc32c(data) != chunk.crc32c:
            raise PenstockError(grpc.StatusCode.DATA_LOSS, "CHUNK_CHECKSUM", "parameters arrived damaged")
        self._missing -= len(data)
        tensors.bytes_of(self._arrays[chunk.tensor])[chunk.offset : chunk.offset + len(data)] = data

    def end(self) -> None:
        """The stream has ended well.

        Raises:
            PenstockError: too early: the rest of the arrays would be what the memory held before.
        """
        if self._missing:
            text = f"the stream of parameters ended {self._missing} bytes too early"
            raise PenstockError(grpc.StatusCode.DATA_LOSS, "CHUNK_SIZE", text)


def write_request(pipeline: str, handles: list[str], step: int | None, force: bool) -> state_pb2.WriteParametersRequest:
    return state_pb2.WriteParametersRequest(
        pipeline=pipeline, handles=handles, step=step, force=force, request_id=new_request_id()
    )


def parts_of(arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """As many as the daemon takes in one upload, under names that tensors on the wire may have."""
    names = list(arrays)
    for first in range(0, len(names), _TENSORS_OF_AN_UPLOAD):
        part = names[first : first + _TENSORS_OF_AN_UPLOAD]
        yield {name.replace("/", ".") if name.startswith(OPTIMIZER_PREFIX) else name: arrays[name] for name in part}


def with_tied_names(arrays: Mapping[str, Array], tied: Mapping[str, str]) -> Parameters:
    """Adds what stands under several names."""
    result = Parameters(arrays)
    result.step = getattr(arrays, "step", 0)
    result.update({name: result[first] for name, first in tied.items() if first in result})
    return result


def without_tied_names(state: Mapping[str, Any], tied: Mapping[str, str], names: list[str] | None) -> dict[str, Any]:
    """One name for each parameter. With ``names``, these must be there, and no others.

    Raises:
        ValueError: names are missing or unknown, or two names of one parameter have different values.
    """
    result: dict[str, Any] = {}
    for name, value in state.items():
        first = tied.get(name, name)
        if first in result and not np.array_equal(as_array(result[first]), as_array(value)):
            raise ValueError(f"{name} and {first} are one parameter, and are given different values")
        result.setdefault(first, value)
    if names is not None:
        missing = [name for name in names if name not in result]
        unknown = [name for name in result if name not in names]
        if missing or unknown:
            raise ValueError(f"state: missing {missing[:5] or 'nothing'}, unknown {unknown[:5] or 'nothing'}")
    return result


def slots_of(parameters: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """Parameter, PyTorch's name of the slot, and what is in it."""
    for name, array in parameters.items():
        if name.startswith(OPTIMIZER_PREFIX):
            parameter, slot = name.removeprefix(OPTIMIZER_PREFIX).rsplit("/", 1)
            yield parameter, _SLOTS.get(slot, slot), array


def daemons_slots(state: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Raises ValueError: a slot is unknown."""
    result: dict[str, Any] = {}
    for name, slots in state.items():
        for slot, value in slots.items():
            if slot not in _DAEMONS_SLOTS:
                raise ValueError(
                    f"{name}: no optimizer of the daemon has the slot {slot!r}; known: {list(_DAEMONS_SLOTS)}"
                )
            result[f"{OPTIMIZER_PREFIX}{name}/{_DAEMONS_SLOTS[slot]}"] = value
    return result
