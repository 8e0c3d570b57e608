"""The service units, of a daemon and of a rank: systemd's own checks where it is installed, the flags and times in it, and its protocol with the daemon."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import tomllib

import pytest
from conftest import PENSTOCKD, ROOT
from manifests import Document, seconds
from test_manifests import end_seconds

FOLDER = ROOT / "deploy" / "systemd"
UNIT = FOLDER / "penstockd.service"
TEMPLATE = FOLDER / "penstockd@.service"
CONFIG = FOLDER / "penstockd.toml"
UNITS = pytest.mark.parametrize("source", [UNIT, TEMPLATE], ids=["daemon", "rank"])


def settings(source: pathlib.Path = UNIT) -> dict[str, list[str]]:
    """Every setting of the unit, with all of its values; of a template as its second instance has them."""
    found: dict[str, list[str]] = {}
    text = source.read_text().replace("\\\n", " ").replace("%i", "1").replace("%d", "/run/credentials/penstockd@1.service")
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze here: the unit is not checked by systemd itself")
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def placed(source: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The unit with this build's daemon."""
    path = folder / source.name.replace("@.", "@1.")
    path.write_text(source.read_text().replace("/usr/bin/penstockd", PENSTOCKD))
    return path


@pytest.fixture
def unit(tmp_path: pathlib.Path) -> pathlib.Path:
    return placed(UNIT, tmp_path)


