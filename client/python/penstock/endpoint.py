"""What both clients know of the daemon that they call."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message import Message

from penstock.channels import Channels, Traceparent, metadata_of
from penstock.credentials import CredentialFiles, channel_credentials
from penstock.errors import PenstockError


class Endpoint:
    """One daemon, and who calls it. Makes no calls.

    Args:
        library: gRPC for threads or for asyncio.
        address: ``host``, ``host:port`` or ``unix:PATH``.
        caller: sent as ``penstock-caller``; it separates owners among honest clients. ``None``: the daemon's ``local``.
        timeout: seconds that the daemon may take to answer an attempt, waiting not included.
        retry_for: seconds for which a call without a time of its own is repeated, with the same request id, while the
            daemon is UNAVAILABLE.
        traceparent: of the W3C, sent with each call, so that the daemon's spans belong to that trace; a function is
            asked before each. ``None``: the variable ``TRACEPARENT``, if it is set.
        files: of certificates and of a token; none: plaintext.

    Raises:
        ValueError: no daemon has that address, no caller that name, a time is none, or a file can't be used.
    """

    def __init__(
        self,
        library: Any,
        address: str,
        caller: str | None,
        timeout: float,
        retry_for: float,
        traceparent: Traceparent,
        files: CredentialFiles,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout: must be more than 0 seconds, got {timeout}")
        if not retry_for >= 0:
            raise ValueError(f"retry_for: must be at least 0 seconds, got {retry_for}")
        self.address = address
        self.timeout = timeout
        self.retry_for = retry_for
        self.closed = False
        self._metadata = metadata_of(caller, traceparent)
        self._channels = Channels(library, address, channel_credentials(files))

    def _callable(self, kind: str, method: str, answer: type[Message]) -> Any:
        """What calls ``Service/Method``; ``kind`` as gRPC names it, such as ``unary_stream``.

        Raises:
            PenstockError: the client is closed.
        """
        if self.closed:
            raise closed_error()
        return self._channels.callable(kind, method, answer)


def closed_error() -> PenstockError:
    """Of a call that the end of its client has ended, or comes after it."""
    return PenstockError(grpc.StatusCode.CANCELLED, "", "the client was closed")
