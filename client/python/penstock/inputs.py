"""Inputs of a call: small arrays inside the message, large ones uploaded first, handles by name, plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Union, cast

import numpy.typing as npt

from penstock import tensors, uploads
from penstock.connection import Connection
from penstock.handles import ValueHandle
from penstock.v1 import tensor_pb2


@dataclass(frozen=True)
class Whole:
    """A tensor that is not split: every micro-batch gets all of it."""

    value: npt.ArrayLike | ValueHandle | tuple[ValueHandle, str]


@dataclass(frozen=True)
class Plain:
    """A value that is no tensor, for models that take one: it goes unchanged into every micro-batch. ``str`` and
    ``None`` need no wrapper; a number does, for by itself it is an array."""

    value: bool | int | float | str | None


# An array, a handle of one tensor, or (handle, name of its tensor); whole; or a plain value.
InputValue = Union[npt.ArrayLike, ValueHandle, tuple[ValueHandle, str], Whole, Plain, None]
Inputs = Union[InputValue, Mapping[str, InputValue]]

# Bytes of arrays that travel inside one message; the daemon takes messages of 4 MiB.
INLINE_BYTES = 2 << 20


def named(inputs: Inputs, signature: Sequence[tensor_pb2.TensorSignature], what: str) -> dict[str, InputValue]:
    """Gives a single value the only name that the signature has.

    Raises:
        ValueError: the signature has several names, or none.
    """
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if len(signature) != 1:
        raise ValueError(f"the model has {len(signature)} {what}: give them by name")
    return {signature[0].name or what.rstrip("s"): inputs}  # what takes any number of values has no names for them


class Staged:
    """The inputs of one call as messages. In a ``with`` block, what had to be uploaded is released at the end: the
    daemon keeps the bytes of accepted work as long as it needs them."""

    def __init__(
        self,
        connection: Connection,
        pipeline: str,
        values: Mapping[str, InputValue],
        signature: Sequence[tensor_pb2.TensorSignature],
    ) -> None:
        wanted = {entry.name: entry.type for entry in signature}
        arrays: dict[str, tensors.Array] = {}
        references: dict[str, tensor_pb2.Input] = {}
        whole = {name for name, value in values.items() if isinstance(value, Whole)}
        for name, given in values.items():
            value = given.value if isinstance(given, Whole) else given
            if value is None or isinstance(value, (Plain, str)):
                references[name] = _plain(name, value.value if isinstance(value, Plain) else value)
            elif isinstance(value, ValueHandle):
                references[name] = _reference(name, value, "")
            elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], ValueHandle):
                references[name] = _reference(name, value[0], str(value[1]))
            else:
                arrays[name] = tensors.wire_array(cast(npt.ArrayLike, value))
        self._upload: ValueHandle | None = None
        if sum(array.nbytes for array in arrays.values()) > INLINE_BYTES:
            self._upload = uploads.put(connection, pipeline, arrays, wanted=wanted)
            references.update({name: _reference(name, self._upload, name) for name in arrays})
        self.messages: list[tensor_pb2.Input] = []
        for name in values:
            if name not in references:
                data_type = wanted.get(name, tensor_pb2.DATA_TYPE_UNSPECIFIED)
                references[name] = tensor_pb2.Input(name=name, tensor=tensors.encode(name, arrays[name], data_type))
            references[name].whole = name in whole
            self.messages.append(references[name])

    def __enter__(self) -> Staged:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._upload is not None:
            self._upload.release()


def _reference(name: str, handle: ValueHandle, tensor: str) -> tensor_pb2.Input:
    return tensor_pb2.Input(name=name, handle=tensor_pb2.HandleTensor(handle=handle.name, tensor=tensor))


def _plain(name: str, value: bool | int | float | str | None) -> tensor_pb2.Input:
    plain = tensor_pb2.PlainValue()
    if isinstance(value, bool):
        plain.bool_value = value
    elif isinstance(value, int):
        plain.int_value = value
    elif isinstance(value, float):
        plain.double_value = value
    elif isinstance(value, str):
        plain.string_value = value
    elif value is not None:
        raise TypeError(f"{name}: a plain value is a bool, int, float, str or None, not {type(value).__name__}")
    return tensor_pb2.Input(name=name, plain=plain)
