"""A metadata server for tests: it answers what it is told to, faults included.

As a program it serves files: ``python3 metadata_server.py ADDRESS:PORT NAME=FILE...`` (attributes of the
instance); a file that is missing is answered with 404, one that says ``forbidden`` with 403.
"""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ATTRIBUTES = "/computeMetadata/v1/instance/attributes/"
FLAVOR = {"Metadata-Flavor": "Google"}

Answer = Callable[["Handler"], None]


def reply(
    status: int, body: bytes = b"", *, flavor: bool = True, length: int | None = None, **headers: str
) -> Answer:
    """An ordinary answer; ``length`` announces another length than the body has."""

    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in (FLAVOR if flavor else {}).items():
            handler.send_header(name, value)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def value(text: str) -> Answer:
    """What the real server answers for an attribute."""
    return reply(200, text.encode(), Content_Type="application/text")


def page(status: int, *, flavor: bool = True) -> Answer:
    """An HTML page, as the real server sends with a 404 and a proxy with anything."""
    return reply(
        status, b"<!DOCTYPE html><p>Sorry</p>\n", flavor=flavor, Content_Type="text/html; charset=UTF-8"
    )


def silence(handler: Handler) -> None:
    """No answer until the client goes away."""
    handler.stop.wait(30)


def drip(handler: Handler) -> None:
    """A right answer, one byte at a time."""
    handler.send_response(200)
    handler.send_header("Metadata-Flavor", "Google")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    while not handler.stop.wait(0.05):
        handler.wfile.write(b"x")


def drip_headers(handler: Handler) -> None:
    """A status line, and then a header that never ends."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while not handler.stop.wait(0.05):
        handler.wfile.write(b"x")


def flood(handler: Handler) -> None:
    """A body without an end or a length."""
    handler.send_response(200)
    handler.send_header("Metadata-Flavor", "Google")
    handler.end_headers()
    while not handler.stop.is_set():
        handler.wfile.write(b"x" * 65536)


def garbage(handler: Handler) -> None:
    """Something that is not HTTP."""
    handler.wfile.write(b"220 mail.example.com ESMTP\r\n\r\n")


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET with the next answer of its server."""

    server: Server

    @property
    def stop(self) -> threading.Event:
        return self.server.stopping

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers.get("Metadata-Flavor", "")))
        if self.headers.get("Metadata-Flavor") != "Google":
            page(403)(self)
            return
        with suppress(ConnectionError):
            self.server.next_answer(self.path)(self)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """Paths with their answers, given one after the other; the last one stays."""

    daemon_threads = True

    def __init__(
        self, answers: Mapping[str, list[Answer]], address: tuple[str, int] = ("127.0.0.1", 0)
    ) -> None:
        super().__init__(address, Handler)
        self.answers = {path: list(replies) for path, replies in answers.items()}
        self.requests: list[tuple[str, str]] = []
        self.stopping = threading.Event()

    @property
    def host(self) -> str:
        """``address:port`` to ask it at."""
        return f"127.0.0.1:{self.server_address[1]}"

    def next_answer(self, path: str) -> Answer:
        replies = self.answers.get(path, [page(404)])
        return replies.pop(0) if len(replies) > 1 else replies[0]


@contextmanager
def serving(*answers: Answer, path: str = ATTRIBUTES + "tpu-env") -> Iterator[Server]:
    """A server that gives these answers for one path and 404 for every other."""
    server = Server({path: list(answers)} if answers else {})
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()


class FileServer(Server):
    """Attributes read from files at every request."""

    files: Mapping[str, Path]

    def next_answer(self, path: str) -> Answer:
        file = self.files.get(path[len(ATTRIBUTES) :]) if path.startswith(ATTRIBUTES) else None
        if file is None or not file.is_file():
            return page(404)
        text = file.read_text()
        return page(403) if text == "forbidden\n" else value(text)


def main(arguments: list[str]) -> None:
    host, _, port = arguments[0].partition(":")
    server = FileServer({}, (host, int(port)))
    server.files = {
        name: Path(file) for name, _, file in (argument.partition("=") for argument in arguments[1:])
    }
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
