"""Bad input and bad peers of groups of real daemons: each gets an error with a name, and the group works on as before."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import penstock
import pytest

import hand_made_ranks as by_hand
from daemon_process import Daemon, eventually, free_ports
from hand_made_ranks import join, peer_message, transfer
from identity_files import Identities
from rank_group import Group, RankProcess
from small_models import create_mlp, mlp_batch

Code = grpc.StatusCode
PATIENT = "--peer-timeout=20s"
BY_HAND = pytest.mark.skipif(shutil.which("protoc") is None, reason="protoc is missing")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Working:
    """A group that trains one pipeline over both of its ranks."""

    def __init__(self, group: Group, client: penstock.Client) -> None:
        self.group = group
        self.client = client
        self.leader = group.leader_address
        self.pipeline = create_mlp(client, "both", devices=["cpu:0", "1/cpu:0"])
        self.steps = self.pipeline.train_step(*mlp_batch(0)).step

    def check(self) -> None:
        """It trains on, has lost nobody and has not formed again."""
        self.steps += 1
        assert self.pipeline.train_step(*mlp_batch(self.steps), timeout=30).step == self.steps, self.group.log()
        group = self.client.server_info().group
        assert (group.complete, group.generation, group.reformings) == (True, 1, 0), self.group.log()
        assert not any(rank.problem for rank in group.ranks)

    def tensor_ports(self) -> list[int]:
        """Where the ranks take tensors: the ports that nothing else explains."""
        ports = []
        for rank in self.group.ranks:
            known = (rank.address, rank.metrics_address, rank.admin_address, rank.probe_address, self.leader)
            (port,) = by_hand.listening_ports(rank.pid) - {int(address.rsplit(":", 1)[1]) for address in known}
            ports.append(port)
        return ports

    def refused(self) -> float:
        return self.group.leader.metrics().sum("penstock_group_refused_total")


@contextlib.contextmanager
def working(group: Group, client: Callable[[], penstock.Client]) -> Iterator[Working]:
    with group.running(), client() as connected:
        yield Working(group, connected)


@pytest.fixture(scope="module")
def plain_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Working]:
    group = Group(tmp_path_factory.mktemp("plain"), 2, "grpc", PATIENT)
    with working(group, group.client) as one:
        yield one


@pytest.fixture
def plain(plain_group: Working) -> Iterator[Working]:
    """A group without TLS that sends tensors by gRPC; the test must not disturb it."""
    yield plain_group
    plain_group.check()


@pytest.fixture(scope="module")
def ucx_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Working]:
    group = Group(tmp_path_factory.mktemp("ucx"), 2, "ucx", PATIENT)
    with working(group, group.client) as one:
        yield one


@pytest.fixture
def ucx(ucx_group: Working) -> Iterator[Working]:
    """The same, by UCX."""
    yield ucx_group
    ucx_group.check()


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    made = Identities(tmp_path_factory.mktemp("identities"))
    made.map.write_text(made.map.read_text() + "localhost admin *\n")  # a name of the daemons' own certificate
    return made


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    """Of another authority."""
    return Identities(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(scope="module")
def tls_group(identities: Identities, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Working]:
    (health,) = free_ports(1)
    flags = (*own_flags(identities, "server", identities), f"--health-listen=127.0.0.1:{health}")
    group = Group(tmp_path_factory.mktemp("tls"), 2, "grpc", PATIENT, *flags)
    group.leader.probe_address = f"127.0.0.1:{health}"
    folder = identities.folder
    admin = {"tls_ca": f"{folder}/ca.crt", "tls_cert": f"{folder}/admin.crt", "tls_key": f"{folder}/admin.key"}
    with working(group, lambda: penstock.Client(group.leader.address, **admin)) as one:
        yield one


@pytest.fixture
def tls(tls_group: Working) -> Iterator[Working]:
    """A group whose ranks show each other certificates."""
    yield tls_group
    tls_group.check()


def own_flags(of: Identities, name: str, trusted: Identities) -> tuple[str, ...]:
    """Flags of a rank that shows a certificate, and trusts the authority of others."""
    return (
        f"--tls-cert={of.folder}/{name}.crt",
        f"--tls-key={of.folder}/{name}.key",
        f"--tls-client-ca={trusted.folder}/ca.crt",
        f"--identity-map={trusted.map}",
    )


class Stray(RankProcess):
    """A process that wants to be a rank of a group."""

    def problems(self) -> list[str]:
        """Why it has no leader, as its log tells."""
        return [line for line in self.log.splitlines() if "this rank has no leader" in line]

    def page_of_readiness(self) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.metrics_address}/readyz?verbose", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def await_refusal(self, reason: str, part: str) -> None:
        """Its log, its readiness and its status page say why it has no leader; it lives, and tries again."""

        def told() -> bool:
            assert self.alive(), f"it has ended:\n{self.log}"
            return any(f'reason="{reason}"' in line and part in line.replace('\\"', '"') for line in self.problems())

        try:
            eventually(told)
        except AssertionError:
            raise AssertionError(f"wanted {reason} and {part!r}:\n{self.log}") from None
        eventually(lambda: part in page_of(self, "rank")["problem"])
        status, text = self.page_of_readiness()
        assert status == 503 and text.startswith("leader not ok: ") and part in text
        assert page_of(self, "rank")["joined"] == "no"

    def end(self) -> tuple[int, str]:
        """Its exit code and its log."""
        return self.wait(), self.log


StartStray = Callable[..., Stray]


def page_of(daemon: Daemon, part: str) -> Any:
    with urllib.request.urlopen(f"http://{daemon.admin_address}/statusz?format=json", timeout=60) as answer:
        return json.load(answer)[part]


@pytest.fixture
def stray(tmp_path: pathlib.Path) -> Iterator[StartStray]:
    """Starts processes that want to be ranks; they are killed at the end of the test."""
    started: list[Stray] = []

    def start(leader: str, *flags: str, rank: int = 1, size: int = 2, prefix: tuple[str, ...] = ()) -> Stray:
        folder = tmp_path / f"stray{len(started)}"
        folder.mkdir()
        own = (f"--rank={rank}", f"--world-size={size}", f"--leader={leader}", "--peer-transport=grpc", PATIENT)
        one = Stray(folder, *own, *flags, devices=("cpu:0",), prefix=prefix)
        started.append(one)
        one.launch()
        return one

    yield start
    for one in started:
        one.kill()


def await_refusal_by(leader: Daemon, reason: str, part: str = "") -> None:
    """Its log says whom it has refused; that is written a moment later."""

    def told() -> bool:
        lines = [line for line in leader.log.splitlines() if "a rank was refused" in line]
        return any(f'reason="{reason}"' in line and part in line for line in lines)

    eventually(told)


@contextlib.contextmanager
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "127.0.0.1:%d" % server.getsockname()[1]


# --- Numbers and sizes ---


def test_a_rank_that_is_a_member_already(plain: Working, stray: StartStray) -> None:
    before = plain.refused()
    stray(plain.leader).await_refusal("RANK_TAKEN", "rank 1 is taken by a process that is alive")
    await_refusal_by(plain.group.leader, "RANK_TAKEN", 'rank="1"')
    assert plain.refused() > before


def test_another_leader_at_the_same_address(plain: Working, stray: StartStray) -> None:
    code, log = stray(plain.leader, rank=0).end()
    assert code == 1
    assert 'reason="LISTEN_FAILED"' in log
    assert f"--leader: can't listen there: Address already in use, got {plain.leader}" in log


def test_another_size_of_the_world(plain: Working, stray: StartStray) -> None:
    stray(plain.leader, rank=2, size=3).await_refusal("WORLD_SIZE_MISMATCH", "world size: the leader has 2, got 3")
    await_refusal_by(plain.group.leader, "WORLD_SIZE_MISMATCH")


def test_another_carrier(plain: Working, stray: StartStray) -> None:
    stray(plain.leader, "--peer-transport=ucx").await_refusal("CARRIER_MISMATCH", "carrier: the leader has grpc, got ucx")
    await_refusal_by(plain.group.leader, "CARRIER_MISMATCH")


MALFORMED = [
    ("--rank=2", "--rank: must be below --world-size, which is 2, got 2"),
    ("--rank=-1", "--rank: must be a whole number in [0, 65536], got -1"),
    ("--rank=one", "--rank: must be a whole number in [0, 65536], got one"),
    ("--world-size=0", "--world-size: must be a whole number in [1, 65536], got 0"),
    ("--world-size=-2", "--world-size: must be a whole number in [1, 65536], got -2"),
    ("--leader=127.0.0.1:99999", "--leader: must have the leader's port, in [1, 65535], got 127.0.0.1:99999"),
    ("--leader=127.0.0.1:", "--leader: must have the leader's port, in [1, 65535], got 127.0.0.1:"),
    *(
        (f"--leader={address}", f"--leader: must be HOST or HOST:PORT, with a name or numbers, got {address}")
        for address in (":8475", "http://127.0.0.1:8475", "127.0.0.300:8475", "127.0.0.1.5:8475", "[::1", "a host:8475")
    ),
    ("--metrics-listen=nonsense", "--metrics-listen: must be HOST:PORT, got nonsense"),
]


@pytest.mark.parametrize(("flag", "problem"), MALFORMED, ids=[flag for flag, _ in MALFORMED])
def test_what_can_not_be_meant_ends_the_start(stray: StartStray, flag: str, problem: str) -> None:
    code, log = stray("127.0.0.1:1", "--insecure", flag).end()
    assert code == 2 and problem in log, log


@BY_HAND
@pytest.mark.parametrize(
    ("reason", "code", "part", "change"),
    [
        ("PROTOCOL_MISMATCH", Code.FAILED_PRECONDITION, "got 77", {"protocol": 77}),
        ("BUILD_MISMATCH", Code.FAILED_PRECONDITION, "got 0.0.1 with LibTorch 1.0", {"build": "0.0.1 with LibTorch 1.0"}),
        ("RANK_OUT_OF_RANGE", Code.INVALID_ARGUMENT, "[0, 1], got 2", {"rank": 2}),
        ("RANK_OUT_OF_RANGE", Code.INVALID_ARGUMENT, "[0, 1], got -1", {"rank": -1}),
        ("WORLD_SIZE_MISMATCH", Code.INVALID_ARGUMENT, "got -2", {"world_size": -2}),
        ("CARRIER_MISMATCH", Code.INVALID_ARGUMENT, "got pigeons", {"carrier": "pigeons"}),
        ("LEADER_STALE", Code.FAILED_PRECONDITION, "got 77", {"followed_epoch": 77}),
        ("RANK_TAKEN", Code.ALREADY_EXISTS, "rank 0", {"rank": 0}),
        ("RANK_MESSAGE", Code.INVALID_ARGUMENT, "hello.instance: must have 16 bytes", {"instance": b"me"}),
        ("RANK_MESSAGE", Code.INVALID_ARGUMENT, "hello.host: must be printable", {"host": "a\x1b[2J"}),
        ("RANK_MESSAGE", Code.INVALID_ARGUMENT, "hello.build: must be printable", {"build": "a\n"}),
        *(
            ("RANK_MESSAGE", Code.INVALID_ARGUMENT, f"hello.devices.name: must be a kind and a number, as cuda:0, got {name}",
             {"devices": [{"name": name}]})
            for name in ("", "0/cpu:0", "cuda:", "cuda:99999999999", "<b>:0")
        ),
        ("RANK_MESSAGE", Code.INVALID_ARGUMENT, "hello.devices.name: must stand once, got cpu:0", {"devices": [{"name": "cpu:0"}] * 2}),
        ("RANK_MESSAGE", Code.INVALID_ARGUMENT, "hello.devices.memory_bytes: must not be negative, got -1",
         {"devices": [{"name": "cpu:0", "memory_bytes": -1}]}),
    ],
    ids=lambda value: "" if isinstance(value, (str, Code)) else "-".join(value),
)  # fmt: skip
def test_a_hello_that_does_not_fit(plain: Working, reason: str, code: grpc.StatusCode, part: str, change: Any) -> None:
    before = plain.refused()
    end = join(plain.leader, **{**by_hand.fitting(plain.leader), **change}).end()
    assert (end.reason, end.code) == (reason, code)
    assert part in end.message
    await_refusal_by(plain.group.leader, reason, part)
    assert plain.refused() >= before + 3  # two to learn what fits


@BY_HAND
@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"", "STREAM_PROTOCOL"),
        (b"GET / HTTP/1.1\r\n\r\n", "FIELD_INVALID"),
        (bytes(200_000), "MESSAGE_TOO_LARGE"),
    ],
    ids=["nothing", "HTTP", "too much"],
)
def test_what_is_no_hello(plain: Working, first: bytes, reason: str) -> None:
    path = "/penstock.peer.v1.GroupService/Join"
    assert by_hand.Stream(plain.leader, path, "LeaderMessage").say(first).end().reason == reason
    await_refusal_by(plain.group.leader, reason)


# --- Who is who ---


@pytest.mark.parametrize(
    ("shown", "by", "trusts", "reason", "part", "of_leader"),
    [
        ("", "", "", "RANK_LOST", "the leader can't be reached: ", "wrong version number"),
        ("server", "strangers", "strangers", "RANK_LOST", "certificate verify failed", ""),
        ("server", "strangers", "identities", "RANK_LOST", "the leader can't be reached: ", "certificate verify failed"),
        ("stranger", "identities", "identities", "CREDENTIAL_INVALID", "the identity map has none of", ""),
        ("viewer", "identities", "identities", "ROLE_MISSING", "needs the role admin, the caller has viewer", "ROLE_MISSING"),
    ],
    ids=["plaintext", "another authority", "its certificate alone", "no line in the map", "another role"],
)  # fmt: skip
def test_wrong_credentials(
    tls: Working, stray: StartStray, request: pytest.FixtureRequest, shown: str, by: str, trusts: str, reason: str,
    part: str, of_leader: str,
) -> None:  # fmt: skip
    flags = own_flags(request.getfixturevalue(by), shown, request.getfixturevalue(trusts)) if shown else ()
    stray(tls.leader, *flags).await_refusal(reason, part)
    eventually(lambda: of_leader in tls.group.leader.log)


@BY_HAND
def test_no_certificate_at_all(tls: Working, identities: Identities) -> None:
    end = join(tls.leader, identities.credentials()).end()
    assert (end.code, end.reason) == (Code.UNAUTHENTICATED, "CREDENTIAL_MISSING")


def test_tls_towards_a_leader_without_it(plain: Working, stray: StartStray, identities: Identities) -> None:
    rank = stray(plain.leader, *own_flags(identities, "server", identities))
    rank.await_refusal("RANK_LOST", "Ssl handshake failed")


def test_files_that_do_not_fit_end_the_start(stray: StartStray, identities: Identities) -> None:
    certificate, key, authority, _ = own_flags(identities, "server", identities)
    of_another = f"--tls-key={identities.folder}/admin.key"
    for flags, problem in [
        ((certificate, key), "--tls-client-ca: is required with --tls-cert where there are several ranks"),
        ((certificate, of_another, authority), "--tls-key: must be the key of --tls-cert"),
        ((certificate, key, "--tls-client-ca=none"), "--tls-client-ca: must be a file that can be read"),
        ((certificate, key, f"--tls-client-ca={identities.map}"), "--tls-client-ca: must hold certificates as PEM"),
    ]:
        code, log = stray("127.0.0.1:1", *flags).end()
        assert code in (1, 2) and problem in log, log


# --- Leaders that are not there ---


def test_a_rank_waits_for_its_leader(tmp_path: pathlib.Path, stray: StartStray) -> None:
    group = Group(tmp_path, 2, "grpc", PATIENT)
    rank = stray(group.leader_address)
    rank.await_refusal("RANK_LOST", "Connection refused")
    group.ranks[1] = rank
    try:
        group.leader.start()
        rank.await_leader()
        assert page_of(rank, "rank")["joined"] == "yes"
        with group.client() as client:
            pipeline = create_mlp(client, "late", devices=["cpu:0", "1/cpu:0"])
            assert pipeline.train_step(*mlp_batch(0), timeout=30).step == 1, group.log()
    finally:
        group.leader.kill()


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0, reason="no namespaces here"
)
def test_a_rank_waits_for_the_name_of_its_leader(tmp_path: pathlib.Path, stray: StartStray) -> None:
    """As names of pods do, it resolves only once the leader is there."""
    group = Group(tmp_path, 2, "grpc", PATIENT)
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    mount = f"mount --bind {hosts} /etc/hosts && exec \"$@\""
    name = f"penstock-0.invalid:{group.leader_address.rsplit(':', 1)[1]}"
    rank = stray(name, "--insecure", prefix=("unshare", "--mount", "sh", "-c", mount, "sh"))
    rank.await_refusal("RANK_LOST", "penstock-0.invalid")
    group.leader.launch()
    with hosts.open("a") as more:
        more.write("127.0.0.1 penstock-0.invalid\n")
    try:
        rank.await_leader()
        group.leader.await_ready()
        with group.client() as client:
            pipeline = create_mlp(client, "late", devices=["cpu:0", "1/cpu:0"])
            assert pipeline.train_step(*mlp_batch(0), timeout=30).step == 1, group.log()
    finally:
        group.leader.kill()


def test_what_listens_in_the_leader_s_stead(plain: Working, stray: StartStray) -> None:
    web = stray(plain.group.leader.metrics_address)
    api = stray(plain.group.leader.address)
    with taken_port() as nobody:  # it takes connections, and says nothing
        silent = stray(nobody, "--peer-timeout=500ms")
        web.await_refusal("RANK_LOST", "the leader can't be reached: ")
        api.await_refusal("RANK_LOST", "what listens there leads no ranks")
        silent.await_refusal("RANK_LOST", "the leader was silent for 500ms")


@BY_HAND
def test_a_leader_says_why_a_rank_is_missing(tmp_path: pathlib.Path) -> None:
    group = Group(tmp_path, 2, "grpc", PATIENT)
    leader = group.leader
    try:
        leader.launch()
        eventually(lambda: "a rank has joined" in leader.log)
        fitting = by_hand.fitting(group.leader_address)
        join(group.leader_address, **{**fitting, "build": "0.0.1"}).end()
        missing = page_of(leader, "ranks")[1]
        assert missing["state"] == "missing" and f"build: the leader has {fitting['build']}, got 0.0.1" in missing["problem"]
        group.ranks[1].start()
        leader.await_ready()
        assert page_of(leader, "ranks")[1]["problem"] == ""
    finally:
        group.kill()


# --- The tensors' ports ---


@BY_HAND
def test_strangers_at_the_tensors_port_of_grpc(plain: Working) -> None:
    def said(*messages: Any) -> penstock.PenstockError:
        stream = transfer(f"127.0.0.1:{port}")
        for message in messages:
            stream.say(message)
        return stream.end()

    def hello(rank: int, key: bytes) -> Any:
        return peer_message("TransferRequest", hello=peer_message("TransferHello", rank=rank, key=key))

    frame = peer_message("TransferFrame", header=b"x", payload_bytes=-1)
    for daemon, port in zip(plain.group.ranks, plain.tensor_ports()):
        for messages, code, why in [
            ([hello(0, b""), hello(1, b"")], Code.UNAUTHENTICATED, "another group's key"),
            ([hello(1, bytes(16))], Code.UNAUTHENTICATED, "another group's key"),
            ([hello(-1, b"k" * 70_000)], Code.UNAUTHENTICATED, "another group's key"),
            ([peer_message("TransferRequest", frame=frame)], Code.INVALID_ARGUMENT, "must be a hello, got a frame"),
            ([peer_message("TransferRequest", chunk=b"x")], Code.INVALID_ARGUMENT, "must be a hello or a frame, got a chunk"),
            ([b"\xff" * 100], Code.INVALID_ARGUMENT, "is none of TransferRequest"),
            ([b""], Code.INVALID_ARGUMENT, "must hold a hello, a frame or a chunk"),
            ([bytes(5_000_000)], Code.RESOURCE_EXHAUSTED, "larger than max"),
        ]:
            end = said(*messages)
            assert end.code == code and why in end.message, end
            if code != Code.RESOURCE_EXHAUSTED:  # which gRPC says by itself
                eventually(lambda why=why, daemon=daemon: why in daemon.log)  # type: ignore[misc]


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def garbage() -> Iterator[bytes]:
    """What no peer would say; and the beginnings of what one would, which then stop."""
    yield from (b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\xff" * 70_000, b"\x16\x03\x01\x02\x00" + bytes(100))
    yield from (PREFACE[:7], PREFACE, PREFACE + bytes([0, 64, 0, 0, 0, 0, 0, 0, 1]) + bytes(100), PREFACE + b"\xff" * 64)
    yield from (struct.pack("<BI", kind, length) + bytes(64) for kind in (0, 1, 30, 255) for length in (0, 35, 2**31, 2**32 - 1))


@pytest.mark.parametrize("carrier", ["plain", "ucx"])
def test_garbage_and_silence_at_the_tensors_port(carrier: str, request: pytest.FixtureRequest) -> None:
    group: Working = request.getfixturevalue(carrier)
    for daemon, port in zip(group.group.ranks, group.tensor_ports()):
        held = [connect(port) for _ in range(200)]  # that say nothing
        for said in garbage():
            with connect(port) as peer, contextlib.suppress(ConnectionError):
                peer.sendall(said)
            held.append(connect(port))
            with contextlib.suppress(ConnectionError):
                held[-1].sendall(said)
        group.check()
        descriptors = len(list(pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir()))
        for peer in held:
            peer.close()
        # They are taken back, once they have gone.
        eventually(lambda: len(list(pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir())) < max(60, descriptors - 150))


@BY_HAND
def test_a_member_that_lies_at_the_tensors_port(tmp_path: pathlib.Path) -> None:
    """With the key, which the leader tells it; the leader names the lie, and forms a group with an honest rank."""
    group = Group(tmp_path, 2, "grpc", PATIENT)
    leader = group.leader
    with contextlib.ExitStack() as at_end:
        at_end.callback(group.kill)
        at_end.callback(lambda: print(group.log()))
        leader.launch()
        eventually(lambda: "a rank has joined" in leader.log)
        liar = join(group.leader_address, **by_hand.fitting(group.leader_address))
        at_end.callback(liar.close)
        own = liar.hear("prepare").group
        its_port = at_end.enter_context(taken_port())  # takes the leader's edge, and says nothing
        liar.say(peer_message("RankMessage", prepared=peer_message("Prepared", group=own, carrier_address=its_port.encode())))
        stream = transfer(liar.hear("form").carrier_addresses[0].decode())
        stream.say(peer_message("TransferRequest", hello=peer_message("TransferHello", rank=1, key=own.key)))
        stream.say(peer_message("TransferRequest", frame=peer_message("TransferFrame", header=b"x", payload_bytes=-5)))
        end = stream.end()
        assert end.code == Code.INVALID_ARGUMENT and "payload_bytes must be at least 0, got -5" in end.message
        eventually(lambda: "payload_bytes must be at least 0, got -5" in leader.log)
        liar.close()
        eventually(lambda: "a rank is lost" in leader.log)
        group.ranks[1].start()
        leader.await_ready()
        with group.client() as client:
            pipeline = create_mlp(client, "honest", devices=["cpu:0", "1/cpu:0"])
            assert pipeline.train_step(*mlp_batch(0), timeout=30).step == 1, group.log()


# --- Ports that are taken, names that nobody knows ---


@pytest.mark.parametrize(
    ("flag", "rank"), [("--peer-listen", 0), ("--leader", 0), ("--metrics-listen", 1), ("--admin-listen", 1)]
)
def test_a_port_that_is_taken(stray: StartStray, flag: str, rank: int) -> None:
    with taken_port() as address:
        code, log = stray("127.0.0.1:%d" % free_ports(1)[0], f"{flag}={address}", rank=rank).end()
    assert code == 1, log
    assert 'reason="LISTEN_FAILED"' in log
    assert re.search(rf'problem="{flag}: can\'t listen there: .*Address already in use.*, got {address}"', log), log


def test_a_name_that_nobody_knows(stray: StartStray) -> None:
    stray("no-such-host.invalid:8475", "--insecure").await_refusal("RANK_LOST", "no-such-host.invalid:8475")
