"""A base image in, a TPU image out: the recipe, without a mount, root or a second copy of the disk."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tpu_image.agents.planning import AgentRequest, installations, nodes_of
from tpu_image.catalogue import readings
from tpu_image.catalogue.distribution import distribution_of
from tpu_image.catalogue.image_state import wipe
from tpu_image.catalogue.requirement import Profile, Verdict
from tpu_image.customise.applying import apply_files
from tpu_image.customise.customisation import Customisation
from tpu_image.customise.execution import Executed, executed
from tpu_image.customise.executors import executor
from tpu_image.disks import seal
from tpu_image.disks.archive import ArchiveResult, write_archive, write_qcow2, write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.objections import open_system
from tpu_image.disks.recovery import recover
from tpu_image.disks.source import BlockSource
from tpu_image.disks.tree_writer import free_ranges, write_nodes
from tpu_image.hashing import hashed
from tpu_image.installed import Package, packages_of
from tpu_image.output import make_durable, whole_file, write_file
from tpu_image.plan import Change, Plan
from tpu_image.progress import SILENT, Progress

FORMATS = ("gce", "raw", "qcow2", "qcow2-zstd")
"""``gce``: what Compute Engine imports, a .tar.gz with ``disk.raw``; ``raw``: a sparse file; ``qcow2``: QEMU's own
format, compressed with deflate, which every reader knows, or with zstd, which QEMU does from 5.1 on."""

LATEST = 1 << 33
"""Seconds since 1970 that a build may carry: what fits into a tar header, some 270 years."""


@dataclass(frozen=True)
class Request:
    """What to build.

    Attributes:
        time: seconds since 1970 that new files and the archive carry.
        sha256: what the base's must be, in hexadecimal; empty where nobody says.
        size: bytes of the disk, whole GiB; the root grows to its end. 0 leaves the root as large as it is.
        customisation: what the user wants besides.
        agents: where agents come from that the image lacks.
        run_in: name of the executor of what is to run in the image; empty for the one that suits this user.
        sbom: where a software bill of materials is wanted; the name says in which format.
    """

    base: Path
    output: Path
    profile: Profile
    form: str = "gce"
    keep_identity: bool = False
    force: bool = False
    time: int = 0
    threads: int = 0
    size: int = 0
    sbom: Path | None = None
    sha256: str = ""
    customisation: Customisation = field(default_factory=Customisation)
    agents: AgentRequest = field(default_factory=AgentRequest)
    run_in: str = ""


class InstalledAgent(NamedTuple):
    """An agent that was put into an image: which image it is of, what runs it, and what of it was left out."""

    name: str
    reference: str
    digest: str
    runtime: str
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Built:
    """What came of it. ``archive`` is None where the image does not hold and so was not written."""

    changes: tuple[Change, ...]
    verdicts: tuple[Verdict, ...]
    holds: bool
    archive: ArchiveResult | None
    disk_size: int
    packages: tuple[Package, ...]
    distribution: str
    base_sha256: str
    executed: Executed = field(default_factory=Executed)
    placed: tuple[str, ...] = ()
    """What of the user's own was written, a line each."""
    agents: tuple[InstalledAgent, ...] = ()


Describe = Callable[[Request, Built], Mapping[Path, str]]
"""Writes down what a build did: texts by the files that they belong into, of those that :func:`outputs` gives."""


