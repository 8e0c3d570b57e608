"""Files of named arrays in the format of safetensors, which other tools read too: a JSON header, then the bytes."""

from __future__ import annotations

import collections
import json
import math
import os
import pathlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock import tensors
from penstock.tensors import Array
from penstock.v1 import tensor_pb2

_CODES = {
    "BOOL": tensor_pb2.DATA_TYPE_BOOL,
    "U8": tensor_pb2.DATA_TYPE_UINT8,
    "I8": tensor_pb2.DATA_TYPE_INT8,
    "F16": tensor_pb2.DATA_TYPE_FP16,
    "BF16": tensor_pb2.DATA_TYPE_BF16,
    "I16": tensor_pb2.DATA_TYPE_INT16,
    "U16": tensor_pb2.DATA_TYPE_UINT16,
    "F32": tensor_pb2.DATA_TYPE_FP32,
    "I32": tensor_pb2.DATA_TYPE_INT32,
    "U32": tensor_pb2.DATA_TYPE_UINT32,
    "F64": tensor_pb2.DATA_TYPE_FP64,
    "I64": tensor_pb2.DATA_TYPE_INT64,
    "U64": tensor_pb2.DATA_TYPE_UINT64,
}
_LARGEST_HEADER = 100 << 20  # bytes, as other readers have it


def write_safetensors(
    path: str | os.PathLike[str], arrays: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes arrays or PyTorch's tensors by name, largest alignment first, whole or not at all: under another name
    until it is complete.

    Raises:
        TypeError: an array's elements have no name in the format.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    contiguous = {name: tensors.wire_array(array) for name, array in arrays.items()}
    order = sorted(contiguous, key=lambda name: -contiguous[name].dtype.itemsize)
    offset = 0
    for name in order:
        array = contiguous[name]
        end = offset + array.nbytes
        header[name] = {"dtype": _code(name, array.dtype), "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = pathlib.Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in order:
                file.write(tensors.bytes_of(contiguous[name]))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a file by name, in the order of its bytes.

    Raises:
        ValueError: it is no such file, or its header doesn't fit its bytes.
        ImportError: one is of bfloat16, and ``ml_dtypes`` is not installed.
    """
    return tensors.shown(arrays_of(path))


def arrays_of(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The same for what only moves the bytes: bfloat16 needs nothing."""
    source = pathlib.Path(path)
    size = source.stat().st_size
    with source.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if length > min(_LARGEST_HEADER, size - 8):
            raise ValueError(f"{source}: no safetensors file: its header would be longer than the file")
        try:
            header = json.loads(file.read(length), object_pairs_hook=_unique)
            header.pop("__metadata__", None)
            entries = sorted(header.items(), key=lambda entry: entry[1]["data_offsets"])
            arrays: dict[str, Array] = {}
            end = 0
            for name, entry in entries:
                begin, last = entry["data_offsets"]
                shape, dtype = tuple(entry["shape"]), tensors.dtype_of(_CODES[entry["dtype"]])
                if begin != end or last - begin != math.prod(shape) * dtype.itemsize or last > size - 8 - length:
                    raise ValueError(f"{name} is said to be at bytes {begin} to {last}")
                array = np.empty(shape, dtype)
                if file.readinto(tensors.bytes_of(array)) != array.nbytes:
                    raise ValueError(f"{name} is cut off")
                arrays[name] = array
                end = last
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as problem:
            raise ValueError(f"{source}: no safetensors file: {problem}") from None
    return arrays


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, of which ``json`` itself keeps the last value of a name."""
    for name, times in collections.Counter(name for name, _ in pairs).items():
        if times > 1:
            raise ValueError(f"it has the name {name} twice")
    return dict(pairs)


def _code(name: str, dtype: np.dtype[Any]) -> str:
    for code, data_type in _CODES.items():
        if tensors.dtype_of(data_type) == dtype:
            return code
    raise TypeError(f"{name}: elements of type {dtype} can't be written")
