"""Writing what an image holds into a directory of this machine, beside what is there and then in its place.

The directory may be hostile and changing: each step is relative to the descriptor of the directory before it, and
follows no link. Nothing is seen under its name before it is whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil

from tpu_image.agents.errors import AgentError
from tpu_image.agents.filesystem import Directory, File, Link, Node
from tpu_image.agents.image import OnProgress
from tpu_image.agents.spool import Spool
from tpu_image.trees.directory import STEP_FLAGS, encode_name, open_root, reason_of

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CAPABILITY = "security.capability"


def write_below(
    root: str,
    folder: str,
    mode: int,
    nodes: dict[str, Node],
    spool: Spool,
    progress: OnProgress | None = None,
    *,
    durable: bool = True,
) -> None:
    """Have these nodes in a folder, each whole or as it was before.

    Args:
        root: directory of this machine.
        folder: path below it that holds no link; it is made where it is missing.
        mode: permission bits of the folder.
        nodes: by the names that they get.
        spool: holds the content of files.
        progress: is told how far it is.
        durable: whether what is written is on the disk before it gets its name.

    Raises:
        AgentError: the folder cannot be entered or written to.
    """
    try:
        descriptor = _entered(root, folder, mode)
        try:
            writer = _Writer(spool, progress)
            for name, node in nodes.items():
                _replace(descriptor, name, node, writer, durable=durable)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise AgentError(
            f"cannot be written: {reason_of(error)}",
            root.rstrip("/") + folder,
            "make room or give the right to, and run it again",
        ) from error


def remove_below(root: str, folder: str, names: list[str]) -> list[str]:
    """Take entries away from a folder with all that is in them; give the names of those that were there.

    Raises:
        AgentError: one cannot be removed.
    """
    try:
        descriptor = _entered(root, folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise AgentError(f"cannot be entered: {reason_of(error)}", folder, "look at what is there") from error
    try:
        return [name for name in names if _removed(encode_name(name), descriptor)]
    except OSError as error:
        raise AgentError(
            f"cannot be removed: {reason_of(error)}", folder, "stop what uses it, and run it again"
        ) from error
    finally:
        os.close(descriptor)


def _entered(root: str, folder: str, make_mode: int | None = None) -> int:
    """Open a folder below a root without following a link; with a mode, make what is missing of it."""
    current = open_root(root, os.O_RDONLY)
    try:
        for part in folder.strip("/").split("/"):
            name = encode_name(part)
            if make_mode is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=current)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            current, above = os.open(name, flags, dir_fd=current), current
            os.close(above)
        if make_mode is not None:
            os.fchmod(current, make_mode)
    except BaseException:
        os.close(current)
        raise
    return current


def _replace(folder: int, name: str, node: Node, writer: _Writer, *, durable: bool) -> None:
    """Write a node under a hidden name, then exchange it with what bears its name."""
    final, new, old = (encode_name(part) for part in (name, f".{name}.new", f".{name}.old"))
    for leftover in (new, old):
        _removed(leftover, folder)
    writer.write(node, new, folder)
    if durable:
        _sync_file_system(folder)
    with contextlib.suppress(FileNotFoundError):
        os.rename(final, old, src_dir_fd=folder, dst_dir_fd=folder)
    os.rename(new, final, src_dir_fd=folder, dst_dir_fd=folder)
    _removed(old, folder)


def _sync_file_system(descriptor: int) -> None:
    """Have on the disk what was written to a file system: one wait, where each of many files would take one."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.syncfs(descriptor):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _removed(name: bytes, folder: int) -> bool:
    """Take an entry away, whatever it is; False where there is none. ``shutil.rmtree`` follows no link."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
        # Python 3.10 takes no directory's descriptor here; it walks by descriptors itself, and follows no link.
        shutil.rmtree(b"/proc/self/fd/%d/%s" % (folder, name))
    return True


class _Writer:
    """Writes one tree after another from a spool."""

    def __init__(self, spool: Spool, progress: OnProgress | None) -> None:
        self._spool = spool
        self._progress = progress
        self._as_root = os.geteuid() == 0
        self._done = 0

    def write(self, node: Node, name: bytes, folder: int) -> None:
        """Write a node and all below it under a name that is free.

        The names under which files were written are kept while it goes on, for their hard links.
        """
        self._written: dict[int, tuple[bytes, ...]] = {}
        self._top = folder
        self._put(node, name, folder, (name,))

    def _put(self, node: Node, name: bytes, folder: int, path: tuple[bytes, ...]) -> None:
        if isinstance(node, Directory):
            self._directory(node, name, folder, path)
        elif id(node) in self._written:
            self._hard_link(self._written[id(node)], name, folder)
        else:
            self._written[id(node)] = path
            if isinstance(node, File):
                self._file(node, name, folder)
            else:
                self._link(node, name, folder)

    def _directory(self, node: Directory, name: bytes, folder: int, path: tuple[bytes, ...]) -> None:
        os.mkdir(name, 0o700, dir_fd=folder)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            for child_name, child in node.children.items():
                encoded = encode_name(child_name)
                self._put(child, encoded, descriptor, (*path, encoded))
            self._own(descriptor, node)
            os.fchmod(descriptor, node.mode)
            os.utime(descriptor, (node.mtime, node.mtime))
        finally:
            os.close(descriptor)

    def _file(self, node: File, name: bytes, folder: int) -> None:
        descriptor = os.open(name, _CREATE, 0o600, dir_fd=folder)
        try:
            for chunk in self._spool.chunks(node.offset, node.size):
                rest = memoryview(chunk)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                self._advance(len(chunk))
            self._own(descriptor, node)
            os.fchmod(descriptor, node.mode)
            if node.capability and self._as_root:
                os.setxattr(descriptor, _CAPABILITY, node.capability)
            os.utime(descriptor, (node.mtime, node.mtime))
        finally:
            os.close(descriptor)

    def _link(self, node: Link, name: bytes, folder: int) -> None:
        os.symlink(node.target.encode("utf-8", "surrogateescape"), name, dir_fd=folder)
        if self._as_root:
            os.chown(name, node.uid, node.gid, dir_fd=folder, follow_symlinks=False)

    def _hard_link(self, path: tuple[bytes, ...], name: bytes, folder: int) -> None:
        """Give what was written another name; the way to it is walked as it was made."""
        descriptor = os.dup(self._top)
        try:
            for part in path[:-1]:
                descriptor, above = os.open(part, STEP_FLAGS, dir_fd=descriptor), descriptor
                os.close(above)
            os.link(path[-1], name, src_dir_fd=descriptor, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(descriptor)

    def _own(self, descriptor: int, node: File | Directory) -> None:
        if self._as_root:
            os.fchown(descriptor, node.uid, node.gid)

    def _advance(self, length: int) -> None:
        self._done += length
        if self._progress is not None:
            self._progress("writing", self._done, 0)
