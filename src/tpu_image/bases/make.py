"""Making a base, or taking the one that the cache has."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tpu_image.bases import disk, root
from tpu_image.bases.contents import configuration
from tpu_image.bases.errors import BaseError
from tpu_image.bases.layout import make_layout, sfdisk_script
from tpu_image.bases.namespace import as_root
from tpu_image.bases.releases import Release, find
from tpu_image.bases.root import Report
from tpu_image.bases.sources import Sources, require_keyring, sources_for
from tpu_image.downloads import cache
from tpu_image.output import make_durable

RECIPE = 1
"""Counted up when the same packages and files come to make another base."""

FRESH = 14 * 24 * 3600
"""Seconds after which a base is made anew, for the security updates that came meanwhile."""

Note = Callable[[str], None]
"""Is told what a person should know."""


def resolve(
    reference: str,
    report: Report | None = None,
    note: Note | None = None,
    packages: Sequence[str] = (),
) -> Path:
    """Give the disk image of a reference such as ``debian:bookworm``: a file in the cache, made where it is not there.

    The file stays locked against removal until this process ends.

    Args:
        reference: one of REFERENCES.
        report: is told how far the making is.
        note: is told what else happens.
        packages: more packages to put in, by name.

    Raises:
        BaseError: it cannot be made.
        CacheError: the cache cannot be used.
    """
    report = report or _silent
    note = note or _silent
    release = find(reference)
    wanted = tuple(sorted({*release.packages, *packages}))
    sources = sources_for(release)
    folder = cache.subfolder("bases")
    path = folder / f"{release.distribution}-{release.suite}-{key(release, wanted, sources)}.qcow2"
    if _fresh(path):
        return path
    with _making(folder, note):
        if _fresh(path):
            return path  # another process made it while this waited
        try:
            _make(release, wanted, sources, path, report)
        except BaseError as error:
            if not cache.hold(path):
                raise
            note(f"{error}; the one of the cache is used, which is older than {FRESH // 86400} days")
            return path
    cache.shrink(path)
    return path


def _silent(*ignored: object) -> None:
    del ignored


def key(release: Release, packages: Sequence[str], sources: Sources) -> str:
    """Name what a base is made of: two with the same key are interchangeable."""
    layout = make_layout("")
    parts = [
        RECIPE,
        [release.suite, *packages],
        [sources.archive, sources.security_archive],
        configuration(release, layout),
        sfdisk_script(layout),
        root.FINISH.read_text(),
        disk.MKE2FS_CONFIGURATION.read_text(),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _fresh(path: Path) -> bool:
    about = cache.about(path)
    return about is not None and time.time() - about.made < FRESH and cache.hold(path)


@contextlib.contextmanager
def _making(folder: Path, note: Note) -> Iterator[None]:
    """Be the only one who makes a base, and take away what one who was killed has left."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not cache.lock_if_free(descriptor):
            note("another process makes a base; waiting for that")
            cache.lock(descriptor)
        _sweep(folder)
        yield
    finally:
        os.close(descriptor)


def clean() -> None:
    """Take away what a process that was killed has left, unless one makes a base just now."""
    folder = cache.subfolder("bases")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if cache.lock_if_free(descriptor):
            _sweep(folder)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    for path in folder.glob("new-*"):
        _remove(path)
    for path in folder.glob("*.json"):
        if not path.with_suffix("").exists():
            path.unlink(missing_ok=True)


def _remove(work: Path) -> None:
    """Remove a folder whose files have many owners."""
    command = [*as_root(), "rm", "-rf", "--one-file-system", "--", str(work)]
    for _ in range(3):  # a process that was killed may take a moment to be gone
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.returncode:
            return
        time.sleep(1)
    reason = done.stderr.strip().rpartition("\n")[2] or f"rm ended with status {done.returncode}"
    raise BaseError(f"{work}: cannot be removed: {reason}; remove it as root")


def _make(release: Release, packages: Sequence[str], sources: Sources, path: Path, report: Report) -> None:
    require_keyring(release)
    powers = as_root()
    layout = make_layout(path.name)
    work = Path(tempfile.mkdtemp(prefix="new-", dir=path.parent))
    try:
        folder = root.make_root(release, layout, packages, sources, work, powers, report)
        report("writing the file systems", 0, 0)
        disk.make_disk(folder, work / "esp", layout, work / "disk.raw", powers)
        report("compressing", 0, 0)
        disk.compress(work / "disk.raw", work / path.name)
        with (work / path.name).open("rb+") as file:
            make_durable(file)
            cache.describe(path, cache.About(release.reference, made=int(time.time())))
            cache.release(path)
            (work / path.name).replace(path)
        cache.hold(path)
    except OSError as error:
        raise BaseError(f"{error.filename or work}: {error.strerror}; look whether there is room") from None
    finally:
        _remove(work)
