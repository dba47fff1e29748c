"""What can be known to fail is refused before anything is written."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import posixpath
from collections.abc import Iterable

from tpu_image.plan.change import Change, PlanError
from tpu_image.plan.journal_file import JournalFile
from tpu_image.plan.writer import UnreachableError, Writer, explained
from tpu_image.trees.base import Kind, normalise
from tpu_image.trees.directory import READ_FLAGS, encode_name
from tpu_image.trees.memory import Directory, File

_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS of 64-bit Linux, include/uapi/linux/fs.h
_IMMUTABLE = 0x10  # FS_IMMUTABLE_FL, there
_APPEND_ONLY = 0x20  # FS_APPEND_FL, there


def check_plan(changes: Iterable[Change], journal_file: JournalFile) -> None:
    """Refuse a plan that no tree can take: it was not made by :meth:`Plan.from_overlay`.

    Raises:
        PlanError: a path is not canonical or comes twice, a directory would go, the journal would be changed.
    """
    seen: set[str] = set()
    for change in changes:
        path = change.path
        if path != normalise(path) or path == "/":
            raise PlanError(path, "is not the canonical path of something below the root")
        if path in seen:
            raise PlanError(path, "is changed twice in one plan")
        if path == journal_file.path or (
            path in journal_file.directories and not isinstance(change.after, Directory)
        ):
            raise PlanError(path, "holds the undo journal, so cannot be changed")
        if isinstance(change.before, Directory) and not isinstance(change.after, Directory):
            raise PlanError(path, "is a directory; only files and links are removed or replaced")
        seen.add(path)


def check_owners(changes: Iterable[Change]) -> None:
    """Refuse owners that this process may not give: only root gives files away (chown(2)).

    Raises:
        PlanError: which file, and whose it should be.
    """
    if os.geteuid() == 0:
        return
    groups = {os.getegid(), *os.getgroups()}
    for change in changes:
        node = change.after
        if node is not None and (node.uid != os.geteuid() or node.gid not in groups):
            reason = f"is to belong to {node.uid}:{node.gid}, which only root can do; run as root"
            raise PlanError(change.path, reason)


def check_disk(writer: Writer, changes: Iterable[Change], journal_path: str, journal_size: int) -> None:
    """Refuse directories that cannot be written to and file systems without the room.

    Raises:
        PlanError: which directory, and why.
    """
    sizes = {c.path: len(c.after.content) if isinstance(c.after, File) else 1 for c in changes}
    sizes[journal_path] = journal_size
    names: dict[str, list[str]] = {}
    for path in sizes:
        names.setdefault(posixpath.dirname(path), []).append(posixpath.basename(path))
    needs: dict[int, _Need] = {}
    for wanted, held in names.items():
        directory = _nearest_directory(writer, wanted)
        with writer.open_directory(directory) as descriptor, explained(directory, "examined"):
            _check_writable(descriptor, directory)
            device = os.fstat(descriptor).st_dev
            need = needs.setdefault(device, _Need(directory, os.fstatvfs(descriptor)))
            for name in held:
                path = posixpath.join(wanted, name)
                need.add(sizes[path])
                if directory == wanted:
                    _check_flags(descriptor, encode_name(name), path)
    for need in needs.values():
        need.check()


class _Need:
    """The room that a plan needs on one file system."""

    def __init__(self, directory: str, status: os.statvfs_result) -> None:
        self._directory = directory
        self._status = status
        self._blocks = 0
        self._files = 0

    def add(self, size: int) -> None:
        self._blocks += -(-size // self._status.f_frsize)
        self._files += 1

    def check(self) -> None:
        status = self._status
        free = status.f_bfree if os.geteuid() == 0 else status.f_bavail
        if status.f_blocks and self._blocks > free:
            numbers = f"{self._blocks * status.f_frsize} bytes needed, {free * status.f_frsize} free"
            raise PlanError(self._directory, f"has no room for the changes: {numbers}")
        if status.f_files and self._files > status.f_favail:
            numbers = f"{self._files} inodes needed, {status.f_favail} free"
            raise PlanError(self._directory, f"has no room for the changes: {numbers}")


def _nearest_directory(writer: Writer, path: str) -> str:
    while not _is_directory(writer, path):
        path = posixpath.dirname(path)
    return path


def _is_directory(writer: Writer, path: str) -> bool:
    try:
        entry = writer.look(path)
    except UnreachableError:
        return False  # below a link, in whose place the plan makes a directory
    return entry is not None and entry.kind is Kind.DIRECTORY


def _check_writable(descriptor: int, directory: str) -> None:
    if os.fstatvfs(descriptor).f_flag & os.ST_RDONLY:
        raise PlanError(directory, "is on a read-only file system")
    if _flags(descriptor) & (_IMMUTABLE | _APPEND_ONLY):  # before access(2), to which this is no permission
        raise PlanError(directory, "is immutable or append-only (lsattr shows it, chattr -ia takes it away)")
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=descriptor, effective_ids=True):
        raise PlanError(directory, f"cannot be written to: {os.strerror(errno.EACCES).lower()}")


def _check_flags(directory: int, name: bytes, path: str) -> None:
    try:
        descriptor = os.open(name, READ_FLAGS, dir_fd=directory)
    except OSError:
        return  # nothing there, or a link; what cannot be read was refused before
    try:
        if _flags(descriptor) & (_IMMUTABLE | _APPEND_ONLY):
            raise PlanError(path, "is immutable or append-only (lsattr shows it, chattr -ia takes it away)")
    finally:
        os.close(descriptor)


def _flags(descriptor: int) -> int:
    flags = array.array("L", [0])
    try:
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    except OSError:
        return 0  # a file system without such flags
    return flags[0]
