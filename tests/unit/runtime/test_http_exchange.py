"""One request and its answer: what http.client makes of the bytes, with a deadline and nothing else."""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpu_image.runtime.http_exchange import CutShortError, Exchange, NotHTTPError, TooLongError

REQUEST = b"GET / HTTP/1.0\r\n\r\n"
LIMIT = 1000

header_names = st.sampled_from(["Metadata-Flavor", "ETag", "X-Frame-Options", "content-type"])
header_values = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)


def answered(*pieces: bytes, seconds: float = 20.0) -> tuple[Exchange, bytes]:
    """Have these pieces answer a request; give the exchange and the body."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        theirs.recv(len(REQUEST))
        for piece in pieces:
            theirs.sendall(piece)
        theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with ours:
            exchange = Exchange(ours, REQUEST, time.monotonic() + seconds)
            return exchange, exchange.body(LIMIT)
    finally:
        thread.join()
        theirs.close()


class _Bytes:
    """What http.client takes for a socket."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def makefile(self, _: str) -> io.BytesIO:
        return io.BytesIO(self.content)


def as_http_client_reads_it(content: bytes) -> tuple[int, dict[str, str], bytes]:
    response = http.client.HTTPResponse(_Bytes(content), method="GET")  # type: ignore[arg-type]
    response.begin()
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        headers.setdefault(name.lower(), value)
    return response.status, headers, response.read()


@given(
    st.sampled_from(["HTTP/1.0", "HTTP/1.1"]),
    st.integers(200, 599).filter(lambda status: status not in (204, 304)),
    st.lists(st.tuples(header_names, header_values), max_size=4),
    st.binary(max_size=60),
    st.booleans(),
    st.integers(1, 200),
)
def test_an_answer_is_read_as_http_client_reads_it(
    version: str, status: int, headers: list[tuple[str, str]], body: bytes, announced: bool, size: int
) -> None:
    lines = [f"{version} {status} Some reason", *(f"{name}: {value}" for name, value in headers)]
    lines += [f"Content-Length: {len(body)}"] if announced else []
    content = "".join(f"{line}\r\n" for line in (*lines, "")).encode() + body
    exchange, received = answered(*(content[at : at + size] for at in range(0, len(content), size)))
    assert (exchange.status, exchange.headers, received) == as_http_client_reads_it(content)


@given(st.binary(max_size=100) | st.binary(max_size=60).map(b"HTTP/1.1 200 OK\r\n".__add__))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n")
@example("HTTP/1.1 200 OK\r\nContent-Length: ²\r\n\r\n".encode("latin-1"))
def test_whatever_comes_is_a_body_or_an_error_of_ours(content: bytes) -> None:
    try:
        answered(content)
    except (NotHTTPError, CutShortError):
        return
    assert content.startswith(b"HTTP/1.")


@given(st.integers(0, 60))
def test_an_answer_that_is_cut_is_never_taken_for_whole(size: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 4\r\n\r\nTYPE"
    with pytest.raises((NotHTTPError, CutShortError)):
        answered(whole[:size])


@pytest.mark.parametrize(
    "content",
    [
        b"220 mail.example.com ESMTP\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nTYPE\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 2\r\n\r\nTYPE",
        b"x" * 100_000,
        b"",
    ],
    ids=[
        "SMTP",
        "HTTP/2",
        "two digits",
        "other digits",
        "negative",
        "chunks",
        "two lengths",
        "no line",
        "nothing",
    ],
)
def test_what_is_no_answer_of_http_1_0_is_said_to_be_none(content: bytes) -> None:
    with pytest.raises(NotHTTPError):
        answered(content)


def test_what_follows_the_announced_length_is_not_the_body() -> None:
    assert answered(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTYPE and more")[1] == b"TYPE"


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("newline", "body"), [("\n", b"a\r\n\r\nb"), ("\r\n", b"a\n\nb")])
def test_an_empty_line_of_the_body_does_not_end_the_head(newline: str, body: bytes, size: int) -> None:
    content = f"HTTP/1.1 200 OK{newline}ETag: 1{newline}{newline}".encode() + body
    exchange, received = answered(*(content[at : at + size] for at in range(0, len(content), size)))
    assert (exchange.headers, received) == ({"etag": "1"}, body)


@pytest.mark.parametrize("length", ["", f"Content-Length: {LIMIT + 1}\r\n"])
def test_a_body_beyond_the_limit_is_refused(length: str) -> None:
    with pytest.raises(TooLongError):
        answered(f"HTTP/1.1 200 OK\r\n{length}\r\n".encode(), b"x" * (LIMIT + 1))


def test_a_byte_now_and_then_does_not_hold_the_deadline_up() -> None:
    ours, theirs = socket.socketpair()
    ended = threading.Event()

    def drip() -> None:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not ended.wait(0.02):
            theirs.send(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    with ours, pytest.raises(socket.timeout):
        Exchange(ours, REQUEST, time.monotonic() + 0.5)
    ended.set()
    thread.join()
    theirs.close()
