"""The real daemon with the rendered arguments and environment: probed as the manifest says, ended on its clock under load."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
import time

import grpc
import penstock
import pytest
from manifests import GROUPS, OVERLAYS, Document, rendered
from pods import Pod, await_probe, grace, pods  # noqa: F401
from small_models import create_mlp, mlp_batch


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


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name not in GROUPS])
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


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_of_ranks_forms_works_and_ends(name: str, tmp_path: pathlib.Path, pods: list[Pod]) -> None:
    """One daemon per ordinal, in an order that nobody would wish for; the leader ends first and comes back."""
    for rank in range(rendered(name).size):
        (tmp_path / str(rank)).mkdir()
        pods.append(Pod(rendered(name, rank), tmp_path / str(rank), leader=pods[0] if rank else None))
    leader, *others = pods
    for pod in [*others, leader]:
        assert not pod.probe("liveness"), "nobody else has these addresses"
    for pod in others:
        pod.start()
        pod.await_startup()
        assert pod.probe("liveness") and not pod.probe("readiness"), "without a leader a rank lives, and is of no use"
    leader.start()
    leader.await_startup()
    await_probe(pods, "readiness", True)

    with penstock.Client(leader.api, **leader.credentials) as client:
        devices = ["cpu:0", *(f"{rank}/cpu:0" for rank in range(1, len(pods)))]
        pipeline = create_mlp(client, "over", devices=devices)
        assert pipeline.train_step(*mlp_batch(0)).applied
    assert "stages of a pipeline are built" in others[0].log_path.read_text()

    # A node is told to end its pod; the others stay.
    leader.process.send_signal(signal.SIGTERM)
    assert leader.process.wait(grace(rendered(name))) == 0, leader.log_path.read_text()[-4000:]
    await_probe(others, "readiness", False)
    assert all(pod.probe("liveness") for pod in others), "a leader that is away is no reason to be killed"
    leader.start()
    leader.await_startup()
    await_probe(pods, "readiness", True)
    with penstock.Client(leader.api, **leader.credentials) as client:
        again = client.create_pipeline("again", from_checkpoint="pipelines/over/checkpoints/step-1", devices=devices, schedule="1f1b", micro_batches=4)
        outcome = again.train_step(*mlp_batch(1))
        assert (outcome.applied, outcome.step) == (True, 2), "what the leader saved at its end is there"

    for pod in pods:
        pod.process.send_signal(signal.SIGTERM)
        assert pod.process.wait(grace(rendered(name))) == 0, pod.log_path.read_text()[-4000:]


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
