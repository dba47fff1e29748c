"""Writing a plan's files onto the file systems of a disk that is being edited."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping

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
    editors: dict[str, Ext4Editor] = {}
    # Directories come before what is in them; among one directory's names the order does not matter.
    for path in sorted(nodes, key=lambda path: (path.count("/"), path)):
        place, inner = _place_of(tree, path)
        if place.path not in editors:
            editors[place.path] = Ext4Editor(_section(disk, place), time=time)
        editors[place.path].put(inner, nodes[path])
    for editor in editors.values():
        editor.flush()


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
