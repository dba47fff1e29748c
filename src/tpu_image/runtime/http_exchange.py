"""One request of HTTP/1.0 (RFC 1945) and its answer, both before a deadline.

One request a connection, and an answer that ends with it, never in chunks (RFC 9112, section 6.1). http.client would
know more, none of which the boot tasks want, but no deadline for an answer as a whole; and it loads 30 modules, half
of them for e-mail, which took a boot task half as long again.
"""

from __future__ import annotations

import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD_LIMIT = 64 * 1024
"""Bytes of an answer's status line and headers."""

_EMPTY_LINES = (b"\n\r\n", b"\n\n")
"""With the end of the line before: the second is what a recipient may take for the first (RFC 9112, section 2.2)."""

_READ_SIZE = 64 * 1024
_LONGEST_NUMBER = 18
"""Digits of a Content-Length that is believed."""


class NotHTTPError(Exception):
    """What came is no answer of HTTP/1."""


class CutShortError(Exception):
    """The answer ended before its announced length."""


class TooLongError(Exception):
    """The body is longer than wanted."""


def remaining(end: float) -> float:
    """Give the seconds until ``end``, a moment of :func:`time.monotonic`.

    Raises:
        socket.timeout: it has passed.
    """
    seconds = end - time.monotonic()
    if seconds <= 0:
        raise socket.timeout("the deadline has passed")
    return seconds


class Exchange:
    """A request that was sent, and what comes back: ``status``, and ``headers`` by their names in lower case.

    The time-out shrinks with every read: a server that sends a byte now and then cannot hold us.
    """

    def __init__(self, connection: socket.socket, request: bytes, end: float) -> None:
        """Send the request and read the answer up to its body.

        Raises:
            NotHTTPError: the answer is none.
            CutShortError: it ended amid its headers.
            OSError: the connection failed, or ``end`` came (socket.timeout).
        """
        self._connection = connection
        self._end = end
        connection.settimeout(remaining(end))
        connection.sendall(request)
        head, self._begun = self._receive_head()
        self.status, self.headers = _parse(head)
        self.length = _length(self.headers)

    def body(self, limit: int) -> bytes:
        """Read the body.

        Raises:
            TooLongError: it has more than ``limit`` bytes.
            CutShortError, OSError: see above.
        """
        received = bytearray(self._begun)
        while len(received) <= limit and (self.length is None or len(received) < self.length):
            data = self._receive()
            if not data:
                break
            received += data
        if len(received) > limit:
            raise TooLongError
        if self.length is not None and len(received) < self.length:
            raise CutShortError
        return bytes(received[: self.length])

    def _receive(self) -> bytes:
        self._connection.settimeout(remaining(self._end))
        return self._connection.recv(_READ_SIZE)

    def _receive_head(self) -> tuple[bytes, bytes]:
        """Give what stands before the first empty line, and what has come behind it."""
        received = b""
        while len(received) <= HEAD_LIMIT:
            data = self._receive()
            received += data
            ends = [(at, len(line)) for line in _EMPTY_LINES if (at := received.find(line)) >= 0]
            if ends:
                at, length = min(ends)  # a body may hold the other one, and have come with the head
                return received[:at], received[at + length :]
            if not data and received.startswith(b"HTTP/1."):
                raise CutShortError
            if not data:
                break
        raise NotHTTPError


def _parse(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or len(status) != 3 or not _is_number(status):
        raise NotHTTPError
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.lower(), value.strip()
        if colon and headers.setdefault(name, value) != value and name == "content-length":
            raise NotHTTPError  # whichever is right, the value would be cut or mixed up with what follows
    return int(status), headers


def _length(headers: Mapping[str, str]) -> int | None:
    """Give the bytes of the body; None for all that comes."""
    length = headers.get("content-length")
    if "transfer-encoding" in headers or (length is not None and not _is_number(length)):
        raise NotHTTPError
    return None if length is None else int(length)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER
