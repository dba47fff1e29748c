"""The name server of the lab, asked by real resolvers and by nonsense."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.lab import dns

KNOWN = dns.names("one.us-east5-a.c.tpu-image-lab.internal", "10.128.0.15")
A, AAAA, ANY = 1, 28, 255


def query(name: str, kind: int = A, *, flags: int = 0x0100, questions: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    return struct.pack("!HHHHHH", 0xABCD, flags, questions, 0, 0, 0) + labels + struct.pack("!HH", kind, 1)


def told(reply: bytes | None) -> tuple[int, str]:
    """The response code and the address of an answer."""
    assert reply is not None
    identifier, flags, _, answers, *_ = struct.unpack_from("!HHHHHH", reply)
    assert identifier == 0xABCD
    assert flags & 0x8000
    return flags & 0xF, socket.inet_ntoa(reply[-4:]) if answers else ""


ANSWERS = [
    ("metadata.google.internal", A, (0, "169.254.169.254")),
    ("Metadata.Google.Internal", A, (0, "169.254.169.254")),
    ("metadata", A, (0, "169.254.169.254")),
    ("metadata.google.internal", AAAA, (0, "")),
    ("metadata.google.internal", ANY, (0, "")),
    ("one.us-east5-a.c.tpu-image-lab.internal", A, (0, "10.128.0.15")),
    ("one", A, (0, "10.128.0.15")),
    ("example.com", A, (3, "")),
    ("evil.metadata.google.internal", A, (3, "")),
]


@pytest.mark.parametrize(("name", "kind", "expected"), ANSWERS, ids=str)
def test_it_knows_the_emulated_network_and_nothing_else(
    name: str, kind: int, expected: tuple[int, str]
) -> None:
    assert told(dns.answer(query(name, kind), KNOWN)) == expected


WRONG = {
    "an update": (query("metadata", flags=0x2800), 4),
    "no question": (query("metadata", questions=0), 1),
    "two questions": (query("metadata", questions=2), 1),
    "a pointer to itself": (query("x")[:12] + b"\xc0\x0c\0\1\0\1", 1),
    "a label too long": (query("x")[:12] + b"\x40" + b"a" * 64 + b"\0\0\1\0\1", 1),
    "a name without end": (query("x")[:12] + b"\x3f" + b"a" * 20, 1),
    "a name too long": (query(".".join(["a" * 63] * 5)), 1),
    "no type": (query("metadata")[:-1], 1),
}


@pytest.mark.parametrize(("data", "code"), WRONG.values(), ids=WRONG)
def test_what_is_no_query_is_told_so(data: bytes, code: int) -> None:
    assert told(dns.answer(data, KNOWN)) == (code, "")


def test_answers_and_scraps_are_not_answered() -> None:
    assert dns.answer(query("metadata", flags=0x8100), KNOWN) is None
    assert dns.answer(b"\0" * 11, KNOWN) is None


@given(st.binary(max_size=300) | st.binary(max_size=60).map(lambda tail: query("metadata")[:12] + tail))
def test_any_bytes_have_an_answer_or_none(data: bytes) -> None:
    reply = dns.answer(data, KNOWN)
    assert reply is None or len(reply) <= len(data) + 16


@pytest.fixture
def port() -> Iterator[int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as streams,
        socket.socket(type=socket.SOCK_DGRAM) as datagrams,
    ):
        datagrams.bind(streams.getsockname())
        with dns.serving(datagrams, streams, KNOWN):
            yield streams.getsockname()[1]


def ask_stream(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall(struct.pack("!H", len(data)) + data)
        reply = client.recv(4096)
    assert struct.unpack_from("!H", reply) == (len(reply) - 2,)
    return reply[2:]


def ask_datagram(port: int, data: bytes) -> bytes:
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.settimeout(20)
        client.sendto(data, ("127.0.0.1", port))
        return client.recv(4096)


@pytest.mark.parametrize("ask", [ask_stream, ask_datagram])
def test_both_transports_give_one_answer(port: int, ask: Callable[[int, bytes], bytes]) -> None:
    assert told(ask(port, query("metadata"))) == (0, "169.254.169.254")
    assert ask(port, query("example.com")) == dns.answer(query("example.com"), KNOWN)


def test_nonsense_on_either_socket_ends_nothing(port: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        for data in (b"", b"x", b"\xff" * 600):
            client.sendto(data, ("127.0.0.1", port))
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
    for one in held:
        one.sendall(b"\xff\xff" + b"x" * 100)
        one.close()
    assert told(ask_datagram(port, query("metadata"))) == (0, "169.254.169.254")
    for _ in range(200):
        try:
            assert told(ask_stream(port, query("metadata"))) == (0, "169.254.169.254")
            return
        except (OSError, struct.error):
            time.sleep(0.02)  # the threads of the others are still ending
    raise AssertionError("nobody is answered any more")
