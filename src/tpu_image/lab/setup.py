"""``tpu-image lab setup``: a private root with a QEMU that is new enough, beside the distribution's own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tpu_image import cache_folder
from tpu_image.cache_folder import CacheError
from tpu_image.lab.errors import LabError
from tpu_image.lab.qemu import Qemu, in_root, private_root, probe
from tpu_image.parent_death import ends_with_us
from tpu_image.progress import SILENT, Progress

SUITE = "trixie"
BACKPORTS = f"{SUITE}-backports"
PACKAGES = ("qemu-system-x86", "qemu-utils", "seabios", "ovmf")
MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
STAGE = "unpacking QEMU"
LINE_LIMIT = 4096
"""Bytes of a line of mmdebstrap that are told at once."""

PINNED = "qemu* seabios ovmf"

NO_ROOM = "make room there, or name another folder in XDG_CACHE_HOME"
INSTALL = "install the packages mmdebstrap and debian-archive-keyring"

_PREFERENCES = f"Package: {PINNED}\nPin: release n={BACKPORTS}\nPin-Priority: 600\n"


def setup(progress: Progress = SILENT, *, verbose: bool = False) -> Qemu:
    """Make the private root, or give the one that is there.

    The packages are unpacked, not configured: nothing of them is run, and neither root nor a mount is needed. The
    root gets its name when it is whole and its QEMU has answered.

    Args:
        progress: is told what is being done, and the last line that mmdebstrap says.
        verbose: show all of its lines.

    Raises:
        LabError: it cannot be made; the message says what to install or to do.
        CacheError: somebody else could write to the cache folder.
    """
    folder, root = cache_folder.own_folder(), private_root()
    try:
        with _locked(folder / "qemu.lock", progress):
            progress.at("looking for QEMU")
            for left in folder.glob("qemu-new-*"):
                shutil.rmtree(left, ignore_errors=True)
            if root.is_dir():
                with contextlib.suppress(LabError, CacheError):
                    cache_folder.require_own(root)
                    return probe(in_root(root))
            _remove(root)
            progress.log(f"unpacking QEMU of Debian {BACKPORTS} into {root}, about a minute")
            _make(folder, root, progress, verbose=verbose)
    except OSError as error:
        raise LabError(f"{folder}: {error.strerror or error}", NO_ROOM) from None
    return probe(in_root(root))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _make(folder: Path, root: Path, progress: Progress, *, verbose: bool) -> None:
    new = Path(tempfile.mkdtemp(prefix="qemu-new-", dir=folder))
    try:
        new.chmod(0o755)  # apt reads in it as another user where it is started by root
        _unpack(new, progress, verbose=verbose)
        progress.at("trying it")
        probe(in_root(new / "root"))
        (new / "root").replace(root)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.at("waiting for another setup")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def command(root: Path, preferences: Path) -> list[str]:
    """Say how mmdebstrap(1) unpacks QEMU below a root."""
    folder = "etc/apt/preferences.d"
    keyring = [f"--keyring={KEYRING}"] if KEYRING.is_file() else []
    return [
        *ends_with_us("TERM"),  # so that it takes along what it has started
        "mmdebstrap",
        "--mode=root" if os.geteuid() == 0 else "--mode=chrootless",
        "--format=directory",
        "--variant=extract",
        "--architectures=amd64",
        *keyring,
        '--aptopt=APT::Install-Recommends "false"',
        f"--include={','.join(PACKAGES)}",
        f'--setup-hook=mkdir -p "$1/{folder}" && cp {shlex.quote(str(preferences))} "$1/{folder}/"',
        SUITE,
        str(root),
        f"deb {MIRROR} {SUITE} main",
        f"deb {MIRROR} {BACKPORTS} main",
    ]


def _unpack(folder: Path, progress: Progress, *, verbose: bool) -> None:
    preferences = folder / "tpu-image"
    preferences.write_text(_PREFERENCES)
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is not installed", INSTALL)
    progress.at(STAGE)
    with subprocess.Popen(
        command(folder / "root", preferences),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            error = _follow(process, progress, verbose=verbose)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise LabError(
            f"mmdebstrap failed with status {process.returncode}{error and f': {error}'}",
            "read its messages: tpu-image lab setup --verbose",
        )


def _follow(process: subprocess.Popen[bytes], progress: Progress, *, verbose: bool) -> str:
    """Tell what mmdebstrap says, until it is silent for good; give its first error, empty where it has none."""
    said = process.stdout
    assert said is not None  # noqa: S101 - asked for
    error = ""
    for data in iter(lambda: said.readline(LINE_LIMIT), b""):
        line = data.decode("utf-8", "replace").rstrip()
        progress.step(STAGE, "", line)
        if verbose:
            progress.log(line)
        if line.startswith("E: "):
            error = error or line[3:]
    return error
