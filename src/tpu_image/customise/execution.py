"""Executing what a customisation asks for, on a copy of the disk without a name."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tpu_image.customise.customisation import Customisation
from tpu_image.customise.kernel import choose, packages_of
from tpu_image.customise.planning import default_kernel_session, session_of
from tpu_image.customise.session import CustomisationError, Executor, Listener, Session
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.raw import open_raw
from tpu_image.disks.tree_writer import free_ranges
from tpu_image.progress import SILENT, Progress
from tpu_image.trees.base import Tree


class PackageChange(NamedTuple):
    """A package whose version is another than before; empty where it was or is not installed."""

    name: str
    before: str
    after: str


class ScriptRun(NamedTuple):
    """A script that ran: its name and SHA-256; its text may hold secrets and is written nowhere."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Executed:
    """What was executed, for the manifest. ``method`` is empty where nothing was."""

    method: str = ""
    packages: tuple[PackageChange, ...] = ()
    scripts: tuple[ScriptRun, ...] = ()
    kernel: str = ""
    """File name of the kernel that was made the default."""
    environments: tuple[str, ...] = ()
    """Paths of Python environments."""


@contextlib.contextmanager
def executed(
    disk: EditedDisk,
    customisation: Customisation,
    executor: Callable[[], Executor],
    listener: Listener,
    *,
    folder: Path,
    progress: Progress = SILENT,
) -> Iterator[tuple[EditedDisk, Executed]]:
    """Give the disk after everything that a customisation executes; the same disk where that is nothing.

    Args:
        disk: as large as it is to be, its file systems clean.
        customisation: what is wanted.
        executor: gives what runs programs in the image; not asked where none is to run.
        listener: is told how that goes on.
        folder: where the copy of the disk is made, as sparse as the disk; it never has a name there.
        progress: is told how far the copying is.

    Raises:
        CustomisationError: a step failed, or nothing can be executed here.
        DiskError: the disk cannot be read.
        OSError: there is no room for the copy.
    """
    if not customisation.executes:
        yield disk, Executed()
        return
    chosen = executor()
    chosen.require()
    before = open_tree(disk)
    _refuse(before, customisation)
    disk.discard(free_ranges(disk, before))
    with _scratch_file(folder) as scratch:
        write_raw(disk, scratch, progress=progress, stage="copying", hashed=False)
        scratch.flush()
        packages = packages_of(before)
        chosen.execute(scratch, session_of(customisation), listener)
        kernel = ""
        if customisation.kernel:
            kernel = _make_default(scratch, customisation, chosen, listener)
        with _opened(scratch, f"{disk.name} (after what ran in it)") as changed:
            yield changed, _record(customisation, chosen, packages, packages_of(open_tree(changed)), kernel)


def _refuse(tree: Tree, customisation: Customisation) -> None:
    """Say at once what the image lacks, before it is copied."""
    if (customisation.packages or customisation.remove or customisation.kernel) and not tree.is_file(
        "/usr/bin/apt-get"
    ):
        raise CustomisationError(
            "packages, remove and kernel need apt-get, which the image does not have; use run: with its own tools"
        )


@contextlib.contextmanager
def _scratch_file(folder: Path) -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(prefix=".tpu-image-", dir=folder) as file:
        yield file


@contextlib.contextmanager
def _opened(scratch: BinaryIO, name: str) -> Iterator[EditedDisk]:
    # Never by its content: what looks like another format there is the content of the disk.
    with open_raw(f"/proc/self/fd/{scratch.fileno()}") as source:
        source.name = name
        disk = EditedDisk(source)
        try:
            yield disk
        finally:
            disk.close()


def _make_default(
    scratch: BinaryIO, customisation: Customisation, executor: Executor, listener: Listener
) -> str:
    """Have the wanted kernel boot, and say which file that is."""

    def chosen() -> tuple[str, str, str]:
        with _opened(scratch, "the image") as disk:
            return choose(open_tree(disk), customisation.kernel)

    wanted, boots, entry = chosen()
    if boots != wanted:
        limit = customisation.time_limit or Session(()).time_limit
        executor.execute(scratch, default_kernel_session(entry, limit), listener)
        _, boots, _ = chosen()
    if boots != wanted:
        raise CustomisationError(
            f"kernel: {boots or 'no kernel'} boots in place of {wanted}; set GRUB_DEFAULT in the image by a script"
        )
    return wanted


def _record(
    customisation: Customisation,
    executor: Executor,
    before: dict[str, str],
    after: dict[str, str],
    kernel: str,
) -> Executed:
    names = sorted(before.keys() | after.keys())
    return Executed(
        executor.method,
        tuple(
            PackageChange(name, before.get(name, ""), after.get(name, ""))
            for name in names
            if before.get(name) != after.get(name)
        ),
        tuple(
            ScriptRun(script.name, hashlib.sha256(script.content).hexdigest())
            for script in customisation.scripts
        ),
        kernel,
        tuple(python.path for python in customisation.environments),
    )
