"""The audit log: one line for each call that changes something or was refused, which no caller can forge."""

from __future__ import annotations

import datetime
import json
import pathlib
import stat
from collections.abc import Iterator
from typing import Any

import grpc
import penstock
import pytest
from google.protobuf.message import Message
from penstock.v1 import handle_pb2, pipeline_pb2, work_pb2
from tritonclient.grpc import service_pb2

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon, eventually
from identity_files import Identities, TlsDaemon
from method_calls import call, changing, methods
from small_models import create_mlp, mlp_batch, request_id

FIELDS = ["time", "identity", "role", "peer", "method", "pipeline", "target", "request_id", "code", "reason", "seconds"]
Record = dict[str, Any]


class Audited:
    """A daemon with an audit log, and what that has."""

    def __init__(self, daemon: Daemon, path: pathlib.Path) -> None:
        self.daemon = daemon
        self.path = path

    def records(self) -> list[Record]:
        """Of whole lines, the oldest file first."""
        old = sorted(self.path.parent.glob(f"{self.path.name}.*"), key=lambda one: -int(one.suffix[1:]))
        text = "".join(file.read_text() for file in [*old, self.path])
        return [json.loads(line) for line in text.splitlines() if line]

    def of(self, **wanted: str) -> list[Record]:
        return [record for record in self.records() if wanted.items() <= record.items()]

    def one(self, **wanted: str) -> Record:
        eventually(lambda: bool(self.of(**wanted)))
        found = self.of(**wanted)
        assert len(found) == 1, found
        return found[0]


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return Identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture(scope="module")
def audited(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audited")
    with TlsDaemon(folder, identities, f"--audit-log={folder}/audit").running() as daemon:
        yield Audited(daemon, folder / "audit")


def client_of(audited: Audited, identities: Identities, role: str) -> penstock.Client:
    folder = identities.folder
    return penstock.Client(
        audited.daemon.address,
        tls_ca=f"{folder}/ca.crt",
        tls_cert=f"{folder}/{role}.crt",
        tls_key=f"{folder}/{role}.key",
    )


def send(channel: grpc.Channel, method: str, message: Message, token: str = "") -> None:
    """One call, whatever its answer is."""
    headers = (("authorization", f"Bearer {token}"),) if token else ()
    try:
        channel.unary_unary(f"/{method}")(message.SerializeToString(), timeout=30, metadata=headers)
    except grpc.RpcError:
        pass


def test_each_method_that_changes_something_is_told_once_and_no_other(audited: Audited, identities: Identities) -> None:
    assert len(changing()) == 28
    with grpc.secure_channel(audited.daemon.address, identities.credentials()) as channel:
        answers = {method: call(channel, method, "secret-admin") for method in methods()}
        last = request_id()
        send(channel, "penstock.v1.PipelineService/DeletePipeline",
             pipeline_pb2.DeletePipelineRequest(name="pipelines/last", request_id=last), "secret-admin")  # fmt: skip
    audited.one(request_id=last)

    def told() -> list[Record]:
        return [record for record in audited.of(identity="token-admin") if record["request_id"] != last]

    eventually(lambda: len(told()) >= len(changing()))
    assert sorted(record["method"] for record in told()) == sorted(changing())
    for record in told():
        if record["code"] != "CANCELLED":  # of a stream that goes on, which the test ends
            assert (record["code"], record["reason"]) == (answers[record["method"]][0].name, answers[record["method"]][1])


def test_a_line_says_who_did_what_with_which_result(audited: Audited, identities: Identities) -> None:
    with client_of(audited, identities, "train") as trainer:
        before = datetime.datetime.now(datetime.timezone.utc)
        pipeline = create_mlp(trainer, "own-told")
        pipeline.train_step(*mlp_batch(0))
        pipeline.save_checkpoint("first")
        handle = pipeline.put({"x": mlp_batch(0)[0]})
        handle.release()
        pipeline.infer(mlp_batch(0)[0])  # changes nothing
        pipeline.delete(purge=True)
    mine = {"identity": "spiffe://penstock/train", "role": "train", "pipeline": "own-told", "code": "OK", "reason": ""}
    for method in ("PipelineService/CreatePipeline", "WorkService/TrainStep", "StateService/SaveCheckpoint",
                   "HandleService/PutTensors", "PipelineService/DeletePipeline"):  # fmt: skip
        record = audited.one(method=f"penstock.v1.{method}", **mine)
        assert list(record) == FIELDS
        assert record["peer"].startswith("ipv4:127.0.0.1:") and len(record["request_id"]) in (0, 36)
        assert 0 <= record["seconds"] < 60
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=1)
        assert before - datetime.timedelta(seconds=1) <= datetime.datetime.fromisoformat(record["time"]) <= end
    audited.one(method="penstock.v1.HandleService/ReleaseHandles", target=handle.name, **mine)
    assert audited.of(method="penstock.v1.WorkService/Infer", pipeline="own-told") == []
    assert "secret" not in audited.path.read_text()
    assert stat.S_IMODE(audited.path.stat().st_mode) == 0o600


