"""The disk that a guest boots from: the artefact, which is only read, with a throw-away overlay over it.

The overlay holds what the session needs inside, written into the image's own file system, and whatever the guest
writes. It is a file without a name, like everything else that is made here: it vanishes with the last process that
has it open, however that one ends.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.qcow2_overlay import write_overlay
from tpu_image.disks.source import BlockSource
from tpu_image.disks.tree_writer import write_nodes
from tpu_image.lab.errors import LabError
from tpu_image.plan import Plan
from tpu_image.progress import SILENT, Progress
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

AS_IT_IS = ("raw", "qcow2")
"""Containers that QEMU reads itself; others are decoded first."""


NO_ROOM = "set TMPDIR to a folder with more"


class Disk(NamedTuple):
    """Open files: the base that is only read, its format (``raw``, ``qcow2``), and the overlay."""

    base: BinaryIO
    form: str
    overlay: BinaryIO


@contextlib.contextmanager
def nameless_file() -> Iterator[BinaryIO]:
    """Give a file for much: in TMPDIR, or in /var/tmp, which is on a disk (file-hierarchy(7)).

    Raises:
        LabError: there is no room for it; an error that names no file is about one that has no name.
    """
    folder = os.environ.get("TMPDIR") or "/var/tmp"  # noqa: S108 - it has no name there
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            yield file
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise LabError(f"{folder}: {error.strerror}", NO_ROOM) from None
        raise


def reopened(file: BinaryIO) -> BinaryIO:
    """Open a written file for reading: QEMU takes a descriptor for reading alone only where it was opened so."""
    file.flush()
    return Path(f"/proc/self/fd/{file.fileno()}").open("rb")


def require_bootable(artefact: Path) -> None:
    """Refuse what cannot boot here, as far as that shows without unpacking anything.

    Raises:
        DiskError, TreeError: it is no disk with a system that starts with systemd.
    """
    with open_image(artefact) as source:
        if source.container in AS_IT_IS:
            _require_systemd(open_tree(source), artefact)


@contextlib.contextmanager
def throwaway_disk(
    artefact: Path, write: Callable[[Overlay], None], progress: Progress = SILENT
) -> Iterator[Disk]:
    """Make a disk to boot from.

    Args:
        artefact: a disk image in any form that can be read.
        write: writes what the guest is to find into the tree of the image.
        progress: is told what is being done, and how far the decoding of an archive is.

    Raises:
        DiskError: the image cannot be read, or its root is on a file system that is not written to.
        TreeError: a file of the guest's cannot be put there.
        OSError: there is no room.
    """
    progress.at("preparing the disk")
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open_image(artefact))
        base, form = _base(stack, artefact, source, progress)
        disk = EditedDisk(source)
        tree = open_tree(disk)
        _require_systemd(tree, artefact)
        nodes = Overlay(tree)
        write(nodes)
        changes = Plan.from_overlay(nodes).changes
        write_nodes(disk, tree, {change.path: change.after for change in changes}, time=int(time.time()))
        overlay = stack.enter_context(nameless_file())
        write_overlay(disk, overlay)
        yield Disk(base, form, overlay)


def _require_systemd(tree: Tree, artefact: Path) -> None:
    if not any(tree.exists(path) for path in ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")):
        raise DiskError(
            "its system does not start with systemd, which the lab needs inside",
            str(artefact),
            "check it without booting: tpu-image check",
        )


def _base(
    stack: contextlib.ExitStack, artefact: Path, source: BlockSource, progress: Progress
) -> tuple[BinaryIO, str]:
    """Open what QEMU is to read: the artefact where it cannot lead QEMU elsewhere, or else the disk decoded."""
    if source.container in AS_IT_IS and len(source.files) == 1:
        base = stack.enter_context(artefact.open("rb"))
        status = os.fstat(base.fileno())
        if (status.st_dev, status.st_ino) in source.files:
            return base, source.container
    decoded = stack.enter_context(nameless_file())
    write_raw(EditedDisk(source), decoded, progress=progress, stage="decoding")
    return stack.enter_context(reopened(decoded)), "raw"
