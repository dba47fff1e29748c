"""Laying the layers of an image over one another, as OCI's image-spec has it (layer.md), in a tree of our own.

Whiteouts act on the layers below alone, wherever they stand in theirs. What is no file, link or directory is left out
and said: device nodes, FIFOs. Owners, modes (setuid too) and file capabilities are kept, since what is unpacked lies
in a directory that only root may enter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpu_image.agents import tar_entries
from tpu_image.agents.errors import ImageError
from tpu_image.agents.filesystem import Directory, File, Link, Node, RootFileSystem, quoted
from tpu_image.agents.spool import Spool
from tpu_image.agents.tar_entries import Entry

ENTRIES_LIMIT = 65_536
"""Entries of all layers of an image: several times what a whole Debian with an agent has."""

NAME_LIMIT = 255
"""Bytes of a name, as in Linux (``NAME_MAX``)."""

PATH_LIMIT = 4095
"""Bytes of a path or of a link's target, as in Linux (``PATH_MAX`` less the closing zero)."""

DEPTH_LIMIT = 256
"""Directories inside one another."""

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
RESERVED = ".wh..wh."
"""How names of aufs's own begin, which are not files of the image."""

IDENTITY_LIMIT = 0xFFFF_FFFE
"""The largest user or group id; the next one stands for none."""

_LEFT_OUT = {
    tar_entries.CHARACTER: "character device",
    tar_entries.BLOCK_DEVICE: "block device",
    tar_entries.FIFO: "FIFO",
}


@dataclass
class Stretch:
    """A layer's tar in a spool, and how messages name it."""

    offset: int
    length: int
    where: str


def lay_over(spool: Spool, stretches: Iterable[Stretch]) -> RootFileSystem:
    """Lay layers over one another, the lowest first.

    Raises:
        ImageError: a layer is damaged, or an entry is refused; the message names it.
    """
    filesystem = RootFileSystem(spool)
    count = 0
    for stretch in stretches:
        with spool.view(stretch.offset, stretch.length) as view:
            found: list[tuple[list[str], Entry]] = []
            for entry in tar_entries.entries(view, stretch.where):
                count += 1
                if count > ENTRIES_LIMIT:
                    raise ImageError(
                        f"has more than {ENTRIES_LIMIT} entries", stretch.where, "use a smaller image"
                    )
                found.append((_parts(entry.name, stretch.where), entry))
        _Layer(filesystem, stretch).apply(found)
    return filesystem


def _parts(name: str, where: str) -> list[str]:
    """Split a name into its parts; one that is absolute or has ``..`` is refused."""
    if name.startswith("/"):
        raise ImageError(f"the entry {quoted(name)} is absolute", where)
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ImageError(f"the entry {quoted(name)} leads out of the image", where)
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > PATH_LIMIT or len(parts) > DEPTH_LIMIT or b"\0" in encoded:
        raise ImageError(f"the entry {quoted(name[:80])}… has a path that Linux does not take", where)
    if any(
        len(part) > NAME_LIMIT // 4 and len(part.encode("utf-8", "surrogateescape")) > NAME_LIMIT
        for part in parts
    ):
        raise ImageError(f"the entry {quoted(name[:80])}… has a name that Linux does not take", where)
    return parts


