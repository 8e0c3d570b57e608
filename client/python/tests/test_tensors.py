"""Arrays to the wire and back."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from penstock import tensors
from penstock.v1 import tensor_pb2

TYPES = ["?", "u1", "i1", "f2", "i2", "u2", "f4", "i4", "u4", "f8", "i8", "u8"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_round_trip_of_every_type_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    message = tensors.encode("x", array)
    assert message.header.byte_size == len(message.data) == array.nbytes
    back = tensors.decode(message)
    assert back.dtype == array.dtype and back.shape == array.shape
    assert back.flags.writeable
    assert np.array_equal(back, array)


def test_layout_and_byte_order_do_not_reach_the_wire() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = tensors.encode("x", array)
    assert tensors.encode("x", np.asfortranarray(array)) == plain
    assert tensors.encode("x", array.astype(">f4")) == plain
    assert plain.data == b"".join(np.float32(i).tobytes() for i in range(6)) or sys.byteorder == "big"


def test_an_element_type_without_a_name_on_the_wire_is_refused() -> None:
    with pytest.raises(TypeError, match="complex"):
        tensors.encode("x", np.zeros(2, np.complex64))


def test_bfloat16_keeps_its_bits() -> None:
    bits = np.array([0x3F80, 0x7FC0, 0x0001], np.uint16)
    message = tensors.encode("x", bits.view(tensors.BFLOAT16))
    assert message.header.type == tensor_pb2.DATA_TYPE_BF16
    assert np.array_equal(tensors.decode(message).view(np.uint16), bits)


def test_uint16_stays_uint16() -> None:
    assert tensors.encode("x", np.zeros(2, np.uint16)).header.type == tensor_pb2.DATA_TYPE_UINT16


def test_a_header_that_lies_about_its_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="12"):
        tensors.empty(tensor_pb2.TensorHeader(name="x", type="DATA_TYPE_FP32", shape=[3], byte_size=16))


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        tensors.dtype_of(99)
