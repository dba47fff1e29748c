"""What is at a path, with everything that is put back when a change is taken back."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import NamedTuple

from tpu_image.trees.base import READ_LIMIT, Kind, NotAFileError
from tpu_image.trees.directory import READ_FLAGS, decode_name, entry_of_status, is_absent, read_descriptor
from tpu_image.trees.memory import Directory, File, Node, Symlink, entry_of

INODE_SIGNATURE = "security.evm"
"""The extended attribute that signs one inode: it is the kernel's to write, never carried to another."""

CONTENT_SIGNATURE = "security.ima"
"""The extended attribute that signs a content: it goes with that content alone."""


class Snapshot(NamedTuple):
    """A node with its time and extended attributes.

    ``mtime_ns`` None is the time of writing (and always so for a directory, whose time says what others do in
    it); ``xattrs`` None are the extended attributes that the system gives to something new.
    """

    node: Node | None = None
    mtime_ns: int | None = None
    xattrs: Mapping[str, bytes] | None = None


def read_snapshot(directory: int, name: bytes, path: str) -> Snapshot:
    """Read what has this name in an open directory; ``path`` is for the messages.

    Raises:
        NotAFileError: a device, FIFO or socket is there.
        TooLargeError: the file holds more than :data:`~tpu_image.trees.base.READ_LIMIT` bytes.
        OSError: as the system says.
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError as error:
        if is_absent(error):
            return Snapshot()
        raise
    kind = entry_of_status(status).kind
    if kind is Kind.SYMLINK:
        link = Symlink(decode_name(os.readlink(name, dir_fd=directory)), status.st_uid, status.st_gid)
        return Snapshot(link, status.st_mtime_ns, read_attributes(link_path(directory, name)))
    if kind not in (Kind.FILE, Kind.DIRECTORY):
        raise NotAFileError(path, f"is a {kind.value}; only files, links and directories are changed")
    descriptor = os.open(name, READ_FLAGS, dir_fd=directory)
    try:
        return _read_descriptor(descriptor, path)
    finally:
        os.close(descriptor)


def _read_descriptor(descriptor: int, path: str) -> Snapshot:
    status = os.fstat(descriptor)
    entry = entry_of_status(status)
    owner = (entry.mode, entry.uid, entry.gid)
    if entry.kind is Kind.DIRECTORY:
        return Snapshot(Directory(*owner), None, read_attributes(descriptor))
    content = read_descriptor(descriptor, path, READ_LIMIT)
    return Snapshot(File(content, *owner), status.st_mtime_ns, read_attributes(descriptor))


def link_path(directory: int, name: bytes) -> bytes:
    """Name a link so that its extended attributes can be reached: no system call takes a descriptor for that.

    Only the last part is not followed, and the one before is the open directory itself (proc(5)).
    """
    return b"/proc/self/fd/%d/%s" % (directory, name)


def read_attributes(target: int | bytes) -> dict[str, bytes]:
    """Read the extended attributes of an open file, or of the link with this name.

    None are known where the file system has none, or where there is no ``/proc`` to reach a link's through.
    """
    follow = isinstance(target, int)
    try:
        names = os.listxattr(target, follow_symlinks=follow)
        kept = [name for name in names if name != INODE_SIGNATURE]
        return {name: os.getxattr(target, name, follow_symlinks=follow) for name in kept}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOENT, errno.ENOTDIR):
            return {}
        raise


def write_attributes(target: int | bytes, wanted: Mapping[str, bytes]) -> None:
    """Give something new these extended attributes, and none else but labels that the kernel sets itself.

    Raises:
        OSError: as the system says; nothing is tried where all is right already.
    """
    follow = isinstance(target, int)
    present = read_attributes(target)
    for name in present.keys() - wanted.keys():
        if not name.startswith("security."):  # an inherited access control list
            os.removexattr(target, name, follow_symlinks=follow)
    for name, value in wanted.items():
        if present.get(name) != value:
            os.setxattr(target, name, value, follow_symlinks=follow)


def digest(node: Node | None) -> str:
    """Name a node by all it is: kind, owner, mode, content or target."""
    if node is None:
        return "absent"
    import hashlib

    entry = entry_of(node)
    state = hashlib.sha256(f"{entry.kind.value}\0{entry.mode}\0{node.uid}\0{node.gid}\0".encode())
    if isinstance(node, File):
        state.update(node.content)
    state.update(entry.target.encode("utf-8", "surrogateescape"))
    return f"sha256:{state.hexdigest()}"
