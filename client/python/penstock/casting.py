"""Arrays of the types that a model takes, where nothing is lost that the giver would miss."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from penstock.tensors import BFLOAT16, Array, as_array, dtype_of
from penstock.v1 import tensor_pb2


def cast(field: str, value: Any, wanted: tensor_pb2.TensorSignature | None) -> Array:
    """The array of a value, in the type of the signature where that is safe:

    - lists and numbers of Python, and arrays, whose type is narrower: int32 to int64, float32 to float64, bfloat16 to both;
    - float64 to any floating type: it is Python's own, so it is rounded; what is too large for the type is an error;
    - integers to other integers, if all are in the type's range; to floating types, if all are exact there.

    Anything else stays as it is, for the daemon to refuse by name: float32 to bfloat16, say, which is the giver's to round.

    Args:
        field: the input, for errors.
        wanted: ``None``, or ``any``: no type.

    Raises:
        TypeError: a floating type where integers belong, or what is no array.
        ValueError: a value that the type has not; or a list whose parts differ in shape.
    """
    try:
        array = as_array(value)
    except (TypeError, ValueError, RuntimeError) as error:  # of a tensor of PyTorch without an array: sparse, quantized
        raise type(error)(f"{field}: is no array: {error}") from None
    if array.dtype == object:
        _raise_odd(field, array)
    if wanted is None or wanted.any or not wanted.type:
        return array
    dtype = dtype_of(wanted.type)
    if array.dtype == dtype:
        return array
    if array.dtype == BFLOAT16:
        return _from_bfloat16(array).astype(dtype) if dtype in (np.float32, np.float64) else array
    if not array.size and isinstance(value, (list, tuple)):
        return array.astype(dtype)  # an empty list is of float64 by chance
    if array.dtype.kind == "f" and dtype.kind in "iu":
        raise TypeError(f"{field}: must be of {dtype}, got {_shown(array)} of {array.dtype}; round it yourself")
    if dtype == BFLOAT16:
        return _to_bfloat16(field, array, value)
    if np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    if array.dtype == np.float64 and dtype.kind == "f":
        return _rounded(field, array, dtype)
    if array.dtype.kind in "iub" and dtype.kind in "iuf":
        return _exact(field, array, dtype)
    return array


def _rounded(field: str, array: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        made = array.astype(dtype)
    lost = np.isfinite(array) & ~np.isfinite(made)
    if lost.any():
        raise ValueError(f"{field}: must fit {dtype}, got {array[lost].flat[0]}")
    return made


def _exact(field: str, array: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        return _exact_up_to(field, 1 << (np.finfo(dtype).nmant + 1), array, str(dtype)).astype(dtype)
    limits = np.iinfo(dtype)
    return _within(field, limits.min, limits.max, array, str(dtype)).astype(dtype)


def _exact_up_to(field: str, most: int, array: Array, name: str) -> Array:
    """Each integer up to this one is in a floating type, and beyond it some are not."""
    return _within(field, -most, most, array, name)


def _within(field: str, least: int, most: int, array: Array, name: str) -> Array:
    wrong = (array < least) | (array > most)
    if wrong.any():
        raise ValueError(f"{field}: must fit {name}, got {array[wrong].flat[0]}")
    return array


def _to_bfloat16(field: str, array: Array, value: Any) -> Array:
    """numpy has no such type by itself: the upper halves of float32, rounded to even."""
    if array.dtype.kind in "iub":
        array = _exact_up_to(field, 256, array, "bfloat16")
    elif array.dtype != np.float64 and not isinstance(value, (list, tuple, int, float)):
        return array
    single = _rounded(field, array.astype(np.float64), np.dtype(np.float32))
    bits = np.ascontiguousarray(single).view(np.uint32)
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    halves = np.where(np.isnan(single), np.uint16(0x7FC0), halves)
    lost = np.isfinite(single) & ((halves & 0x7F80) == 0x7F80)
    if lost.any():
        raise ValueError(f"{field}: must fit bfloat16, got {single[lost].flat[0]}")
    return np.ascontiguousarray(halves).view(BFLOAT16).reshape(single.shape)


def _from_bfloat16(array: Array) -> Array:
    """Each is the upper half of a float32."""
    bits = array.view(np.uint16).astype(np.uint32) << 16
    return np.asarray(bits).view(np.float32)


def _shown(array: Array) -> str:
    """Its first value that is no integer, or its first."""
    odd = array[array != np.trunc(array)] if array.size else array
    return str(odd.flat[0] if odd.size else array.flat[0] if array.size else "no value")


def shown_integer(value: int) -> str:
    """For errors. Python prints none of more than some thousand digits."""
    bits = value.bit_length()
    return str(value) if bits <= 256 else f"one of {bits} bits"


def _raise_odd(field: str, array: Array) -> NoReturn:
    for item in array.flat:
        if not isinstance(item, (bool, int, float)):
            raise TypeError(f"{field}: an array has numbers of one type, got {item!r}")
    largest = max((item for item in array.flat if isinstance(item, int)), key=abs)
    raise ValueError(f"{field}: must be numbers of at most 64 bits, got {shown_integer(largest)}")