@UNITS
def test_systemd_finds_nothing(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    unit = placed(source, tmp_path)
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    assert "WatchdogSecs" in analyze("verify", "--man=no", "--recursive-errors=no", str(unit)).stderr


@UNITS
def test_its_exposure_is_small(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    unit = placed(source, tmp_path)
    assert analyze("security", "--offline=true", "--threshold=20", str(unit)).returncode == 0
    unit.write_text(unit.read_text().replace("ProtectSystem=strict\n", "").replace("CapabilityBoundingSet=\n", ""))
    assert analyze("security", "--offline=true", "--threshold=20", str(unit)).returncode != 0


@UNITS
def test_hardening_stands(source: pathlib.Path) -> None:
    """What operators rely on, also where systemd is not installed."""
    have = settings(source)
    for name, value in {
        "Type": "notify", "DynamicUser": "yes", "NoNewPrivileges": "yes",
        "ProtectSystem": "strict", "CapabilityBoundingSet": "", "SystemCallFilter": "@system-service",
        "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX AF_NETLINK", "DevicePolicy": "closed",
    }.items():  # fmt: skip
        assert have[name] == [value], name
    assert have["StateDirectory"] == ["penstock" if source == UNIT else "penstock-1"]
    assert all(device.startswith("char-nvidia") for device in have["DeviceAllow"])
    assert "MemoryDenyWriteExecute" not in have, "LibTorch and CUDA generate code at run time"
    assert "PrivateDevices" not in have, "it would hide the GPUs"


@UNITS
def test_the_end_fits_into_its_time(source: pathlib.Path, flags: dict[str, Document]) -> None:
    defaults = {name: flag["default"] for name, flag in flags.items()}
    total = end_seconds(defaults)
    limit = settings(source)["TimeoutStopSec"][0]
    assert total < float(limit)
    assert f"{total:.0f} < {limit}" in source.read_text().replace("\n# ", " ")


def test_a_rank_differs_from_a_daemon_where_it_must() -> None:
    """The template is the unit, line by line, but for what the rank changes."""
    one, other = settings(UNIT), settings(TEMPLATE)
    changed = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    assert changed == {"Description", "Wants", "After", "ExecStart", "LoadCredential", "TimeoutStartSec", "StateDirectory", "Environment"}


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_flags_and_configuration_of_a_rank_exist(rank: int, tmp_path: pathlib.Path) -> None:
    """As systemd would start it, with certificates of this test; there is no rank 2 of 2."""
    (command,) = settings(TEMPLATE)["ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == "/usr/bin/penstockd" and "--rank=1" in arguments
    credentials = dict(entry.split(":") for entry in settings(TEMPLATE)["LoadCredential"])
    certs = tmp_path / "certs"
    environment = {**os.environ, "DEV_CERTS_SERVER": "URI:spiffe://penstock/rank"}
    subprocess.run([ROOT / "deploy/dev_certs.sh", certs, "admin"], env=environment, check=True)
    (certs / "server.crt").rename(certs / "tls.crt")
    (certs / "server.key").rename(certs / "tls.key")
    assert all((certs / name).exists() and path == f"/etc/penstock/tls/{name}" for name, path in credentials.items())
    config = (FOLDER / "group.toml").read_text()
    (line,) = re.findall(r"with a line for the ranks: (.*)$", config, re.M)
    (tmp_path / "identities").write_text(line + "\n")
    (tmp_path / "group.toml").write_text(config.replace("/etc/penstock/identities", f"{tmp_path}/identities"))
    here = [argument.replace("/etc/penstock/group.toml", f"{tmp_path}/group.toml") for argument in arguments]
    here = [argument.replace("/run/credentials/penstockd@1.service", str(certs)) for argument in here]
    here = [f"--rank={rank}" if argument == "--rank=1" else argument for argument in here]
    here = [f"--state-dir={tmp_path}/state" if argument.startswith("--state-dir=") else argument for argument in here]
    done = subprocess.run([PENSTOCKD, "--check-config", *here], env={}, capture_output=True, text=True)
    assert done.returncode == (0 if rank < 2 else 2), done.stderr


def test_flags_and_configuration_exist(tmp_path: pathlib.Path) -> None:
    (command,) = settings()["ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == "/usr/bin/penstockd"
    here = [argument.replace("/etc/penstock/penstockd.toml", str(CONFIG)) for argument in arguments]
    assert here != arguments
    done = subprocess.run([PENSTOCKD, "--check-config", *here], env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_watchdog_waits_longer_than_the_liveness_rule() -> None:
    """A stall of 60 s is the rule's; a watchdog that is fed at half of its time must not be faster."""
    assert seconds(settings()["WatchdogSec"][0]) > 60


def test_default_ports_are_those_of_the_daemon(flags: dict[str, Document]) -> None:
    config = tomllib.loads(CONFIG.read_text())
    for name in ("listen", "metrics-listen"):
        assert config[name] == flags[name]["default"]


SO_TIMESTAMPNS = 35  # of Linux; Python has no name for it


def arrival(manager: socket.socket) -> tuple[bytes, float]:
    """The next message, and when the kernel took it, however late this process looks; seconds."""
    word, ((_, _, stamp),), _, _ = manager.recvmsg(4096, 64)
    seconds, nanos = struct.unpack("@ll", stamp)
    return word, seconds + nanos * 1e-9


def test_notifications(tmp_path: pathlib.Path, unit: pathlib.Path) -> None:
    """READY once it serves, WATCHDOG while it lives, STOPPING at the end: as Type=notify and WatchdogSec expect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = tmp_path / "notify"
        manager.bind(str(address))
        manager.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        manager.settimeout(60)
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "200000", "HOME": str(tmp_path)}
        process = subprocess.Popen(
            [PENSTOCKD, "--listen=127.0.0.1:0", "--metrics-listen=off", "--admin-listen=off", f"--state-dir={tmp_path}/state"],
            env=environment, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            first = manager.recv(4096).decode()
            assert first.startswith("READY=1\nSTATUS=serving on 127.0.0.1:")
            feeds = [arrival(manager) for _ in range(4)]
            assert [word for word, _ in feeds] == [b"WATCHDOG=1"] * 4
            assert feeds[3][1] - feeds[0][1] > 0.2, "it is fed by time, not in a hurry"
            process.send_signal(signal.SIGTERM)
            words = []
            while not words or not words[-1].startswith("STOPPING=1"):
                words.append(manager.recv(4096).decode())
            assert words[-1].startswith("STOPPING=1\nSTATUS=draining")
            assert manager.recv(4096) == b"WATCHDOG=1", "a daemon that drains lives"
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 1
        finally:
            process.kill()
            process.wait()


def test_the_watchdog_bites_a_daemon_that_stands_still(tmp_path: pathlib.Path) -> None:
    """A stand-in for systemd: who is not fed within WATCHDOG_USEC gets SIGABRT, and the next start gets the state folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = tmp_path / "notify"
        manager.bind(str(address))
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "1000000", "HOME": str(tmp_path)}
        command = [PENSTOCKD, "--listen=127.0.0.1:0", "--metrics-listen=off", "--admin-listen=off", f"--state-dir={tmp_path}/state"]
        for start in range(2):
            manager.settimeout(60)
            process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            try:
                assert manager.recv(4096).startswith(b"READY=1"), f"start {start}"
                assert manager.recv(4096) == b"WATCHDOG=1"
                process.send_signal(signal.SIGSTOP)
                manager.settimeout(1)
                with pytest.raises(TimeoutError):
                    while True:  # what it had sent before it stood still
                        assert manager.recv(4096) == b"WATCHDOG=1"
                process.send_signal(signal.SIGABRT)
                process.send_signal(signal.SIGCONT)
                assert process.wait(30) == -signal.SIGABRT
                manager.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while manager.recv(4096):  # its last words, on the way to its end
                        pass
            finally:
                process.kill()
                process.wait()


def test_no_service_manager_is_no_matter(tmp_path: pathlib.Path) -> None:
    """A socket that nobody listens on, an address of a foreign kind: the daemon serves all the same."""
    for address in (f"{tmp_path}/nobody", "vsock:2:1", "@penstock-nobody", "/" + "x" * 300):
        environment = {"NOTIFY_SOCKET": address, "HOME": str(tmp_path)}
        process = subprocess.Popen(
            [PENSTOCKD, "--listen=127.0.0.1:0", "--metrics-listen=off", "--admin-listen=off", "--drain-announce=0s"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        while "listening" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stderr.close()
    assert not os.path.exists(f"{tmp_path}/nobody")
