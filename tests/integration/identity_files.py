"""Certificates, tokens and a map for a daemon that asks its callers who they are."""

from __future__ import annotations

import datetime
import hashlib
import pathlib
import subprocess

import grpc

from daemon_process import Daemon, free_ports

DEV_CERTS = pathlib.Path(__file__).resolve().parents[2] / "deploy/dev_certs.sh"
ROLES = ("viewer", "infer", "train", "admin")
PATTERN = "own-*"


class Identities:
    """A folder with a certificate and a token for each role, and what is wrong or has ended.

    Tokens are called ``token-ROLE``, certificates ``spiffe://penstock/ROLE``; each may use pipelines called ``own-*``, the
    admin all. ``stranger`` has a certificate of the same authority and no line in the map.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        run(str(DEV_CERTS), str(folder), *ROLES, "stranger")
        self.map = folder / "identities"
        self.tokens = folder / "tokens"
        lines = [f"{prefix}{role} {role} {'*' if role == 'admin' else PATTERN}" for role in ROLES for prefix in ("token-", "spiffe://penstock/")]
        self.map.write_text("# who is who\n" + "\n".join([*lines, "old train *"]) + "\n")
        self.write_tokens(ROLES)

    def write_tokens(self, roles: tuple[str, ...]) -> None:
        ended = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=1)
        lines = [f"{digest(f'secret-{role}')} token-{role}" for role in roles]
        self.tokens.write_text("\n".join([*lines, f"{digest('secret-old')} old {ended:%Y-%m-%dT%H:%M:%SZ}"]) + "\n")

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def flags(self) -> tuple[str, ...]:
        return (
            f"--tls-cert={self.folder}/server.crt",
            f"--tls-key={self.folder}/server.key",
            f"--tls-client-ca={self.folder}/ca.crt",
            f"--identity-map={self.map}",
            f"--token-file={self.tokens}",
        )

    def credentials(self, client: str = "") -> grpc.ChannelCredentials:
        """Of a channel; with the certificate of ``client``, if it is named."""
        own = (self.read(f"{client}.key"), self.read(f"{client}.crt")) if client else (None, None)
        return grpc.ssl_channel_credentials(self.read("ca.crt"), *own)

    def issue(self, name: str, end: datetime.datetime) -> None:
        """A certificate of the authority for spiffe://penstock/NAME that ends then."""
        self._issue(name, f"URI:spiffe://penstock/{name}", "clientAuth", end)

    def issue_server(self, end: datetime.datetime) -> None:
        """Another certificate of the daemon, and another key."""
        self._issue("server", "DNS:localhost,IP:127.0.0.1", "serverAuth", end)

    def _issue(self, name: str, names: str, use: str, end: datetime.datetime) -> None:
        config = self.folder / "ca.cnf"
        (self.folder / "index").write_text("")
        config.write_text(
            "[ca]\ndefault_ca=own\n[own]\ndatabase=index\nnew_certs_dir=.\ncertificate=ca.crt\nprivate_key=ca.key\n"
            "default_md=sha256\nrand_serial=yes\npolicy=any\nx509_extensions=client\n[any]\ncommonName=supplied\n"
            f"[client]\nsubjectAltName={names}\nextendedKeyUsage={use}\n"
        )
        key, request = f"{name}.key", f"{name}.csr"
        run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key, cwd=self.folder)
        run("openssl", "req", "-new", "-key", key, "-subj", f"/CN={name}", "-out", request, cwd=self.folder)
        run("openssl", "ca", "-batch", "-notext", "-config", "ca.cnf", "-in", request, "-out", f"{name}.crt",
            "-startdate", "20200101000000Z", "-enddate", f"{end:%Y%m%d%H%M%SZ}", cwd=self.folder)  # fmt: skip


class TlsDaemon(Daemon):
    """A daemon whose API asks for credentials; its health port does not."""

    def __init__(self, folder: pathlib.Path, identities: Identities, *flags: str) -> None:
        (health,) = free_ports(1)
        health_address = f"127.0.0.1:{health}"
        super().__init__(folder, "--drain-announce=0s", f"--health-listen={health_address}", *identities.flags(), *flags)
        self.probe_address = health_address


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def run(*command: str, cwd: pathlib.Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
