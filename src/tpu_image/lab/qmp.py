"""QEMU's monitor protocol over a connected socket: commands out, replies and events in.

A small client of our own: the maintained library, qemu.qmp, is under the GPL in parts. Source: QEMU,
docs/interop/qmp-spec.rst. QEMU is started by us, but a guest may have broken out of it: what comes is bounded.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

LIMIT = 4 * 1024 * 1024
"""Bytes of one message at most."""


class QmpError(Exception):
    """The monitor says something that is no message, or refuses a command."""


class Monitor:
    """The host's end of a monitor; it negotiates by itself, and sends what was asked for meanwhile after that."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""
        self._ready = False
        self._waiting: list[bytes] = []

    def send(self, command: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Send a command; its reply is not waited for, nor is it an error where QEMU is gone: its end says more."""
        message = {"execute": command, **({"arguments": arguments} if arguments else {})}
        data = json.dumps(message).encode() + b"\n"
        if self._ready:
            self._write(data)
        else:
            self._waiting.append(data)

    def feed(self, data: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Take what has arrived and yield events: a name and its data; ``error`` for a refused command.

        Raises:
            QmpError: it is no message.
        """
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        if len(self._received) > LIMIT:
            raise QmpError("QEMU's monitor sends a message without end")
        for line in lines:
            if line.strip():
                yield from self._take(line)

    def _write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(data)

    def _take(self, line: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise QmpError("QEMU's monitor sends what is no JSON") from None
        if not isinstance(message, dict):
            raise QmpError("QEMU's monitor sends what is no message")
        if "QMP" in message:
            self._write(b'{"execute": "qmp_capabilities"}\n')
            self._ready = True
            for waiting in self._waiting:
                self._write(waiting)
            self._waiting.clear()
        elif "error" in message:
            error = message["error"]
            yield "error", error if isinstance(error, dict) else {}
        elif isinstance(message.get("event"), str):
            values = message.get("data")
            yield message["event"], values if isinstance(values, dict) else {}
