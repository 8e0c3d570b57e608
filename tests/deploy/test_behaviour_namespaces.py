"""A group of ranks as the rendered manifests start it, each pod on a host of its own: probed by a node all the time, while ranks
are ended, killed and cut off and somebody trains."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import threading
import uuid
from collections.abc import Iterator

import grpc
import penstock
import pytest
from manifests import GROUPS, rendered
from namespaces import hosts_of_their_own
from pods import Pod, await_probe, grace, pods  # noqa: F401
from small_models import create_mlp, mlp_batch

TENTH = 0.1  # of the manifest's seconds: the node is more impatient than that of a cluster
LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}


class Node:
    """Probes a pod that has started, and notes when it would kill it."""

    def __init__(self, pod: Pod) -> None:
        self.kills: list[str] = []
        self._pod = pod
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        probe = self._pod.container["livenessProbe"]
        failures = 0
        while not self._over.wait(probe["periodSeconds"] * TENTH):
            running = self._pod.process
            fails = not self._pod.probe("liveness")
            same = running is self._pod.process and running.poll() is None and self._pod.has_started
            failures = failures + 1 if fails and same else 0
            if failures == probe["failureThreshold"]:
                self.kills.append(self._pod.log_path.read_text()[-2000:])

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Trainer:
    """Trains a pipeline over all ranks, step by step, and asks again for whatever gets no answer."""

    def __init__(self, leader: Pod, ranks: int) -> None:
        self.steps = 0
        self._failure: BaseException | None = None
        self._over = False
        self._change = threading.Condition()
        self._client = penstock.Client(leader.api, retry_for=300, **leader.credentials)
        devices = [f"{rank}/cpu:0" for rank in range(ranks)]
        self._pipeline = create_mlp(self._client, "over", devices=devices, stages=ranks)
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _train(self) -> None:
        try:
            while not self._over:
                self._step(str(uuid.uuid4()))
        except BaseException as failure:
            with self._change:
                self._failure = failure
                self._change.notify_all()

    def _step(self, request_id: str) -> None:
        while True:
            try:
                outcome = self._pipeline.train_step(*mlp_batch(self.steps), request_id=request_id)
                break
            except penstock.PenstockError as error:
                if error.code not in LOST and error.reason != "EPOCH_MISMATCH":
                    raise
        with self._change:
            self.steps += 1
            assert outcome.step == self.steps, "a step is lost, or was made twice"
            self._change.notify_all()

    def await_steps(self, more: int = 5) -> None:
        with self._change:
            wanted = self.steps + more
            assert self._change.wait_for(lambda: self.steps >= wanted or self._failure, 60), "the training does not get on"
            assert self._failure is None, self._failure

    def end(self) -> None:
        self._over = True
        self._thread.join(60)
        self._client.close()


@contextlib.contextmanager
def watched(started: list[Pod]) -> Iterator[list[Node]]:
    nodes = [Node(pod) for pod in started]
    try:
        yield nodes
    finally:
        for node in nodes:
            node.end()


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_outlives_what_happens_to_pods(name: str, tmp_path: pathlib.Path, pods: list[Pod]) -> None:  # noqa: F811
    size = rendered(name).size
    with hosts_of_their_own(size) as network:
        network.name(tmp_path, {rendered(name).leader: 0})
        for rank, host in enumerate(network.hosts):
            (tmp_path / str(rank)).mkdir()
            pods.append(Pod(rendered(name, rank), tmp_path / str(rank), leader=pods[0] if rank else None, host=host))
        leader, last = pods[0], pods[-1]
        for pod in pods:
            pod.start()
        for pod in pods:
            pod.await_startup()
        await_probe(pods, "readiness", True)
        trainer = Trainer(leader, size)
        try:
            with watched(pods) as nodes:
                trainer.await_steps()

                # A rank is deleted: it knows of nothing during preStop, which lasts for some steps here.
                trainer.await_steps()
                assert last.probe("readiness")
                last.process.send_signal(signal.SIGTERM)
                assert last.process.wait(grace(rendered(name, size - 1))) == 0, last.log_path.read_text()[-4000:]
                assert leader.probe("readiness"), "what has no stage on other ranks goes on"
                come_back(last, pods)
                trainer.await_steps()

                # Each is killed.
                for pod in pods:
                    pod.process.kill()
                    pod.process.wait()
                    if pod is not leader:
                        assert leader.probe("readiness")
                    come_back(pod, pods)
                    trainer.await_steps()

                # They lose sight of each other, and the node sees all.
                network.part(0, size - 1)
                await_probe([last], "readiness", False)
                assert leader.probe("readiness") and leader.probe("liveness") and last.probe("liveness")
                network.join(0, size - 1)
                await_probe(pods, "readiness", True)
                trainer.await_steps()
                assert [node.kills for node in nodes] == [[]] * size
        finally:
            trainer.end()
        for pod in pods:
            pod.process.send_signal(signal.SIGTERM)
            assert pod.process.wait(grace(rendered(name))) == 0, pod.log_path.read_text()[-4000:]


def come_back(pod: Pod, group: list[Pod]) -> None:
    """The node starts it again."""
    pod.start()
    pod.await_startup()
    await_probe(group, "readiness", True)
