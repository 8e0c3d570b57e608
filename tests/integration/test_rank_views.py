"""What operators see of ranks: the leader tells of all of them, each of itself, before and after one is lost."""

from __future__ import annotations

import asyncio
import json
import pathlib
import signal
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import penstock
import penstock.aio
import pytest
from penstock.v1 import admin_pb2

from daemon_process import Daemon, eventually
from rank_group import Group
from small_models import create_mlp, mlp_batch


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("views"), 2, "grpc", "--peer-timeout=20s").running() as running:
        yield running


@pytest.fixture(scope="module")
def client(group: Group) -> Iterator[penstock.Client]:
    with group.client() as client:
        pipeline = create_mlp(client, "both", devices=["cpu:0", "1/cpu:0"])
        for step in range(3):
            pipeline.train_step(*mlp_batch(step))
        yield client


def status_page(rank: Daemon) -> Any:
    with urllib.request.urlopen(f"http://{rank.admin_address}/statusz?format=json", timeout=60) as answer:
        return json.load(answer)


def reformings(leader: Daemon) -> float:
    return leader.metrics().sum("penstock_group_reformings_total")


def test_the_leader_tells_of_all_ranks(client: penstock.Client) -> None:
    group = client.server_info().group
    assert (group.world_size, group.complete, group.reformings) == (2, True, 0)
    assert [rank.rank for rank in group.ranks] == [0, 1]
    assert {rank.state for rank in group.ranks} == {admin_pb2.RANK_STATE_MEMBER}
    assert {rank.carrier for rank in group.ranks} == {"grpc"}
    assert {rank.address for rank in group.ranks} == {"127.0.0.1"}
    assert [device.name for device in group.ranks[1].devices] == ["1/cpu:0", "1/cpu:1"]
    assert all(rank.host and rank.since.seconds > 0 and not rank.problem for rank in group.ranks)


def test_both_ends_of_a_link_tell_the_same(group: Group, client: penstock.Client) -> None:
    def the_same() -> bool:  # the other rank tells the leader with its next pong
        told = {(link.from_rank, link.to_rank): link.bytes for link in client.server_info().group.links}
        counted = {}
        for daemon in group.ranks:
            for labels, count in daemon.metrics().select("penstock_peer_received_bytes_total", carrier="grpc"):
                counted[(int(labels["from"]), int(labels["to"]))] = count
        assert set(counted) == {(0, 1), (1, 0)} and all(count > 0 for count in counted.values())
        return told == counted

    eventually(the_same)


def test_the_asynchronous_client_has_the_group(group: Group) -> None:
    async def ask() -> admin_pb2.ServerInfo:
        async with penstock.aio.Client(group.leader.address) as client:
            return await client.server_info()

    assert len(asyncio.run(ask()).group.ranks) == 2


def test_a_rank_s_own_page_says_who_leads(group: Group, client: penstock.Client) -> None:
    page = status_page(group.ranks[1])
    assert page["rank"]["leader"] == group.leader_address
    assert page["rank"]["joined"] == "yes"
    assert page["rank"]["devices"] == "cpu:0, cpu:1"
    assert [(lane["pipeline"], lane["device"]) for lane in page["lanes"]] == [("both", "1/cpu:0")]
    assert [row["name"] for row in page["pipelines"]] == ["both"]
    leader = status_page(group.leader)
    assert [row["state"] for row in leader["ranks"]] == ["member", "member"]
    assert "rank" not in leader


def test_a_trace_has_the_lanes_of_all_ranks(group: Group, client: penstock.Client, tmp_path: pathlib.Path) -> None:
    eventually(lambda: client.server_info().group.ranks[1].HasField("clock"))
    pipeline = client.pipeline("both")
    path = tmp_path / "trace.json"
    pipeline.trace(str(path))
    trace = json.loads(path.read_text())
    (clock,) = trace["otherData"]["ranks"]
    assert clock["rank"] == 1 and not clock["missing"] and not trace["otherData"]["incomplete"]
    # Both read one clock of this host: the truth is 0, and the file says how near it is.
    assert abs(clock["clock_ahead_nanos"]) <= clock["clock_uncertainty_nanos"]
    processes = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert processes == {0: "pipeline both", 1: "rank 0", 2: "rank 1"}
    for pid in (1, 2):
        actions = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid and e["cat"] == "training"]
        assert actions.count(f"{pid - 1}F0") == 3 and actions.count(f"{pid - 1}B3") == 3, actions
    # Each message from one rank to the other has both ends, and none arrives earlier than the uncertainty allows.
    doubt = clock["clock_uncertainty_nanos"] / 1000
    slices = {(e["pid"], e["args"]["step"], e["name"]): e for e in trace["traceEvents"] if e["ph"] == "X" and "step" in e.get("args", {})}
    messages = 0
    for (pid, step, name), sent in slices.items():
        if "SEND_F" in name:
            received = slices[(3 - pid, step, name.replace("SEND", "RECV").replace("0", "1", 1))]
            assert received["ts"] + received["dur"] >= sent["ts"] - doubt
            messages += 1
    assert messages == 3 * 4
    assert len({e["id"] for e in trace["traceEvents"] if e["ph"] == "s"}) >= 2 * messages