def default_time() -> int:
    """SOURCE_DATE_EPOCH where it is set (reproducible-builds.org), else now.

    Raises:
        ValueError: it is set, and no number of seconds since 1970 that a build can carry.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not given:
        return int(time.time())
    if not (given.isascii() and given.isdigit() and len(given) < 12 and int(given) < LATEST):
        raise ValueError(f"SOURCE_DATE_EPOCH is {given!r}: give seconds since 1970, or unset it")
    return int(given)


def manifest_path(output: Path) -> Path:
    """Where what a build did is written down: beside its image."""
    return output.with_name(output.name + ".json")


def outputs(request: Request) -> tuple[Path, ...]:
    """All files that a build may write: the image, and what is written down beside it."""
    beside = (manifest_path(request.output), *([request.sbom] if request.sbom else []))
    return request.output, *beside


Gate = Callable[[Path], None]
"""Is given the finished image, which has no name yet; what it raises keeps it from getting one."""


class RefusedError(Exception):
    """A gate found the finished image unfit: what is wrong, a report to be shown, the exit status to end with."""

    def __init__(self, message: str, report: str, status: int) -> None:
        super().__init__(message)
        self.report = report
        self.status = status


def build(
    request: Request,
    progress: Progress = SILENT,
    describe: Describe | None = None,
    gate: Gate | None = None,
) -> Built:
    """Make a TPU image of a base.

    The output appears under its name whole and checked, or not at all; the base is only read. Killed at any
    moment, nothing is left behind where the file system has unnamed files (O_TMPFILE), else one hidden file.

    Args:
        request: what to build.
        progress: is told how far it is.
        gate: looks at the image last.
        describe: gives the texts of the other :func:`outputs`, which get their names just before the image does.

    Raises:
        DiskError: the base cannot be read, or has a form that is not edited, or the output is unfit; named.
        CustomisationError, AgentError: what is wanted besides, or an agent, cannot be had; named.
        TreeError, FormatError: a file in the base cannot be read or does not parse.
        OSError: the output cannot be written.
    """
    _refuse_outputs(request)
    progress.at("reading")
    with open_image(request.base) as base:
        _refuse_base(request, base)
        before = _state(request.base)
        with (
            hashed(request.base, progress) as base_sha256,
            _prepared(base, base_sha256, request, progress) as (disk, done),
        ):
            placed = _place(disk, request, progress)
            changes, agents = _edit(disk, request, progress)
            progress.at("checking")
            disk.discard(free_ranges(disk, open_tree(disk)))
            # As a check of the finished image would: opened anew, nothing remembered.
            tree = open_system(disk)
            verdicts = tuple(readings.check(tree, request.profile))
            holds = readings.holds(verdicts)
            found = packages_of(tree), distribution_of(tree).id or "linux"
            built = Built(changes, verdicts, holds, None, disk.size, *found, "", done, placed, agents)
            if not holds and not request.force:
                return built
            with whole_file(request.output) as file:
                archive = _write(disk, file, request, progress)
                built = replace(built, archive=archive, base_sha256=base_sha256())
                progress.at("syncing")
                make_durable(file)
                _refuse_changed(request, before)
                if gate is not None:
                    gate(Path(f"/proc/self/fd/{file.fileno()}"))
                if describe is not None:
                    for path, text in describe(request, built).items():
                        write_file(path, text.encode())
            return built


@contextlib.contextmanager
def _prepared(
    base: BlockSource, sha256: Callable[[], str], request: Request, progress: Progress
) -> Iterator[tuple[EditedDisk, Executed]]:
    """Give the base as a disk that can be changed: whole, as large as wanted, with all that was to be executed."""
    if request.sha256:
        _refuse_another(request, sha256())  # before any program of it runs
    disk = EditedDisk(base, _disk_size(request, base))
    with contextlib.closing(disk):
        for volume in recover(disk):
            progress.log(f"{request.base}: {volume} was not unmounted: its journal was replayed")
        seal.move_backup_gpt(disk)
        if request.size:
            progress.at("growing")
            seal.grow_root(disk)
        with executed(
            disk,
            request.customisation,
            lambda: executor(request.run_in),
            _Execution(progress),
            folder=request.output.resolve().parent,
            progress=progress,
        ) as (customised, done):
            yield customised, done


class _Execution:
    """Tells what programs in the image are at."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def step(self, name: str) -> None:
        """A step begins."""
        self._progress.at(f"in the image: {name}")

    def line(self, text: str) -> None:
        """A step wrote a line."""
        self._progress.log(text)

    def waiting(self, name: str, seconds: float) -> None:
        """A step is still at work; the time is shown anyway."""


