"""Files that show who a client is, and what is refused of them."""

from __future__ import annotations

import pathlib

import grpc
import penstock
import pytest
from penstock.credentials import CredentialFiles, channel_credentials
from penstock.errors import PenstockError

VARIABLES = ("PENSTOCK_TLS_CA", "PENSTOCK_TLS_CERT", "PENSTOCK_TLS_KEY", "PENSTOCK_TOKEN_FILE")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_files_a_connection_is_plaintext() -> None:
    assert channel_credentials(CredentialFiles()) is None


def test_variables_name_the_files_that_are_not_given(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="^tls_ca: must name a file that can be read"):
        channel_credentials(CredentialFiles())
    (tmp_path / "ca").write_bytes(b"")
    assert channel_credentials(CredentialFiles(tls_ca=str(tmp_path / "ca"))) is not None


@pytest.mark.parametrize("given", ["tls_cert", "tls_key"])
def test_a_certificate_and_its_key_need_each_other(given: str) -> None:
    with pytest.raises(ValueError, match="^tls_cert, tls_key: one needs the other"):
        penstock.Client(**{given: "file"})  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "\n", "two words", "a\x01b", "é", "x" * 4097])
def test_a_file_must_hold_one_token(tmp_path: pathlib.Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ValueError, match="^token_file: must hold one token") as raised:
        penstock.Client(token_file=str(path))
    if content.strip():
        assert content not in str(raised.value)


def test_a_token_is_read_for_each_call(tmp_path: pathlib.Path) -> None:
    from penstock.credentials import _Bearer

    path = tmp_path / "token"
    path.write_text("first\n")
    bearer = _Bearer(str(path))
    said: list[object] = []

    def call() -> None:
        bearer(None, lambda metadata, error: said.append((metadata, error)))

    call()
    path.write_text("second\n")
    call()
    path.write_text("")  # somebody writes it: the last one counts
    call()
    path.unlink()
    call()
    first, second = (((("authorization", f"Bearer {token}"),), None) for token in ("first", "second"))
    assert said == [first, second, second, second]


class _Refused:
    def __init__(self, details: str) -> None:
        self._details = details

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAUTHENTICATED

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[()]:
        return ()


def test_the_reason_of_a_stranger_begins_the_message() -> None:
    error = PenstockError.from_call(_Refused("CREDENTIAL_INVALID: the token is not known"))
    assert (error.reason, error.message) == ("CREDENTIAL_INVALID", "the token is not known")
    assert not error.in_doubt
    assert PenstockError.from_call(_Refused("something else")).reason == ""
