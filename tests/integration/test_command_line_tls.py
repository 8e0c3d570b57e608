"""The program penstock over TLS: files, variables, and what it says where no call comes through."""

from __future__ import annotations

import contextlib
import datetime
import os
import pathlib
import re
import socket
import subprocess
import threading
from collections.abc import Iterator

import penstock
import pytest

from conftest import StartDaemon
from daemon_process import Daemon, eventually, free_ports
from identity_files import PATTERN, ROLES, Identities, TlsDaemon
from small_models import create_gpt

VARIABLES = ("PENSTOCK_TLS_CA", "PENSTOCK_TLS_CERT", "PENSTOCK_TLS_KEY", "PENSTOCK_TOKEN_FILE")


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    made = Identities(tmp_path_factory.mktemp("identities"))
    for role in (*ROLES, "old", "king"):
        (made.folder / f"{role}.token").write_text(f"secret-{role}\n")
    return made


@pytest.fixture(scope="module")
def tls(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with TlsDaemon(tmp_path_factory.mktemp("tls"), identities).running() as one:
        yield one


def run(address: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [os.environ["PENSTOCK"], "--server", address, *words]
    return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, timeout=60)


def flags(identities: Identities, role: str = "", token: str = "") -> list[str]:
    words = [f"--tls-ca={identities.folder}/ca.crt"]
    if role:
        words += [f"--tls-cert={identities.folder}/{role}.crt", f"--tls-key={identities.folder}/{role}.key"]
    if token:
        words += [f"--token-file={identities.folder}/{token}.token"]
    return words


def refused(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr
    assert not re.search(r"^[EWID]\d{4} ", done.stderr, re.MULTILINE), done.stderr  # gRPC's own lines


@pytest.mark.parametrize("shown", ["certificate", "token"])
def test_a_role_is_the_same_by_a_certificate_and_by_a_token(tls: Daemon, identities: Identities, shown: str) -> None:
    for role in ROLES:
        given = flags(identities, role) if shown == "certificate" else flags(identities, token=role)
        listed = run(tls.address, *given, "pipeline", "list", "-o", "json")
        assert listed.returncode == 0, listed.stderr
        name = PATTERN.replace("*", f"{shown}-{role}")
        made = run(tls.address, *given, "pipeline", "create", name, "--model", "mlp", "--option", "layers=2",
                   "--option", "width=8", "--loss", "mean_squared_error", "--stages", "1")  # fmt: skip
        if ROLES.index(role) < ROLES.index("train"):
            refused(made, 5, "PERMISSION_DENIED / ROLE_MISSING", "ask the operator for the role")
            continue
        assert made.returncode == 0, made.stderr
        assert run(tls.address, *given, "pipeline", "delete", name, "--yes").returncode == 0


def test_variables_name_the_files_that_no_flag_names(tls: Daemon, identities: Identities) -> None:
    folder = identities.folder
    by_token = {"PENSTOCK_TLS_CA": f"{folder}/ca.crt", "PENSTOCK_TOKEN_FILE": f"{folder}/viewer.token"}
    assert run(tls.address, "status", **by_token).returncode == 0
    own = {"PENSTOCK_TLS_CERT": f"{folder}/viewer.crt", "PENSTOCK_TLS_KEY": f"{folder}/viewer.key"}
    assert run(tls.address, "status", PENSTOCK_TLS_CA=f"{folder}/ca.crt", **own).returncode == 0
    refused(run(tls.address, "--token-file", f"{folder}/king.token", "status", **by_token), 5, "CREDENTIAL_INVALID")


@pytest.mark.parametrize(
    ("token", "reason", "hint"),
    [
        ("", "CREDENTIAL_MISSING", "say who you are: --tls-cert with --tls-key, or --token-file"),
        ("king", "CREDENTIAL_INVALID", "ask the operator for a line"),
        ("old", "CREDENTIAL_EXPIRED", "get a new certificate or token"),
    ],
)
def test_a_stranger_is_told_what_is_missing(
    tls: Daemon, identities: Identities, token: str, reason: str, hint: str
) -> None:
    refused(run(tls.address, *flags(identities, token=token), "status"), 5, f"UNAUTHENTICATED / {reason}", hint)


def test_files_are_checked_before_any_call(identities: Identities, tmp_path: pathlib.Path) -> None:
    folder = identities.folder
    empty = tmp_path / "empty"
    empty.write_text("")
    identities.issue("ended", datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1))
    ca = f"--tls-ca={folder}/ca.crt"
    for given, said in [
        ([f"--tls-ca={tmp_path}/none"], "--tls-ca: must name a file that can be read (open: No such file or directory)"),
        ([f"--tls-ca={empty}"], "--tls-ca: must hold certificates as PEM"),
        ([ca, f"--tls-cert={folder}/viewer.crt"], "--tls-cert: needs tls-key"),
        ([ca, f"--tls-key={folder}/viewer.key"], "--tls-key: needs tls-cert"),
        ([ca, f"--tls-cert={empty}", f"--tls-key={folder}/viewer.key"], "--tls-cert: must hold a certificate as PEM"),
        ([ca, f"--tls-cert={folder}/viewer.crt", f"--tls-key={empty}"], "--tls-key: must hold a private key as PEM"),
        ([ca, f"--tls-cert={folder}/viewer.crt", f"--tls-key={folder}/admin.key"], "--tls-key: must be the key of "),
        ([ca, f"--tls-cert={folder}/ended.crt", f"--tls-key={folder}/ended.key"], "--tls-cert: must not have ended"),
        ([ca, f"--token-file={tmp_path}/none"], "--token-file: must name a file that can be read"),
        ([ca, f"--token-file={empty}"], "--token-file: must hold one token of at most 4096 printable characters"),
    ]:
        refused(run("127.0.0.1:1", *given, "status"), 2, said)


def test_no_option_takes_a_token_itself(identities: Identities) -> None:
    refused(run("127.0.0.1:1", "--token", "secret-admin", "status"), 2, "--token")
    shown = run("127.0.0.1:1", *flags(identities, token="admin"), "config", "show", "-o", "json")
    assert shown.returncode == 0 and "secret" not in shown.stdout


def test_the_daemons_certificate_must_be_signed_by_the_authority(
    tls: Daemon, identities: Identities, tmp_path: pathlib.Path
) -> None:
    other = Identities(tmp_path / "other")
    given = [f"--tls-ca={other.folder}/ca.crt", f"--token-file={identities.folder}/admin.token"]
    refused(run(tls.address, *given, "status"), 3, "the certificate was refused of ", "do:  give the authority")
    strangers = [f"--tls-ca={identities.folder}/ca.crt", f"--tls-cert={other.folder}/admin.crt", f"--tls-key={other.folder}/admin.key"]
    refused(run(tls.address, *strangers, "status"), 3, "the connection was closed by ", "--tls-client-ca has signed it")


def test_the_daemons_certificate_must_have_the_name_that_was_called(
    identities: Identities, tmp_path: pathlib.Path
) -> None:
    (port,) = free_ports(1)
    daemon = TlsDaemon(tmp_path, identities, f"--listen=0.0.0.0:{port}")
    with daemon.running():
        assert run(f"127.0.0.1:{port}", *flags(identities, "viewer"), "status").returncode == 0
        refused(run(f"127.0.0.2:{port}", *flags(identities, "viewer"), "status"), 3,
                "the certificate has another name than 127.0.0.2", "in its certificate's SAN")  # fmt: skip


def test_plaintext_and_tls_do_not_meet(tls: Daemon, identities: Identities, start_daemon: StartDaemon) -> None:
    refused(run(tls.address, "status"), 3, "the connection was closed by ", "if it speaks TLS: --tls-ca")
    plain = start_daemon()
    refused(run(plain.address, *flags(identities, "viewer"), "status"), 3, "no TLS is spoken at ")


def test_a_token_never_leaves_in_plaintext(identities: Identities) -> None:
    """Whoever listens there gets the first bytes of TLS, and nothing of the token."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        def listen() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(5)
                    heard.append(connection.recv(65536))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        address = "127.0.0.1:%d" % server.getsockname()[1]
        done = run(address, f"--token-file={identities.folder}/admin.token", "status")
        server.shutdown(socket.SHUT_RDWR)
    thread.join()
    spoken = [first for first in heard if first]  # a slow machine's attempt may end before it said a word
    assert done.returncode == 3 and spoken
    for first in spoken:
        assert first[:1] == b"\x16" and b"secret" not in first and b"PRI" not in first


def test_a_changed_token_counts_in_a_command_that_runs(
    tls: Daemon, identities: Identities, tmp_path: pathlib.Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret-train\n")
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 40)
    with penstock.Client(tls.address, tls_ca=f"{identities.folder}/ca.crt", token_file=str(token)) as client:
        pipeline = create_gpt(client, PATTERN.replace("*", "changing"))
        command = [os.environ["PENSTOCK"], "--server", tls.address, *flags(identities), f"--token-file={token}",
                   "train", "own-changing", "--text", str(text), "--steps", "1000000"]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
            try:
                eventually(lambda: pipeline.statistics().step > 0)
                token.write_text("")  # as it is for a moment while somebody writes it: the last one counts
                before = pipeline.statistics().step
                eventually(lambda: pipeline.statistics().step > before + 2)
                token.write_text("secret-king\n")
                _, said = running.communicate(timeout=60)
            finally:
                running.kill()
        assert running.returncode == 5 and "CREDENTIAL_INVALID" in said, said
        token.write_text("secret-train\n")
        pipeline.delete(force=True)
