"""What ranks say to each other, said by hand: no second build exists that would differ, lie or stop in mid-message."""

from __future__ import annotations

import functools
import os
import pathlib
import queue
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

import grpc
import penstock
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PROTO = pathlib.Path(__file__).resolve().parents[2] / "proto"
TRANSFER = "/penstock.peer.v1.TransferService/Transfer"


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    described = descriptor_pb2.FileDescriptorSet()
    with tempfile.NamedTemporaryFile() as out:
        files = ("penstock/peer/v1/group.proto", "penstock/peer/v1/transfer.proto")
        subprocess.run(["protoc", f"--proto_path={PROTO}", "--include_imports", f"--descriptor_set_out={out.name}", *files], check=True)
        described.ParseFromString(pathlib.Path(out.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in described.file:
        pool.Add(file)
    return pool


def peer_message(name: str, **fields: Any) -> Any:
    """A message of the package by its name."""
    made = message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"penstock.peer.v1.{name}"))
    return made(**fields)


class Stream:
    """One stream that is written by hand.

    Args:
        address: who serves it.
        path: of the method.
        answer: the name of the messages that come.
        credentials: of the channel; none: plaintext.
    """

    def __init__(self, address: str, path: str, answer: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=options)
        self._answer = answer
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = self._channel.stream_stream(path)(self._requests(), timeout=30)

    def _requests(self) -> Iterator[bytes]:
        while (message := self._said.get()) is not None:
            yield message

    def say(self, message: Any) -> Stream:
        self._said.put(message if isinstance(message, bytes) else message.SerializeToString())
        return self

    def hear(self, kind: str) -> Any:
        """The next message of that kind; others are passed over."""
        for encoded in self._call:
            message = peer_message(self._answer)
            message.ParseFromString(encoded)
            if message.WhichOneof("kind") == kind:
                return getattr(message, kind)
        raise AssertionError("the stream has ended")

    def end(self) -> penstock.PenstockError:
        """How the other side ends it."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            return penstock.PenstockError.from_call(error)
        finally:
            self.close()
        raise AssertionError("the stream has ended in order")

    def close(self) -> None:
        self._said.put(None)
        self._call.cancel()
        self._channel.close()


def join(leader: str, credentials: grpc.ChannelCredentials | None = None, **hello: Any) -> Stream:
    """A rank 1 of 2 that says hello, with these fields."""
    fields = {"rank": 1, "world_size": 2, "instance": secrets.token_bytes(16), "carrier": "grpc", "host": "by-hand", **hello}
    stream = Stream(leader, "/penstock.peer.v1.GroupService/Join", "LeaderMessage", credentials)
    return stream.say(peer_message("RankMessage", hello=peer_message("Hello", **fields)))


def fitting(leader: str) -> dict[str, Any]:
    """The fields of a hello that name the leader's own protocol and build: it tells them to whom it refuses."""
    protocol = int(join(leader, protocol=99).end().values["leader"])
    return {"protocol": protocol, "build": join(leader, protocol=protocol, build="another").end().values["leader"]}


def transfer(address: str) -> Stream:
    """A stream of frames to another rank."""
    return Stream(address, TRANSFER, "TransferResponse")


def listening_ports(pid: int) -> set[int]:
    """All TCP ports at which a process listens."""
    folder = pathlib.Path(f"/proc/{pid}")
    sockets = set()
    for descriptor in (folder / "fd").iterdir():
        try:
            sockets.add(os.readlink(descriptor))
        except FileNotFoundError:  # closed meanwhile
            continue
    ports = set()
    for family in ("tcp", "tcp6"):
        for line in (folder / "net" / family).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports
