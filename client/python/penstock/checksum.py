"""CRC32C (Castagnoli), which the chunks of tensors and files carry."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt


def crc32c(data: bytes | bytearray | memoryview | npt.NDArray[Any]) -> int:
    """The CRC32C of bytes, as in RFC 3720; 0 for none. Copies nothing."""
    # The library takes bytes and arrays, and no other buffers.
    checksum: int = google_crc32c.value(data if isinstance(data, bytes) else np.frombuffer(data, np.uint8))
    return checksum
