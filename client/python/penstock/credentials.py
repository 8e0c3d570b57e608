"""How a client shows who it is, and knows the daemon: certificates and a bearer token, from files only."""

from __future__ import annotations

import contextlib
import os
import pathlib
from typing import Any, NamedTuple

import grpc

# Headers have 8 KiB in all.
_MAX_TOKEN_BYTES = 4096


class CredentialFiles(NamedTuple):
    """Paths of files; ``None``: the variable of that name (``PENSTOCK_TLS_CA`` and so on), if it is set."""

    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    token_file: str | None = None


def channel_credentials(files: CredentialFiles) -> grpc.ChannelCredentials | None:
    """What TLS needs; ``None`` where no file is named: then the connection is plaintext.

    Raises:
        ValueError: a certificate without its key or the other way round, or a file that can't be read.
    """
    ca, cert, key, token = (
        given if given is not None else os.environ.get(f"PENSTOCK_{name.upper()}") or None
        for name, given in zip(CredentialFiles._fields, files)
    )
    if not (ca or cert or key or token):
        return None
    if bool(cert) != bool(key):
        raise ValueError(f"tls_cert, tls_key: one needs the other, got {cert!r} and {key!r}")
    made = grpc.ssl_channel_credentials(_read("tls_ca", ca), _read("tls_key", key), _read("tls_cert", cert))
    if token is None:
        return made
    return grpc.composite_channel_credentials(made, grpc.metadata_call_credentials(_Bearer(token), "penstock-token"))


def _read(field: str, path: str | None) -> bytes | None:
    if not path:
        return None
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{field}: must name a file that can be read ({error.strerror}), got {path!r}") from None


class _Bearer(grpc.AuthMetadataPlugin):
    """Adds the token to each call, as the file has it then. gRPC asks for it on connections with TLS only.

    While the file has no token, for somebody writes it, the last one counts.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = self._read()  # a bad file is told here, not by the first call

    def _read(self) -> str:
        token = (_read("token_file", self._path) or b"").decode("ascii", "replace").strip()
        if not token or len(token) > _MAX_TOKEN_BYTES or not token.isprintable() or not token.isascii() or " " in token:
            raise ValueError(
                f"token_file: must hold one token of at most {_MAX_TOKEN_BYTES} printable characters, got {len(token)} characters"
            )
        return token

    def __call__(self, context: Any, callback: Any) -> None:
        with contextlib.suppress(ValueError):
            self._last = self._read()
        callback((("authorization", f"Bearer {self._last}"),), None)
