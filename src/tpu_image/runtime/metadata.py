"""A client of the Compute Engine metadata server that tells failures apart and always comes to an end.

Protocol: https://cloud.google.com/compute/docs/metadata/querying-metadata. Requests and answers both carry
``Metadata-Flavor: Google``; an answer without it comes from something else, whatever its status. As in
Google's own libraries ``GCE_METADATA_HOST`` names another server. http.client alone, below urllib.request,
because it follows no redirect and knows no proxy.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time

DEFAULT_HOST = "metadata.google.internal"
FALLBACK_ADDRESS = "169.254.169.254"
"""Where the server is by definition; used when its name does not resolve."""

BODY_LIMIT = 1024 * 1024
"""Bytes of an answer that are taken; the server itself keeps at most 256 KB in one value."""

ATTEMPT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 5.0
_READ_SIZE = 64 * 1024
_FLAVOR = ("Metadata-Flavor", "Google")


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
            connection = _Connection(self.host, self.fallback, end)
            try:
                connection.request("GET", f"/computeMetadata/v1/{path}", headers=dict([_FLAVOR]))
                return self._value(path, connection.getresponse())
            finally:
                connection.close()
        except socket.timeout as error:
            raise UnreachableError(f"{self.host} did not answer in time") from error
        except OSError as error:
            raise UnreachableError(f"{self.host} cannot be reached: {error}") from error
        except http.client.IncompleteRead as error:
            raise TruncatedAnswerError(f"the answer of {self.host} is cut short") from error
        except (http.client.HTTPException, ValueError) as error:
            raise ForeignAnswerError(f"{self.host} does not speak HTTP: {error!r}") from error

    def _value(self, path: str, response: http.client.HTTPResponse) -> bytes:
        status = response.status
        if response.headers.get(_FLAVOR[0]) != _FLAVOR[1]:
            raise ForeignAnswerError(
                f"{self.host} is not the metadata server: status {status}, no {_FLAVOR[0]}"
            )
        if status == http.client.NOT_FOUND:
            raise NotSetError(f"{path} is not set")
        if status == http.client.FORBIDDEN:
            raise ForbiddenError(f"the metadata server refuses to give {path} (403)")
        if status >= 500 or status == http.client.TOO_MANY_REQUESTS:
            raise ServerError(f"the metadata server answers {status}")
        if status == http.client.MOVED_PERMANENTLY:
            raise UnexpectedStatusError(f"{path} is a directory: end it with / to list it")
        if status != http.client.OK:
            raise UnexpectedStatusError(f"the metadata server answers {status} for {path}")
        if response.headers.get_content_type() == "text/html":
            raise HtmlAnswerError(f"the metadata server answers a page in place of {path}")
        return _body(path, response)


def _body(path: str, response: http.client.HTTPResponse) -> bytes:
    announced = response.length
    body = bytearray()
    while chunk := response.read(_READ_SIZE):
        body += chunk
        if len(body) > BODY_LIMIT:
            raise TooLargeError(f"{path} is longer than {BODY_LIMIT} bytes")
    # read(n) does not complain about an early end, only read() does.
    if announced is not None and len(body) < announced:
        raise http.client.IncompleteRead(bytes(body), announced - len(body))
    return bytes(body)


class _Connection(http.client.HTTPConnection):
    """A connection on which nothing lasts beyond ``end``, a moment of :func:`time.monotonic`."""

    def __init__(self, host: str, fallback: str, end: float) -> None:
        super().__init__(host)
        self._fallback = fallback
        self._end = end

    def connect(self) -> None:
        problem = OSError("the name has no address")
        for family, address in self._addresses():
            self.sock = _DeadlineSocket(family, socket.SOCK_STREAM)
            try:
                self.sock.connect_until(self._end, address)
            except OSError as error:
                self.sock.close()
                problem = error
            else:
                return
        raise problem

    def _addresses(self) -> list[tuple[int, tuple[object, ...]]]:
        try:
            return _resolve(self.host, self.port, self._end)
        except OSError:
            if not self._fallback:
                raise
        host, _, port = self._fallback.partition(":")
        return [(socket.AF_INET, (host, int(port or self.port)))]


class _DeadlineSocket(socket.socket):
    """A socket whose time-out shrinks: a server that sends a byte now and then cannot hold us."""

    end = 0.0

    def connect_until(self, end: float, address: tuple[object, ...]) -> None:
        """Connect, and keep the end for everything that follows."""
        self.end = end
        self._shrink_timeout()
        self.connect(address)

    def _shrink_timeout(self) -> None:
        remaining = self.end - time.monotonic()
        if remaining <= 0:
            raise socket.timeout("the deadline has passed")
        self.settimeout(remaining)

    def recv_into(self, *arguments: object) -> int:
        """Receive as socket.socket does; http.client's reads all end here."""
        self._shrink_timeout()
        return super().recv_into(*arguments)  # type: ignore[arg-type]


def _resolve(host: str, port: int, end: float) -> list[tuple[int, tuple[object, ...]]]:
    """Give the addresses of a name; a thread waits for them, since the C library's look-up has no time-out.

    Raises:
        OSError: the name does not resolve, or not in time.
    """
    addresses: list[tuple[int, tuple[object, ...]]] = []
    problems: list[OSError] = []

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
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
