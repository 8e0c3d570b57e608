"""Who may call what: every method, each role, each kind of credential, on every kind of listener; and files that change."""

from __future__ import annotations

import datetime
import pathlib
import shutil
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import penstock
import pytest
from google.rpc import error_details_pb2, status_pb2
from penstock.v1 import handle_pb2

from conftest import QUICK_DRAIN, StartDaemon
from daemon_process import Daemon, eventually
from identity_files import DEV_CERTS, PATTERN, ROLES, Identities, TlsDaemon, run
from method_calls import call, methods, reason_of
from small_models import create_mlp, mlp_batch

METHODS = methods()


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


@pytest.mark.parametrize("token", ["", "secret-king", "secret-old", "secret-admin"])
def test_the_health_port_answers_without_tls_and_nothing_else(tls: Daemon, token: str) -> None:
    with grpc.insecure_channel(tls.probe_address) as channel:
        for method in METHODS:
            served = method.startswith("grpc.health.v1.")
            wanted = grpc.StatusCode.OK if served else grpc.StatusCode.UNIMPLEMENTED
            assert call(channel, method, token)[0] == wanted, method


def test_the_metrics_port_shows_no_page_and_changes_nothing(tls: Daemon) -> None:
    assert tls.page("/metrics") and tls.page("/healthz")
    for path in ("/", "/statusz", "/pipeline", "/handlez", "/flagz", "/logz"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            tls.page(path)
        assert refused.value.code == 404, path


def test_status_pages_are_for_this_host_alone(tls: Daemon) -> None:
    """Whoever is on the host reads them; no flag lets others do so (test_status_pages.py), and no page of another site."""
    with urllib.request.urlopen(f"http://{tls.admin_address}/statusz", timeout=10) as page:
        assert page.status == 200
    other = urllib.request.Request(f"http://{tls.admin_address}/statusz", headers={"Host": "penstock.example.org"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(other, timeout=10)
    assert refused.value.code == 403


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


def test_plaintext_beyond_this_host_may_see_and_infer_and_no_more(tmp_path: pathlib.Path) -> None:
    daemon = Daemon(tmp_path, *QUICK_DRAIN, "--insecure")
    port = daemon.address.split(":")[1]
    daemon = Daemon(tmp_path, *QUICK_DRAIN, "--insecure", f"--listen=0.0.0.0:{port}")
    daemon.address = daemon.probe_address = f"127.0.0.1:{port}"
    with daemon.running(), grpc.insecure_channel(daemon.address) as channel:
        for token in ("", "secret-admin"):  # nobody looks at it
            check_all(channel, "infer", token)


def test_the_word_changes_nothing_on_this_host(start_daemon: StartDaemon) -> None:
    with grpc.insecure_channel(start_daemon(*QUICK_DRAIN, "--insecure").address) as channel:
        check_all(channel, "admin")


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


def names(handles: list[handle_pb2.Handle]) -> list[tuple[str, str]]:
    return [(handle.owner, handle.name) for handle in handles]


def test_an_admin_lists_and_releases_the_handles_of_others(tls: Daemon, identities: Identities) -> None:
    def listed(role: str, owner: str) -> list[tuple[str, str]]:
        request = handle_pb2.ListHandlesRequest(parent="pipelines/own-seen", owner=owner)
        return names(ask(tls, identities, role, "ListHandles", request, handle_pb2.ListHandlesResponse).handles)

    def released(role: str, owner: str, name: str) -> str:
        request = handle_pb2.ReleaseHandlesRequest(names=[name], owner=owner)
        (answer,) = ask(tls, identities, role, "ReleaseHandles", request, handle_pb2.ReleaseHandlesResponse).handles
        return error_reason(answer.error) if answer.HasField("error") else handle_pb2.HandleState.Name(answer.handle.state)

    with client_of(tls, identities, "train") as trainer, client_of(tls, identities, "admin") as admin:
        pipeline = create_mlp(trainer, "own-seen")
        theirs = pipeline.put({"x": mlp_batch(0)[0]}).name
        own = admin.pipeline("own-seen").put({"x": mlp_batch(0)[0]}).name
        owner, me = "spiffe://penstock/train", "spiffe://penstock/admin"
        assert listed("admin", "") == [("", own)]
        assert listed("admin", owner) == [(owner, theirs)]
        assert listed("admin", "-") == [(owner, theirs), (me, own)]
        assert listed("admin", "nobody") == []
        for role in ("viewer", "infer", "train"):
            for named in (me, "-", "spiffe://penstock/none"):
                assert listed(role, named) == [], (role, named)
            assert released(role, me, own) == "HANDLE_NOT_FOUND"
        assert listed("train", owner) == [(owner, theirs)]
        assert released("admin", "", theirs) == "HANDLE_NOT_FOUND"
        assert released("admin", me, theirs) == "HANDLE_NOT_FOUND"
        assert released("admin", owner, theirs) == "HANDLE_STATE_RELEASED"
        assert listed("admin", "-") == [(me, own)]
        with pytest.raises(grpc.RpcError) as gone:
            ask(tls, identities, "train", "GetHandle", handle_pb2.GetHandleRequest(name=theirs), handle_pb2.Handle)
        assert reason_of(gone.value) == "HANDLE_RELEASED"
        with pytest.raises(grpc.RpcError) as bad:
            listed("admin", "a b")
        assert reason_of(bad.value) == "FIELD_INVALID" and "owner: " in bad.value.details()
        admin.pipeline("own-seen").delete(force=True)


def test_an_admin_of_some_pipelines_sees_the_handles_there(tmp_path: pathlib.Path) -> None:
    identities = changed(tmp_path)
    lines = identities.map.read_text().replace("spiffe://penstock/infer infer own-*", "spiffe://penstock/infer admin own-a*")
    identities.map.write_text(lines)
    (tmp_path / "daemon").mkdir()
    with TlsDaemon(tmp_path / "daemon", identities).running() as daemon:
        with client_of(daemon, identities, "train") as trainer:
            seen, unseen = (create_mlp(trainer, name).put({"x": mlp_batch(0)[0]}).name for name in ("own-a", "own-b"))
        request = handle_pb2.ListHandlesRequest(parent="pipelines/-", owner="-")
        answer = ask(daemon, identities, "infer", "ListHandles", request, handle_pb2.ListHandlesResponse)
        assert [handle.name for handle in answer.handles] == [seen]
        release = handle_pb2.ReleaseHandlesRequest(names=[seen, unseen], owner="spiffe://penstock/train")
        answers = ask(daemon, identities, "infer", "ReleaseHandles", release, handle_pb2.ReleaseHandlesResponse).handles
        assert [answer.HasField("error") for answer in answers] == [False, True]


def test_a_shared_handle_belongs_to_its_recipient_and_outlives_the_first(tls: Daemon, identities: Identities) -> None:
    with client_of(tls, identities, "train") as trainer, client_of(tls, identities, "infer") as reader:
        pipeline = create_mlp(trainer, "own-shared")
        x = mlp_batch(0)[0]
        wanted = pipeline.infer({"input": x})
        (output,) = wanted
        kept = pipeline.submit_infer({"input": x})
        other = pipeline.put({"input": x})
        theirs = kept.share("spiffe://penstock/infer", lease=60)
        assert theirs != kept.name and theirs.startswith("pipelines/own-shared/handles/")
        for name in (kept.name, other.name):
            with pytest.raises(penstock.PenstockError) as hidden:
                reader.handle(name)
            assert hidden.value.reason == "HANDLE_NOT_FOUND"
        with pytest.raises(penstock.PenstockError) as given:
            trainer.handle(theirs)
        assert given.value.reason == "HANDLE_NOT_FOUND"
        shared = reader.handle(theirs)
        listed = ask(
            tls, identities, "infer", "ListHandles", handle_pb2.ListHandlesRequest(parent="pipelines/-"),
            handle_pb2.ListHandlesResponse,
        )  # fmt: skip
        assert [(one.name, one.method) for one in listed.handles] == [(theirs, "ShareHandle")]
        kept.release()
        np.testing.assert_array_equal(shared.fetch()[output], wanted[output])
        # It is an input as any other.
        first = other.share("spiffe://penstock/infer")
        other.release()
        again = reader.pipeline("own-shared").infer({"input": reader.handle(first)})
        np.testing.assert_array_equal(again[output], wanted[output])
        with pytest.raises(penstock.PenstockError) as gone:
            kept.share("spiffe://penstock/infer")
        assert gone.value.reason == "HANDLE_RELEASED"
        shared.release()
        pipeline.delete(force=True)


def test_who_may_get_a_handle(tls: Daemon, identities: Identities) -> None:
    def share(role: str, name: str, recipient: str, request_id: str = "") -> handle_pb2.Handle:
        request = handle_pb2.ShareHandleRequest(name=name, recipient=recipient, request_id=request_id)
        answer: handle_pb2.Handle = ask(tls, identities, role, "ShareHandle", request, handle_pb2.Handle)
        return answer

    with client_of(tls, identities, "train") as trainer:
        pipeline = create_mlp(trainer, "own-given")
        mine = pipeline.put({"x": mlp_batch(0)[0]}).name
        for role, recipient, reason in [
            ("train", "nobody", "RECIPIENT_UNKNOWN"),
            ("train", "spiffe://penstock/stranger", "RECIPIENT_UNKNOWN"),
            ("train", "", "FIELD_INVALID"),
            ("train", "a b", "FIELD_INVALID"),
            ("infer", "spiffe://penstock/infer", "HANDLE_NOT_FOUND"),
            ("viewer", "spiffe://penstock/viewer", "ROLE_MISSING"),
        ]:
            with pytest.raises(grpc.RpcError) as refused:
                share(role, mine, recipient)
            assert reason_of(refused.value) == reason, (role, recipient)
            if role == "train":
                assert refused.value.details().startswith("recipient: "), refused.value.details()
        # A repeated call has one effect, also when the handle has ended meanwhile.
        viewer, again = "spiffe://penstock/viewer", str(uuid.uuid4())
        first = share("train", mine, viewer, again)
        assert first.owner == viewer and share("train", mine, viewer, again).name == first.name
        assert share("train", mine, viewer).name != first.name
        with pytest.raises(grpc.RpcError) as reused:
            share("train", mine, "spiffe://penstock/admin", again)
        assert reason_of(reused.value) == "REQUEST_ID_REUSED"
        with client_of(tls, identities, "viewer") as reader:
            assert list(reader.handle(first.name).fetch()) == ["x"]
            reader.handle(first.name).release()
        ended = share("train", mine, viewer, again)
        assert (ended.name, ended.state) == (first.name, handle_pb2.HANDLE_STATE_RELEASED)
        pipeline.delete(force=True)


def test_without_tls_everybody_may_get_a_handle(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with penstock.Client(daemon.address, "ann") as ann, penstock.Client(daemon.address, "bob") as bob:
        kept = create_mlp(ann, "given").put({"x": mlp_batch(0)[0]})
        assert list(bob.handle(kept.share("bob")).fetch()) == ["x"]
        graph = ann.pipeline("given").forward(mlp_batch(0)[0]).graph
        request = handle_pb2.ShareHandleRequest(name=graph.name, recipient="bob")
        with pytest.raises(penstock.PenstockError) as refused:
            ann._connection.unary("HandleService/ShareHandle", request, handle_pb2.Handle)
        assert refused.value.reason == "HANDLE_KIND"
        with pytest.raises(ValueError, match="must be of a handle of values"):
            ann.handle(graph.name)


def error_reason(error: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    error.details[0].Unpack(info)
    return info.reason


def ask(daemon: Daemon, identities: Identities, role: str, method: str, request: Any, answer: Any) -> Any:
    """A call of the HandleService."""
    with grpc.secure_channel(daemon.address, identities.credentials(role)) as channel:
        path = f"/penstock.v1.HandleService/{method}"
        call = channel.unary_unary(path, type(request).SerializeToString, answer.FromString)
        return call(request, timeout=30)


def test_metrics_tell_of_the_certificate_its_files_and_who_was_denied(tmp_path: pathlib.Path) -> None:
    identities = changed(tmp_path)
    (tmp_path / "daemon").mkdir()
    with TlsDaemon(tmp_path / "daemon", identities).running() as daemon:
        end = run("openssl", "x509", "-in", f"{identities.folder}/server.crt", "-noout", "-enddate").split("=")[1]
        stated = datetime.datetime.strptime(end.strip(), "%b %d %H:%M:%S %Y %Z").replace(tzinfo=datetime.timezone.utc)
        exported = daemon.metrics().sum("penstock_certificate_expiry_timestamp_seconds", certificate="server")
        assert exported == stated.timestamp()
        with grpc.secure_channel(daemon.address, identities.credentials()) as channel:
            method = "penstock.v1.WorkService/TrainStep"
            for token in ("", "secret-king", "secret-old", "secret-viewer", "secret-viewer"):
                call(channel, method, token)
        for reason, count in [("missing", 1), ("invalid", 1), ("expired", 1)]:
            assert daemon.metrics().sum("penstock_calls_denied_total", reason=f"credential_{reason}") == count
        assert daemon.metrics().sum("penstock_calls_denied_total", reason="role_missing") == 2
        assert daemon.metrics().sum("penstock_credential_files_refused_total") == 0
        identities.map.write_text("token-viewer king *\n")
        eventually(lambda: daemon.metrics().sum("penstock_credential_files_refused_total") == 1)
        identities.issue_server(stated + datetime.timedelta(days=7))
        eventually(
            lambda: daemon.metrics().sum("penstock_certificate_expiry_timestamp_seconds") == (stated + datetime.timedelta(days=7)).timestamp()
        )


def test_without_tls_no_certificate_is_told(start_daemon: StartDaemon) -> None:
    assert start_daemon().metrics().select("penstock_certificate_expiry_timestamp_seconds") == []


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

        with client_of(daemon, identities, "admin") as admin:
            create_mlp(admin, "own-watched")
        watcher = client_of(daemon, identities, "viewer")
        updates = iter(watcher.pipeline("own-watched").watch_statistics(interval=0.1))
        next(updates)
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
        next(updates)  # a stream that was under way goes on
        watcher.close()


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
            with pytest.raises(penstock.PenstockError) as refused:
                viewer.pipeline("own-short").statistics()
            assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_EXPIRED")
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
