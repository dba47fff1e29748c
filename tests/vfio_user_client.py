"""A client of vfio-user for tests: it says what it is told to, right or wrong."""

from __future__ import annotations

import json
import socket
import struct
import time
from pathlib import Path
from typing import NamedTuple

from tpu_image.lab.vfio_user.config_space import Identity
from tpu_image.lab.vfio_user.process import Emulation

V6E = Identity(0x1AE0, 0x006F, 0x1AE0, 0x00D1)
TPU7X = Identity(0x1AE0, 0x0076, 0x1AE0, 0x00F2)
CONFIG = 7
(VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO, _, GET_IRQ_INFO, SET_IRQS, READ, WRITE) = range(
    1, 11
)
RESET = 13
HEADER = struct.Struct("=HHIII")
PROPOSAL = json.dumps({"capabilities": {"max_msg_fds": 8, "max_data_xfer_size": 1048576}}).encode() + b"\0"


class Reply(NamedTuple):
    identifier: int
    command: int
    flags: int
    error: int
    body: bytes


class Client:
    """One connection to a function."""

    def __init__(self, path: Path, *, greet: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(str(path))
        self.identifier = 0
        if greet:
            self.hello = self.ask(1, struct.pack("=HH", 0, 1) + PROPOSAL)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(
        self,
        command: int,
        body: bytes = b"",
        *,
        flags: int = 0,
        size: int | None = None,
        fds: tuple[int, ...] = (),
    ) -> None:
        self.identifier = (self.identifier + 1) % 65536
        length = HEADER.size + len(body) if size is None else size
        data = HEADER.pack(self.identifier, command, length, flags, 0) + body
        if fds:
            socket.send_fds(self.socket, [data], list(fds))
        else:
            self.socket.sendall(data)

    def receive(self) -> Reply:
        identifier, command, size, flags, error = HEADER.unpack(self._exactly(HEADER.size))
        return Reply(identifier, command, flags, error, self._exactly(size - HEADER.size))

    def ask(self, command: int, body: bytes = b"", *, fds: tuple[int, ...] = ()) -> Reply:
        self.send(command, body, fds=fds)
        reply = self.receive()
        assert (reply.identifier, reply.command) == (self.identifier, command)
        return reply

    def hung_up(self) -> bool:
        """Whether the server has closed the connection; waits for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def read(self, region: int, offset: int, count: int) -> bytes:
        reply = self.ask(9, struct.pack("=QII", offset, region, count))
        assert reply.error == 0
        return reply.body[16:]

    def write(self, region: int, offset: int, data: bytes) -> Reply:
        return self.ask(10, struct.pack("=QII", offset, region, len(data)) + data)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the server hung up")
            data += part
        return data


def connected(tpus: Emulation, name: str = "v6e") -> Client:
    """A client; the one before may not have been seen off yet."""
    for _ in range(200):
        try:
            return Client(tpus.socket(name))
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the function does not let a new client in")


def dma_map(address: int, size: int) -> bytes:
    return struct.pack("=IIQQQ", 32, 3, 0, address, size)


def dma_unmap(address: int, size: int, flags: int = 0) -> bytes:
    return struct.pack("=IIQQ", 24, flags, address, size)
