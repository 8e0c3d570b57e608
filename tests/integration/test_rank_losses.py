"""Ranks that are killed or freeze while a client works and retries: in the end the state is that of an undisturbed run,
bit for bit, and whoever is left has no more descriptors than before.

PENSTOCK_RANK_FAULTS says how many with each carrier: 5 in the suite, 100 behind ``tests/run.sh --long``.
"""

from __future__ import annotations

import os
import pathlib
import random
import signal
import threading
import time

import grpc
import penstock
import pytest

from daemon_process import eventually
from penstock.creation import refusal, unready
from penstock.v1 import pipeline_pb2
from rank_group import Group
from small_models import create_mlp, differing, mlp_batch, state_of
from test_journal_kills import Script

FAULTS = int(os.environ.get("PENSTOCK_RANK_FAULTS", "5"))
QUICK = "--peer-timeout=2s"  # where silence is what is tested
PATIENT = "--peer-timeout=60s"


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def fail_one(group: Group, pick: random.Random) -> str:
    """Kills or freezes a rank, the leader too, and lets it come back."""
    rank = pick.choice(group.ranks)
    name = f"rank {group.ranks.index(rank)}"
    if pick.random() < 0.5:
        rank.kill()
        rank.launch()
        return f"{name} was killed"
    os.kill(rank.pid, signal.SIGSTOP)
    try:
        time.sleep(pick.uniform(2.2, 3.5))  # longer than --peer-timeout: the others must notice
    finally:
        os.kill(rank.pid, signal.SIGCONT)
    return f"{name} froze"


def until_all_are_back(group: Group, client: penstock.Client) -> None:
    """The leader serves, and every pipeline is ready."""

    def ready() -> bool:
        try:
            return all(pipeline.state == "READY" for pipeline in client.list_pipelines())
        except penstock.PenstockError as error:
            if error.code != grpc.StatusCode.UNAVAILABLE:
                raise
            return False

    eventually(ready)


@pytest.mark.parametrize("transport", ["grpc", "ucx"])
def test_faults_change_no_bit(tmp_path: pathlib.Path, transport: str) -> None:
    with Group(tmp_path, 3, transport, QUICK).running() as group, group.client() as client:
        told: list[str] = []

        def disturb() -> None:
            pick = random.Random(transport)
            while len(told) < FAULTS:
                time.sleep(pick.uniform(0.2, 1.2))
                told.append(fail_one(group, pick))

        script = Script(client, "disturbed")
        disturber = threading.Thread(target=disturb)
        disturber.start()
        steps = 0
        try:
            while disturber.is_alive():
                script.do(steps)
                steps += 1
        finally:
            disturber.join()
        assert len(told) == FAULTS
        until_all_are_back(group, client)
        got = state_of(script.pipeline)
        script.pipeline.delete(force=True, purge=True)
        undisturbed = Script(client, "undisturbed")
        for number in range(steps):
            undisturbed.do(number)
        assert differing(got, state_of(undisturbed.pipeline)) == [], f"after {told}"
        # A call that a fault ended before it was durable leaves its place in the order empty, and the retry takes the next.
        places = [answer[-1] for _, answer in script.answers]
        assert places == sorted(places)
        assert [(what, answer[:-1]) for what, answer in script.answers] == [
            (what, answer[:-1]) for what, answer in undisturbed.answers
        ]


def test_a_pipeline_over_ranks_outlives_its_leader(tmp_path: pathlib.Path) -> None:
    """The others join late: until then the leader starts, and the pipeline waits for its devices."""
    with Group(tmp_path, 2, "grpc", PATIENT).running() as group, group.client() as client:
        pipeline = create_mlp(client, "over", devices=["1/cpu:1", "cpu:0"], dropout=0.1)
        for step in range(3):
            pipeline.train_step(*mlp_batch(step))
        before = state_of(pipeline)
        for rank in group.ranks:
            rank.kill()
        group.leader.launch()
        eventually(lambda: "a rank has joined" in group.leader.log.rsplit("listening", 1)[-1])
        group.ranks[1].launch()
        group.leader.await_ready()
        until_all_are_back(group, client)
        assert differing(state_of(pipeline), before) == []
        assert pipeline.train_step(*mlp_batch(3)).step == 4


def test_a_lost_rank_is_named_and_comes_back(tmp_path: pathlib.Path) -> None:
    with Group(tmp_path, 3, "grpc", PATIENT).running() as group, group.client() as client:
        victim = create_mlp(client, "victim", devices=["cpu:0", "1/cpu:0"])
        neighbour = create_mlp(client, "neighbour", devices=["2/cpu:0", "cpu:1"])
        victim.train_step(*mlp_batch(0))
        survivors = (group.ranks[0], group.ranks[2])
        open_now: list[list[int]] = []
        for round_ in range(4):
            with penstock.Client(group.leader.address, retry_for=0) as impatient:
                same = impatient.pipeline("victim")
                group.ranks[1].kill()
                # What has no stage there goes on, now and later.
                neighbour.train_step(*mlp_batch(round_))
                with pytest.raises(penstock.PenstockError) as told:
                    same.train_step(*mlp_batch(1), timeout=15)
            assert told.value.code == grpc.StatusCode.UNAVAILABLE
            assert told.value.reason in ("RANK_LOST", "PIPELINE_REFORMING")
            group.ranks[1].start()
            # A client that retries sees nothing but time.
            victim.train_step(*mlp_batch(2), timeout=30)
            neighbour.train_step(*mlp_batch(round_))
            open_now.append([descriptors(rank.pid) for rank in survivors])
        # What has gone is counted nowhere.
        victim.delete(force=True)
        eventually(lambda: 'pipeline="victim"' not in group.ranks[1].page("/metrics"))
        # From the first loss on there are the edges of two generations: those that the neighbour goes on with, and the last.
        assert all(now <= then + 2 for now, then in zip(open_now[-1], open_now[0])), open_now


def test_a_pipeline_that_waits_for_its_group_and_of_which_nothing_is_known_is_refused_as_by_the_daemon() -> None:
    message = pipeline_pb2.Pipeline(name="pipelines/x", state=pipeline_pb2.PIPELINE_STATE_REFORMING)
    assert unready(message)
    refused = refusal(message)
    assert (refused.code, refused.reason, refused.retry_delay) == (grpc.StatusCode.UNAVAILABLE, "PIPELINE_REFORMING", 1.0)
    message.signature.inputs.add(name="input")
    assert not unready(message)
