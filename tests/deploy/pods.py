"""The rendered container as a process: where its paths, addresses and probes lead to."""

from __future__ import annotations

import pathlib
import random
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from conftest import PENSTOCKD
from grpc_health.v1 import health_pb2, health_pb2_grpc
from manifests import Rendered
from namespaces import Host

SERVING = health_pb2.HealthCheckResponse.SERVING


class Pod:
    """The rendered container, its paths in a folder, and its addresses on `host`, where all names have to lead somewhere, or on a
    loopback of its own; where it is a rank there, `leader` has the address that the leader's name stands for."""

    def __init__(self, overlay: Rendered, folder: pathlib.Path, leader: Pod | None = None, host: Host | None = None) -> None:
        self.container = overlay.container
        self.host = f"127.{random.randrange(64, 128)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        self.prefix: tuple[str, ...] = ()
        if host is not None:
            self.host, self.prefix = host.address, host.prefix
        leader_host = self.host if leader is None else leader.host
        self.log_path = folder / "log"
        paths = {mount["mountPath"]: folder / mount["name"] for mount in self.container["volumeMounts"]}
        for path in paths.values():
            path.mkdir()
        (paths["/etc/penstock"] / "penstockd.toml").write_text(overlay.config_text())
        tls = paths["/etc/penstock-tls"]
        tokens = paths.setdefault("/etc/penstock-tokens", folder / "tokens")
        tokens.mkdir(exist_ok=True)
        if leader is not None:  # one Secret for the whole group
            shutil.copytree(leader.tls, tls, dirs_exist_ok=True)
        overlay.place_credentials(tls, paths["/etc/penstock-identities"], tokens, server=f"IP:{self.host}")
        self.tls = tls
        self.credentials = {"tls_ca": f"{tls}/ca.crt", "tls_cert": f"{tls}/admin.crt", "tls_key": f"{tls}/admin.key"}

        def here(text: str) -> str:
            inside = "|".join(sorted(paths, key=len, reverse=True))
            text = re.sub(f"(^|=)({inside})(?=/|$)", lambda match: match[1] + str(paths[match[2]]), text)
            return text if host else text.replace("0.0.0.0", self.host).replace(overlay.leader, leader_host)

        self.arguments = [here(argument) for argument in self.container["args"]]
        self.environment = {name: here(value) for name, value in overlay.environment.items()}
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.api = f"{self.host}:{ports.get('grpc-api')}"

    def start(self) -> None:
        self.has_started = False
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, PENSTOCKD, *self.arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def probe(self, kind: str) -> bool:
        """One probe, as a node does it: a new connection, the manifest's port, service name and timeout."""
        probe = self.container[f"{kind}Probe"]
        if "httpGet" in probe:
            page = f"http://{self.host}:{probe['httpGet']['port']}{probe['httpGet']['path']}"
            try:
                with urllib.request.urlopen(page, timeout=probe["timeoutSeconds"]) as answer:
                    return bool(200 <= answer.status < 400)
            except OSError:
                return False
        request = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
        with grpc.insecure_channel(f"{self.host}:{probe['grpc']['port']}") as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=probe["timeoutSeconds"])
            except grpc.RpcError:
                return False
        return bool(answer.status == SERVING)

    def await_startup(self) -> None:
        probe = self.container["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if self.probe("startup"):
                self.has_started = True
                return
            assert self.process.poll() is None, self.log_path.read_text()
            time.sleep(min(0.2, probe["periodSeconds"]))  # more often than the node: only the first success counts
        raise AssertionError("the startup probe has used up its failures")


@pytest.fixture
def pods(tmp_path: pathlib.Path) -> Iterator[list[Pod]]:
    """What still runs at the end of the test is killed."""
    started: list[Pod] = []
    yield started
    for pod in started:
        if hasattr(pod, "process") and pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait()


def grace(overlay: Rendered) -> float:
    """Seconds from SIGTERM to SIGKILL."""
    pod = overlay.pod["spec"]
    seconds: float = pod["terminationGracePeriodSeconds"] - pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    return seconds


def await_probe(pods: list[Pod], kind: str, wanted: bool) -> None:
    """Within the patience of a startup probe, and looking more often than a node does."""
    probe = pods[0].container["startupProbe"]
    deadline = time.monotonic() + probe["failureThreshold"] * probe["periodSeconds"] / 10
    for pod in pods:
        while pod.probe(kind) != wanted:
            assert pod.process.poll() is None, pod.log_path.read_text()
            assert time.monotonic() < deadline, pod.log_path.read_text()
            time.sleep(0.1)
