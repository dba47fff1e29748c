"""A base image in, a TPU image out: the recipe, without a mount, root or a second copy of the disk.

Only what the user wants executed in the image needs all three.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tpu_image.catalogue import readings
from tpu_image.catalogue.image_state import wipe
from tpu_image.catalogue.requirement import Profile, Verdict
from tpu_image.customise.applying import apply_files
from tpu_image.customise.customisation import Customisation
from tpu_image.customise.execution import Executed, executed
from tpu_image.customise.namespace import NamespaceExecutor
from tpu_image.customise.session import Listener, Silent
from tpu_image.disks import seal
from tpu_image.disks.archive import ArchiveResult, Report, write_archive, write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.objections import open_system
from tpu_image.disks.source import BlockSource
from tpu_image.disks.tree_writer import free_ranges, write_nodes
from tpu_image.output import make_durable, whole_file, write_file
from tpu_image.plan import Change, Plan
from tpu_image.trees.base import Tree

FORMATS = ("gce", "raw")
"""``gce``: what Compute Engine imports, a .tar.gz with ``disk.raw``; ``raw``: a sparse file."""

LATEST = 1 << 33
"""Seconds since 1970 that a build may carry: what fits into a tar header, some 270 years."""

PACKAGES_LIMIT = 16 * 1024 * 1024
"""Bytes of the list of installed packages; some 5,000 of them take 6 MB."""


@dataclass(frozen=True)
class Request:
    """What to build: ``time`` is seconds since 1970 that new files and the archive carry."""

    base: Path
    output: Path
    profile: Profile
    form: str = "gce"
    keep_identity: bool = False
    force: bool = False
    time: int = 0
    threads: int = 0
    customisation: Customisation = field(default_factory=Customisation)


@dataclass(frozen=True)
class Built:
    """What came of it. ``archive`` is None where the image does not hold and so was not written."""

    changes: tuple[Change, ...]
    verdicts: tuple[Verdict, ...]
    holds: bool
    archive: ArchiveResult | None
    disk_size: int
    packages: tuple[tuple[str, str], ...]
    base_sha256: str
    executed: Executed = field(default_factory=Executed)
    placed: tuple[str, ...] = ()


Describe = Callable[[Request, Built], str]
"""Writes down what a build did: the text of the file beside the image."""


def default_time() -> int:
    """SOURCE_DATE_EPOCH where it is set (reproducible-builds.org), else now.

    Raises:
        ValueError: it is set, and no number of seconds since 1970 that a build can carry.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not given:
        return int(time.time())
    if not (given.isascii() and given.isdigit() and len(given) < 12 and int(given) < LATEST):
        raise ValueError(f"SOURCE_DATE_EPOCH is {given!r}: give seconds since 1970, or unset it")
    return int(given)


def manifest_path(output: Path) -> Path:
    """Where what a build did is written down: beside its image."""
    return output.with_name(output.name + ".json")


