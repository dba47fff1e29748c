"""A base image in, a TPU image out: the recipe, without a mount, root or a second copy of the disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tpu_image.catalogue import readings
from tpu_image.catalogue.image_state import wipe
from tpu_image.catalogue.requirement import Profile, Verdict
from tpu_image.disks import seal
from tpu_image.disks.archive import ArchiveResult, write_archive, write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.objections import open_system
from tpu_image.disks.source import BlockSource
from tpu_image.disks.tree_writer import free_ranges, write_nodes
from tpu_image.plan import Change, Plan

FORMATS = ("gce", "raw")
"""``gce``: what Compute Engine imports, a .tar.gz with ``disk.raw``; ``raw``: a sparse file."""

Report = Callable[[int, int], None]
"""Is told how many bytes of the disk are done, and how many are written."""


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


def default_time() -> int:
    """SOURCE_DATE_EPOCH where it is set (reproducible-builds.org), else now."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(given) if given.isdigit() else int(time.time())


def build(request: Request, report: Report | None = None) -> Built:
    """Make a TPU image of a base.

    The output appears under its name whole and checked, or not at all; the base is only read. Killed at any
    moment, nothing is left behind where the file system has unnamed files (O_TMPFILE), else one hidden file.

    Raises:
        DiskError: the base cannot be read, or has a form that is not edited; the message names it.
        TreeError, FormatError: a file in the base cannot be read or does not parse.
        OSError: the output cannot be written.
    """
    _refuse_output(request)
    with ThreadPoolExecutor(1) as beside, open_image(request.base) as base:
        base_sha256 = beside.submit(sha256_of, request.base)
        disk = EditedDisk(base, seal.whole_gib(base.size))
        seal.move_backup_gpt(disk)
        changes = _edit(disk, request)
        verdicts = _check(disk, request.profile)
        holds = readings.holds(verdicts)
        disk.discard(free_ranges(disk, open_tree(disk)))
        archive = _write(disk, request, report) if holds or request.force else None
        packages = packages_of(disk)
        return Built(changes, verdicts, holds, archive, disk.size, packages, base_sha256.result())


def _refuse_output(request: Request) -> None:
    if request.form == "gce" and not request.output.name.endswith(".tar.gz"):
        raise DiskError(
            "Compute Engine imports names that end in .tar.gz alone",
            str(request.output),
            f"name it {request.output.name.split('.')[0]}.tar.gz, or choose --format raw",
        )
    if request.output.exists() and request.output.samefile(request.base):
        raise DiskError(
            "is the base itself, which is never changed", str(request.output), "name another file"
        )


def _edit(disk: EditedDisk, request: Request) -> tuple[Change, ...]:
    tree = open_tree(disk)
    overlay = readings.plan(tree, request.profile)
    if not request.keep_identity:
        wipe(overlay)
    plan = Plan.from_overlay(overlay)
    write_nodes(disk, tree, {change.path: change.after for change in plan.changes}, time=request.time)
    return plan.changes


def _check(disk: EditedDisk, profile: Profile) -> tuple[Verdict, ...]:
    """Judge the edited disk as a check of the finished image would: opened anew, nothing remembered."""
    return tuple(readings.check(open_system(disk), profile))


def _write(disk: EditedDisk, request: Request, report: Report | None) -> ArchiveResult:
    with whole_file(request.output) as file:
        if request.form == "raw":
            return write_raw(disk, file, report=report)
        threads = request.threads or os.cpu_count() or 1
        return write_archive(disk, file, modified=request.time, threads=threads, report=report)


def packages_of(disk: BlockSource) -> tuple[tuple[str, str], ...]:
    """Names and versions of the Debian packages that are installed, sorted; empty for another package manager."""
    text = open_tree(disk).read_text_if_present("/var/lib/dpkg/status", limit=64 * 1024 * 1024) or ""
    found = []
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.split("\n") if ": " in line and line[0] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            found.append((fields.get("Package", ""), fields.get("Version", "")))
    return tuple(sorted(found))


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file that gets its name once the block ends well, durable and in one step."""
    folder = path.resolve().parent
    temporary = folder / f".{path.name}.tpu-image-new"
    descriptor, named = _unnamed_file(folder, temporary)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not named:
                temporary.unlink(missing_ok=True)
                _name(file.fileno(), temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _name(descriptor: int, path: Path) -> None:
    """Give an unnamed file a name. With a directory's descriptor Python calls linkat(2), which alone follows links."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{descriptor}", path.name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _unnamed_file(folder: Path, temporary: Path) -> tuple[int, bool]:
    """Open a file without a name, which the kernel frees if we are killed; a hidden one where it cannot."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o644), False
    except OSError:
        temporary.unlink(missing_ok=True)
        return os.open(temporary, flags | os.O_CREAT | os.O_EXCL, 0o644), True
