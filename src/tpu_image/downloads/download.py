"""A file from a URL into the cache: whole and verified under its name, or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tpu_image.downloads import cache
from tpu_image.downloads.errors import DownloadError
from tpu_image.downloads.http_source import Answer, RefusedError, RestartError, TransientError, ask
from tpu_image.formats.printable import escaped
from tpu_image.output import make_durable

Report = Callable[[int, int, float], None]
"""Is told how many bytes are there, of how many (0: unknown), and how many come in a second."""

Note = Callable[[str], None]
"""Is told what a person should know: a wait, a new try, an old copy that is used."""

_REQUESTS = 100
"""For one file in all, however much each brings."""

_PROGRESS = 64 * 1024
"""Bytes that a try must bring so as not to count as vain."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


class UnreachableError(DownloadError):
    """It cannot be had now; another time it may."""


@dataclass(frozen=True)
class Limits:
    """What a server may take: bytes, seconds without a sign of life, tries that bring nothing."""

    size: int = 64 << 30
    timeout: float = 30
    tries: int = 5
    pause: float = 1
    """Seconds before the second try; doubled before each further one, up to ``longest_pause``."""
    longest_pause: float = 60
    slowest: float = 1024
    """Bytes a second; a server that sends less for ``window`` seconds is asked anew."""
    window: float = 60


def web_url(url: str) -> str:
    """Give the address by which a file is asked for: gs:// is Cloud Storage, which serves public objects over https.

    Raises:
        DownloadError: it is none that can be asked for.
    """
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as error:
        raise DownloadError(f"{url}: {error}; check the address") from None
    if not url.isprintable():
        raise DownloadError(f"{escaped(url)}: has characters that no URL has; write them as %XX")
    if parts.scheme == "gs":
        path = urllib.parse.quote(parts.path)
        return f"https://storage.googleapis.com/{parts.netloc}{path}"
    if parts.scheme not in ("http", "https", "file"):
        raise DownloadError(f"{url}: give an http, https, gs or file URL")
    if "@" in parts.netloc:
        raise DownloadError(f"{_shown(url)}: a name or password in a URL is not used; get the file yourself")
    return url


def is_url(text: str) -> bool:
    """Whether a text is a URL rather than a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def split_sha256(url: str) -> tuple[str, str]:
    """Give a URL, and the SHA-256 that its fragment names: ``...#sha256=...``, as pip has it; empty where none."""
    plain, _, fragment = url.partition("#")
    return (plain, fragment[len("sha256=") :]) if fragment.startswith("sha256=") else (url, "")


def download(
    url: str,
    *,
    sha256: str = "",
    report: Report | None = None,
    note: Note | None = None,
    limits: Limits = Limits(),
) -> Path:
    """Give the file of a URL: from the cache where it is there and current, else fetched into it.

    The file stays locked against removal until this process ends. What was fetched before an interruption is used.

    Args:
        url: http, https, gs (a public object) or file, which is used where it is.
        sha256: in hexadecimal; what the file must have. Without it the server is asked whether a copy is current.
        report: is told how far it is.
        note: is told what else happens.
        limits: what the server may take.

    Raises:
        DownloadError: it cannot be had, or is another than expected.
        CacheError: the cache cannot be used.
    """
    expected = sha256.lower()
    if expected and not _SHA256.fullmatch(expected):
        raise DownloadError(f"{_shown(url)}: its sha256 is to be 64 hexadecimal digits")
    web = web_url(url)
    if web.startswith("file:"):
        return _local(web, expected)
    if expected and (known := _known(expected)) is not None:
        return known
    return _Transfer(web, expected, report, note or _silent, limits).run()


def _silent(line: str) -> None:
    del line


