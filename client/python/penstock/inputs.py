"""Inputs of a call: small arrays inside the message, large ones uploaded first, handles by name, plain values."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import numpy.typing as npt

from penstock import casting, tensors
from penstock.errors import PenstockError
from penstock.results import Remote
from penstock.v1 import tensor_pb2


@dataclass(frozen=True)
class Whole:
    """A tensor that is not split: every micro-batch gets all of it."""

    value: npt.ArrayLike | Remote | tuple[Remote, str]


@dataclass(frozen=True)
class Plain:
    """A value that is no tensor, for models that take one: it goes unchanged into every micro-batch. ``str`` and
    ``None`` need no wrapper; a number does, for by itself it is an array."""

    value: bool | int | float | str | None


# An array, a handle of one tensor, or (handle, name of its tensor); whole; or a plain value.
InputValue = Union[npt.ArrayLike, Remote, tuple[Remote, str], Whole, Plain, None]
Inputs = Union[InputValue, Mapping[str, InputValue]]
Signatures = Sequence[tensor_pb2.TensorSignature]

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


class Prepared:
    """The inputs of one call: what travels inside the message, and what must be uploaded first.

    Args:
        signature: what the call takes, to give arrays the types there; see :func:`penstock.casting.cast`.

    Raises:
        TypeError, ValueError: of a value that can't be sent, or is not what the signature says; names the input.
    """

    def __init__(self, values: Mapping[str, InputValue], signature: Signatures = ()) -> None:
        wanted = {one.name: one for one in signature}
        self.arrays: dict[str, tensors.Array] = {}
        self._names = list(values)
        self._references: dict[str, tensor_pb2.Input] = {}
        self._whole = {name for name, value in values.items() if isinstance(value, Whole)}
        for name, given in values.items():
            value = given.value if isinstance(given, Whole) else given
            if value is None or isinstance(value, (Plain, str)):
                self._references[name] = _plain(name, value.value if isinstance(value, Plain) else value)
            elif isinstance(value, Remote):
                self._references[name] = _reference(name, value.name, "")
            elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Remote):
                self._references[name] = _reference(name, value[0].name, str(value[1]))
            else:
                self.arrays[name] = tensors.wire_array(casting.cast(name, value, wanted.get(name)))

    @property
    def too_large(self) -> bool:
        """Whether the arrays must be uploaded."""
        return sum(array.nbytes for array in self.arrays.values()) > INLINE_BYTES

    def messages(self, upload: str = "") -> list[tensor_pb2.Input]:
        """In the order given; arrays come from the handle ``upload``, if there is one."""
        made = []
        for name in self._names:
            if name in self._references:
                message = self._references[name]
            elif upload:
                message = _reference(name, upload, name)
            else:
                message = tensor_pb2.Input(name=name, tensor=tensors.encode(name, self.arrays[name]))
            message.whole = name in self._whole
            made.append(message)
        return made


def upload_id(request_id: str) -> str:
    """The request id of the upload that belongs to a call: the same one, if the call is made again.

    Raises:
        ValueError: the call's is no UUID.
    """
    try:
        return str(uuid.uuid5(uuid.UUID(request_id), "inputs"))
    except ValueError:
        raise ValueError(f"request_id: must be a UUID, got {request_id!r}") from None


def gone_upload(error: PenstockError) -> str:
    """The handle of an upload that was made before, and has been given back since: a call that was accepted with it is
    known by its name. Raises the error if it is another one."""
    if error.reason not in ("HANDLE_EXPIRED", "HANDLE_RELEASED"):
        raise error
    return error.values["handle"]


def in_doubt(error: BaseException | None) -> bool:
    """Whether a call ended without the daemon's answer: also one that was cancelled or interrupted."""
    if isinstance(error, PenstockError):
        return error.in_doubt
    return error is not None and not isinstance(error, Exception)


def _reference(name: str, handle: str, tensor: str) -> tensor_pb2.Input:
    return tensor_pb2.Input(name=name, handle=tensor_pb2.HandleTensor(handle=handle, tensor=tensor))


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
