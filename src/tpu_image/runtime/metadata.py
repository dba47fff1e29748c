"""A client of the Compute Engine metadata server that tells failures apart and always comes to an end.

Protocol: https://cloud.google.com/compute/docs/metadata/querying-metadata. Requests and answers both carry
``Metadata-Flavor: Google``; an answer without it comes from something else, whatever its status. As in
Google's own libraries ``GCE_METADATA_HOST`` names another server. No redirect is followed, no proxy used.
"""

from __future__ import annotations

import os
import socket
import threading
import time

from tpu_image.runtime.http_exchange import CutShortError, Exchange, NotHTTPError, TooLongError, remaining

DEFAULT_HOST = "metadata.google.internal"
FALLBACK_ADDRESS = "169.254.169.254"
"""Where the server is by definition; used when its name does not resolve."""

BODY_LIMIT = 1024 * 1024
"""Bytes of an answer that are taken; the server itself keeps at most 256 KB in one value."""

ATTEMPT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 5.0
_FLAVOR = ("Metadata-Flavor", "Google")
_PORT = 80

TYPE_CHECKING = False
if TYPE_CHECKING:
    _Address = tuple[int, tuple[object, ...]]
    """A family, and what :meth:`socket.socket.connect` takes."""


class MetadataError(Exception):
    """A value could not be read; the message says why, in one line."""


class NotSetError(MetadataError):
    """404: the server is the right one and has no such key."""


class ForbiddenError(MetadataError):
    """403: the server does not give the key away."""


class UnexpectedStatusError(MetadataError):
    """A redirect (the key is a directory) or another status that trying again does not change."""


class EmptyAnswerError(MetadataError):
    """The key is set to nothing where a value is needed."""


class TooLargeError(MetadataError):
    """The value is longer than :data:`BODY_LIMIT`."""


class TransientError(MetadataError):
    """A failure that may pass, so that the request is made again until the deadline."""


class UnreachableError(TransientError):
    """No address, no connection, or no whole answer in time."""


class ServerError(TransientError):
    """5xx or 429: the server asks to come back."""


class ForeignAnswerError(TransientError):
    """Something that is not the metadata server answered: a proxy, a captive portal."""


class HtmlAnswerError(TransientError):
    """A page in place of a value."""


class TruncatedAnswerError(TransientError):
    """The answer ended before its announced length."""


