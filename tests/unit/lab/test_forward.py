"""The port that leads to the guest refuses who comes when every way into the guest is used up."""

from __future__ import annotations

import socket
import time

import pytest

from tpu_image.lab.forward import forwarding


def test_connections_beyond_those_there_are_ways_for_are_refused() -> None:
    with forwarding(0, [socket.socket()]) as port, socket.create_connection(("127.0.0.1", port)):
        with pytest.raises(ConnectionRefusedError):
            for _ in range(100):
                socket.create_connection(("127.0.0.1", port)).close()
                time.sleep(0.05)
