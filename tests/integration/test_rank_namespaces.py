"""Ranks on hosts of their own, each in a network namespace, and links between them that are cut or slow.

What is silent here is told by --peer-timeout and nothing else: no end of a process, no refused connection.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import penstock
import pytest
from penstock.v1 import admin_pb2

from daemon_process import eventually
from namespaces import Network, three_hosts  # noqa: F401
from rank_group import Group
from small_models import create_mlp, differing, mlp_batch, state_of

QUICK = "--peer-timeout=2s"  # where silence is what is tested
PATIENT = "--peer-timeout=60s"
MIB = 1 << 20


@contextlib.contextmanager
def spread(
    folder: pathlib.Path, network: Network, transport: str, timeout: str = QUICK
) -> Iterator[tuple[Group, penstock.Client]]:
    """A rank on each host, and a client that repeats nothing."""
    with Group(folder, 3, transport, timeout, network=network).running() as group:
        with penstock.Client(group.leader.address, retry_for=0) as impatient:
            yield group, impatient


class Training:
    """A pipeline over ranks, and how often it was to be trained; each step has a mini-batch of its own."""

    def __init__(self, client: penstock.Client, name: str, *devices: str) -> None:
        self.client = client
        self.pipeline = create_mlp(client, name, dropout=0.1, devices=devices)
        self.steps = 0

    def submit(self, steps: int) -> list[penstock.OutcomeHandle]:
        handles = []
        for _ in range(steps):
            handles.append(self.pipeline.submit_train_step(*mlp_batch(self.steps)))
            self.steps += 1
        return handles

    def lose(self, cut: Callable[[], None]) -> set[str]:
        """Cuts a link in the midst of training; the ranks that the errors of open calls name."""
        handles = self.submit(20)
        assert handles[0].result(60).applied
        cut()
        handles += self.submit(1)
        errors = [handle.exception(60) for handle in handles]
        lost = [error for error in errors if error is not None]
        assert errors[-1] is not None, "the link is cut, and the step was made"
        assert {(error.code, error.reason) for error in lost} == {(grpc.StatusCode.UNAVAILABLE, "RANK_LOST")}, lost
        return {error.values["rank"] for error in lost}

    def await_ready(self) -> None:
        eventually(lambda: self.client.pipeline(self.pipeline.name).state == "READY")

    def undisturbed(self) -> dict[str, bytes]:
        """The state after the same steps in one process."""
        alone = Training(self.client, "alone", "cpu:0", "cpu:1")
        for handle in alone.submit(self.steps):
            assert handle.result(60).applied
        return state_of(alone.pipeline)


def assert_reforming(pipeline: penstock.Pipeline) -> None:
    with pytest.raises(penstock.PenstockError) as told:
        pipeline.train_step(*mlp_batch(0))
    assert (told.value.code, told.value.reason) == (grpc.StatusCode.UNAVAILABLE, "PIPELINE_REFORMING"), told.value
    assert told.value.retry_delay == 1


@pytest.mark.parametrize("transport", ["ucx", "grpc"])
def test_a_cut_link_costs_time_and_no_bit(tmp_path: pathlib.Path, three_hosts: Network, transport: str) -> None:
    host = three_hosts.hosts[1]
    cuts = (host.take_down, host.bring_up), (lambda: three_hosts.part(0, 1), lambda: three_hosts.join(0, 1))
    with spread(tmp_path, three_hosts, transport) as (group, client):
        training = Training(client, "apart", "1/cpu:0", "cpu:0")
        neighbour = create_mlp(client, "neighbour", devices=["cpu:1", "2/cpu:0"])
        for cut, mend in cuts:
            assert training.lose(cut) == {"1"}
            assert_reforming(training.pipeline)
            assert neighbour.train_step(*mlp_batch(0)).applied
            eventually(lambda: client.server_info().group.ranks[1].state == admin_pb2.RANK_STATE_MISSING)
            mend()
            training.await_ready()
        for handle in training.submit(3):
            assert handle.result(60).applied
        assert differing(state_of(training.pipeline), training.undisturbed()) == []


@pytest.mark.parametrize("transport", ["ucx", "grpc"])
def test_a_cut_between_two_that_follow(tmp_path: pathlib.Path, three_hosts: Network, transport: str) -> None:
    """Both still have their leader, which hears of it from them, and tries to go on without end."""
    with spread(tmp_path, three_hosts, transport) as (_, client):
        training = Training(client, "apart", "1/cpu:0", "2/cpu:0")
        here = create_mlp(client, "here", devices=["cpu:0", "cpu:1"])
        assert training.lose(lambda: three_hosts.part(1, 2)) <= {"1", "2"}
        assert_reforming(training.pipeline)
        assert here.train_step(*mlp_batch(0)).applied
        ranks = client.server_info().group.ranks
        assert {rank.state for rank in ranks} == {admin_pb2.RANK_STATE_MEMBER}
        three_hosts.join(1, 2)
        training.await_ready()
        for handle in training.submit(3):
            assert handle.result(60).applied
        assert differing(state_of(training.pipeline), training.undisturbed()) == []


@pytest.mark.parametrize("transport", ["ucx", "grpc"])
def test_a_slow_link_costs_no_memory_and_no_deadline(
    tmp_path: pathlib.Path, three_hosts: Network, transport: str
) -> None:
    width = 64
    values = np.random.default_rng(0).standard_normal((16 * MIB // 4 // width, width), np.float32)
    host = three_hosts.hosts[1]  # gets as much from each neighbour, and sends it
    with spread(tmp_path, three_hosts, transport, PATIENT) as (group, client):
        pipeline = create_mlp(
            client,
            devices=["cpu:0", "1/cpu:0", "cpu:1"],
            stages=3,
            options={"layers": 3, "width": width},
            micro_batches=32,
        )
        pipeline.train_step(values[:2048], values[:2048])
        host.narrow(32 * MIB)
        grown = group.ranks[1].peak_growth(lambda: pipeline.train_step(values, values))
        assert grown < 8 * MIB, "more than the schedule and credit allow"
        with pytest.raises(penstock.DeadlineError):
            pipeline.train_step(values, values, timeout=0.5, request_id="2ac94b80-9f6c-44b4-84d8-4c8e5c1fa1a3")
        host.widen()
        late = pipeline.train_step(values, values, request_id="2ac94b80-9f6c-44b4-84d8-4c8e5c1fa1a3")
        assert late.step == 3, "it was made once"
        assert client.server_info().group.reformings == 0, "slow is not lost"
