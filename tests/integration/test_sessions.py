"""Who holds an accumulation: one program of one caller, for as long as its lease says."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from typing import Any

import grpc
import penstock
import pytest

from daemon_process import Daemon
from raw_calls import INVALID, Raw, refused
from small_models import create_mlp, mlp_batch, state_of

CONTRIBUTE = """
import sys
import numpy as np
import penstock

address, name, step = sys.argv[1:]
with penstock.Client(address) as client:
    pipeline = client.pipeline(name)
    rows = np.ones((4, pipeline.signature.inputs[0].shape[1]), np.float32)
    pipeline.forward_backward(rows, rows)
    if step == "step":
        pipeline.optimizer_step()
"""


def another_program(daemon: Daemon, pipeline: penstock.Pipeline, step: str = "") -> None:
    """A program without a caller's name, which contributes, steps if it is told to, and ends."""
    arguments = [sys.executable, "-c", CONTRIBUTE, daemon.address, pipeline.name, step]
    client = pathlib.Path(penstock.__file__).parents[1]
    subprocess.run(arguments, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(client)})


def refusal(call: Any) -> penstock.PenstockError:
    with pytest.raises(penstock.PenstockError) as raised:
        call()
    return raised.value


def test_two_programs_without_a_name_do_not_share_a_step(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    another_program(daemon, pipeline)
    for call in (
        lambda: pipeline.forward_backward(*mlp_batch(0)),
        lambda: pipeline.optimizer_step(),
        lambda: pipeline.train_step(*mlp_batch(0)),
    ):
        held = refusal(call)
        assert held.reason == "ACCUMULATION_HELD" and held.values["holder"] == "local"
        assert held.values["session"] and int(held.values["age_seconds"]) >= 0
        assert "DISCARD what it has left behind" in str(held)
    before = state_of(pipeline)
    pipeline.optimizer_step(discard=True)  # as the same caller may
    assert state_of(pipeline) == before
    assert pipeline.train_step(*mlp_batch(0)).step == 1
    another_program(daemon, pipeline, "step")
    assert pipeline.refresh().step == 2


def test_clients_of_one_process_are_one_program(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    pipeline.forward_backward(*mlp_batch(0))
    with penstock.Client(daemon.address) as second:
        assert second.pipeline(pipeline.name).optimizer_step().step == 1


def test_force_ends_what_another_caller_holds_and_it_is_told(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    pipeline.forward_backward(*mlp_batch(0))
    with penstock.Client(daemon.address, caller="operator") as operator:
        theirs = operator.pipeline(pipeline.name)
        assert refusal(lambda: theirs.optimizer_step(discard=True)).reason == "ACCUMULATION_HELD"
        theirs.optimizer_step(discard=True, force=True)
        theirs.forward_backward(*mlp_batch(1))
        theirs.optimizer_step()
    lost = refusal(pipeline.optimizer_step)
    assert lost.reason == "ACCUMULATION_LOST" and lost.values["cause"] == "a DISCARD of caller operator"
    assert refusal(lambda: pipeline.forward_backward(*mlp_batch(0))).reason == "ACCUMULATION_LOST"
    pipeline.optimizer_step(discard=True)
    pipeline.forward_backward(*mlp_batch(0))
    assert pipeline.optimizer_step().step == 2


def test_an_accumulation_ends_with_its_lease(daemon: Daemon, client: penstock.Client) -> None:
    pipeline = create_mlp(client)
    pipeline.forward_backward(*mlp_batch(0), accumulation_lease=0.3)
    with penstock.Client(daemon.address, caller="patient") as patient:
        theirs = patient.pipeline(pipeline.name)
        end = time.monotonic() + 60
        while True:
            try:
                outcome = theirs.train_step(*mlp_batch(1))
                break
            except penstock.PenstockError as error:
                assert error.reason == "ACCUMULATION_HELD" and time.monotonic() < end
                time.sleep(0.05)
    assert outcome.step == 1
    assert refusal(pipeline.optimizer_step).reason == "ACCUMULATION_LOST"


@pytest.mark.parametrize("session", ["", "a b", "x" * 129, "s/1"])
def test_bad_sessions(daemon: Daemon, session: str) -> None:
    raw = Raw(daemon.address)

    def call() -> None:
        try:
            raw.bytes_call("/penstock.v1.AdminService/GetServerInfo", b"", metadata=(("penstock-session", session),))
        except grpc.RpcError as error:
            raise penstock.PenstockError.from_call(error) from None

    try:
        refused(call, INVALID, "NAME_INVALID", "penstock-session")
    finally:
        raw.close()


@pytest.mark.parametrize("seconds", [-1.0, 86401.0])
def test_bad_leases_of_accumulations(client: penstock.Client, seconds: float) -> None:
    pipeline = create_mlp(client)
    error = refusal(lambda: pipeline.forward_backward(*mlp_batch(0), accumulation_lease=seconds))
    assert error.code == grpc.StatusCode.INVALID_ARGUMENT and error.values["field"] == "accumulation_lease"
