"""CRC32C against its definition, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from penstock.checksum import crc32c


def bitwise(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ 0x82F63B78 if crc & 1 else crc >> 1
    return crc ^ 0xFFFFFFFF


def test_the_check_value_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 63, 64, 65, 127, 128, 129, 191, 1000, 4097, 20011])
def test_every_size_equals_the_definition(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert crc32c(data) == bitwise(data)


def test_every_kind_of_buffer_has_the_same_checksum() -> None:
    data = np.random.default_rng(0).bytes(100_003)
    array = np.frombuffer(data, np.uint8)
    buffers = [bytearray(data), memoryview(data), memoryview(bytearray(data)), array, array.copy().data]
    assert {crc32c(data)} == {crc32c(buffer) for buffer in buffers}  # type: ignore[arg-type]
