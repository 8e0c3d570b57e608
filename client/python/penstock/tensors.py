"""Between numpy arrays and tensors on the wire: little-endian, row-major, contiguous, without padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.v1 import tensor_pb2

try:
    import ml_dtypes

    _BFLOAT16: np.dtype[Any] | None = np.dtype(ml_dtypes.bfloat16)
except ImportError:  # Then bfloat16 is shown as the uint16 that has its bits.
    _BFLOAT16 = None

Array = npt.NDArray[Any]

_DTYPES: dict[int, np.dtype[Any]] = {
    tensor_pb2.DATA_TYPE_BOOL: np.dtype(np.bool_),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype("<u1"),
    tensor_pb2.DATA_TYPE_INT8: np.dtype("<i1"),
    tensor_pb2.DATA_TYPE_FP16: np.dtype("<f2"),
    tensor_pb2.DATA_TYPE_INT16: np.dtype("<i2"),
    tensor_pb2.DATA_TYPE_UINT16: np.dtype("<u2"),
    tensor_pb2.DATA_TYPE_FP32: np.dtype("<f4"),
    tensor_pb2.DATA_TYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DATA_TYPE_UINT32: np.dtype("<u4"),
    tensor_pb2.DATA_TYPE_FP64: np.dtype("<f8"),
    tensor_pb2.DATA_TYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DATA_TYPE_UINT64: np.dtype("<u8"),
}
_TYPES = {dtype: type_ for type_, dtype in _DTYPES.items()}
if _BFLOAT16 is not None:
    _TYPES[_BFLOAT16] = tensor_pb2.DATA_TYPE_BF16


def dtype_of(data_type: int) -> np.dtype[Any]:
    """The numpy type of a ``tensor_pb2.DataType``; bfloat16 is uint16 unless ``ml_dtypes`` is installed.

    Raises:
        ValueError: the type is unknown.
    """
    if data_type == tensor_pb2.DATA_TYPE_BF16:
        return _BFLOAT16 if _BFLOAT16 is not None else np.dtype("<u2")
    if data_type not in _DTYPES:
        raise ValueError(f"data type {data_type} is unknown")
    return _DTYPES[data_type]


def wire_array(array: npt.ArrayLike) -> Array:
    """The same elements, contiguous and little-endian; a copy only if needed."""
    result = np.asarray(array)
    little = result.dtype.newbyteorder("<") if result.dtype.byteorder == ">" else result.dtype
    return np.asarray(result, dtype=little, order="C")


def header_of(name: str, array: Array, wanted: int = tensor_pb2.DATA_TYPE_UNSPECIFIED) -> tensor_pb2.TensorHeader:
    """The header of an array. uint16 travels as bfloat16 where that is ``wanted`` (a ``tensor_pb2.DataType``).

    Raises:
        TypeError: no tensor on the wire has this element type.
    """
    data_type = _TYPES.get(array.dtype)
    if data_type is None:
        raise TypeError(f"{name or 'array'}: elements of type {array.dtype} can't be sent")
    if wanted == tensor_pb2.DATA_TYPE_BF16 and data_type == tensor_pb2.DATA_TYPE_UINT16:
        data_type = wanted
    return tensor_pb2.TensorHeader(
        name=name, type=tensor_pb2.DataType.Name(data_type), shape=array.shape, byte_size=array.nbytes
    )


def encode(name: str, array: npt.ArrayLike, wanted: int = tensor_pb2.DATA_TYPE_UNSPECIFIED) -> tensor_pb2.Tensor:
    """A tensor that travels inside a message."""
    contiguous = wire_array(array)
    return tensor_pb2.Tensor(header=header_of(name, contiguous, wanted), data=contiguous.tobytes())


def decode(tensor: tensor_pb2.Tensor) -> Array:
    """The array of a tensor that came inside a message; writable, of the header's shape.

    Raises:
        ValueError: type, shape and bytes don't fit each other.
    """
    header = tensor.header
    return np.frombuffer(tensor.data, dtype_of(header.type)).reshape(tuple(header.shape)).copy()


def empty(header: tensor_pb2.TensorHeader) -> Array:
    """An array for the bytes that a header announces.

    Raises:
        ValueError: the header's byte size is not that of its shape.
    """
    array = np.empty(tuple(header.shape), dtype_of(header.type))
    if array.nbytes != header.byte_size:
        raise ValueError(f"{header.name}: shape {list(header.shape)} has {array.nbytes} bytes, not {header.byte_size}")
    return array


def bytes_of(array: Array) -> memoryview:
    """The bytes of a contiguous array, without a copy; writable if the array is."""
    return array.reshape(-1).view(np.uint8).data
