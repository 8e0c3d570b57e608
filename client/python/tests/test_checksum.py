"""CRC32C against its definition, bit by bit."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from penstock import checksum
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


def test_threads_may_need_the_same_tables_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).bytes(1 << 20)
    right = crc32c(data)
    lookup = checksum._lookup

    def another_thread_first(tables: np.ndarray, words: np.ndarray) -> np.ndarray:
        time.sleep(0.001)
        return lookup(tables, words)

    monkeypatch.setattr(checksum, "_lookup", another_thread_first)
    monkeypatch.setattr(checksum, "_shifts", checksum._shifts[:1])
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(crc32c, [data] * 8)) == {right}
    assert crc32c(data) == right
