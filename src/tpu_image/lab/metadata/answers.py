"""Answers of the metadata server as values, and those that are no answers: what it does under a fault."""

from __future__ import annotations

import html
import socket
import struct
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from threading import Event
from types import MappingProxyType
from typing import NamedTuple

TEXT, JSON, HTML = "application/text", "application/json", "text/html; charset=UTF-8"

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_DRIP_SECONDS = 0.1


class Answer(NamedTuple):
    """A whole answer. ``flavor``: whether it says ``Metadata-Flavor: Google``."""

    status: int
    body: str = ""
    content_type: str = TEXT
    headers: Mapping[str, str] = _NO_HEADERS
    flavor: bool = True


def page(status: int, detail: str = "", *, flavor: bool = True) -> Answer:
    """Give a page, as the real server does with every error."""
    title = f"{status} {HTTPStatus(status).phrase}"
    text = f"<!DOCTYPE html>\n<html lang=en>\n<title>{title}</title>\n<p>{title}. {html.escape(detail)}\n</html>\n"
    return Answer(status, text, HTML, flavor=flavor)


INSTEAD: Mapping[str, Answer] = {
    "503": page(503),
    "429": page(429),
    "403": page(403),
    "html": page(200),
    "portal": page(200, "Please log in", flavor=False),
}
"""What is answered under a fault that is an answer."""


def _reset(handler: BaseHTTPRequestHandler, _: Event) -> None:
    """Hang up with a reset: with no time to linger there is no orderly end (SO_LINGER in socket(7))."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def _hang(_: BaseHTTPRequestHandler, stopping: Event) -> None:
    stopping.wait()


def _drip(handler: BaseHTTPRequestHandler, stopping: Event) -> None:
    _begin(handler, 1000)
    while not stopping.wait(_DRIP_SECONDS):
        handler.wfile.write(b"x")


def _drip_headers(handler: BaseHTTPRequestHandler, stopping: Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not stopping.wait(_DRIP_SECONDS):
        handler.wfile.write(b"x")


def _flood(handler: BaseHTTPRequestHandler, stopping: Event) -> None:
    _begin(handler, None)
    while not stopping.is_set():
        handler.wfile.write(b"x" * 65536)


def _truncated(handler: BaseHTTPRequestHandler, _: Event) -> None:
    _begin(handler, 1000)
    handler.wfile.write(b"ACCELERATOR_TYPE: ")


def _garbage(handler: BaseHTTPRequestHandler, _: Event) -> None:
    handler.wfile.write(b"220 mail.example.com ESMTP\r\n\r\n")


BROKEN: Mapping[str, Callable[[BaseHTTPRequestHandler, Event], None]] = {
    "down": _reset,
    "hang": _hang,
    "drip": _drip,
    "drip-headers": _drip_headers,
    "flood": _flood,
    "truncated": _truncated,
    "garbage": _garbage,
}
"""What is done with the connection, which ends then, under a fault that is no answer; the event ends the server."""


def _begin(handler: BaseHTTPRequestHandler, length: int | None) -> None:
    handler.send_response(200)
    handler.send_header("Metadata-Flavor", "Google")
    handler.send_header("Content-Type", TEXT)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    handler.end_headers()
