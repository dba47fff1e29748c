"""The port that leads to the guest is there as long as the session, and no longer."""

from __future__ import annotations

import socket
import time

import pytest

from tpu_image.lab.forward import forwarding


def test_the_port_is_free_as_soon_as_it_is_over() -> None:
    with forwarding(0, [socket.socket()]) as port:
        time.sleep(0.2)  # until its thread waits for a connection
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
    with forwarding(port, [socket.socket()]) as again:
        assert again == port