def build(
    request: Request,
    report: Report | None = None,
    describe: Describe | None = None,
    listener: Listener | None = None,
) -> Built:
    """Make a TPU image of a base.

    The output appears under its name whole and checked, or not at all; the base is only read. Killed at any
    moment, nothing is left behind where the file system has unnamed files (O_TMPFILE), else one hidden file.

    Args:
        request: what to build.
        report: is told how far the writing is.
        listener: is told what is executed in the image.
        describe: gives the text of :func:`manifest_path`, which gets its name just before the image does.

    Raises:
        CustomisationError: the image cannot be made as the user wants it; named.
        DiskError: the base cannot be read, or has a form that is not edited, or the output is unfit; named.
        TreeError, FormatError: a file in the base cannot be read or does not parse.
        OSError: the output cannot be written.
    """
    _refuse_output(request.output, request.form)
    with open_image(request.base) as base:
        _refuse_base(request.output, base)
        before = _state(request.base)
        with contextlib.ExitStack() as stack:
            base_sha256 = stack.enter_context(hashed(request.base))
            disk = EditedDisk(base, seal.whole_gib(base.size))
            seal.move_backup_gpt(disk)
            disk, done = stack.enter_context(
                executed(
                    disk,
                    request.customisation,
                    NamespaceExecutor(),
                    listener or Silent(),
                    folder=request.output.resolve().parent,
                )
            )
            changes = _edit(disk, request)
            placed = apply_files(
                disk, request.customisation, time=request.time, keep_leftovers=request.keep_identity
            )
            disk.discard(free_ranges(disk, open_tree(disk)))
            # As a check of the finished image would: opened anew, nothing remembered.
            tree = open_system(disk)
            verdicts = tuple(readings.check(tree, request.profile))
            packages = packages_of(tree)
            holds = readings.holds(verdicts)
            if not holds and not request.force:
                return Built(changes, verdicts, holds, None, disk.size, packages, "", done, placed)
            with whole_file(request.output) as file:
                archive = _write(disk, file, request, report)
                built = Built(
                    changes, verdicts, holds, archive, disk.size, packages, base_sha256(), done, placed
                )
                make_durable(file)
                if _state(request.base) != before:
                    raise DiskError(
                        "was changed while it was read",
                        str(request.base),
                        "stop what uses it, then build again",
                    )
                if describe is not None:
                    write_file(manifest_path(request.output), describe(request, built).encode())
            return built


def _state(path: Path) -> tuple[int, ...]:
    """What of a file's status moves when it is written to or replaced."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _refuse_output(output: Path, form: str) -> None:
    """Refuse a name that cannot be, before any work."""
    if form == "gce" and not output.name.endswith(".tar.gz"):
        raise DiskError(
            "Compute Engine imports names that end in .tar.gz alone",
            str(output),
            f"name it {output.name.split('.')[0]}.tar.gz, or choose --format raw",
        )
    for path in (output, manifest_path(output)):
        if path.exists() and not path.is_file():
            raise DiskError("is no regular file, so it cannot be replaced", str(path), "name another file")
    folder = output.resolve().parent
    if not folder.is_dir():
        raise DiskError("is no folder to write to", str(folder), "make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise DiskError("may not be written to", str(folder), "name a file in a folder of yours")


def _refuse_base(output: Path, base: BlockSource) -> None:
    """Refuse to replace a file that the base is stored in."""
    for path in (output, manifest_path(output)):
        if path.exists() and (path.stat().st_dev, path.stat().st_ino) in base.files:
            raise DiskError("is the base itself, which is never changed", str(path), "name another file")


def _edit(disk: EditedDisk, request: Request) -> tuple[Change, ...]:
    tree = open_tree(disk)
    overlay = readings.plan(tree, request.profile)
    if not request.keep_identity:
        wipe(overlay)
    plan = Plan.from_overlay(overlay)
    write_nodes(disk, tree, {change.path: change.after for change in plan.changes}, time=request.time)
    return plan.changes


def _write(disk: EditedDisk, file: BinaryIO, request: Request, report: Report | None) -> ArchiveResult:
    threads = request.threads or None
    if request.form == "raw":
        return write_raw(disk, file, threads=threads, report=report)
    return write_archive(disk, file, modified=request.time, threads=threads, report=report)


def packages_of(tree: Tree) -> tuple[tuple[str, str], ...]:
    """Names and versions of the Debian packages that are installed, sorted; empty for another package manager."""
    text = tree.read_text_if_present("/var/lib/dpkg/status", limit=PACKAGES_LIMIT) or ""
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.split("\n") if ": " in line and line[0] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append((fields.get("Package", ""), fields.get("Version", "")))
    return tuple(sorted(found))


@contextlib.contextmanager
def hashed(path: Path) -> Iterator[Callable[[], str]]:
    """Take the SHA-256 of a file beside other work; the function given waits for it, in hexadecimal.

    Where the block ends before that, the hashing ends too.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
        digest = pool.submit(_sha256_of, path, stop)
        try:
            yield digest.result
        finally:
            stop.set()


def _sha256_of(path: Path, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while not stop.is_set() and (chunk := file.read(1 << 20)):
            digest.update(chunk)
    return digest.hexdigest()
