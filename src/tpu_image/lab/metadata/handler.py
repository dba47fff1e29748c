"""How the emulated metadata server answers one request.

Behaviour: "View and query VM metadata" of the Compute Engine documentation (headers, directories, ``recursive``,
``alt``, ``wait_for_change``, ``last_etag``, ``timeout_sec``), and "Set and query guest attributes".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from tpu_image.lab.metadata import faults, nodes
from tpu_image.lab.metadata.answers import BROKEN, INSTEAD, JSON, TEXT, Answer, page
from tpu_image.lab.metadata.nodes import Node
from tpu_image.lab.metadata.settings import KEY_LIMIT, VALUE_LIMIT

if TYPE_CHECKING:
    from tpu_image.lab.metadata.faults import Fault
    from tpu_image.lab.metadata.server import MetadataServer

_GUEST_ATTRIBUTES = ["computeMetadata", "v1", "instance", "guest-attributes"]
HEAD_LIMIT = 128 * 1024
"""Bytes of a request's first line and headers."""

_LONGEST_WAIT = 24 * 3600.0


class _Request(NamedTuple):
    """A request taken apart. ``listing``: whether its path ends with a slash, as that of a directory does."""

    names: list[str]
    query: Mapping[str, str]
    path: str
    listing: bool

    @classmethod
    def read(cls, target: str) -> _Request:
        """Take a request's target apart.

        Raises:
            ValueError: it is none.
        """
        parts = urlsplit(target)
        names = [unquote(name) for name in parts.path.split("/") if name]
        query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20))
        return cls(names, query, parts.path, parts.path.endswith("/"))

    def says(self, name: str, value: str = "true") -> bool:
        return self.query.get(name, "").lower() == value

    def seconds(self) -> float | None:
        """Give how long to wait for a change; None for no end."""
        text = self.query.get("timeout_sec", "")
        return (
            min(float(text), _LONGEST_WAIT) if text.isascii() and text.isdigit() and len(text) < 9 else None
        )


Method = Callable[[_Request, "Fault | None"], "Answer | None"]
"""What answers a request under a fault that changes values, or none; it gives None where the server stops meanwhile."""