def test_a_measured_schedule_has_the_actions_of_all_ranks(client: penstock.Client) -> None:
    pipeline = client.pipeline("both")
    planned, measured = pipeline.schedule(), pipeline.schedule(measured=True, step=2)
    assert list(measured.devices) == ["cpu:0", "1/cpu:0"] and measured.step == 2
    assert {(one.lane, one.action) for one in measured.actions} == {(one.lane, one.action) for one in planned.actions}
    began = {one.action: one.measured_start_nanos for one in measured.actions}
    ended = {one.action: one.measured_end_nanos for one in measured.actions}
    for k in range(4):  # by one clock, as the messages between them tell it
        assert began[f"0F{k}"] < began[f"1F{k}"] and began[f"1B{k}"] < began[f"0B{k}"]
    assert measured.measured.makespan_seconds == pytest.approx(max(ended.values()) / 1e9)
    assert 0 < measured.measured.bubble < 1
    with pytest.raises(penstock.PenstockError, match="STEP_NOT_RETAINED"):
        pipeline.schedule(measured=True, step=99)


def test_the_next_steps_are_recorded_on_all_ranks(group: Group, client: penstock.Client, tmp_path: pathlib.Path) -> None:
    pipeline = client.pipeline("both")
    path = tmp_path / "steps.json"
    training = threading.Event()

    def train() -> None:
        step = 3
        while not training.is_set():
            pipeline.train_step(*mlp_batch(step))
            step += 1

    worker = threading.Thread(target=train)
    worker.start()
    try:
        pipeline.trace(str(path), steps=2)
    finally:
        training.set()
        worker.join()
    trace = json.loads(path.read_text())
    steps = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e.get("cat") == "run"]
    assert len(steps) >= 2
    for pid in (1, 2):
        assert sum(e["ph"] == "X" and e["pid"] == pid and e["cat"] == "training" for e in trace["traceEvents"]) > 2 * 8


def test_a_rank_that_is_lost_is_missing_until_it_is_back(group: Group, client: penstock.Client) -> None:
    before = client.server_info().group
    group.ranks[1].kill()

    def missing() -> bool:
        return client.server_info().group.ranks[1].state == admin_pb2.RANK_STATE_MISSING

    eventually(missing)
    lost = client.server_info().group
    assert not lost.complete
    assert "rank 1" in lost.ranks[1].problem
    assert lost.ranks[1].since.ToNanoseconds() > before.ranks[1].since.ToNanoseconds()
    assert reformings(group.leader) == 0
    group.ranks[1].start()
    eventually(lambda: client.server_info().group.complete)
    assert client.server_info().group.reformings == 1
    assert reformings(group.leader) == 1


def test_a_rank_without_a_leader_says_so(group: Group, client: penstock.Client) -> None:
    group.leader._process.send_signal(signal.SIGKILL)  # type: ignore[union-attr]
    group.leader._process.wait()  # type: ignore[union-attr]
    eventually(lambda: status_page(group.ranks[1])["rank"]["joined"] == "no")
    assert status_page(group.ranks[1])["rank"]["problem"]
    assert group.ranks[1].metrics().sum("penstock_ready") == 0
    group.leader.start()
    eventually(lambda: status_page(group.ranks[1])["rank"]["joined"] == "yes")
    assert group.ranks[1].metrics().sum("penstock_ready") == 1


def test_one_daemon_alone_has_no_group(tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path, "--drain-announce=0s").running() as daemon, penstock.Client(daemon.address) as client:
        assert not client.server_info().HasField("group")
        page = status_page(daemon)
        assert "ranks" not in page and "rank" not in page