def test_refused_calls_are_told_whatever_they_were_to_do(audited: Audited, identities: Identities) -> None:
    with grpc.secure_channel(audited.daemon.address, identities.credentials("viewer")) as channel:
        step = work_pb2.TrainStepRequest(pipeline="pipelines/own-x", request_id=request_id())
        send(channel, "penstock.v1.WorkService/TrainStep", step)
        call(channel, "penstock.v1.WorkService/Infer")
        send(channel, "penstock.v1.PipelineService/GetPipeline", pipeline_pb2.GetPipelineRequest(name="pipelines/others"))
    seen = {"identity": "spiffe://penstock/viewer", "role": "viewer"}
    denied = {"code": "PERMISSION_DENIED", "reason": "ROLE_MISSING"}
    audited.one(method="penstock.v1.WorkService/TrainStep", **seen, **denied)
    audited.one(method="penstock.v1.WorkService/Infer", **seen, **denied)
    # Not there for it: it asked beyond its pattern.
    beyond = {"code": "NOT_FOUND", "reason": "PIPELINE_NOT_FOUND", "pipeline": "others"}
    audited.one(method="penstock.v1.PipelineService/GetPipeline", **seen, **beyond)
    # On a stream each request is told, and the stream goes on.
    method = "inference.GRPCInferenceService/ModelStreamInfer"
    asked = [service_pb2.ModelInferRequest(id=name, model_name=name).SerializeToString() for name in ("others", "own-x") * 2]
    with grpc.secure_channel(audited.daemon.address, identities.credentials("train")) as channel:
        answers = list(channel.stream_stream(f"/{method}")(iter(asked), timeout=30))
    told = [service_pb2.ModelStreamInferResponse.FromString(answer) for answer in answers]
    assert [one.infer_response.id in one.error_message for one in told] == [True] * 4
    eventually(lambda: len(audited.of(method=method, role="train", **beyond)) == 2)
    assert len(audited.of(method=method)) == 2
    with grpc.secure_channel(audited.daemon.address, identities.credentials()) as channel:
        call(channel, "penstock.v1.AdminService/GetServerInfo", "secret-king")
        call(channel, "grpc.health.v1.Health/Check", "secret-old")
    stranger = {"identity": "", "role": "", "code": "UNAUTHENTICATED"}
    audited.one(method="penstock.v1.AdminService/GetServerInfo", reason="CREDENTIAL_INVALID", **stranger)
    audited.one(method="grpc.health.v1.Health/Check", reason="CREDENTIAL_EXPIRED", **stranger)