def _place(disk: EditedDisk, request: Request, progress: Progress) -> tuple[str, ...]:
    """Write the user's files, before anything is planned: the plan then sees what an image with them lacks."""
    progress.at("placing files")
    return apply_files(
        disk,
        request.customisation,
        time=request.time,
        keep_leftovers=request.keep_identity,
        report=lambda done: progress.at("unpacking the Cloud CLI", done),
    )


def _refuse_changed(request: Request, before: tuple[int, ...]) -> None:
    """Refuse a base that is another than it was."""
    if _state(request.base) != before:
        raise DiskError(
            "was changed while it was read", str(request.base), "stop what uses it, then build again"
        )


def _refuse_another(request: Request, sha256: str) -> None:
    """Refuse a base that is another than is meant."""
    if sha256 != request.sha256.lower():
        raise DiskError(
            f"has the SHA-256 {sha256}, not {request.sha256.lower()}",
            str(request.base),
            "get the file again, or correct the sha256",
        )


def _state(path: Path) -> tuple[int, ...]:
    """What of a file's status moves when it is written to or replaced."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _refuse_outputs(request: Request) -> None:
    """Refuse names that cannot be, before any work."""
    output = request.output
    if request.form == "gce" and not output.name.endswith(".tar.gz"):
        raise DiskError(
            "Compute Engine imports names that end in .tar.gz alone",
            str(output),
            f"name it {output.name.split('.')[0]}.tar.gz, or choose --format raw or qcow2",
        )
    if len({path.resolve() for path in outputs(request)}) < len(outputs(request)):
        raise DiskError("is named for two results", str(output), "give each a name of its own")
    for path in outputs(request):
        if path.exists() and not path.is_file():
            raise DiskError("is no regular file, so it cannot be replaced", str(path), "name another file")
        folder = path.resolve().parent
        if not folder.is_dir():
            raise DiskError("is no folder to write to", str(folder), "make it first")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise DiskError("may not be written to", str(folder), "name a file in a folder of yours")


def _refuse_base(request: Request, base: BlockSource) -> None:
    """Refuse to replace a file that the base is stored in."""
    for path in outputs(request):
        if path.exists() and (path.stat().st_dev, path.stat().st_ino) in base.files:
            raise DiskError("is the base itself, which is never changed", str(path), "name another file")


def _disk_size(request: Request, base: BlockSource) -> int:
    if request.size and request.size < base.size:
        raise DiskError(
            f"is a disk of {base.size / (1 << 30):g} GiB, more than --size gives ({request.size >> 30} GiB),"
            " and disks only grow",
            str(request.base),
            f"give --size {seal.whole_gib(base.size) >> 30}G or more",
        )
    return request.size or seal.whole_gib(base.size)


def _edit(
    disk: EditedDisk, request: Request, progress: Progress
) -> tuple[tuple[Change, ...], tuple[InstalledAgent, ...]]:
    """Write what the catalogue plans, and the agents."""
    tree = open_tree(disk)
    progress.at("getting agents")
    with installations(request.agents, request.profile, tree, request.output.resolve().parent) as made:
        progress.at("planning")
        overlay = readings.plan(tree, request.profile)
        for installation in made:
            installation.write(overlay)
        if not request.keep_identity:
            wipe(overlay)
        plan = Plan.from_overlay(overlay)
        nodes = nodes_of(made, {change.path: change.after for change in plan.changes}, overlay)
        write_nodes(disk, tree, nodes, time=request.time)
        agents = tuple(
            InstalledAgent(it.agent.program, it.reference, it.digest, it.runtime.value, tuple(it.left_out))
            for it in made
        )
    return plan.changes, agents


def _write(disk: EditedDisk, file: BinaryIO, request: Request, progress: Progress) -> ArchiveResult:
    threads = request.threads or None
    if request.form == "raw":
        return write_raw(disk, file, threads=threads, progress=progress)
    if request.form.startswith("qcow2"):
        zstd = request.form == "qcow2-zstd"
        return write_qcow2(disk, file, zstd=zstd, threads=threads, progress=progress)
    return write_archive(disk, file, modified=request.time, threads=threads, progress=progress)
