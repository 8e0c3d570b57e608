"""Tensors on their way from the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from penstock import tensors, values
from penstock.checksum import crc32c
from penstock.chunks import CHUNK_BYTES, Chunk
from penstock.errors import PenstockError
from penstock.v1 import handle_pb2, tensor_pb2


class Download:
    """The results of a handle on their way here, one after the other, tensors resumed by offset. Does no input or output
    itself.

    Args:
        wanted: names of results; empty: all. The tensors inside of a value come with it.

    Raises:
        ValueError: a name is no result of the handle.
    """

    def __init__(self, handle: handle_pb2.Handle, wanted: Sequence[str] = ()) -> None:
        self._name = handle.name
        self._headers: list[tensor_pb2.TensorHeader] = []
        self._arrays: list[tensors.Array] = []
        self._done: list[int] = []
        self._unasked = {header.name: header for header in handle.tensors}
        values.check_wanted(wanted, [*self._unasked, *handle.values])
        self._ask_for([name for name in self._unasked if not wanted or name in wanted])
        self._current = 0
        self._missing = [name for name in handle.values if not wanted or name in wanted]
        self._values: list[tensor_pb2.NamedValue] = []
        self._ended = False  # the value that was asked for is here

    def start_stream(self) -> handle_pb2.FetchHandleRequest | None:
        """A stream begins, of what :meth:`request` says. The last one may have broken off with everything here."""
        self._ended = False
        return self.request()

    def request(self) -> handle_pb2.FetchHandleRequest | None:
        """What to ask for next; ``None`` when everything is here."""
        if self._missing:
            return handle_pb2.FetchHandleRequest(name=self._name, tensor=self._missing[0])
        while self._current < len(self._headers):
            header = self._headers[self._current]
            if self._done[self._current] < header.byte_size:
                return handle_pb2.FetchHandleRequest(
                    name=self._name, tensor=header.name, offset=self._done[self._current], chunk_size=CHUNK_BYTES
                )
            self._current += 1
        return None

    def accept(self, answer: handle_pb2.FetchHandleResponse | Chunk) -> None:
        """Takes the next answer; only values and chunks count.

        Raises:
            PenstockError: CHUNK_SIZE or CHUNK_CHECKSUM.
        """
        if not isinstance(answer, Chunk):
            if answer.HasField("value") and answer.value.name in self._missing:
                self._missing.remove(answer.value.name)
                self._values.append(answer.value)
                inside = values.tensors_in(answer.value.value)
                self._ask_for([name for name in self._unasked if name in inside])
                self._ended = True
            return
        chunk, data = answer, answer.data
        target = tensors.bytes_of(self._arrays[self._current])
        done = self._done[self._current]
        if chunk.offset != done or done + len(data) > len(target):
            raise _damaged("CHUNK_SIZE", f"{self._name}: a chunk at {chunk.offset} came at {done}")
        if crc32c(data) != chunk.crc32c:
            raise _damaged("CHUNK_CHECKSUM", f"{self._name}: the chunk at {chunk.offset} arrived damaged")
        target[done : done + len(data)] = data
        self._done[self._current] += len(data)

    def end_stream(self) -> None:
        """The stream of what was asked for has ended well.

        Raises:
            PenstockError: too early.
        """
        if self._ended:  # that of a value
            return
        if self._missing:
            raise _damaged("CHUNK_SIZE", f"{self._name}: the stream ended without {self._missing[0]}")
        done = self._done[self._current]
        if done < self._headers[self._current].byte_size:
            raise _damaged("CHUNK_SIZE", f"{self._name}: the stream ended at {done}")

    def _ask_for(self, names: Sequence[str]) -> None:
        headers = [self._unasked.pop(name) for name in names]
        arrays = [tensors.empty(header) for header in headers]
        tensors.shown(dict(zip((header.name for header in headers), arrays)))
        self._headers += headers
        self._arrays += arrays
        self._done += [0] * len(headers)

    def results(self) -> dict[str, Any]:
        arrays = {header.name: array for header, array in zip(self._headers, self._arrays)}
        return values.results(arrays, self._values)


def _damaged(reason: str, message: str) -> PenstockError:
    return PenstockError(grpc.StatusCode.DATA_LOSS, reason, message)
