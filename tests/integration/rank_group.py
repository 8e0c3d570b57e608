"""Several real penstockd, on one host or each on its own, that hold pipelines together."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence

import penstock

from daemon_process import Daemon, eventually, free_ports
from namespaces import Network

QUICK_DRAIN = "--drain-announce=0s"


class RankProcess(Daemon):
    """A rank that does not lead: it has no API, and is ready once the leader has it."""

    def start(self) -> None:
        self.launch()
        self.await_leader()

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.metrics_address}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def await_leader(self) -> None:
        def joined() -> bool:
            assert self.alive(), f"the rank has ended:\n{self.log[-4000:]}"
            return self.ready()

        eventually(joined)


class Group:
    """A leader and other ranks.

    Args:
        folder: for states and logs.
        size: how many processes.
        transport: ``ucx`` or ``grpc``.
        flags: further ones, of each process.
        devices: of each rank; default: two.
        network: a host for each rank; default: all on this one.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        size: int,
        transport: str = "grpc",
        *flags: str,
        devices: Sequence[tuple[str, ...]] = (),
        network: Network | None = None,
    ) -> None:
        hosts = [host.address for host in network.hosts] if network else ["127.0.0.1"] * size
        self.leader_address = f"{hosts[0]}:{8475 if network else free_ports(1)[0]}"
        self.ranks: list[Daemon] = []
        for rank in range(size):
            own = folder / f"rank{rank}"
            own.mkdir()
            kind = RankProcess if rank > 0 else Daemon
            self.ranks.append(
                kind(
                    own,
                    f"--rank={rank}",
                    f"--world-size={size}",
                    f"--leader={self.leader_address}",
                    f"--peer-transport={transport}",
                    QUICK_DRAIN,
                    *(("--insecure",) if network else ()),
                    *flags,
                    devices=devices[rank] if devices else ("cpu:0", "cpu:1"),
                    prefix=network.hosts[rank].prefix if network else (),
                    listen=network.hosts[rank].socket if network else "",
                    host=hosts[rank],
                )
            )

    @property
    def leader(self) -> Daemon:
        return self.ranks[0]

    def start(self) -> None:
        """All at once: the leader is ready when it has them all."""
        for rank in self.ranks[1:]:
            rank.launch()
        try:
            self.leader.start()
        except AssertionError as error:
            raise AssertionError(f"the group is not ready:\n{self.log()}") from error

    def stop(self) -> None:
        """As an operator would: the leader first, which has work to finish. Each must exit with 0."""
        for rank in self.ranks:
            rank.stop()

    def kill(self) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                if rank.alive():
                    rank._process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
            rank.kill()

    @contextlib.contextmanager
    def running(self) -> Iterator[Group]:
        try:
            self.start()
            yield self
            self.stop()
        finally:
            self.kill()

    def log(self) -> str:
        return "\n".join(f"--- rank {k}\n{rank.log[-3000:]}" for k, rank in enumerate(self.ranks))

    def client(self) -> penstock.Client:
        return penstock.Client(self.leader.address)
