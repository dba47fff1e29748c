"""Running skopeo: bounded in time, killed with this process, and what it says turned into one line."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from tpu_image.agents.errors import AgentError
from tpu_image.parent_death import ends_with_us

MESSAGE_LIMIT = 64 * 1024
"""Bytes of its messages that are looked at."""

POLL = 0.2
"""Seconds between two looks at how far it is."""

INSTEAD = (
    "give an archive of the image (skopeo copy docker://IMAGE docker-archive:FILE, where it can be reached)"
)

Watch = Callable[[], int]
"""Tells how many bytes are there by now."""

_MESSAGE = re.compile(r'level=(?:fatal|error) msg="((?:[^"\\]|\\.)*)"')


class SkopeoError(AgentError):
    """skopeo failed; ``again`` says whether a second try may do better, ``refused`` whether for want of credentials."""

    def __init__(
        self, what: str, where: str, remedy: str, *, again: bool = False, refused: bool = False
    ) -> None:
        super().__init__(what, where, remedy)
        self.again = again
        self.refused = refused


_KINDS: tuple[tuple[str, str, str, bool, bool], ...] = (
    (
        r"toomanyrequests|too many requests|\b429\b",
        "the registry answers that there were too many requests (429)",
        f"wait some minutes, or {INSTEAD}",
        False,
        False,
    ),
    (
        r"unauthorized|authentication required|denied|forbidden|\b401\b|\b403\b|invalid username/password",
        "the registry refuses without (other) credentials",
        f"log in (gcloud auth configure-docker, skopeo login) or name a file of credentials, or {INSTEAD}",
        False,
        True,
    ),
    (
        r"manifest unknown|name unknown|not found|\b404\b",
        "the registry has no such image",
        "correct the name or the tag",
        False,
        False,
    ),
    (
        r"digest did not match|does not match|unexpected eof|bytes for|content-length|digest mismatch",
        "the registry sent something else than the image says",
        f"try again later, or {INSTEAD}",
        True,
        False,
    ),
    (
        r"no such host|connection refused|no route|network is unreachable|i/o timeout|timeout|reset by peer|dial tcp",
        "the registry cannot be reached",
        f"look at the network, or {INSTEAD}",
        True,
        False,
    ),
    (r"\b50[0-9]\b|\beof\b", "the registry fails", f"try again later, or {INSTEAD}", True, False),
    (
        r"no space left",
        "there is no room for the image",
        "make room in the cache's file system",
        False,
        False,
    ),
)


def run(
    arguments: Sequence[str],
    where: str,
    *,
    seconds: float,
    stall: float = 0,
    watch: Watch | None = None,
    limit: int = 0,
    descriptors: Sequence[int] = (),
) -> bytes:
    """Run skopeo and give what it prints.

    Args:
        arguments: of skopeo.
        where: what messages name.
        seconds: that it may take in all.
        stall: seconds in which the number of ``watch`` may stay the same; 0: no matter.
        watch: is asked several times a second.
        limit: bytes that ``watch`` may tell and that may be printed; 0: no matter.
        descriptors: that it inherits.

    Raises:
        SkopeoError: it fails, or takes too long.
        AgentError: it is not installed.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as messages:
        process = _start(arguments, output, messages, descriptors)
        try:
            _wait(process, where, seconds, stall, watch, limit)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        if process.returncode:
            raise explained(_text(messages), where)
        output.seek(0)
        return output.read(limit or -1)


def _start(
    arguments: Sequence[str], output: BinaryIO, messages: BinaryIO, descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    if shutil.which("skopeo") is None:
        raise AgentError(
            "is needed to ask a registry, and is not installed", "skopeo", f"install it, or {INSTEAD}"
        )
    return subprocess.Popen(
        [*ends_with_us(), "skopeo", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=messages,
        pass_fds=descriptors,
    )


def _wait(
    process: subprocess.Popen[bytes],
    where: str,
    seconds: float,
    stall: float,
    watch: Watch | None,
    limit: int,
) -> None:
    began = moved = time.monotonic()
    last = -1
    while True:
        try:
            process.wait(POLL)
            return
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        current = watch() if watch else 0
        if current != last:
            last, moved = current, now
        if limit and current > limit:
            raise SkopeoError(f"is larger than {limit >> 20} MiB", where, "give another image")
        if (stall and now - moved > stall) or now - began > seconds:
            silent = f"the registry sent nothing for {now - moved:.0f} seconds"
            slow = f"it takes longer than {seconds:.0f} seconds"
            what = silent if now - moved > 1 else slow
            raise SkopeoError(what, where, f"try again, or {INSTEAD}", again=True)


def _text(messages: BinaryIO) -> str:
    end = messages.seek(0, 2)
    messages.seek(max(0, end - MESSAGE_LIMIT))
    return messages.read().decode("utf-8", "replace")


def explained(text: str, where: str) -> SkopeoError:
    """Turn skopeo's messages into an error of one line."""
    found = _MESSAGE.findall(text)
    message = found[-1].replace('\\"', '"') if found else " ".join(text.split())[-300:]
    for pattern, what, remedy, again, refused in _KINDS:
        if re.search(pattern, message, re.IGNORECASE):
            return SkopeoError(what, where, remedy, again=again, refused=refused)
    return SkopeoError(f"skopeo fails: {message[-300:] or 'without a word'}", where, INSTEAD)


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder and in the folders in it; files may come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue
    return total
