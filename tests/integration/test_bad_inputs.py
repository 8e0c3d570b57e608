"""Every bad input of bad_inputs.py gets its error, and nothing is lost or kept because of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import penstock
import pytest
from google.protobuf.message import Message
from penstock.channels import session
from penstock.v1 import handle_pb2, journal_pb2, pipeline_pb2, state_pb2

import bad_inputs_page  # before named_tests: it knows where that stands
import named_tests
from bad_input_messages import Names
from bad_inputs import CASES, CLASSES, Case
from daemon_process import Daemon
from raw_calls import ROWS, Raw, refused
from small_models import create_mlp, differing, fresh_name, mlp_batch, request_id, state_of

TESTS = set(named_tests.find(bad_inputs_page.ROOT))


@pytest.fixture(scope="module")
def held(daemon: Daemon) -> Iterator[tuple[penstock.Pipeline, str]]:
    """A pipeline with one contribution, and its request id. At the end it is as one that saw no bad input."""
    with penstock.Client(daemon.address) as client:
        disturbed, other = create_mlp(client, fresh_name("held")), create_mlp(client, fresh_name("undisturbed"))
        used = request_id()
        disturbed.forward_backward(*mlp_batch(0), request_id=used)
        other.forward_backward(*mlp_batch(0))
        yield disturbed, used
        for one in (disturbed, other):
            one.forward_backward(*mlp_batch(1))
            assert one.optimizer_step().step == 1
        assert not differing(state_of(disturbed), state_of(other))
        disturbed.delete()
        other.delete()


@pytest.fixture(scope="module")
def names(pipeline: penstock.Pipeline, held: tuple[penstock.Pipeline, str]) -> Iterator[Names]:
    value = pipeline.submit_infer(ROWS, lease=3600).wait(30)
    forward = pipeline.forward(ROWS, lease=3600)
    checkpoint = pipeline.save_checkpoint("bad-inputs")
    yield Names(pipeline.name, held[0].name, value.name, forward.graph.name, checkpoint.name, held[1])
    pipeline.release([value, forward.outputs, forward.graph])


def send(address: str, case: Case, names: Names) -> None:
    """By any kind of call; raises the refusal as PenstockError."""

    def encoded() -> Iterator[bytes]:
        for message in case.messages(names):
            yield message.SerializeToString() if isinstance(message, Message) else message

    channel = grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
    with channel:
        call = channel.stream_stream(f"/penstock.v1.{case.method}")
        try:
            for _ in call(encoded(), timeout=60, metadata=(("penstock-session", session()),)):
                pass
        except grpc.RpcError as error:
            raise penstock.PenstockError.from_call(error) from None


def kept(raw: Raw, names: Names, case: Case) -> list[Any]:
    """What it may not change."""

    def journal(pipeline: str) -> Any:
        newest = journal_pb2.ListJournalCallsRequest(pipeline=pipeline, newest_first=True, page_size=1)
        return raw.unary("JournalService/ListJournalCalls", newest, journal_pb2.ListJournalCallsResponse).calls[:]

    checkpoints = state_pb2.ListCheckpointsRequest(parent=names.pipeline)
    return [
        [(one.name, one.state_token) for one in raw.call("ListPipelines", pipeline_pb2.ListPipelinesRequest()).pipelines],
        raw.unary("StateService/ListCheckpoints", checkpoints, state_pb2.ListCheckpointsResponse),
        *([] if case.accepted else [journal(names.pipeline), journal(names.held)]),
    ]


def handles(raw: Raw) -> set[str]:
    return {one.name for one in raw.call("ListHandles", handle_pb2.ListHandlesRequest(parent="pipelines/-")).handles}


@pytest.mark.usefixtures("next_request_is_served")
@pytest.mark.parametrize("case", CASES, ids=[f"{case.group}: {case.what}" for case in CASES])
def test_a_bad_input(daemon: Daemon, raw: Raw, names: Names, case: Case) -> None:
    before, old = kept(raw, names, case), handles(raw)
    code = grpc.StatusCode[case.code]
    refused(lambda: send(daemon.address, case, names), code, case.reason, case.field, case.value)
    assert kept(raw, names, case) == before
    # Those of good calls go in the background meanwhile.
    assert {names.handle, names.graph} <= handles(raw) <= old


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_made_from_the_table() -> None:
    assert bad_inputs_page.PAGE.read_text() == bad_inputs_page.page(), "run tests/integration/bad_inputs_page.py --write"


def test_every_group_has_a_case_and_no_case_stands_twice() -> None:
    rows, _ = bad_inputs_page.elsewhere()
    assert {case.group for case in CASES} | {row[0] for row in rows} == set(CLASSES)
    cases = [(case.group, case.what, case.method) for case in CASES]
    assert len(set(cases)) == len(cases)


@pytest.mark.parametrize("row", bad_inputs_page.elsewhere()[0], ids=lambda row: row[1])
def test_a_test_that_the_page_names_is_there(row: list[str]) -> None:
    """And it, or a table of its file, has the reason."""
    path, name = row[5].split(" ")
    suite, _, case = name.rpartition(".")
    assert named_tests.Test(path, suite, case) in TESTS
    if row[3].isupper():
        assert row[3] in (bad_inputs_page.ROOT / path).read_text()