class _Layer:
    """One layer being laid over what is there."""

    def __init__(self, filesystem: RootFileSystem, stretch: Stretch) -> None:
        self._filesystem = filesystem
        self._root = filesystem.root
        self._stretch = stretch
        self._where = stretch.where
        self._folder: tuple[Sequence[str], Directory] = ((), self._root)

    def apply(self, entries: list[tuple[list[str], Entry]]) -> None:
        """Take away what the layer hides of those below, then add what it has."""
        added = []
        for parts, entry in entries:
            if any(part.startswith(WHITEOUT) for part in parts):
                self._hide(parts, entry)
            else:
                added.append((parts, entry))
        self._folder = ((), self._root)
        for parts, entry in added:
            self._add(parts, entry)

    def _refuse(self, entry: Entry, why: str) -> ImageError:
        return ImageError(f"the entry {quoted(entry.name)} {why}", self._where)

    def _hide(self, parts: list[str], entry: Entry) -> None:
        *above, name = parts
        if any(part.startswith(WHITEOUT) for part in above):
            if above[0].startswith(RESERVED):
                return
            raise self._refuse(entry, "lies in a whiteout")
        if name.startswith(RESERVED) and name != OPAQUE:
            return
        hidden = name.removeprefix(WHITEOUT)
        if hidden in ("", ".", ".."):
            raise self._refuse(entry, "is a whiteout of no name")
        folder = self._existing(above, entry)
        if folder is None:
            return
        if name == OPAQUE:
            folder.children.clear()
        else:
            folder.children.pop(hidden, None)

    def _existing(self, parts: Sequence[str], entry: Entry) -> Directory | None:
        """The directory at a path; None where there is none, an error where a link is on the way."""
        node: Node | None = self._root
        for part in parts:
            node = node.children.get(part) if isinstance(node, Directory) else None
            if isinstance(node, Link):
                raise self._refuse(entry, f"leads through the symbolic link {quoted(part)}")
        return node if isinstance(node, Directory) else None

    def _add(self, parts: list[str], entry: Entry) -> None:
        if entry.kind in _LEFT_OUT:
            self._filesystem.left_out.append(f"{_LEFT_OUT[entry.kind]} {quoted(entry.name)}")
            return
        if max(entry.uid, entry.gid) > IDENTITY_LIMIT:
            raise self._refuse(entry, "has an owner that Linux does not take")
        if not parts:
            if entry.kind != tar_entries.DIRECTORY:
                raise self._refuse(entry, "takes the place of the root directory")
            self._set(self._root, entry)
            return
        *above, name = parts
        folder = self._directory(above, entry)
        if entry.kind == tar_entries.DIRECTORY:
            present = folder.children.get(name)
            if not isinstance(present, Directory):
                present = folder.children[name] = Directory()
            self._set(present, entry)
            return
        folder.children[name] = self._node(entry)

    def _directory(self, parts: Sequence[str], entry: Entry) -> Directory:
        """The directory at a path, made where it is missing; entries of one directory mostly stand together."""
        if self._folder[0] == parts:
            return self._folder[1]
        node = self._root
        for part in parts:
            child = node.children.get(part)
            if isinstance(child, Link):
                raise self._refuse(entry, f"leads through the symbolic link {quoted(part)}")
            if not isinstance(child, Directory):
                child = node.children[part] = Directory()
            node = child
        self._folder = (parts, node)
        return node

    def _set(self, directory: Directory, entry: Entry) -> None:
        directory.mode, directory.uid, directory.gid = entry.mode, entry.uid, entry.gid
        directory.mtime = entry.mtime

    def _node(self, entry: Entry) -> Node:
        if entry.kind == tar_entries.FILE:
            offset = self._stretch.offset + entry.offset
            return File(entry.mode, entry.uid, entry.gid, entry.mtime, offset, entry.size, entry.capability)
        if entry.kind == tar_entries.SYMLINK:
            if (
                not 0 < len(entry.target.encode("utf-8", "surrogateescape")) <= PATH_LIMIT
                or "\0" in entry.target
            ):
                raise self._refuse(entry, "is a symbolic link to what Linux does not take")
            return Link(entry.target, entry.uid, entry.gid)
        if entry.kind == tar_entries.HARD_LINK:
            return self._linked(entry)
        raise self._refuse(entry, f"is of a kind that layers do not have ({entry.kind!r})")

    def _linked(self, entry: Entry) -> Node:
        """What a hard link is another name of: a file or symbolic link that the image has."""
        parts = _parts(entry.target, self._where)
        folder = self._existing(parts[:-1], entry) if parts else None
        node = folder.children.get(parts[-1]) if folder is not None else None
        if node is None or isinstance(node, Directory):
            raise self._refuse(
                entry, f"is a hard link to {quoted(entry.target)}, which is no file of the image"
            )
        return node