def test_no_caller_can_forge_a_line(audited: Audited, identities: Identities) -> None:
    forged = '"}\n{"time": "", "identity": "root", "role": "admin"}\n\x00\x1b[2J\u2028'
    with grpc.secure_channel(audited.daemon.address, identities.credentials("train")) as channel:
        name = f"pipelines/own-{forged}/checkpoints/x"
        send(channel, "penstock.v1.PipelineService/DeletePipeline",
             pipeline_pb2.DeletePipelineRequest(name=name, request_id=forged))  # fmt: skip
        send(channel, "penstock.v1.HandleService/ReleaseHandles", handle_pb2.ReleaseHandlesRequest(names=[name]))
    record = audited.one(method="penstock.v1.PipelineService/DeletePipeline", pipeline=f"own-{forged}")
    assert (record["target"], record["request_id"]) == (name, forged)
    audited.one(method="penstock.v1.HandleService/ReleaseHandles", target=name)
    text = audited.path.read_bytes()
    assert all(byte >= 0x20 or byte == 0x0A for byte in text)
    assert audited.of(identity="root") == []


def test_files_rotate_and_lose_nothing(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "audit"
    daemon = start_daemon(*QUICK_DRAIN, f"--audit-log={path}", "--audit-log-bytes=4KiB", "--audit-log-files=900")
    ids = [request_id() for _ in range(300)]
    with grpc.insecure_channel(daemon.address) as channel:
        for one in ids:
            send(channel, "penstock.v1.PipelineService/DeletePipeline",
                 pipeline_pb2.DeletePipelineRequest(name="pipelines/none", request_id=one))  # fmt: skip
    audited = Audited(daemon, path)
    audited.one(request_id=ids[-1])
    assert [record["request_id"] for record in audited.records()] == ids
    files = list(tmp_path.glob("audit*"))
    assert len(files) > 10
    for file in files:
        assert file.stat().st_size <= 4096 and stat.S_IMODE(file.stat().st_mode) == 0o600
    # A line is counted once it is written: the last one perhaps a moment after it was seen.
    eventually(lambda: daemon.metrics().sum("penstock_audit_records_total", outcome="written") >= len(ids))
    assert daemon.metrics().sum("penstock_audit_records_total", outcome="written") == len(ids)


def test_old_files_go(start_daemon: StartDaemon, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "audit"
    daemon = start_daemon(*QUICK_DRAIN, f"--audit-log={path}", "--audit-log-bytes=4KiB", "--audit-log-files=2")
    last = request_id()
    with grpc.insecure_channel(daemon.address) as channel:
        for one in [*(request_id() for _ in range(100)), last]:
            send(channel, "penstock.v1.PipelineService/DeletePipeline",
                 pipeline_pb2.DeletePipelineRequest(name="pipelines/none", request_id=one))  # fmt: skip
    Audited(daemon, path).one(request_id=last)
    assert sorted(file.name for file in tmp_path.glob("audit*")) == ["audit", "audit.1", "audit.2"]


def test_in_plaintext_the_caller_has_the_name_that_it_gives_itself(
    start_daemon: StartDaemon, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "audit"
    daemon = start_daemon(*QUICK_DRAIN, f"--audit-log={path}")
    with penstock.Client(daemon.address, "somebody") as client:
        create_mlp(client, "mine").delete()
    daemon.stop()  # what waits is written
    made = Audited(daemon, path).of(pipeline="mine")
    assert [(record["identity"], record["role"], record["code"]) for record in made] == [("somebody", "admin", "OK")] * 2


def test_a_full_disk_stops_no_call_and_is_counted(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(*QUICK_DRAIN, "--audit-log=/dev/full")
    with penstock.Client(daemon.address) as client:
        pipeline = create_mlp(client, "mine")
        pipeline.train_step(*mlp_batch(0))
        eventually(lambda: daemon.metrics().sum("penstock_audit_records_total", outcome="failed") >= 2)
    assert daemon.log.count("the audit log can't be written") == 1
    assert daemon.metrics().sum("penstock_audit_records_total", outcome="written") == 0


def test_a_file_that_can_not_be_written_ends_the_start(tmp_path: pathlib.Path) -> None:
    daemon = Daemon(tmp_path, f"--audit-log={tmp_path}")
    with pytest.raises(AssertionError, match="has ended while it started"):
        daemon.start()
    assert "--audit-log: must be a file that can be written (Is a directory)" in daemon.log