class MetadataServer:
    """One metadata server. ``seconds`` bounds a whole :meth:`read`, pauses and repetitions included."""

    def __init__(
        self,
        host: str = DEFAULT_HOST,
        fallback: str = FALLBACK_ADDRESS,
        *,
        seconds: float,
        attempt_seconds: float = ATTEMPT_SECONDS,
    ) -> None:
        self.host = host
        self.fallback = fallback
        self.seconds = seconds
        self.attempt_seconds = attempt_seconds

    @classmethod
    def of_this_machine(cls, seconds: float) -> MetadataServer:
        """Give the server that ``GCE_METADATA_HOST`` names, without a fallback, or else the machine's own."""
        host = os.environ.get("GCE_METADATA_HOST", "")
        return cls(host, "", seconds=seconds) if host else cls(seconds=seconds)

    def read(self, path: str) -> bytes:
        """Read the value at a path below ``/computeMetadata/v1/``.

        Raises:
            MetadataError: of the kind that says what went wrong; a :class:`TransientError` lasted until the
                deadline.
        """
        deadline = time.monotonic() + self.seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return self._attempt(path, min(deadline, time.monotonic() + self.attempt_seconds))
            except TransientError as error:
                # Machines of one slice boot together: without jitter they would come back together too.
                wait = pause * (0.5 + os.urandom(1)[0] / 512)
                if time.monotonic() + wait >= deadline:
                    raise type(error)(f"{error}; gave up after {self.seconds:g} s") from error
            time.sleep(wait)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _attempt(self, path: str, end: float) -> bytes:
        try:
            connection = _connect(self._addresses(end), end)
            try:
                return self._value(path, Exchange(connection, self._request(path), end))
            finally:
                connection.close()
        except socket.timeout as error:
            raise UnreachableError(f"{self.host} did not answer in time") from error
        except OSError as error:
            raise UnreachableError(f"{self.host} cannot be reached: {error}") from error
        except NotHTTPError as error:
            raise ForeignAnswerError(f"{self.host} does not speak HTTP/1.0") from error
        except CutShortError as error:
            raise TruncatedAnswerError(f"the answer of {self.host} is cut short") from error

    def _value(self, path: str, answer: Exchange) -> bytes:
        status = answer.status
        if answer.headers.get(_FLAVOR[0].lower()) != _FLAVOR[1]:
            raise ForeignAnswerError(
                f"{self.host} is not the metadata server: status {status}, no {_FLAVOR[0]}"
            )
        if status == 404:
            raise NotSetError(f"{path} is not set")
        if status == 403:
            raise ForbiddenError(f"the metadata server refuses to give {path} (403)")
        if status >= 500 or status == 429:
            raise ServerError(f"the metadata server answers {status}")
        if status == 301:
            raise UnexpectedStatusError(f"{path} is a directory: end it with / to list it")
        if status != 200:
            raise UnexpectedStatusError(f"the metadata server answers {status} for {path}")
        if answer.headers.get("content-type", "").lower().startswith("text/html"):
            raise HtmlAnswerError(f"the metadata server answers a page in place of {path}")
        try:
            return answer.body(BODY_LIMIT)
        except TooLongError as error:
            raise TooLargeError(f"{path} is longer than {BODY_LIMIT} bytes") from error

    def _request(self, path: str) -> bytes:
        lines = (f"GET /computeMetadata/v1/{path} HTTP/1.0", f"Host: {self.host}", ": ".join(_FLAVOR))
        if not all(line.isascii() and line.isprintable() for line in lines):
            raise UnexpectedStatusError(f"{path!r} is no path of a key")
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode()

    def _addresses(self, end: float) -> list[_Address]:
        try:
            return _resolve(*_host_and_port(self.host), end)
        except OSError:
            if not self.fallback:
                raise
        host, port = _host_and_port(self.fallback)
        return [(socket.AF_INET, (host, port))]


def _connect(addresses: list[_Address], end: float) -> socket.socket:
    """Connect to the first of several addresses that takes it; one that says nothing leaves their time to the others.

    Raises:
        OSError: none does.
    """
    problem = OSError("the name has no address")
    for place, (family, address) in enumerate(addresses):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(remaining(end) / (len(addresses) - place))
            connection.connect(address)
        except OSError as error:
            connection.close()
            problem = error
        else:
            return connection
    raise problem


def _host_and_port(text: str) -> tuple[str, int]:
    """Take ``HOST`` or ``HOST:PORT`` apart; an IPv6 address stands in brackets.

    Raises:
        OSError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(_PORT)
    if not host or not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536):
        raise OSError("it is no HOST or HOST:PORT")
    return host.strip("[]"), int(port)


def _resolve(host: str, port: int, end: float) -> list[_Address]:
    """Give the addresses of a name; a thread waits for them, since the C library's look-up has no time-out.

    Raises:
        OSError: the name does not resolve, or not in time.
    """
    addresses: list[_Address] = []
    problems: list[OSError] = []

    def look_up() -> None:
        try:
            # As bytes: names in text are taken through IDNA, whose tables take a while to load.
            found = socket.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
            addresses.extend((entry[0], entry[4]) for entry in found)
        except (OSError, UnicodeError) as error:
            problems.append(OSError(f"the name does not resolve: {error}"))

    # A look-up that hangs gets half of the attempt, so that the fallback has the other half.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join((end - time.monotonic()) / 2)
    if addresses:
        return addresses
    raise problems[0] if problems else OSError("the name does not resolve in time")
