"""A port of this machine that leads to the guest's SSH, through sockets that were made in the guest's network."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Iterator

from tpu_image.lab.enclosure import GUEST_PORT

_CHUNK = 65536


@contextlib.contextmanager
def forwarding(port: int, connections: list[socket.socket]) -> Iterator[int]:
    """Take connections on a loopback port; the port is given, also where it was 0.

    Each has a socket as long as it lasts; where none is left, connections are closed at once.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.create_server(("127.0.0.1", port))
    port = listener.getsockname()[1]
    threading.Thread(target=_serve, args=(listener, connections), daemon=True).start()
    try:
        yield port
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # a close alone does not wake who waits for a connection
        listener.close()


def _serve(listener: socket.socket, connections: list[socket.socket]) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # closed: the session is over
            return
        if connections:
            threading.Thread(target=_join, args=(client, connections), daemon=True).start()
        else:
            client.close()


def _join(client: socket.socket, connections: list[socket.socket]) -> None:
    with client, contextlib.suppress(OSError, IndexError):
        inside = connections.pop()
        try:
            inside.connect(("127.0.0.1", GUEST_PORT))
            back = threading.Thread(target=_copy, args=(inside, client), daemon=True)
            back.start()
            _copy(client, inside)
            back.join()
        finally:
            _dissolve(inside)
            connections.append(inside)


def _dissolve(connection: socket.socket) -> None:
    """Make a socket one that can be connected again (``AF_UNSPEC`` in connect(2)): there are no new ones in there.

    Raises:
        OSError: it stays connected.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    unspecified = bytes(16)
    if libc.connect(connection.fileno(), unspecified, len(unspecified)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):  # also where the source was reset: the target would wait for more
        target.shutdown(socket.SHUT_WR)
