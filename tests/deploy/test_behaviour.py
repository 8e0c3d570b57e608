"""The real daemon with the rendered arguments and environment: probed as the manifest says, ended on its clock under load."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import grpc
import penstock
import pytest
from conftest import PENSTOCKD
from grpc_health.v1 import health_pb2, health_pb2_grpc
from manifests import OVERLAYS, Document, Rendered, rendered
from small_models import create_mlp, mlp_batch

SERVING = health_pb2.HealthCheckResponse.SERVING


class Pod:
    """One start of the rendered container, its paths in a folder and its addresses on a loopback of its own."""

    def __init__(self, overlay: Rendered, folder: pathlib.Path) -> None:
        self.container = overlay.container
        self.host = f"127.{random.randrange(64, 128)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        self.log_path = folder / "log"
        paths = {mount["mountPath"]: folder / mount["name"] for mount in self.container["volumeMounts"]}
        for path in paths.values():
            path.mkdir()
        (paths["/etc/penstock"] / "penstockd.toml").write_text(overlay.config_text())
        tls = paths["/etc/penstock-tls"]
        overlay.place_credentials(
            tls, paths["/etc/penstock-identities"], paths["/etc/penstock-tokens"], server=f"IP:{self.host}"
        )
        self.credentials = {"tls_ca": f"{tls}/ca.crt", "tls_cert": f"{tls}/admin.crt", "tls_key": f"{tls}/admin.key"}

        def here(text: str) -> str:
            inside = "|".join(sorted(paths, key=len, reverse=True))
            text = re.sub(f"(^|=)({inside})(?=/|$)", lambda match: match[1] + str(paths[match[2]]), text)
            return text.replace("0.0.0.0", self.host)

        self.arguments = [here(argument) for argument in self.container["args"]]
        self.environment = {name: here(value) for name, value in overlay.environment.items()}
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        self.api = f"{self.host}:{ports['grpc-api']}"

    def start(self) -> None:
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [PENSTOCKD, *self.arguments], env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def probe(self, kind: str) -> bool:
        """One probe, as a node does it: a new connection, the manifest's port, service name and timeout."""
        probe = self.container[f"{kind}Probe"]
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
        if pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait()


class Load:
    """Callers that train and infer, one call after the other, until they are told that the pod has left the Service."""

    def __init__(self, pod: Pod, callers: int = 4) -> None:
        self.left = threading.Event()
        self.failures: list[BaseException] = []
        self.calls = 0
        self._change = threading.Condition()
        self._clients = [penstock.Client(pod.api, retry_for=0, **pod.credentials) for _ in range(callers)]
        name = create_mlp(self._clients[0]).name
        self._threads = [
            threading.Thread(target=self._call, args=(client.pipeline(name), i)) for i, client in enumerate(self._clients)
        ]
        for thread in self._threads:
            thread.start()

    def _call(self, pipeline: penstock.Pipeline, number: int) -> None:
        inputs, target = mlp_batch(number)
        try:
            while not self.left.is_set():
                if number % 2:
                    pipeline.infer(inputs)
                else:
                    # Accepted at once, waited for afterwards: the daemon may be draining by then.
                    assert pipeline.submit_train_step(inputs, target).result(60).applied
                with self._change:
                    self.calls += 1
                    self._change.notify_all()
        except BaseException as failure:
            with self._change:
                self.failures.append(failure)
                self._change.notify_all()

    def await_calls(self, count: int) -> None:
        with self._change:
            assert self._change.wait_for(lambda: self.calls >= count or self.failures, 60), "the calls do not get on"
            assert not self.failures, self.failures

    def end(self) -> None:
        self.left.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        for client in self._clients:
            with contextlib.suppress(Exception):
                client.close()


def test_probed_and_ended_under_load(tmp_path: pathlib.Path, pods: list[Pod]) -> None:
    overlay = rendered("dev-cpu")
    pod = Pod(overlay, tmp_path)
    pods.append(pod)
    pod.start()
    pod.await_startup()
    assert pod.probe("readiness") and pod.probe("liveness")
    load = Load(pod)

    # The node's probes, in step with each other, until the end of the process.
    unlive: list[float] = []
    readiness: list[bool] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1):
            ready, live, alive = pod.probe("readiness"), pod.probe("liveness"), pod.process.poll() is None
            readiness.append(ready)
            if not live and alive:
                unlive.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        load.await_calls(50)
        assert all(readiness)

        # The pod is deleted. While preStop sleeps, the daemon knows of nothing and callers go on; how long it sleeps is
        # a part of the sum in test_manifests.py, so nobody waits for it here. Endpoints are slow: callers go on into
        # the announcement.
        before_stop = pod.container["lifecycle"]["preStop"]["sleep"]["seconds"]
        grace_ends = time.monotonic() + overlay.pod["spec"]["terminationGracePeriodSeconds"] - before_stop
        load.await_calls(load.calls + 20)
        before = load.calls
        pod.process.send_signal(signal.SIGTERM)
        while pod.probe("readiness"):
            assert pod.process.poll() is None
        assert pod.probe("liveness") or pod.process.poll() is not None, "an end is no reason to be killed"
        load.await_calls(before + 10)
        load.end()
        code = pod.process.wait(max(0, grace_ends - time.monotonic()))  # then the node would send SIGKILL
    finally:
        over.set()
        watcher.join()
        load.end()
    assert not load.failures, load.failures
    assert code == 0, pod.log_path.read_text()[-4000:]
    # The health port closes a moment before the process ends. A node kills when probes fail for longer than that.
    probe = pod.container["livenessProbe"]
    assert not unlive or unlive[-1] - unlive[0] < (probe["failureThreshold"] - 1) * probe["periodSeconds"], unlive


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_starts_and_ends(name: str, tmp_path: pathlib.Path, pods: list[Pod]) -> None:
    pod = Pod(rendered(name), tmp_path)
    pods.append(pod)
    pod.start()
    pod.await_startup()
    assert pod.probe("readiness") and pod.probe("liveness")
    with penstock.Client(pod.api, **pod.credentials) as client:
        assert create_mlp(client).train_step(*mlp_batch(0)).applied
        state = pathlib.Path(next(a for a in pod.arguments if a.startswith("--state-dir=")).partition("=")[2])
        assert any(state.iterdir()), "state goes to the claim"
    pod.process.send_signal(signal.SIGTERM)
    while pod.probe("readiness"):
        assert pod.process.poll() is None
    pod.process.send_signal(signal.SIGTERM)  # an impatient node: closed at once, told by the exit code
    assert pod.process.wait(60) == 1


def test_a_wrong_probe_is_seen(tmp_path: pathlib.Path, pods: list[Pod]) -> None:
    """The probes of this file fail where they should: another service name, another port."""
    overlay: Document = rendered("dev-cpu").container
    pod = Pod(rendered("dev-cpu"), tmp_path)
    pods.append(pod)
    pod.start()
    pod.await_startup()
    pod.container = {**overlay, "livenessProbe": {"grpc": {"port": 8472, "service": "livenes"}, "timeoutSeconds": 3}}
    assert not pod.probe("liveness")
    pod.container = {**overlay, "livenessProbe": {"grpc": {"port": 8471, "service": "liveness"}, "timeoutSeconds": 1}}
    assert not pod.probe("liveness")
    # The health port answers health and nothing else.
    with grpc.insecure_channel(f"{pod.host}:8472") as channel:
        call = channel.unary_unary("/penstock.v1.AdminService/GetServerInfo")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=10)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert os.path.exists(f"/proc/{pod.process.pid}")
