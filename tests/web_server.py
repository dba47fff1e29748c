"""A web server that misbehaves as it is told."""

from __future__ import annotations

import hashlib
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

Handle = Callable[["Handler"], None]


@dataclass
class Site:
    """What the server gives: ``script`` has a handler for each request in turn; then it behaves."""

    content: bytes = b""
    etag: str = '"one"'
    ranges: bool = True
    script: list[Handle] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def asked_ranges(self) -> list[str]:
        """The Range of each request."""
        return [request.get("Range", "") for request in self.requests]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_GET(self) -> None:
        self.site.requests.append(dict(self.headers))
        self.close_connection = True
        (self.site.script.pop(0) if self.site.script else behave)(self)

    def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def behave(handler: Handler) -> None:
    """Answer as the standard has it."""
    site = handler.site
    headers = {"ETag": site.etag} if site.etag else {}
    if site.etag and handler.headers.get("If-None-Match") == site.etag:
        handler.answer(304, headers)
        return
    start = int(handler.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
    if start and site.ranges and handler.headers.get("If-Range") == site.etag:
        size = len(site.content)
        if start >= size:
            handler.answer(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
            return
        headers |= {"Content-Range": f"bytes {start}-{size - 1}/{size}", "Content-Length": str(size - start)}
        handler.answer(206, headers, site.content[start:])
        return
    handler.answer(200, headers | {"Content-Length": str(len(site.content))}, site.content)


def cut(at: int, etag: str = '"one"') -> Handle:
    """Promise everything, and give the first bytes alone; those of another version are others."""

    def handle(handler: Handler) -> None:
        site = handler.site
        headers = {"ETag": etag} if etag else {}
        body = site.content[:at] if etag == site.etag else bytes(at)
        handler.answer(200, headers | {"Content-Length": str(len(site.content))}, body)

    return handle


def fail(status: int, **headers: str) -> Handle:
    """Answer with a status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.answer(status, {"Content-Length": "0"} | named)


def drip(seconds: float, step: int = 1) -> Handle:
    """Give some bytes now and then."""

    def handle(handler: Handler) -> None:
        handler.answer(200, {"ETag": '"one"', "Content-Length": str(len(handler.site.content))})
        try:
            for start in range(0, len(handler.site.content), step):
                handler.wfile.write(handler.site.content[start : start + step])
                time.sleep(seconds)
        except OSError:
            pass

    return handle


def drip_headers(handler: Handler) -> None:
    """Never come to the body."""
    try:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        for number in range(90):
            handler.wfile.write(b"X-%d: y\r\n" % number)
            time.sleep(0.1)
    except OSError:
        pass


def cut_headers(handler: Handler) -> None:
    """End among the headers, before the one that says the length."""
    handler.wfile.write(b'HTTP/1.1 200 OK\r\nETag: "one"\r\n')


def endless(handler: Handler) -> None:
    """Give more and more, with no word of how much."""
    handler.answer(200, {"Connection": "close"})
    try:
        for _ in range(1000):
            handler.wfile.write(bytes(1 << 20))
    except OSError:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    """A server of one file."""
    site = Site(bytes(range(256)) * 400)
    handler = type("OwnHandler", (Handler,), {"site": site})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_address[1]}/base.img"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield site
    server.shutdown()
    server.server_close()
