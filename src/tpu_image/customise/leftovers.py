"""What installing software leaves in an image that no machine needs: package lists, archives, logs.

They go straight from the file system: some are larger than a plan reads. What identifies a machine is taken away by
:func:`tpu_image.catalogue.image_state.wipe`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.tree_writer import TreeWriter
from tpu_image.trees.base import Kind, Tree
from tpu_image.trees.memory import File

REMOVED = (
    (
        "package lists",
        ("/var/lib/apt/lists", "/var/lib/apt/lists/partial", "/var/lib/apt/lists/auxfiles"),
        "*",
    ),
    ("package archives", ("/var/cache/apt/archives", "/var/cache/apt/archives/partial"), "*.deb"),
    ("package caches", ("/var/cache/apt",), "*.bin"),
)
"""What messages call them, the directories, and a pattern of the names."""

KEPT = ("lock",)

LOGS = "/var/log"
JOURNALS = "/var/log/journal"
DEPTH = 3
FILES_LIMIT = 20_000


def clear_leftovers(disk: EditedDisk, *, time: int) -> tuple[str, ...]:
    """Remove package lists and archives and the journal, and empty the logs: their owners and modes matter.

    Returns:
        What was done, a line each.

    Raises:
        DiskError: the disk is of a form that is not written to.
        TreeError: a directory cannot be read.
    """
    tree = open_tree(disk)
    writer = TreeWriter(disk, tree, time=time)
    lines = []
    for name, directories, pattern in REMOVED:
        paths = [path for directory in directories for path in _files(tree, directory, pattern)]
        for path in paths:
            writer.put(path, None)
        if paths:
            lines.append(f"remove {name} ({len(paths)} files)")
    lines += _clear_logs(tree, writer)
    writer.flush()
    return tuple(lines)


def _clear_logs(tree: Tree, writer: TreeWriter) -> list[str]:
    emptied = 0
    for path in _walk(tree, LOGS, DEPTH):
        entry = tree.lstat_canonical(path)
        if entry is None or not entry.size:
            continue
        journal = path.startswith(f"{JOURNALS}/")
        writer.put(path, None if journal else File(b"", entry.mode, entry.uid, entry.gid))
        emptied += 1
    return [f"empty the logs ({emptied} files)"] if emptied else []


def _walk(tree: Tree, directory: str, depth: int) -> Iterator[str]:
    directory = tree.resolve(directory)
    for path in _paths(tree, directory, "*"):
        entry = tree.lstat_canonical(path)
        if entry is not None and entry.kind is Kind.FILE:
            yield path
        elif entry is not None and entry.kind is Kind.DIRECTORY and depth > 1:
            yield from _walk(tree, path, depth - 1)


def _files(tree: Tree, directory: str, pattern: str) -> Iterator[str]:
    for path in _paths(tree, tree.resolve(directory), pattern):
        entry = tree.lstat_canonical(path)
        if entry is not None and entry.kind is Kind.FILE and posixpath.basename(path) not in KEPT:
            yield path


def _paths(tree: Tree, directory: str, pattern: str) -> list[str]:
    names = tree.names(directory, pattern) if tree.is_directory(directory) else []
    return [posixpath.join(directory, name) for name in names[:FILES_LIMIT]]
