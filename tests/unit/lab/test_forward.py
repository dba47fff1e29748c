"""The port that leads to the guest refuses who comes when every way into the guest is used up."""

from __future__ import annotations

import socket

from customise_lab import eventually
from tpu_image.lab.forward import forwarding


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return True
    return False


def test_connections_beyond_those_there_are_ways_for_are_refused() -> None:
    with forwarding(0, [socket.socket()]) as port, socket.create_connection(("127.0.0.1", port)):
        assert eventually(lambda: is_refused(port), 5)


def test_the_port_is_free_as_soon_as_it_is_over() -> None:
    with forwarding(0, [socket.socket()]) as port:
        pass
    assert is_refused(port)
    with forwarding(port, [socket.socket()]) as again:
        assert again == port
