"""The name server of the emulated network: it knows the metadata server and the machine itself, and nothing else.

Format of messages: RFC 1035, section 4; over TCP each is preceded by its length (section 4.2.2). What is outside does
not exist here (NXDOMAIN), so that a guest is told at once rather than left waiting.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

METADATA_NAMES = ("metadata.google.internal", "metadata")
METADATA_ADDRESS = "169.254.169.254"

_HEADER = struct.Struct("!HHHHHH")
_ADDRESS_RECORD, _INTERNET = 1, 1
_RESPONSE, _AUTHORITATIVE, _RECURSION_AVAILABLE = 0x8000, 0x0400, 0x0080
_KEPT_FLAGS = 0x7900
"""Of the query, what an answer repeats: the opcode and whether recursion was desired."""

_FORMAT_ERROR, _NO_SUCH_NAME, _NOT_IMPLEMENTED = 1, 3, 4
_OPCODE = 0x7800
_SECONDS_TO_LIVE = 300
_DATAGRAM_LIMIT = 4096
_STREAM_SECONDS = 5.0
_STREAMS_LIMIT = 32
_POLL_SECONDS = 0.2


def names(host_name: str, address: str) -> dict[str, str]:
    """Give what the server knows: name and IPv4 address.

    Args:
        host_name: the machine's own name, known without its domain too.
        address: of the machine.
    """
    own = {host_name.lower(): address, host_name.partition(".")[0].lower(): address}
    return own | dict.fromkeys(METADATA_NAMES, METADATA_ADDRESS)


def answer(query: bytes, known: Mapping[str, str]) -> bytes | None:
    """Give the answer to a query; None where it is none that could be answered."""
    if len(query) < _HEADER.size:
        return None
    identifier, flags, questions, *_ = _HEADER.unpack_from(query)
    if flags & _RESPONSE:
        return None  # to answer answers would never end
    reply_flags = _RESPONSE | _AUTHORITATIVE | _RECURSION_AVAILABLE | (flags & _KEPT_FLAGS)
    if flags & _OPCODE:
        return _HEADER.pack(identifier, reply_flags | _NOT_IMPLEMENTED, 0, 0, 0, 0)
    end = _question_end(query) if questions == 1 else 0
    if not end:
        return _HEADER.pack(identifier, reply_flags | _FORMAT_ERROR, 0, 0, 0, 0)
    kind, group = struct.unpack_from("!HH", query, end - 4)
    question = query[_HEADER.size : end]
    address = known.get(_name(question))
    record = b""
    if address is not None and (kind, group) == (_ADDRESS_RECORD, _INTERNET):
        # The name is the one at the beginning of the question, 12 bytes from the start (section 4.1.4).
        fixed = struct.pack("!HHHIH", 0xC000 | _HEADER.size, kind, group, _SECONDS_TO_LIVE, 4)
        record = fixed + socket.inet_aton(address)
    code = 0 if address is not None else _NO_SUCH_NAME
    return _HEADER.pack(identifier, reply_flags | code, 1, bool(record), 0, 0) + question + record


def _question_end(query: bytes) -> int:
    """Give where the question ends, which the first section of a query is; 0 where it does not."""
    place = _HEADER.size
    while place < len(query) and query[place]:
        if query[place] > 63:
            return 0  # a pointer has nothing to point at in a query of one name
        place += 1 + query[place]
    end = place + 5
    return end if end <= len(query) and place - _HEADER.size < 255 else 0


def _name(question: bytes) -> str:
    labels, place = [], 0
    while question[place]:
        length = question[place]
        labels.append(question[place + 1 : place + 1 + length].decode("latin-1").lower())
        place += 1 + length
    return ".".join(labels)


class NameServer:
    """Answers on a datagram socket and on a listening one; made by :func:`serving`."""

    def __init__(self, datagrams: socket.socket, streams: socket.socket, known: Mapping[str, str]) -> None:
        self._datagrams = datagrams
        self._streams = streams
        self._known = dict(known)
        self._stopping = threading.Event()
        self._places = threading.BoundedSemaphore(_STREAMS_LIMIT)

    def serve_datagrams(self) -> None:
        """Answer datagrams until :meth:`stop`."""
        self._datagrams.settimeout(_POLL_SECONDS)
        while not self._stopping.is_set():
            with suppress(OSError):  # a time-out, or whoever asked is gone
                query, client = self._datagrams.recvfrom(_DATAGRAM_LIMIT)
                reply = answer(query, self._known)
                if reply is not None:
                    self._datagrams.sendto(reply, client)

    def serve_streams(self) -> None:
        """Take connections until :meth:`stop`."""
        self._streams.settimeout(_POLL_SECONDS)
        while not self._stopping.is_set():
            with suppress(OSError):
                connection, _ = self._streams.accept()
                self._begin(connection)

    def stop(self) -> None:
        """End both."""
        self._stopping.set()

    def _begin(self, connection: socket.socket) -> None:
        if not self._places.acquire(blocking=False):
            connection.close()
            return
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer the queries of one connection; it ends when none comes for some seconds."""
        try:
            connection.settimeout(_STREAM_SECONDS)
            with connection, suppress(OSError), connection.makefile("rb") as stream:
                while len(prefix := stream.read(2)) == 2:
                    (length,) = struct.unpack("!H", prefix)
                    reply = answer(stream.read(length), self._known)
                    if reply is None:
                        break
                    connection.sendall(struct.pack("!H", len(reply)) + reply)
        finally:
            self._places.release()


@contextmanager
def serving(
    datagrams: socket.socket, streams: socket.socket, known: Mapping[str, str]
) -> Iterator[NameServer]:
    """Answer on two sockets, in threads; both stay open when it ends.

    Args:
        datagrams: a bound UDP socket.
        streams: a listening TCP socket.
        known: names in lower case and their addresses, as :func:`names` gives them.
    """
    server = NameServer(datagrams, streams, known)
    threads = [
        threading.Thread(target=work, daemon=True) for work in (server.serve_datagrams, server.serve_streams)
    ]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        server.stop()
        for thread in threads:
            thread.join()