def _shown(url: str) -> str:
    """A URL without what may be secret: a signature in its query, a password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _local(url: str, expected: str) -> Path:
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    if not path.is_file():
        raise DownloadError(f"{path}: is no file")
    if expected:
        with path.open("rb") as file:
            _verify(_hash(file).hexdigest(), expected, str(path))
    return path


def _known(sha256: str) -> Path | None:
    """A file of the cache that has this SHA-256, whatever its URL was."""
    cache.subfolder("downloads")  # which nobody else has put it into
    for entry in cache.entries():
        about = cache.about(entry.path)
        if entry.kind == "download" and about and about.sha256 == sha256 and cache.hold(entry.path):
            return entry.path
    return None


def _verify(found: str, expected: str, where: str) -> None:
    if expected and found != expected:
        raise DownloadError(
            f"{where}: its sha256 is {found}, not {expected}; it was changed or damaged: check which is right"
        )


def _hash(file: BinaryIO) -> hashlib._Hash:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest


def _name(url: str) -> str:
    """A file name for a URL: telling, harmless, and its own."""
    last = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", last)[-80:].lstrip(".") or "file"
    return f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{readable}.data"


@dataclass
class _Part:
    """A file that grows, and what is known of the bytes in it."""

    path: Path
    file: BinaryIO
    origin: str
    validator: str = ""
    done: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def take_up(self) -> None:
        """Go on where an earlier run ended, if the server can say whether those bytes still hold."""
        about = cache.about(self.path)
        if about is None or not about.validator:
            self.begin("")
            return
        self.validator = about.validator
        self.file.seek(0)
        self.digest = _hash(self.file)
        self.done = self.file.tell()

    def begin(self, validator: str) -> None:
        """Forget what is there; from now on it is the version that the validator names."""
        self.file.truncate(0)
        self.file.seek(0)
        self.digest = hashlib.sha256()
        self.done = 0
        self.validator = validator
        cache.describe(self.path, cache.About(self.origin, validator=validator))

    def append(self, data: bytes) -> None:
        """Add what has come."""
        self.file.write(data)
        self.digest.update(data)
        self.done += len(data)


class _Transfer:
    """One download: the file grows as ``NAME.part``, under a lock, and gets its name when it is whole."""

    def __init__(self, url: str, expected: str, report: Report | None, note: Note, limits: Limits) -> None:
        self._url = url
        self._shown = _shown(url)
        self._expected = expected
        self._report = report
        self._note = note
        self._limits = limits
        self._path = cache.subfolder("downloads") / _name(url)

    def run(self) -> Path:
        """Fetch, unless a copy is current."""
        with self._locked_part() as part:
            if self._expected and (known := _known(self._expected)) is not None:
                return known  # another process fetched it while this waited
            copy = None if self._expected else self._copy()
            try:
                if not self._fetch(part, copy):
                    return self._path
            except UnreachableError as error:
                if copy is None:
                    raise
                self._note(f"{error}; the copy in the cache is used")
                return self._path
            self._finish(part)
        cache.shrink(self._path)
        return self._path

    def _copy(self) -> cache.About | None:
        """What the cache has of this URL, held."""
        about = cache.about(self._path)
        return about if about is not None and cache.hold(self._path) else None

    @contextlib.contextmanager
    def _locked_part(self) -> Iterator[_Part]:
        path = self._path.with_name(self._path.name + ".part")
        with self._open_locked(path) as file:
            part = _Part(path, file, self._shown)
            try:
                yield part
            except OSError as error:
                with contextlib.suppress(OSError):
                    file.truncate(0)
                raise DownloadError(
                    f"{path.parent}: {error.strerror}; make room there, or name another folder in XDG_CACHE_HOME"
                ) from None
            finally:
                if cache.names(path, file.fileno()) and not path.stat().st_size:
                    path.unlink()
                    cache.about_path(path).unlink(missing_ok=True)

    def _open_locked(self, path: Path) -> BinaryIO:
        told = False
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            if not told and not cache.lock_if_free(descriptor):
                self._note(f"{self._shown}: another process fetches it; waiting for that")
                told = True
            cache.lock(descriptor)
            if cache.names(path, descriptor):
                return os.fdopen(descriptor, "r+b")
            os.close(descriptor)  # the other one has given it its name

    def _fetch(self, part: _Part, copy: cache.About | None) -> bool:
        """Get the file, however often the server fails; False where the copy is current."""
        part.take_up()
        vain = 0
        for _ in range(_REQUESTS):
            before = part.done
            try:
                known = copy.validator if copy and not part.done else ""
                answer = ask(self._url, part.done, part.validator, known, self._limits.timeout)
                if answer is None:
                    return False
                with contextlib.closing(answer.body):
                    self._take(part, answer)
                return True
            except RefusedError as error:
                raise DownloadError(f"{self._shown}: {error}; check the address") from None
            except TransientError as error:
                vain = 0 if part.done - before >= _PROGRESS else vain + 1
                if isinstance(error, RestartError) or not part.validator:
                    part.begin("")
                if vain >= self._limits.tries:
                    raise UnreachableError(f"{self._shown}: {error}, {vain} times; try again later") from None
                self._pause(vain, error)
        raise UnreachableError(f"{self._shown}: gave no whole file in {_REQUESTS} requests; try again later")

    def _pause(self, vain: int, error: TransientError) -> None:
        seconds = min(max(self._limits.pause * 2 ** max(vain - 1, 0), error.wait), self._limits.longest_pause)
        self._note(f"{self._shown}: {error}; trying again in {seconds:.0f} s")
        time.sleep(seconds)

    def _take(self, part: _Part, answer: Answer) -> None:
        """Read a body to its end.

        Raises:
            DownloadError: it is larger than allowed.
            TransientError: it ended early, or came too slowly.
        """
        if answer.start != part.done or not part.done:
            part.begin(answer.validator)
        began = mark = time.monotonic()
        first = marked = part.done
        while data := answer.read():
            if max(answer.total, part.done + len(data)) > self._limits.size:
                part.begin("")
                raise DownloadError(f"{self._shown}: is larger than {self._limits.size >> 20} MiB; check it")
            part.append(data)
            now = time.monotonic()
            if self._report is not None:
                self._report(part.done, answer.total, (part.done - first) / max(now - began, 1e-3))
            if now - mark > self._limits.window:
                if part.done - marked < self._limits.slowest * (now - mark):
                    raise TransientError(f"fewer than {self._limits.slowest:.0f} bytes a second came")
                mark, marked = now, part.done
        if part.done < answer.total:
            raise TransientError(f"the connection ended at byte {part.done} of {answer.total}")
        # What ends among its headers looks, to http.client, like an answer without a body.
        if not part.done and not answer.announced:
            raise TransientError("the connection ended before the file began")

    def _finish(self, part: _Part) -> None:
        found = part.digest.hexdigest()
        try:
            _verify(found, self._expected, self._shown)
        except DownloadError:
            part.begin("")
            raise
        make_durable(part.file)
        cache.describe(self._path, cache.About(self._shown, found, part.validator))
        part.path.replace(self._path)
        cache.about_path(part.path).unlink(missing_ok=True)
        cache.adopt(self._path, part.file.fileno())
