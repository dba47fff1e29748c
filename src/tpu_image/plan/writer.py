"""Writing into a tree that may be hostile and that others may be changing.

As in :mod:`tpu_image.trees.directory`, a path is walked from the root's descriptor without following a link,
afresh for every step, so that a directory swapped for a link is an error and nothing outside is touched.
Whatever appears at a path appears whole: it is made under a temporary name beside it and renamed over it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posixpath
from collections.abc import Callable, Iterator

from tpu_image.plan.change import PlanError
from tpu_image.plan.snapshot import Snapshot, link_path, read_snapshot, write_attributes
from tpu_image.trees.base import Entry, Kind
from tpu_image.trees.directory import (
    STEP_FLAGS,
    encode_name,
    encode_path,
    entry_of_status,
    is_absent,
    open_root,
    open_step,
    reason_of,
)
from tpu_image.trees.memory import Directory, File, Node, Symlink

OnStep = Callable[[str], None]
"""Is told of each step that changes the disk, just before it is done."""

_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnreachableError(PlanError):
    """The directory that holds a path cannot be entered, at least not without following a link."""


class AbsentError(UnreachableError):
    """The directory that holds a path is not there."""


def no_step(step: str) -> None:
    """Do nothing at a step."""


def temporary_name(path: str) -> bytes:
    """Name what is made for a path until it is whole: the same each time, so that a later run finds it."""
    import hashlib

    return f".tpu-image-{hashlib.sha256(encode_path(path)).hexdigest()[:16]}.tmp".encode()


@contextlib.contextmanager
def explained(path: str, action: str) -> Iterator[None]:
    """Turn what the system says into a :class:`PlanError` that says what could not be done."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise PlanError(path, f"cannot be {action}: {reason_of(error)}") from error


