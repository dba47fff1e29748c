"""Writing a plan's files onto the file systems of a disk that is being edited."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.ext4.bitmaps import Bitmaps
from tpu_image.disks.ext4.editor import Ext4Editor
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.image_tree import ImageTree, Place
from tpu_image.disks.source import Section
from tpu_image.disks.volumes import EXT_KINDS
from tpu_image.trees.memory import Node


def write_nodes(disk: EditedDisk, tree: ImageTree, nodes: Mapping[str, Node | None], *, time: int) -> None:
    """Have these nodes on the disk's file systems; None takes a file or link away.

    Args:
        disk: the disk that ``tree`` was opened on.
        tree: finds the file system that each path is on.
        nodes: by canonical path, as :attr:`~tpu_image.trees.overlay.Overlay.written` holds them.
        time: seconds since 1970 that new and changed files carry.

    Raises:
        UnsupportedError: a path is on a file system that is not written to, or in a form that editing does not
            keep right; nothing is on the disk then.
    """
    writer = TreeWriter(disk, tree, time=time)
    # Directories come before what is in them; among one directory's names the order does not matter.
    for path in sorted(nodes, key=lambda path: (path.count("/"), path)):
        writer.put(path, nodes[path])
    writer.flush()


class TreeWriter:
    """Writes onto the file systems of a disk, each path on its own; nothing is to be found there before :meth:`flush`.

    Paths are canonical. All methods raise UnsupportedError for a path on a file system that is not written to, or in
    a form that editing does not keep right, and DamagedError where a file system contradicts itself.
    """

    def __init__(self, disk: EditedDisk, tree: ImageTree, *, time: int) -> None:
        """Open nothing yet.

        Args:
            disk: the disk that ``tree`` was opened on.
            tree: finds the file system that each path is on.
            time: seconds since 1970 that new and changed files carry.
        """
        self._disk = disk
        self._tree = tree
        self._time = time
        self._editors: dict[str, Ext4Editor] = {}

    def put(self, path: str, node: Node | None) -> None:
        """Have this node at a path, in a directory that exists; None takes a file or link away."""
        editor, inner = self._editor(path)
        editor.put(inner, node)

    def put_stream(self, path: str, node: Node, content: BinaryIO, size: int) -> None:
        """Have a file at a path that holds what is read, ``size`` bytes.

        Raises:
            EOFError: the content is shorter.
        """
        editor, inner = self._editor(path)
        editor.put_stream(inner, node, content, size)

    def link(self, path: str, target: str) -> None:
        """Give a file another name on the same file system."""
        editor, inner = self._editor(path)
        other, inner_target = self._editor(target)
        if other is not editor:
            raise UnsupportedError(
                f"{path} and {target} are on two file systems", self._disk.name, "copy it instead"
            )
        editor.link(inner, inner_target)

    def flush(self) -> None:
        """Lay everything over the disk."""
        for editor in self._editors.values():
            editor.flush()

    def _editor(self, path: str) -> tuple[Ext4Editor, str]:
        place, inner = _place_of(self._tree, path)
        if place.path not in self._editors:
            self._editors[place.path] = Ext4Editor(_section(self._disk, place), time=self._time)
        return self._editors[place.path], inner


def _place_of(tree: ImageTree, path: str) -> tuple[Place, str]:
    try:
        place, inner = tree.place_of(path)
    except KeyError:
        raise UnsupportedError(f"{path} is on no file system of the disk", tree.source.name, "") from None
    if place.volume.kind not in EXT_KINDS:
        raise UnsupportedError(
            f"{path} is on a {place.volume.kind} file system, which is not written to",
            place.volume.source.name,
            f"keep {posixpath.dirname(path)} on the root file system",
        )
    return place, inner


def _section(disk: EditedDisk, place: Place) -> EditedSection:
    source = place.volume.source
    offset = source.offset if isinstance(source, Section) else 0
    return EditedSection(disk, offset, source.size, source.name)


def free_ranges(disk: EditedDisk, tree: ImageTree) -> Iterator[tuple[int, int]]:
    """Parts of the disk, offset and length in bytes, that its ext4 file systems hold nothing in, in order.

    Raises:
        DamagedError: partitions lie over one another, so that what is free in one may be in use in the other.
    """
    end = 0
    for partition in sorted(tree.table.partitions, key=lambda partition: partition.start):
        if partition.start < end:
            raise DamagedError(
                f"partition {partition.number} lies over another", disk.name, "correct the table"
            )
        end = partition.start + partition.size
    sections = [_section(disk, place) for place in tree.places if place.volume.kind in EXT_KINDS]
    for section in sorted(sections, key=lambda section: section.offset):
        for offset, length in Bitmaps(Ext4FileSystem(section)).free_ranges():
            yield section.offset + offset, length
