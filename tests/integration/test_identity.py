"""Who may call what: every method, each role, each kind of credential, on every kind of listener; and files that change."""

from __future__ import annotations

import datetime
import importlib
import pathlib
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator

import grpc
import penstock
import pytest
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock.v1 import role_pb2

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon, eventually
from identity_files import DEV_CERTS, PATTERN, ROLES, Identities, TlsDaemon, run
from small_models import create_mlp, mlp_batch

OURS = ("admin", "handle", "insight", "model", "pipeline", "state", "work")
OTHERS = {
    "inference.GRPCInferenceService/ServerLive": "viewer",
    "inference.GRPCInferenceService/ServerReady": "viewer",
    "inference.GRPCInferenceService/ServerMetadata": "viewer",
    "inference.GRPCInferenceService/ModelReady": "viewer",
    "inference.GRPCInferenceService/ModelMetadata": "viewer",
    "inference.GRPCInferenceService/ModelInfer": "infer",
    "grpc.health.v1.Health/Check": "viewer",
    "grpc.health.v1.Health/Watch": "viewer",
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "viewer",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "viewer",
}


def methods() -> dict[str, str]:
    """Every method with its least role."""
    table = dict(OTHERS)
    for name in OURS:
        module = importlib.import_module(f"penstock.v1.{name}_service_pb2")
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                options = descriptor_pb2.MethodOptions.FromString(method.GetOptions().SerializeToString())
                role = role_pb2.Role.Name(options.Extensions[role_pb2.role])
                table[f"{service.full_name}/{method.name}"] = role.removeprefix("ROLE_").lower()
    return table


METHODS = methods()


