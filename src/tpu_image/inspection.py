"""From the name of a target to the report on it: what the command line and the single file share."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpu_image import catalogue
from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import BUILD, Profile
from tpu_image.report.model import Report
from tpu_image.trees.base import Tree, TreeError
from tpu_image.trees.directory import DirectoryTree

DIRECTORY = "a directory, or / for this machine"


class Target(NamedTuple):
    """Files to check, and the running machine that they belong to."""

    name: str
    """As the user named it."""
    tree: Tree
    live: Tree | None
    """``/proc``, ``/sys``, ``/dev`` and ``/run`` of the running machine; None where there is none."""
    root: str = ""
    """Absolute host path of the tree's root where it is a directory."""


@contextlib.contextmanager
def opened(name: str, live: str | None = None, wanted: str = DIRECTORY) -> Iterator[Target]:
    """Open what a user names: ``/`` is the running machine, a directory the root of an image, a file a disk.

    Args:
        name: the target.
        live: a directory with a recording of a running machine, in place of the machine itself.
        wanted: what could have been named, for the refusal of what does not exist.

    Raises:
        TreeError: it does not exist or is nothing that can be opened; the reason says what to give.
        DiskError: it is a file, and no disk image that can be read.
    """
    with contextlib.ExitStack() as stack:
        if os.path.isfile(name) and disks_are_here():
            from pathlib import Path

            from tpu_image.disks.image import open_image
            from tpu_image.disks.objections import open_system

            if live is not None:
                raise TreeError(name, "is a disk image, which does not run: leave --live out")
            yield Target(name, open_system(stack.enter_context(open_image(Path(name)))), None)
            return
        tree = stack.enter_context(_directory(name, f"give {wanted}"))
        machine: Tree | None = tree if is_running_machine(name) else None
        if live is not None:
            machine = stack.enter_context(_directory(live, "give a directory that holds proc, sys and dev"))
        yield Target(name, tree, machine, os.path.realpath(name))


def disks_are_here() -> bool:
    """Whether disk images can be opened: the checker's single file comes without what that takes."""
    from importlib.util import find_spec

    return find_spec("tpu_image.disks") is not None


def is_running_machine(name: str) -> bool:
    """Whether a directory is the root of the machine that this runs on."""
    return os.path.realpath(name) == "/"


def _directory(name: str, instead: str) -> DirectoryTree:
    try:
        tree = DirectoryTree(name)
    except TreeError as error:
        raise TreeError(name, f"{error.reason}; {instead}") from error
    if not os.access(name, os.R_OK | os.X_OK):
        tree.close()
        raise TreeError(name, "permission denied; run it as root")
    return tree


def inspect(target: Target, profile: Profile, only: Sequence[str] = ()) -> Report:
    """Check a target.

    Raises:
        UnknownRequirementError: ``only`` or a waiver names a requirement that does not exist.
    """
    verdicts = readings.check(target.tree, profile, live=target.live, only=only)
    verdicts = [verdict._replace(remedy=_with_target(verdict.remedy, target)) for verdict in verdicts]
    ok = readings.holds(verdicts)
    return Report(target.name, profile, verdicts, ok, catalogue.requirements(), target.root)


def _with_target(remedy: str, target: Target) -> str:
    """Name the target in a command that a remedy gives: ``tpu-image apply`` alone changes this machine."""
    if not remedy or is_running_machine(target.name):
        return remedy
    name = shlex.quote(target.name)
    if not target.root:
        return f"{BUILD} {name} -o NEW.tar.gz" if remedy == BUILD else remedy
    return remedy.replace("tpu-image apply", f"tpu-image apply {name}")
