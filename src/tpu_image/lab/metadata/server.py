"""The emulated metadata server itself: HTTP on a loopback address, one thread for each connection.

What a guest sends is untrusted: names are looked up in a tree of values and nowhere else, bodies, connections and the
log are bounded, and nothing it sends is kept but guest attributes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer

from tpu_image.lab.metadata.faults import Fault
from tpu_image.lab.metadata.handler import Handler
from tpu_image.lab.metadata.machine import Machine
from tpu_image.lab.metadata.state import State
from tpu_image.lab.result import MetadataRequest

LOG_LIMIT = 10_000
"""Requests that the log holds; the first ones of a longer log are forgotten."""

CONNECTIONS_LIMIT = 128
PATH_LIMIT = 500
"""Characters of a request's path that the log keeps."""


class MetadataServer(ThreadingHTTPServer):
    """A server for one machine; made by :func:`serving`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, machine: Machine, faults: Sequence[Fault], listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()  # the base class has made one of its own
        self.socket = listener
        self.server_port = listener.getsockname()[1]
        self.state = State(machine)
        self.stopping = threading.Event()
        self._faults = tuple(faults)
        self._met: Counter[Fault] = Counter()
        self._log: deque[MetadataRequest] = deque(maxlen=LOG_LIMIT)
        self._lock = threading.Lock()
        self._connections: set[socket.socket | tuple[bytes, socket.socket]] = set()
        self._started = time.monotonic()
        self._first_request: float | None = None

    @property
    def host(self) -> str:
        """``address:port`` to ask it at."""
        return f"{self.server_address[0]!s}:{self.server_port}"

    @property
    def requests(self) -> tuple[MetadataRequest, ...]:
        """What was asked so far, in the order in which it was answered. A status of 0: no whole answer."""
        with self._lock:
            return tuple(self._log)

    def power_on(self) -> None:
        """Count the seconds of the log from now, when the guest is switched on."""
        self._started = time.monotonic()

    def fault(self, path: str) -> Fault | None:
        """Give the fault that this request meets, and count it."""
        with self._lock:
            now = time.monotonic()
            if self._first_request is None:
                self._first_request = now
            for fault in self._faults:
                if fault.concerns(path) and fault.holds(now - self._first_request, self._met[fault]):
                    self._met[fault] += 1
                    return fault
        return None

    def record(self, method: str, path: str, status: int, fault: Fault | None) -> None:
        """Write one request down."""
        seconds = time.monotonic() - self._started
        with self._lock:
            self._log.append(MetadataRequest(seconds, method, path[:PATH_LIMIT], status, str(fault or "")))

    def process_request(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Give the connection a thread, or close it where there are too many."""
        with self._lock:
            full = len(self._connections) >= CONNECTIONS_LIMIT
            if not full:
                self._connections.add(request)
        if full:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection and forget it."""
        with self._lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a guest that hangs up is no error."""

    def stop(self) -> None:
        """End :meth:`serve_forever`, wake who waits, and hang up."""
        self.stopping.set()
        self.state.close()
        self.shutdown()
        self.server_close()
        with self._lock:
            connections = [one for one in self._connections if isinstance(one, socket.socket)]
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(
    machine: Machine, faults: Sequence[Fault] = (), listener: socket.socket | None = None
) -> Iterator[MetadataServer]:
    """Run a server in a thread.

    Args:
        machine: what it speaks of.
        faults: what it suffers from; of those that hold at the same time, the first.
        listener: a listening TCP socket, closed in the end; without one, a free port of the loopback address is taken.
    """
    server = MetadataServer(machine, faults, listener or socket.create_server(("127.0.0.1", 0)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