def reason_of(error: grpc.RpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = error_details_pb2.ErrorInfo()
            status_pb2.Status.FromString(value).details[0].Unpack(info)
            return info.reason
    return (error.details() or "").split(":")[0]  # of a stranger: no details


def call(channel: grpc.Channel, method: str, token: str = "") -> tuple[grpc.StatusCode, str]:
    """Code and reason of a call with an empty message; OK for a stream that goes on."""
    headers = (("authorization", f"Bearer {token}"),) if token else ()
    stream = channel.stream_stream(f"/{method}")(iter([b""]), timeout=30, metadata=headers)
    try:
        next(stream, None)
        return grpc.StatusCode.OK, ""
    except grpc.RpcError as error:
        return error.code(), reason_of(error)
    finally:
        stream.cancel()


def expected(method: str, role: str) -> bool:
    return ROLES.index(role) >= ROLES.index(METHODS[method])


def check_all(channel: grpc.Channel, role: str, token: str = "") -> None:
    """Every method lets the role in, or refuses it by name."""
    for method in METHODS:
        code, reason = call(channel, method, token)
        denied = (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
        assert denied != expected(method, role), (method, role, code, reason)
        assert code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL), (method, role, reason)


def check_refused(channel: grpc.Channel, wanted: str, token: str = "") -> None:
    """Every method refuses everybody who shows this."""
    for method in METHODS:
        assert call(channel, method, token) == (grpc.StatusCode.UNAUTHENTICATED, wanted), method


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    return Identities(tmp_path_factory.mktemp("identities"))


@pytest.fixture(scope="module")
def tls(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with TlsDaemon(tmp_path_factory.mktemp("tls"), identities).running() as one:
        yield one


def changed(tmp_path: pathlib.Path) -> Identities:
    """Files that a test may change."""
    return Identities(tmp_path / "identities")


def test_every_method_has_a_role() -> None:
    assert len(METHODS) > 45 and set(METHODS.values()) == set(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_a_token_gives_its_role(tls: Daemon, identities: Identities, role: str) -> None:
    with grpc.secure_channel(tls.address, identities.credentials()) as channel:
        check_all(channel, role, f"secret-{role}")


@pytest.mark.parametrize("role", ROLES)
def test_a_certificate_gives_its_role(tls: Daemon, identities: Identities, role: str) -> None:
    with grpc.secure_channel(tls.address, identities.credentials(role)) as channel:
        check_all(channel, role)


def test_without_a_credential_nothing_is_answered(tls: Daemon, identities: Identities) -> None:
    with grpc.secure_channel(tls.address, identities.credentials()) as channel:
        check_refused(channel, "CREDENTIAL_MISSING")


def test_a_wrong_credential_opens_nothing(tls: Daemon, identities: Identities) -> None:
    with grpc.secure_channel(tls.address, identities.credentials()) as channel:
        check_refused(channel, "CREDENTIAL_INVALID", "secret-king")
    with grpc.secure_channel(tls.address, identities.credentials("stranger")) as channel:
        check_refused(channel, "CREDENTIAL_INVALID")
    with grpc.secure_channel(tls.address, identities.credentials("admin")) as channel:
        check_refused(channel, "CREDENTIAL_INVALID", "secret-king")


def test_an_ended_credential_opens_nothing(tls: Daemon, identities: Identities) -> None:
    with grpc.secure_channel(tls.address, identities.credentials()) as channel:
        check_refused(channel, "CREDENTIAL_EXPIRED", "secret-old")


def test_refusals_of_strangers_are_counted(tls: Daemon, identities: Identities) -> None:
    def refused() -> float:
        return tls.metrics().sum("grpc_server_handled_total", grpc_method="TrainStep", grpc_code="Unauthenticated")

    before = refused()
    with grpc.secure_channel(tls.address, identities.credentials()) as channel:
        call(channel, "penstock.v1.WorkService/TrainStep", "secret-king")
    assert refused() == before + 1


def test_a_stranger_is_refused_before_its_message_is_there(tls: Daemon, identities: Identities) -> None:
    """So strangers can't fill the memory: a method's own gate is only asked once the whole message has come."""
    hold = threading.Event()

    def never() -> Iterator[bytes]:
        hold.wait(60)
        yield b""

    with grpc.secure_channel(tls.address, identities.credentials()) as channel:
        stream = channel.stream_stream("/penstock.v1.WorkService/TrainStep")(never(), timeout=30)
        with pytest.raises(grpc.RpcError) as refused:
            next(stream)
        hold.set()
    assert (refused.value.code(), reason_of(refused.value)) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_MISSING")


def test_the_health_port_answers_without_tls_and_nothing_else(tls: Daemon) -> None:
    with grpc.insecure_channel(tls.probe_address) as channel:
        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert call(channel, "penstock.v1.AdminService/GetServerInfo")[0] == grpc.StatusCode.UNIMPLEMENTED


def test_plaintext_gets_no_answer_on_a_tls_port(tls: Daemon) -> None:
    with grpc.insecure_channel(tls.address) as channel:
        assert call(channel, "grpc.health.v1.Health/Check")[0] == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("kind", ["loopback", "unix"])
def test_on_this_host_everybody_is_admin(start_daemon: StartDaemon, tmp_path: pathlib.Path, kind: str) -> None:
    daemon = start_daemon(*QUICK_DRAIN)
    if kind == "unix":
        daemon.kill()
        daemon = Daemon(tmp_path, *QUICK_DRAIN, f"--listen=unix:{tmp_path}/api")
        daemon.address = daemon.probe_address = f"unix:{tmp_path}/api"
        daemon.start()
    try:
        with grpc.insecure_channel(daemon.address) as channel:
            check_all(channel, "admin")
            check_all(channel, "admin", "secret-king")  # nobody looks at it
    finally:
        daemon.kill()


def test_pipelines_outside_the_pattern_are_not_there(tls: Daemon, identities: Identities) -> None:
    with client_of(tls, identities, "admin") as admin, client_of(tls, identities, "train") as trainer:
        other = create_mlp(admin, "others")
        assert trainer.list_pipelines() == []
        for attempt in (lambda: trainer.pipeline("others"), lambda: trainer.pipeline("others").delete()):
            with pytest.raises(penstock.PenstockError) as missing:
                attempt()
            assert missing.value.reason == "PIPELINE_NOT_FOUND"
        with pytest.raises(penstock.PenstockError) as refused:
            create_mlp(trainer, "mine")
        assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING")
        own = create_mlp(trainer, PATTERN.replace("*", "mlp"))
        own.train_step(*mlp_batch(0))
        assert sorted(pipeline.name for pipeline in admin.list_pipelines()) == ["pipelines/others", "pipelines/own-mlp"]
        assert [pipeline.name for pipeline in trainer.list_pipelines()] == ["pipelines/own-mlp"]
        own.delete()
        other.delete()


def test_a_handle_belongs_to_the_identity_whatever_the_caller_says(tls: Daemon, identities: Identities) -> None:
    with client_of(tls, identities, "train") as trainer, client_of(tls, identities, "admin", caller="x") as admin:
        own = create_mlp(trainer, "own-handles")
        handle = own.put({"x": mlp_batch(0)[0]})
        with client_of(tls, identities, "infer", caller="x") as thief:
            with pytest.raises(penstock.PenstockError) as missing:
                thief.pipeline("own-handles").infer({"x": handle})
            assert missing.value.reason == "HANDLE_NOT_FOUND"
        handle.release()
        admin.pipeline("own-handles").delete(force=True)


def client_of(daemon: Daemon, identities: Identities, role: str, caller: str | None = None) -> penstock.Client:
    folder = identities.folder
    return penstock.Client(
        daemon.address,
        caller,
        tls_ca=f"{folder}/ca.crt",
        tls_cert=f"{folder}/{role}.crt",
        tls_key=f"{folder}/{role}.key",
    )


@pytest.mark.parametrize(("version", "spoken"), [("tls1", False), ("tls1_1", False), ("tls1_2", True), ("tls1_3", True)])
def test_tls_1_2_is_the_least(tls: Daemon, version: str, spoken: bool) -> None:
    command = ["openssl", "s_client", f"-{version}", "-connect", tls.address, "-alpn", "h2", "-cipher", "ALL:@SECLEVEL=0"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    text = done.stdout.decode(errors="replace")
    assert ("Server certificate" in text) == spoken, text + done.stderr.decode(errors="replace")


def test_a_certificate_is_renewed_under_load_without_a_failed_call(tmp_path: pathlib.Path) -> None:
    identities = changed(tmp_path)
    (tmp_path / "daemon").mkdir()
    with TlsDaemon(tmp_path / "daemon", identities).running() as daemon:
        failed: list[object] = []
        calls = [0, 0]
        stop = threading.Event()

        def load(kind: int) -> None:
            old = grpc.secure_channel(daemon.address, identities.credentials("viewer"))
            while not stop.is_set():
                new = grpc.secure_channel(
                    daemon.address, identities.credentials("viewer"), [("grpc.use_local_subchannel_pool", 1)]
                )
                answer = call(new if kind else old, "penstock.v1.AdminService/GetServerInfo")
                new.close()
                calls[kind] += 1
                if answer[0] != grpc.StatusCode.OK:
                    failed.append(answer)
            old.close()

        threads = [threading.Thread(target=load, args=(kind,)) for kind in (0, 1)]
        for thread in threads:
            thread.start()
        host, port = daemon.address.split(":")
        before = ssl.get_server_certificate((host, int(port)))
        renewed = tmp_path / "renewed"
        shutil.copytree(identities.folder, renewed)
        for name in ("server.crt", "server.key"):
            (renewed / name).unlink()
        run(str(DEV_CERTS), str(renewed), "admin")
        # One file after the other: meanwhile key and certificate do not fit, which must harm nobody.
        (identities.folder / "server.crt").write_bytes((renewed / "server.crt").read_bytes())
        eventually(lambda: "was refused" in daemon.log)
        (identities.folder / "server.key").write_bytes((renewed / "server.key").read_bytes())
        eventually(lambda: ssl.get_server_certificate((host, int(port))) != before)
        seen = list(calls)
        eventually(lambda: all(now > then for now, then in zip(calls, seen)))
        stop.set()
        for thread in threads:
            thread.join()
        assert failed == [] and min(calls) > 0


def test_a_revoked_token_stops_working_while_its_connection_lives(tmp_path: pathlib.Path) -> None:
    identities = changed(tmp_path)
    (tmp_path / "daemon").mkdir()
    method = "penstock.v1.AdminService/GetServerInfo"
    with TlsDaemon(tmp_path / "daemon", identities).running() as daemon:
        with grpc.secure_channel(daemon.address, identities.credentials()) as channel:
            assert call(channel, method, "secret-train")[0] == grpc.StatusCode.OK
            identities.write_tokens(("viewer",))
            eventually(lambda: call(channel, method, "secret-train")[1] == "CREDENTIAL_INVALID")
            assert call(channel, method, "secret-viewer")[0] == grpc.StatusCode.OK
            identities.map.write_text("token-viewer king *\n")  # a bad map changes nothing
            eventually(lambda: "must be viewer, infer, train or admin" in daemon.log)
            assert call(channel, method, "secret-viewer")[0] == grpc.StatusCode.OK


def test_a_certificate_ends_in_mid_stream(tmp_path: pathlib.Path) -> None:
    """The stream goes on, for it was let in; the next call on its connection is refused."""
    identities = changed(tmp_path)
    (tmp_path / "daemon").mkdir()
    with TlsDaemon(tmp_path / "daemon", identities).running() as daemon:
        with client_of(daemon, identities, "admin") as admin:
            create_mlp(admin, "own-short")
        end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=5)
        identities.issue("viewer", end)
        with client_of(daemon, identities, "viewer") as viewer:
            updates = iter(viewer.pipeline("own-short").watch_statistics(interval=0.1))
            next(updates)
            while datetime.datetime.now(datetime.timezone.utc) <= end:
                next(updates)
            next(updates)
            with pytest.raises(penstock.PenstockError) as ended:
                viewer.server_info()
            assert (ended.value.code, ended.value.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_EXPIRED")
            next(updates)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--tls-key=x",), "--tls-key: needs --tls-cert"),
        (("--token-file=x",), "--token-file: needs --tls-cert"),
        (("--tls-cert=x", "--tls-key=x"), "--tls-cert: needs --identity-map"),
        (("--tls-cert=x", "--tls-key=x", "--identity-map=x"), "--tls-cert: needs --tls-client-ca or --token-file"),
        (("--listen=0.0.0.0:0",), "needs --tls-cert or --insecure"),
    ],
)
def test_what_can_not_be_safe_does_not_start(tmp_path: pathlib.Path, flags: tuple[str, ...], named: str) -> None:
    daemon = Daemon(tmp_path, *flags)
    with pytest.raises(AssertionError, match="has ended while it started"):
        daemon.start()
    assert named in daemon.log


def test_bad_files_end_the_start_by_name(tmp_path: pathlib.Path) -> None:
    identities = changed(tmp_path)
    identities.map.write_text("someone train\n")
    (tmp_path / "daemon").mkdir()
    daemon = TlsDaemon(tmp_path / "daemon", identities)
    with pytest.raises(AssertionError, match="has ended while it started"):
        daemon.start()
    assert "identities:1: must have an identity, a role and a pattern of pipelines" in daemon.log