class _Lines:
    """What a guest sends: so many bytes of it as lines, which request and headers are; a body has its size."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file = file
        self.room = HEAD_LIMIT
        self.read, self.close = file.read, file.close

    def readline(self, size: int = -1) -> bytes:
        """Read a line.

        Raises:
            ConnectionError: there is no end of them.
        """
        line = self._file.readline(size)
        self.room -= len(line)
        if self.room < 0:
            raise ConnectionError("the request does not end")
        return line


class Handler(BaseHTTPRequestHandler):
    """One connection, and the requests on it one after the other."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Bound the head of a request: http.client takes 6 MB of it, and three times as much to read that."""
        super().setup()
        self._lines = _Lines(self.rfile)
        self.rfile = self._lines  # type: ignore[assignment]

    def handle_one_request(self) -> None:
        """Answer a request, which has the whole room for its head again."""
        self._lines.room = HEAD_LIMIT
        super().handle_one_request()

    @property
    def metadata(self) -> MetadataServer:
        """The server, by its own type."""
        return cast("MetadataServer", self.server)

    def version_string(self) -> str:
        """Name the server as the real one does."""
        return "Metadata Server for VM"

    def log_message(self, *_: object) -> None:
        """Print nothing: the server keeps a log."""

    def do_GET(self) -> None:
        """Give a value, a listing, or all below a directory."""
        self._respond(self._get)

    def do_HEAD(self) -> None:
        """Give the same without its body."""
        self._respond(self._get)

    def do_PUT(self) -> None:
        """Set a guest attribute."""
        self._respond(self._put)

    def do_DELETE(self) -> None:
        """Take a guest attribute away."""
        self._respond(self._delete)

    def _respond(self, method: Method) -> None:
        """Answer by a method, or as the fault wants that holds. The log has it before the guest has."""
        fault = self.metadata.fault(self.path)
        answer = self._answer(method, fault)
        self.metadata.record(self.command, self.path, answer.status if answer else 0, fault)
        try:
            if answer is not None:
                self._send(answer)
            elif fault is not None and fault.kind in BROKEN:
                BROKEN[fault.kind](self, self.metadata.stopping)
        except OSError:
            self.close_connection = True  # the guest has hung up

    def _answer(self, method: Method, fault: Fault | None) -> Answer | None:
        """Give the answer; None where the connection ends without one."""
        kind = "" if fault is None else fault.kind
        if kind in BROKEN or kind in INSTEAD:
            self.close_connection = True  # the body of a request may be left unread
            return INSTEAD.get(kind)
        if fault is not None and kind == "slow":
            self.metadata.stopping.wait(fault.delay)
        return self._checked(method, fault)

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode("utf-8", "surrogateescape")
        self.send_response(answer.status)
        if answer.flavor:
            self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", answer.content_type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-XSS-Protection", "0")
        self.send_header("X-Frame-Options", "SAMEORIGIN")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _checked(self, method: Method, fault: Fault | None) -> Answer | None:
        try:
            request = _Request.read(self.path)
        except ValueError:
            self.close_connection = True
            return page(400)
        if request.names and not self._knows_whom_it_asks():
            self.close_connection = True
            return page(403, "Missing Metadata-Flavor:Google header.")
        if "X-Forwarded-For" in self.headers:
            self.close_connection = True
            return page(403, "The request was forwarded.")
        return method(request, fault)

    def _knows_whom_it_asks(self) -> bool:
        """Whether the request has the header without which a page in a browser could have made it."""
        modern = self.headers.get("Metadata-Flavor") == "Google"
        return modern or self.headers.get("X-Google-Metadata-Request", "").lower() == "true"

    def _get(self, request: _Request, fault: Fault | None) -> Answer | None:
        changes = faults.CHANGES.get(fault.kind, {}) if fault is not None else {}
        if _is_guest_attribute(request) and not self.metadata.state.guest_attributes_enabled():
            return page(403, "Guest attributes endpoint access is disabled.")
        if request.says("wait_for_change") and self.metadata.state.find(request.names) is not None:
            last = request.query.get("last_etag", "")
            if not self.metadata.state.wait(request.names, last, request.seconds()):
                self.close_connection = True
                return None
        node = self.metadata.state.find(request.names, changes)
        directory = node is not None and nodes.is_directory(node)
        if node is None or (request.listing and not directory):
            return page(404)
        if directory and not request.listing:
            return Answer(301, headers={"Location": _with_slash(self.path)})
        if request.names[-1:] == ["identity"] and not request.query.get("audience"):
            return page(400, "non-empty audience parameter required")
        return _written(node, request)

    def _put(self, request: _Request, _: Fault | None) -> Answer | None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 9):
            self.close_connection = True
            return page(411)
        if int(length) > VALUE_LIMIT:
            self.close_connection = True
            return page(413)
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True  # half a value is none
            return page(400)
        return self._change(request, body.decode("utf-8", "replace"))

    def _delete(self, request: _Request, _: Fault | None) -> Answer | None:
        if self.metadata.state.find(request.names) is None:
            return page(404)
        return self._change(request, None)

    def _change(self, request: _Request, value: str | None) -> Answer:
        if not _is_guest_attribute(request):
            return page(405)
        if not self.metadata.state.guest_attributes_enabled():
            return page(403, "Guest attributes endpoint access is disabled.")
        names = request.names[len(_GUEST_ATTRIBUTES) :]
        if len(names) != 2 or any(len(name) > KEY_LIMIT for name in names):
            return page(400, "A guest attribute is named NAMESPACE/KEY.")
        if not self.metadata.state.set_guest_attribute(names[0], names[1], value):
            return page(503, "No room for another guest attribute.")
        return Answer(200)


def _is_guest_attribute(request: _Request) -> bool:
    return request.names[: len(_GUEST_ATTRIBUTES)] == _GUEST_ATTRIBUTES


def _with_slash(target: str) -> str:
    path, question, query = target.partition("?")
    return f"{path}/{question}{query}"


def _written(node: Node, request: _Request) -> Answer:
    """Write what was found in the form that was asked for, or that is usual for it."""
    headers = {"ETag": nodes.etag(node)}
    recursive = request.says("recursive")
    usual = recursive or nodes.prefers_json(node)
    as_json = request.says("alt", "json") or (usual and not request.says("alt", "text"))
    if as_json:
        return Answer(200, nodes.as_json(node), JSON, headers)
    text = nodes.as_recursive_text(node) if recursive and nodes.is_directory(node) else nodes.as_text(node)
    return Answer(200, text, TEXT, headers)
