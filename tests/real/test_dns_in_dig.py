"""The lab's name server, asked by a real resolver."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from tpu_image.lab import dns

pytestmark = pytest.mark.real


@pytest.fixture
def port() -> Iterator[int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as streams,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(streams.getsockname())
        with dns.serving(
            datagrams, streams, dns.names("one.us-east5-a.c.tpu-image-lab.internal", "10.128.0.15")
        ):
            yield streams.getsockname()[1]


def dig(port: int, *arguments: str) -> str:
    command = ["dig", "@127.0.0.1", "-p", str(port), "+time=5", "+tries=2", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("transport", ["+notcp", "+tcp"])
def test_dig_understands_it(port: int, transport: str) -> None:
    assert dig(port, transport, "+short", "metadata.google.internal") == "169.254.169.254\n"
    assert "status: NXDOMAIN" in dig(port, transport, "example.com")
