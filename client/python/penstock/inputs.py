"""Inputs of a call: small arrays inside the message, large ones uploaded first, handles by name, plain values."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from penstock import casting, tensors
from penstock.errors import PenstockError
from penstock.results import Remote
from penstock.values import DEEPEST, fill
from penstock.v1 import tensor_pb2


@dataclass(frozen=True)
class Whole:
    """A tensor that is not split: every micro-batch gets all of it."""

    value: npt.ArrayLike | Remote | tuple[Remote, str]


@dataclass(frozen=True)
class Plain:
    """A value that is no tensor, for models that take one: it goes unchanged into every micro-batch. A list, a tuple or a
    dictionary with strings as keys holds such values, arrays and handles, at most 16 deep. ``str``, ``None``, a mapping,
    and a list with ``None``, a text, a mapping or a handle in it need no wrapper. A number and any other list do, also a
    list of arrays, for by themselves they are arrays."""

    value: Any


# An array, a handle of one result, or (handle, name of its result); whole; or a plain value.
InputValue = Union[npt.ArrayLike, Remote, tuple[Remote, str], Whole, Plain, Mapping[str, Any], None]
Inputs = Union[InputValue, Mapping[str, InputValue]]
Signatures = Sequence[tensor_pb2.TensorSignature]

# Bytes of arrays, texts and all else that travel inside one message; the daemon takes messages of 4 MiB.
INLINE_BYTES = 2 << 20
UPLOAD_TENSORS = 64  # at most, of one PutTensors


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
        self.arrays: dict[str, tensors.Array] = {}
        self._messages = [tensor_pb2.Input(name=name) for name in values]
        self._holders: dict[str, tensor_pb2.Input | tensor_pb2.Value] = {}  # of the arrays, by the arrays' names
        self._names = set(values)
        wanted = {one.name: one for one in signature}
        for message, (name, given) in zip(self._messages, values.items()):
            value = given
            if isinstance(given, Whole):
                message.whole = True
                value = given.value
            self._fill(message, value, wanted.get(name))

    @property
    def nbytes(self) -> int:
        """Of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def too_large(self) -> bool:
        """Whether the arrays must be uploaded. Of messages that are not made yet."""
        return self.nbytes + sum(message.ByteSize() for message in self._messages) > INLINE_BYTES

    def parts(self) -> list[dict[str, tensors.Array]]:
        """The arrays, as many together as one upload takes."""
        arrays = list(self.arrays.items())
        return [dict(arrays[first : first + UPLOAD_TENSORS]) for first in range(0, len(arrays), UPLOAD_TENSORS)]

    def messages(self, uploads: Sequence[str] = ()) -> list[tensor_pb2.Input]:
        """In the order given; arrays come from the handles ``uploads`` of :meth:`parts`, if there are any."""
        for number, (name, holder) in enumerate(self._holders.items()):
            if uploads:
                handle = uploads[number // UPLOAD_TENSORS]
                holder.handle.CopyFrom(tensor_pb2.HandleTensor(handle=handle, tensor=name))
            else:
                holder.tensor.CopyFrom(tensors.encode(name, self.arrays[name]))
        return self._messages

    def _fill(self, message: tensor_pb2.Input, value: Any, wanted: tensor_pb2.TensorSignature | None) -> None:
        name = message.name
        reference = _reference(value)
        if reference is not None:
            message.handle.CopyFrom(reference)
        elif value is None or isinstance(value, (Plain, str, Mapping)) or _is_no_array(value):
            plain = value.value if isinstance(value, Plain) else value
            if _is_array(plain) or _reference(plain) is not None:
                raise TypeError(f"{name}: Plain is for what is no tensor by itself, got {type(plain).__name__}")
            message.value.SetInParent()
            numbers = itertools.count()
            fill(message.value, name, plain, lambda inner, leaf: self._fill_leaf(name, numbers, inner, leaf))
        else:
            self._hold(name, message, casting.cast(name, value, wanted))

    def _fill_leaf(self, name: str, numbers: Iterator[int], message: tensor_pb2.Value, value: Any) -> bool:
        """An array or a handle inside of a value. ``numbers``: for the names of the value's arrays."""
        reference = _reference(value)
        if reference is not None:
            message.handle.CopyFrom(reference)
            return True
        if not _is_array(value):
            return False
        names = (f"{name}.{number}" for number in numbers)
        free = next(one for one in names if one not in self.arrays and one not in self._names)
        self._hold(free, message, casting.cast(name, value, None))
        return True

    def _hold(self, name: str, holder: tensor_pb2.Input | tensor_pb2.Value, array: tensors.Array) -> None:
        self.arrays[name] = tensors.wire_array(array)
        self._holders[name] = holder


def upload_id(request_id: str, number: int) -> str:
    """The request id of an upload that belongs to a call: the same one, if the call is made again.

    Raises:
        ValueError: the call's is no UUID.
    """
    try:
        return str(uuid.uuid5(uuid.UUID(request_id), f"inputs {number}"))
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


def _reference(value: Any) -> tensor_pb2.HandleTensor | None:
    """Of a handle, or (handle, name)."""
    if isinstance(value, Remote):
        return tensor_pb2.HandleTensor(handle=value.name)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Remote):
        return tensor_pb2.HandleTensor(handle=value[0].name, tensor=str(value[1]))
    return None


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or hasattr(value, "detach")


def _is_no_array(value: Any, depth: int = 1) -> bool:
    """Whether a list has more in it than numbers and arrays, or is deeper than a value can be: it may hold itself."""
    if not isinstance(value, (list, tuple)):
        return False
    if depth > DEEPEST:
        return True
    return any(
        part is None or isinstance(part, (str, Mapping, Remote)) or _is_no_array(part, depth + 1) for part in value
    )
