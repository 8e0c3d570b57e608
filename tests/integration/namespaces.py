"""Hosts of their own for real daemons: network namespaces at a bridge, and what can go wrong between them.

The process that imports this stands at the bridge, in a network that is its own (own_network.sh): it reaches every host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping

import pytest

_numbers = itertools.count(1)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


@dataclasses.dataclass(frozen=True)
class Host:
    """A network namespace with one interface, eth0.

    Attributes:
        address: of eth0.
        port: the other end of its cable, at the bridge.
    """

    name: str
    address: str
    port: str

    @property
    def socket(self) -> str:
        """An address that callers reach from everywhere, whatever becomes of the cable."""
        return f"unix:/run/{self.name}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What runs a command there; the process is that of the command."""
        return (shutil.which("ip") or "ip", "netns", "exec", self.name)

    def take_down(self) -> None:
        """Pulls its cable: eth0 tells that it has no carrier."""
        _ip("link", "set", self.port, "down")

    def bring_up(self) -> None:
        _ip("link", "set", self.port, "up")

    def narrow(self, bytes_per_second: int) -> None:
        """What comes to it and what it sends queues for that rate, for up to a tenth of a second, and is dropped beyond."""
        limit = ("tbf", "rate", f"{8 * bytes_per_second}bit", "burst", "16kb", "latency", "100ms")
        for where, device in (((), self.port), (("-n", self.name), "eth0")):
            done = subprocess.run(
                ["tc", *where, "qdisc", "replace", "dev", device, "root", *limit], capture_output=True, text=True
            )
            if "kind is unknown" in done.stderr:
                pytest.skip("this kernel has no tbf: no link can be made slow")
            assert done.returncode == 0, done.stderr

    def widen(self) -> None:
        for where, device in (((), self.port), (("-n", self.name), "eth0")):
            subprocess.run(["tc", *where, "qdisc", "del", "dev", device, "root"], check=True)


class Network:
    """Hosts that reach each other, and that this process reaches."""

    def __init__(self, size: int) -> None:
        number = next(_numbers)
        self._bridge = f"bridge{number}"
        self.hosts: list[Host] = []
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"10.77.{number}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for i in range(size):
            host = Host(f"host{number}-{i}", f"10.77.{number}.{i + 1}", f"port{number}-{i}")
            inside = ("-n", host.name)
            _ip("netns", "add", host.name)
            _ip("link", "add", host.port, "master", self._bridge, "type", "veth", "peer", "eth0", "netns", host.name)
            _ip(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip(*inside, "link", "set", device, "up")
            host.bring_up()
            self.hosts.append(host)

    def part(self, *apart: int) -> None:
        """What these hosts send to each other is lost without a word; everybody else reaches them."""
        for i in apart:
            self._isolate(i, "on")

    def join(self, *apart: int) -> None:
        for i in apart:
            self._isolate(i, "off")

    def _isolate(self, host: int, isolated: str) -> None:
        _ip("link", "set", self.hosts[host].port, "type", "bridge_slave", "isolated", isolated)

    def name(self, folder: pathlib.Path, names: Mapping[str, int]) -> None:
        """Lets names lead to hosts, here and there, for what is started from now on."""
        table = folder / "hosts"
        table.write_text("127.0.0.1 localhost\n" + "".join(f"{self.hosts[i].address} {name}\n" for name, i in names.items()))
        subprocess.run(["mount", "--bind", table, "/etc/hosts"], check=True)

    def close(self) -> None:
        for host in self.hosts:
            _ip("netns", "del", host.name)  # its cable goes once nobody is there any more
        _ip("link", "del", self._bridge)


@contextlib.contextmanager
def hosts_of_their_own(size: int) -> Iterator[Network]:
    """Skips the test where this process has no network of its own."""
    if "PENSTOCK_OWN_NETWORK" not in os.environ:
        pytest.skip("needs a network of its own: run it by tests/integration/own_network.sh")
    network = Network(size)
    try:
        yield network
    finally:
        network.close()


@pytest.fixture
def three_hosts() -> Iterator[Network]:
    with hosts_of_their_own(3) as network:
        yield network
