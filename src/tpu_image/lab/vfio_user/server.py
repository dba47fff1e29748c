"""The server: one process, one thread, one Unix socket for each function, and clients that it does not trust.

A function has one client at a time, as the specification has it. Whatever breaks the framing (a size below the
header's or above the limit, a reply that nobody asked for, anything before VERSION) ends that connection and nothing
else; whatever is wrong inside a frame is answered with an error. A client that does not read its replies is not read
from either.
"""

from __future__ import annotations

import array
import errno
import os
import selectors
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tpu_image.lab.vfio_user import messages
from tpu_image.lab.vfio_user.function import RefusedError, TpuFunction
from tpu_image.lab.vfio_user.messages import Command, Header

_READ_SIZE = 64 * 1024
_UNSENT_LIMIT = 2 * messages.MAX_MESSAGE
"""Bytes of replies that wait for a client before its requests have to wait."""

_KERNEL_MAX_FDS = 253
"""``SCM_MAX_FD``: descriptors in one message at most. With room for all none is cut off, and so all are counted."""

_BACKLOG = 128


class _BrokenProtocolError(Exception):
    """The client's bytes are no messages: the connection has to end."""


class _Client:
    """A connection: bytes received and not yet understood, replies not yet sent."""

    def __init__(self, connection: socket.socket, function: TpuFunction) -> None:
        self.socket = connection
        self.function = function
        self.greeted = False
        self._received = bytearray()
        self._unsent = bytearray()

    def receive(self) -> bool:
        """Take what has arrived; False where the client has hung up."""
        try:
            data, ancillary, _, _ = self.socket.recvmsg(
                _READ_SIZE, socket.CMSG_SPACE(4 * _KERNEL_MAX_FDS), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return True
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._close(content)
        self._received += data
        return bool(data)

    def work(self) -> None:
        """Answer the whole requests that are here and send what can be sent.

        Raises:
            _BrokenProtocolError: the bytes are no request.
        """
        self._send()
        while len(self._unsent) < _UNSENT_LIMIT and (request := self._next_request()):
            self._answer(*request)
            self._send()

    def events(self) -> int:
        """Say what to wait for."""
        reading = selectors.EVENT_READ if len(self._unsent) < _UNSENT_LIMIT else 0
        return reading | (selectors.EVENT_WRITE if self._unsent else 0)

    def _close(self, content: bytes) -> None:
        descriptors = array.array("i")
        descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
        for descriptor in descriptors:
            os.close(descriptor)
        self.function.counts["descriptors"] += len(descriptors)

    def _next_request(self) -> tuple[Header, bytes] | None:
        if len(self._received) < messages.HEADER_SIZE:
            return None
        header = Header(*messages.unpack(Header, self._received))
        if not messages.HEADER_SIZE <= header.size <= messages.MAX_MESSAGE:
            raise _BrokenProtocolError
        if header.flags & messages.TYPE_MASK != messages.TYPE_COMMAND:
            raise _BrokenProtocolError
        if not self.greeted and header.command != Command.VERSION:
            raise _BrokenProtocolError
        if len(self._received) < header.size:
            return None
        body = bytes(self._received[messages.HEADER_SIZE : header.size])
        del self._received[: header.size]
        return header, body

    def _answer(self, header: Header, body: bytes) -> None:
        error, reply = 0, b""
        try:
            if header.command == Command.VERSION and self.greeted:
                raise RefusedError(errno.EINVAL)
            reply = self.function.answer(header.command, body)
        except RefusedError as refused:
            error = refused.number
            self.function.counts["refused"] += 1
        if not header.flags & messages.NO_REPLY:
            flags = messages.TYPE_REPLY | (messages.ERROR if error else 0)
            self._unsent += messages.message(
                header.command, reply, identifier=header.identifier, flags=flags, error=error
            )
        self.greeted = self.greeted or not error

    def _send(self) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]


class Server:
    """Listens on a socket for each function; :meth:`run` serves until it is told to stop."""

    def __init__(self, functions: Mapping[Path, TpuFunction]) -> None:
        """Bind the sockets, for this user alone.

        Raises:
            OSError: a socket cannot be made; those made before are gone again.
        """
        self._selector = selectors.DefaultSelector()
        self._clients: dict[TpuFunction, _Client] = {}
        self._paths: list[Path] = []
        self._listeners: list[socket.socket] = []
        self._running = True
        try:
            for path, function in functions.items():
                self._listen(path, function)
        except OSError:
            self.close()
            raise

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back whenever a descriptor can be read."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def run(self) -> None:
        """Serve until :meth:`stop`."""
        while self._running:
            events = self._selector.select()
            # A client that has hung up must be gone before its successor knocks.
            for key, _ in sorted(events, key=lambda event: not isinstance(event[0].data, _Client)):
                if isinstance(key.data, _Client):
                    self._serve(key.data)
                else:
                    key.data()

    def stop(self) -> None:
        """Make :meth:`run` return."""
        self._running = False

    def close(self) -> None:
        """Hang up on every client and remove the sockets."""
        for client in list(self._clients.values()):
            self._drop(client)
        for listener in self._listeners:
            listener.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._selector.close()

    def _listen(self, path: Path, function: TpuFunction) -> None:
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()  # left by a server that was killed
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listeners.append(listener)
        with _private_files():
            listener.bind(str(path))
        self._paths.append(path)
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self.watch(listener.fileno(), lambda: self._accept(listener, function))

    def _accept(self, listener: socket.socket, function: TpuFunction) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # it went away again
        present = self._clients.get(function)
        if present is not None and present.greeted:
            connection.close()
            return
        if present is not None:
            self._drop(present)  # connected, never said what it is: it must not keep others out
        connection.setblocking(False)
        client = _Client(connection, function)
        self._clients[function] = client
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _serve(self, client: _Client) -> None:
        if self._clients.get(client.function) is not client:
            return  # dropped since the selector spoke
        try:
            wanted = client.events()
            alive = client.receive() if wanted & selectors.EVENT_READ else True
            client.work()
        except _BrokenProtocolError:
            client.function.counts["dropped"] += 1
            alive = False
        except OSError:
            alive = False
        if alive:
            self._selector.modify(client.socket, client.events(), client)
        else:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        del self._clients[client.function]
        self._selector.unregister(client.socket)
        client.socket.close()
        client.function.forget_client()


@contextmanager
def _private_files() -> Iterator[None]:
    """What is made inside is for this user alone. The mask is the process's, so no other thread may be running."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
