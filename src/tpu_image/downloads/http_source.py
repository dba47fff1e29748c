"""One request for a file, or for the rest of one: what the server answers, judged before a byte is used.

Facts: RFC 9110, sections 8.8 (validators), 10.2.3 (Retry-After), 13.1.5 (If-Range), 14 (range requests), 15.4
(redirects).
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO, Any

from tpu_image import __version__

TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that may be others the next time."""

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")


class TransientError(Exception):
    """It did not work this time; ``wait`` is how many seconds the server asks for, or 0."""

    def __init__(self, what: str, wait: float = 0) -> None:
        super().__init__(what)
        self.wait = wait


class RefusedError(Exception):
    """It will not work another time either."""


@dataclass
class Answer:
    """A body to read: its first byte is the file's byte ``start``; ``total`` bytes in all, 0 where unknown."""

    start: int
    total: int
    validator: str
    body: http.client.HTTPResponse
    announced: bool = True
    """Whether the server said how long the body is."""

    def read(self) -> bytes:
        """Give what has arrived, at least a byte; nothing at the end.

        Raises:
            TransientError: the connection failed.
        """
        try:
            return self.body.read1(1 << 18)
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(_reason(error)) from None


class _Patient:
    """A connection whose answer must begin within a time, however slowly it trickles."""

    sock: Any
    timeout: Any
    _aborted = False

    def getresponse(self) -> http.client.HTTPResponse:
        timer = threading.Timer(3 * self.timeout, self._abort)
        timer.daemon = True
        timer.start()
        try:
            response: http.client.HTTPResponse = super().getresponse()  # type: ignore[misc]
        finally:
            timer.cancel()
        if self._aborted:
            raise TimeoutError
        return response

    def _abort(self) -> None:
        self._aborted = True
        with contextlib.suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)


class _Connection(_Patient, http.client.HTTPConnection):
    pass


class _SecureConnection(_Patient, http.client.HTTPSConnection):
    pass


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, request)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, request)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects as urllib does (ten at most), but never from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Refuse what would give up encryption, or leave HTTP."""
        if not newurl.startswith(("https://", "http://") if req.type == "http" else "https://"):
            raise RefusedError(f"is redirected to {newurl.partition('?')[0]}, which is not as safe")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def ask(url: str, start: int, validator: str, known: str, timeout: float) -> Answer | None:
    """Ask for a file.

    Args:
        url: http or https.
        start: how many bytes are there already; they count only if the validator still holds.
        validator: what the server said of the version of which those bytes are: an ETag or a date.
        known: the validator of a whole copy; where it still holds, the answer is None.
        timeout: seconds without a sign of life.

    Raises:
        TransientError: another try may work.
        RefusedError: none will.
    """
    request = urllib.request.Request(url, headers={"User-Agent": f"tpu-image/{__version__}"})  # noqa: S310
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", validator)
    elif known:
        name = "If-None-Match" if known.endswith('"') else "If-Modified-Since"
        request.add_header(name, known)
    opener = urllib.request.build_opener(_Handler, _SecureHandler, _Redirects)
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 304 and known:
            return None
        raise _failure(error) from None
    except urllib.error.URLError as error:
        raise _unreachable(error.reason) from None
    except (http.client.InvalidURL, ValueError) as error:
        raise RefusedError(f"is no URL that can be asked for: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(_reason(error)) from None
    return _judged(response, start, validator)


def _judged(response: http.client.HTTPResponse, start: int, validator: str) -> Answer:
    """Say where the body belongs; a part of another version, or another part, is of no use."""
    found = _validator(response.headers)
    if response.status == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != start or (found and found != validator):
            response.close()
            raise RestartError("the server sent a part that was not asked for")
        total = 0 if match[3] == "*" else int(match[3])
        return Answer(start, total, validator, response)
    return Answer(0, response.length or 0, found, response, response.length is not None)


class RestartError(TransientError):
    """What is there already is of no use: begin anew."""


def _validator(headers: http.client.HTTPMessage) -> str:
    """A strong ETag, else the date of the last change; nothing where the server names neither."""
    tag = headers.get("ETag", "")
    if tag.startswith('"') and tag.endswith('"') and len(tag) < 1024:
        return tag
    return headers.get("Last-Modified", "")[:64]


def _failure(error: urllib.error.HTTPError) -> Exception:
    if error.code == 416:
        return RestartError("the server has fewer bytes than are here")
    what = f"the server answers {error.code} {error.reason}".rstrip()
    if error.code in TRANSIENT:
        wait = error.headers.get("Retry-After", "")
        return TransientError(what, float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 6 else 0)
    return RefusedError(" ".join(what.split()))


def _unreachable(reason: object) -> Exception:
    import ssl

    if isinstance(reason, ssl.SSLCertVerificationError):
        return RefusedError(f"its certificate is not trusted here: {reason.verify_message}")
    if isinstance(reason, Exception):
        return TransientError(_reason(reason))
    return RefusedError(str(reason))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no sign of life"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
