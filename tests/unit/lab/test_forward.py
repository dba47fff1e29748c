"""The port that leads to the guest is there as long as the session, and no longer."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tpu_image.lab.forward import forwarding


def test_the_port_is_free_as_soon_as_it_is_over() -> None:
    with forwarding(0, [socket.socket()]) as port:
        time.sleep(0.2)  # until its thread waits for a connection
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
    with forwarding(port, [socket.socket()]) as again:
        assert again == port


class _Echo(socketserver.BaseRequestHandler):
    """Takes the guest's place: sends what comes back, until it ends."""

    def handle(self) -> None:
        while data := self.request.recv(100):
            self.request.sendall(data)


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setattr("tpu_image.lab.forward.GUEST_PORT", server.server_address[1])
        yield
        server.shutdown()


def wait_for(sockets: list[socket.socket]) -> None:
    end = time.monotonic() + 10
    while not sockets and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.parametrize("leave", ["orderly", "reset"])
@pytest.mark.usefixtures("guest")
def test_who_tries_again_and_again_does_not_use_the_sockets_up(leave: str) -> None:
    only = [socket.socket()]
    with forwarding(0, only) as port:
        for _ in range(5):
            wait_for(only)
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(b"hello")
                assert client.recv(100) == b"hello"
                if leave == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_guest_that_does_not_listen_yet_costs_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_image.lab.forward.GUEST_PORT", 1)
    only = [socket.socket()]
    with forwarding(0, only) as port:
        for _ in range(5):
            wait_for(only)
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                assert client.recv(1) == b""
        wait_for(only)
        assert len(only) == 1
