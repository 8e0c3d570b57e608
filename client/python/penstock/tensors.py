"""Between numpy arrays and tensors on the wire: little-endian, row-major, contiguous, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.v1 import tensor_pb2

if TYPE_CHECKING:
    import torch

try:
    import ml_dtypes

    BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    _OPAQUE = False
except ImportError:  # Then its elements are no numbers, so that nobody takes their bits for some.
    BFLOAT16 = np.dtype([("bfloat16", "<u2")])
    _OPAQUE = True

Array = npt.NDArray[Any]
Named = TypeVar("Named", bound=Mapping[str, Any])

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
_DTYPES[tensor_pb2.DATA_TYPE_BF16] = BFLOAT16
_TYPES = {dtype: type_ for type_, dtype in _DTYPES.items()}


def dtype_of(data_type: int) -> np.dtype[Any]:
    """The numpy type of a ``tensor_pb2.DataType``; see :func:`shown` for bfloat16.

    Raises:
        ValueError: the type is unknown.
    """
    if data_type not in _DTYPES:
        raise ValueError(f"data type {data_type} is unknown")
    return _DTYPES[data_type]


def shown(arrays: Named) -> Named:
    """The same arrays, for people to compute with.

    Raises:
        ImportError: one is of bfloat16, which numpy has not without ``ml_dtypes``.
    """
    if _OPAQUE:
        for name, array in arrays.items():
            if array.dtype == BFLOAT16:
                raise ImportError(
                    f"numpy has no bfloat16 by itself: pip install ml_dtypes, got an array {name!r} of it"
                )
    return arrays


def as_array(value: Any) -> Array:
    """An array of what is an array, a tensor of PyTorch on any device, with or without a gradient, or a list of such."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            import torch

            bits: Array = tensor.contiguous().view(torch.int16).numpy()
            return bits.view(BFLOAT16)
        value = tensor.numpy()
    elif isinstance(value, (list, tuple)) and _holds_tensors(value):
        parts = [as_array(part) for part in value]
        if len({(part.dtype, part.shape) for part in parts}) != 1:
            raise ValueError(f"its parts differ: {[f'{part.dtype} {list(part.shape)}' for part in parts[:5]]}")
        return np.stack(parts)
    return np.asarray(value)


def _holds_tensors(value: Any) -> bool:
    return any(
        hasattr(part, "detach") or (isinstance(part, (list, tuple)) and _holds_tensors(part)) for part in value
    )


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor of PyTorch with the same elements, which shares no memory with the array."""
    import torch

    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def wire_array(value: Any) -> Array:
    """The same elements, contiguous and little-endian; a copy only if needed. Takes what :func:`as_array` does."""
    result = as_array(value)
    little = result.dtype.newbyteorder("<") if result.dtype.byteorder == ">" else result.dtype
    return np.asarray(result, dtype=little, order="C")


def header_of(name: str, array: Array) -> tensor_pb2.TensorHeader:
    """The header of an array.

    Raises:
        TypeError: no tensor on the wire has this element type.
    """
    data_type = _TYPES.get(array.dtype)
    if data_type is None:
        raise TypeError(f"{name or 'array'}: elements of type {array.dtype} can't be sent")
    return tensor_pb2.TensorHeader(
        name=name, type=tensor_pb2.DataType.Name(data_type), shape=array.shape, byte_size=array.nbytes
    )


def encode(name: str, value: Any) -> tensor_pb2.Tensor:
    """A tensor that travels inside a message."""
    contiguous = wire_array(value)
    return tensor_pb2.Tensor(header=header_of(name, contiguous), data=contiguous.tobytes())


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