class Writer:
    """The one process that changes a tree: it holds a lock on the root directory until it is closed.

    Raises:
        TreeError: the root cannot be opened.
        PlanError: another process holds the lock.
    """

    def __init__(self, root: str | os.PathLike[str], on_step: OnStep = no_step) -> None:
        self.root = os.fspath(root)
        self.on_step = on_step
        self._touched: set[str] = set()
        self._root = open_root(root, os.O_RDONLY)
        try:
            # The lock of a directory's own descriptor leaves nothing behind, however the process ends. Whoever
            # may read the directory can take it, and so make us refuse, but do no more.
            with explained(self.root, "locked"):
                fcntl.flock(self._root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except PlanError as error:
            os.close(self._root)
            if isinstance(error.__cause__, BlockingIOError):
                reason = "is being changed by another tpu-image; wait until it ends"
                raise PlanError(self.root, reason) from None
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    @contextlib.contextmanager
    def open_directory(self, path: str) -> Iterator[int]:
        """Open the directory at a canonical path, for listing and syncing.

        Raises:
            UnreachableError: it is not there (AbsentError), or a link is on the way.
        """
        try:
            descriptor = self._walk(path)
        except (OSError, ValueError) as error:
            kind = AbsentError if is_absent(error) else UnreachableError
            raise kind(path, f"cannot be entered: {reason_of(error)}") from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _walk(self, path: str) -> int:
        step = os.open(b".", STEP_FLAGS, dir_fd=self._root)
        try:
            for name in path.split("/"):
                if name:
                    below = open_step(step, encode_name(name))
                    os.close(step)
                    step = below
            return os.open(b".", _LIST_FLAGS, dir_fd=step)
        finally:
            os.close(step)

    @contextlib.contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, bytes]]:
        """Open the directory that holds a path; give its descriptor and the name in it."""
        with self.open_directory(posixpath.dirname(path)) as directory:
            yield directory, encode_name(posixpath.basename(path) or ".")

    def look(self, path: str) -> Entry | None:
        """Describe the entry at a canonical path; None where nothing is."""
        try:
            with explained(path, "looked at"), self.parent(path) as (directory, name):
                return _look(directory, name)
        except AbsentError:
            return None

    def snapshot(self, path: str) -> Snapshot:
        """Read what is at a canonical path, with all that is put back.

        Raises:
            TreeError: it is a device, FIFO or socket, too large, or cannot be read or reached.
        """
        try:
            with explained(path, "read"), self.parent(path) as (directory, name):
                return read_snapshot(directory, name, path)
        except AbsentError:
            return Snapshot()

    def require(self, path: str, expected: Node | None) -> Snapshot:
        """Read what is at a path, which must be as it was when the plan was made.

        Raises:
            PlanError: it is not.
        """
        present = self.snapshot(path)
        if present.node != expected:
            raise PlanError(path, "was changed by something else after the plan was made; plan again")
        return present

    def stage(self, path: str, wanted: Snapshot) -> None:
        """Make a file or link, whole and on the disk, under the temporary name of its path."""
        with explained(path, "written"), self.parent(path) as (directory, _):
            temporary = temporary_name(path)
            self._discard(directory, temporary, path)
            self._step("stage", path)
            try:
                if isinstance(wanted.node, Symlink):
                    _make_link(directory, temporary, wanted, wanted.node)
                elif isinstance(wanted.node, File):
                    self._make_file(directory, temporary, path, wanted, wanted.node)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                raise

    def _make_file(self, directory: int, name: bytes, path: str, wanted: Snapshot, node: File) -> None:
        descriptor = os.open(name, _CREATE_FLAGS, 0o600, dir_fd=directory)
        try:
            content = memoryview(node.content)
            while content:
                content = content[os.write(descriptor, content) :]
            self._settle(descriptor, path, wanted, node)
            self._step("sync", path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def place(self, path: str) -> None:
        """Let what was staged take its path, over a file or link that is there."""
        with explained(path, "written"), self.parent(path) as (directory, name):
            self._step("rename", path)
            os.rename(temporary_name(path), name, src_dir_fd=directory, dst_dir_fd=directory)

    def move(self, source: str, destination: str) -> None:
        """Rename a file."""
        with (
            explained(destination, "written"),
            self.parent(source) as (from_directory, name),
            self.parent(destination) as (to_directory, new_name),
        ):
            self._step("move away", source)
            self._step("move here", destination)
            os.rename(name, new_name, src_dir_fd=from_directory, dst_dir_fd=to_directory)

    def discard(self, path: str) -> None:
        """Remove what an earlier run may have left under the temporary name of a path."""
        try:
            with explained(path, "cleaned"), self.parent(path) as (directory, _):
                self._discard(directory, temporary_name(path), path)
        except UnreachableError:
            return  # nothing was made there

    def _discard(self, directory: int, temporary: bytes, path: str) -> None:
        entry = _look(directory, temporary)
        if entry is not None:
            self._step("discard the temporary name of", path)
            remove = os.rmdir if entry.kind is Kind.DIRECTORY else os.unlink
            remove(temporary, dir_fd=directory)

    def make_directory(self, path: str, wanted: Snapshot) -> None:
        """Make a directory, or give the one that is there this mode and owner."""
        if not isinstance(wanted.node, Directory):
            raise TypeError(path)
        with explained(path, "made"), self.parent(path) as (directory, name):
            temporary = temporary_name(path)
            exists = _look(directory, name) is not None
            if not exists:
                self._discard(directory, temporary, path)
                self._step("make directory", path)
                os.mkdir(temporary, 0o700, dir_fd=directory)
            descriptor = os.open(name if exists else temporary, _LIST_FLAGS, dir_fd=directory)
            try:
                # What is there keeps its attributes, as it keeps its content.
                settled = wanted._replace(xattrs=None) if exists else wanted
                self._settle(descriptor, path, settled, wanted.node)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if not exists:
                self._step("rename", path)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)

    def _settle(self, descriptor: int, path: str, wanted: Snapshot, node: File | Directory) -> None:
        status = os.fstat(descriptor)
        if (status.st_uid, status.st_gid) != (node.uid, node.gid):
            self._step("set the owner of", path)
            os.fchown(descriptor, node.uid, node.gid)
        if wanted.xattrs is not None:
            write_attributes(descriptor, wanted.xattrs)
        # Last, for a new owner takes set-user-ID bits away, and a new access control list changes the mode.
        self._step("set the mode of", path)
        os.fchmod(descriptor, node.mode)
        if wanted.mtime_ns is not None:
            os.utime(descriptor, ns=(wanted.mtime_ns, wanted.mtime_ns))
        entry = entry_of_status(os.fstat(descriptor))
        if (entry.mode, entry.uid, entry.gid) != (node.mode, node.uid, node.gid):
            raise PlanError(path, "is on a file system that does not keep the mode and owner")

    def remove(self, path: str) -> None:
        """Remove a file, link or empty directory; nothing happens where there is none."""
        with explained(path, "removed"), self.parent(path) as (directory, name):
            entry = _look(directory, name)
            if entry is not None:
                self._step("remove", path)
                remove = os.rmdir if entry.kind is Kind.DIRECTORY else os.unlink
                remove(name, dir_fd=directory)

    def restore(self, path: str, wanted: Snapshot) -> None:
        """Put back what a snapshot holds.

        Raises:
            PlanError: the system refuses; where a directory that is not empty is in the way, too.
        """
        entry = self.look(path)
        is_directory = entry is not None and entry.kind is Kind.DIRECTORY
        if wanted.node is None or is_directory != isinstance(wanted.node, Directory):
            self.remove(path)
        if isinstance(wanted.node, Directory):
            self.make_directory(path, wanted)
        elif wanted.node is not None:
            self.stage(path, wanted)
            self.place(path)

    def _step(self, what: str, path: str) -> None:
        self._touched.add(posixpath.dirname(path))
        self.on_step(f"{what} {path}")

    def sync(self) -> None:
        """Have every change of a directory's names so far on the disk."""
        for path in sorted(self._touched):
            try:
                with explained(path, "synced"), self.open_directory(path) as directory:
                    self.on_step(f"sync directory {path}")
                    _sync_directory(directory)
            except UnreachableError:
                continue  # removed since, or moved away by somebody
        self._touched.clear()


def is_not_empty(error: PlanError) -> bool:
    """Whether something could not be removed because it is a directory that holds something."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOTEMPTY, errno.EEXIST)


def remove_if_empty(writer: Writer, path: str) -> bool:
    """Remove what is at a path unless it is a directory that holds something; say whether it is gone.

    Raises:
        PlanError: the system refuses for another reason.
    """
    try:
        writer.remove(path)
    except AbsentError:
        return True
    except PlanError as error:
        if is_not_empty(error):
            return False
        raise
    return True


def _look(directory: int, name: bytes) -> Entry | None:
    try:
        return entry_of_status(os.stat(name, dir_fd=directory, follow_symlinks=False))
    except OSError as error:
        if is_absent(error):
            return None
        raise


def _sync_directory(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise


def _make_link(directory: int, name: bytes, wanted: Snapshot, node: Symlink) -> None:
    os.symlink(encode_path(node.target), name, dir_fd=directory)
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if (status.st_uid, status.st_gid) != (node.uid, node.gid):
        os.chown(name, node.uid, node.gid, dir_fd=directory, follow_symlinks=False)
    if wanted.xattrs is not None:
        write_attributes(link_path(directory, name), wanted.xattrs)
    if wanted.mtime_ns is not None:
        times = (wanted.mtime_ns, wanted.mtime_ns)
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
