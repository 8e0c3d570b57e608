"""CRC32C (Castagnoli) with numpy: Python has none, and the chunks of tensors carry it.

The checksum without its inversions is linear: the bytes are cut into lanes whose checksums are computed side by side,
one column at a time, and joined in pairs afterwards. A few hundred megabytes per second.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

_Words = npt.NDArray[np.uint32]
_LANE_BYTES = 64
_INVERTED_POLYNOMIAL = np.uint32(0x82F63B78)


def _byte_table() -> _Words:
    """Entry b: the checksum of the byte b, without inversions."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ _INVERTED_POLYNOMIAL, table >> 1).astype(np.uint32)
    return table


_TABLE = _byte_table()


def _lookup(tables: _Words, words: _Words) -> _Words:
    """Applies a linear map, given by one table for each of the four bytes."""
    result: _Words = (
        tables[0][words & 255] ^ tables[1][(words >> 8) & 255] ^ tables[2][(words >> 16) & 255] ^ tables[3][words >> 24]
    )
    return result


def _shift_by_lane() -> _Words:
    """The map of a checksum to that of the same bytes followed by one lane of zeros."""
    tables = (np.arange(256, dtype=np.uint32)[None, :] << np.array([[0], [8], [16], [24]], np.uint32)).astype(np.uint32)
    for _ in range(_LANE_BYTES):
        tables = (tables >> 8) ^ _TABLE[tables & 255]
    return tables


_shifts: list[_Words] = [_shift_by_lane()]  # entry k: by 2^k lanes; only ever appended to
_growing = threading.Lock()


def _shift(power: int) -> _Words:
    if len(_shifts) <= power:
        with _growing:  # two threads would append the same entry, and all behind it would be wrong
            while len(_shifts) <= power:
                _shifts.append(_lookup(_shifts[-1], _shifts[-1]))
    return _shifts[power]


def crc32c(data: bytes | bytearray | memoryview | npt.NDArray[Any]) -> int:
    """The CRC32C of bytes, as in RFC 3720; 0 for none."""
    view = np.frombuffer(data, dtype=np.uint8)
    if view.size == 0:
        return 0
    if view.size < 4:  # too short for the inversion below
        crc = 0xFFFFFFFF
        for byte in view.tolist():
            crc = (crc >> 8) ^ int(_TABLE[(crc ^ byte) & 255])
        return crc ^ 0xFFFFFFFF
    # Leading zeros don't change a checksum that starts at 0: the first lane is filled up in front. To start at all ones
    # instead is to invert the first four bytes.
    lanes = -(-view.size // _LANE_BYTES)
    padded = np.zeros(lanes * _LANE_BYTES, np.uint8)
    padded[-view.size :] = view
    start = padded.size - view.size
    padded[start : start + 4] ^= 255
    words = np.zeros(lanes, np.uint32)
    for column in np.ascontiguousarray(padded.reshape(lanes, _LANE_BYTES).T):
        words = (words >> 8) ^ _TABLE[(words ^ column) & 255]
    power = 0
    while words.size > 1:
        if words.size % 2:
            words = np.concatenate([np.zeros(1, np.uint32), words])
        words = _lookup(_shift(power), words[0::2]) ^ words[1::2]
        power += 1
    return int(words[0]) ^ 0xFFFFFFFF
