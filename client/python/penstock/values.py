"""Between Python's values and those of models on the wire: numbers, texts, ``None``, lists, tuples and dictionaries of them,
with arrays inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from penstock.casting import shown_integer
from penstock.tensors import Array
from penstock.v1 import tensor_pb2

DEEPEST = 16  # as the daemon takes them
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1

# Fills the message of what is no plain value: an array, a tensor of PyTorch, a handle. Whether it was one.
Leaf = Callable[[tensor_pb2.Value, Any], bool]


def fill(message: tensor_pb2.Value, field: str, value: Any, leaf: Leaf, depth: int = 1) -> None:
    """Makes an empty message that of a value.

    Args:
        field: where the value stands, for errors.

    Raises:
        TypeError: a key of a dictionary is no string, or it is nothing that can be sent.
        ValueError: more than 16 deep, an integer of more than 64 bits, a number beyond float64, or a text that UTF-8 has not.
    """
    if depth > DEEPEST:
        raise ValueError(f"{field.split('[')[0]}: must be nested at most {DEEPEST} deep, got more")
    if value is None:
        return
    if isinstance(value, (bool, np.bool_)):
        message.bool_value = bool(value)
    elif isinstance(value, (int, np.integer)):
        if not _LEAST <= int(value) <= _MOST:
            raise ValueError(f"{field}: must be an integer of 64 bits, got {shown_integer(int(value))}")
        message.int_value = int(value)
    elif isinstance(value, (float, np.floating)):
        message.double_value = _checked_number(field, value)
    elif isinstance(value, str):
        message.string_value = _checked_text(field, value)
    elif leaf(message, value):
        pass
    elif isinstance(value, (list, tuple)):
        items = message.list if isinstance(value, list) else message.tuple
        items.SetInParent()
        for number, item in enumerate(value):
            fill(items.items.add(), f"{field}[{number}]", item, leaf, depth + 1)
    elif isinstance(value, Mapping):
        message.dict.SetInParent()
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{field}: keys must be strings, got {key!r}")
            entry = message.dict.entries.add(name=_checked_text(field, key))
            fill(entry.value, f"{field}[{key!r}]", item, leaf, depth + 1)
    else:
        raise TypeError(f"{field}: can't be sent, got {type(value).__name__}")


def _checked_number(field: str, value: float | np.floating[Any]) -> float:
    number = float(value)
    if np.isfinite(value) and not np.isfinite(number):  # numpy's longdouble has larger ones
        raise ValueError(f"{field}: must fit float64, got {value!s}")
    return number


def _checked_text(field: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{field}: must be text that UTF-8 can have, got {text[:40]!r}") from None
    return text


def decode(value: tensor_pb2.Value, arrays: Mapping[str, Array]) -> Any:
    """The value of a message, its tensors from ``arrays``."""
    kind = value.WhichOneof("kind")
    if kind == "list":
        return [decode(item, arrays) for item in value.list.items]
    if kind == "tuple":
        return tuple(decode(item, arrays) for item in value.tuple.items)
    if kind == "dict":
        return {entry.name: decode(entry.value, arrays) for entry in value.dict.entries}
    if kind == "handle":
        return arrays[value.handle.tensor]
    return None if kind is None else getattr(value, kind)


def results(arrays: Mapping[str, Array], values: Iterable[tensor_pb2.NamedValue]) -> dict[str, Any]:
    """What a handle holds, by name: arrays, and values whose arrays are no results of their own."""
    inside: set[str] = set()
    decoded = {}
    for named in values:
        inside |= tensors_in(named.value)
        decoded[named.name] = decode(named.value, arrays)
    return {name: array for name, array in arrays.items() if name not in inside} | decoded


def tensors_in(value: tensor_pb2.Value) -> set[str]:
    """The names of the tensors that a value has in it."""
    kind = value.WhichOneof("kind")
    if kind == "handle":
        return {value.handle.tensor}
    if kind in ("list", "tuple"):
        return set().union(*(tensors_in(item) for item in getattr(value, kind).items))
    if kind == "dict":
        return set().union(*(tensors_in(entry.value) for entry in value.dict.entries))
    return set()


def check_wanted(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Raises ValueError if a name is not among those of a handle's results."""
    names = list(known)
    for name in wanted:
        if name not in names:
            raise ValueError(f"outputs: the results are {', '.join(names)}, got {name!r}")
