"""Putting the user's own files into an image, without executing anything: links are followed within it alone."""

from __future__ import annotations

import io
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tpu_image.customise.customisation import Placement
from tpu_image.customise.session import CustomisationError
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image_tree import ImageTree, open_tree
from tpu_image.disks.tree_writer import TreeWriter
from tpu_image.trees.base import Tree, TreeError
from tpu_image.trees.memory import File
from tpu_image.trees.overlay import Overlay

NUMBER_LIMIT = 1 << 32
"""Owners are 32-bit numbers (credentials(7))."""


class _Item(NamedTuple):
    """One path to write: where its content is, if it is a file, and where a link leads."""

    path: str
    content: Path | bytes | None = None
    target: str = ""
    mode: int | None = None
    executable: bool = False


def place(disk: EditedDisk, placements: Sequence[Placement], *, time: int) -> tuple[str, ...]:
    """Write files and directories onto a disk.

    Args:
        disk: the disk.
        placements: in order.
        time: seconds since 1970 that they carry.

    Returns:
        What was done, a line each.

    Raises:
        CustomisationError: one cannot be placed; named.
        DiskError: the disk is of a form that is not written to, or has no room.
    """
    if not placements:
        return ()
    tree = open_tree(disk)
    overlay = Overlay(tree)
    contents: dict[str, Path | bytes] = {}
    lines = [_plan(overlay, placement, contents) for placement in placements]
    _write(disk, tree, overlay, contents, time)
    return tuple(lines)


def _plan(overlay: Overlay, placement: Placement, contents: dict[str, Path | bytes]) -> str:
    """Lay a placement over the tree; what files hold is only noted."""
    count = 0
    try:
        owner = _owner(overlay, placement)
        for item in _items(placement):
            count += 1
            _plan_item(overlay, item, owner, contents)
    except TreeError as error:
        within = "" if error.path == placement.path else f"{placement.path}: "
        raise CustomisationError(f"files: {within}{error}; choose another path") from None
    below = f" and {count - 1} below it" if count > 1 else ""
    return f"place {placement.path}{below}"


def _plan_item(
    overlay: Overlay, item: _Item, owner: tuple[int | None, int | None], contents: dict[str, Path | bytes]
) -> None:
    entry = None if item.target else overlay.stat(item.path)
    uid = owner[0] if owner[0] is not None else entry.uid if entry else 0
    gid = owner[1] if owner[1] is not None else entry.gid if entry else 0
    if item.target:
        overlay.symlink(item.path, item.target)
    elif item.content is None:
        mode = item.mode if item.mode is not None else entry.mode if entry else 0o755
        overlay.make_directory(item.path, mode=mode, owner=(uid, gid))
    else:
        mode = item.mode if item.mode is not None else entry.mode if entry else 0o644
        if item.mode is None and item.executable:
            mode |= (mode & 0o444) >> 2
        overlay.write(item.path, b"", mode=mode, owner=(uid, gid))
        contents[overlay.resolve(item.path)] = item.content


def _items(placement: Placement) -> Iterator[_Item]:
    path, source, mode = placement.path, placement.source, placement.mode
    if source is None:
        yield _Item(path, placement.content, mode=mode)
        return
    if source.exists() and not (source.is_dir() or source.is_file()):
        raise _neither(source)
    if not source.is_dir():
        yield _Item(path, source, mode=mode, executable=os.access(source, os.X_OK))
        return
    yield _Item(path, mode=mode)
    for folder, folders, files in os.walk(source, onerror=_unreadable):
        folders.sort()
        inside = posixpath.join(path, *Path(folder).relative_to(source).parts)
        for name in sorted([*folders, *files]):
            yield _item(Path(folder) / name, posixpath.join(inside, name))


def _item(source: Path, path: str) -> _Item:
    status = source.lstat()
    if stat.S_ISLNK(status.st_mode):
        return _Item(path, target=str(source.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return _Item(path)
    if stat.S_ISREG(status.st_mode):
        return _Item(path, source, executable=bool(status.st_mode & 0o111))
    raise _neither(source)


def _neither(source: Path) -> CustomisationError:
    return CustomisationError(
        f"files: {source} is neither file, folder nor link; leave it out of what is copied"
    )


def _unreadable(error: OSError) -> None:
    raise CustomisationError(f"files: {error.filename}: {error.strerror}; make it readable")


def _owner(tree: Tree, placement: Placement) -> tuple[int | None, int | None]:
    return (
        _number(tree, placement.owner, "/etc/passwd", placement.path, "owner"),
        _number(tree, placement.group, "/etc/group", placement.path, "group"),
    )


def _number(tree: Tree, name: str, database: str, path: str, what: str) -> int | None:
    """Find the number of a user or group: what the image calls so, or the number itself (passwd(5), group(5))."""
    if not name:
        return None
    if name.isascii() and name.isdigit() and int(name) < NUMBER_LIMIT:
        return int(name)
    for line in (tree.read_text_if_present(database) or "").splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) > 2 and fields[2].isdecimal():
            return int(fields[2])
    raise CustomisationError(
        f"files: {path}: the image has no {what} {name}; give one of its own, or a number"
    )


def _write(
    disk: EditedDisk, tree: ImageTree, overlay: Overlay, contents: dict[str, Path | bytes], time: int
) -> None:
    writer = TreeWriter(disk, tree, time=time)
    for path in sorted(overlay.written, key=lambda path: (path.count("/"), path)):
        node = overlay.written[path]
        if isinstance(node, File):
            _write_file(writer, path, node, contents[path])
        else:
            writer.put(path, node)
    writer.flush()


def _write_file(writer: TreeWriter, path: str, node: File, content: Path | bytes) -> None:
    if isinstance(content, bytes):
        writer.put_stream(path, node, io.BytesIO(content), len(content))
        return
    try:
        with content.open("rb") as file:
            writer.put_stream(path, node, file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise CustomisationError(f"files: {content}: {error.strerror}; make it readable") from None
    except EOFError:
        raise CustomisationError(f"files: {content} became shorter while it was read; build again") from None
