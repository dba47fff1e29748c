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

SUITE = "trixie"
BACKPORTS = f"{SUITE}-backports"
PACKAGES = ("qemu-system-x86", "qemu-utils", "seabios", "ovmf")
MIRROR = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PINNED = "qemu* seabios ovmf"

NO_ROOM = "make room there, or name another folder in XDG_CACHE_HOME"
INSTALL = "install the packages mmdebstrap and debian-archive-keyring"

_PREFERENCES = f"Package: {PINNED}\nPin: release n={BACKPORTS}\nPin-Priority: 600\n"


def setup(output: int | None = None) -> Qemu:
    """Make the private root, or give the one that is there.

    The packages are unpacked, not configured: nothing of them is run, and neither root nor a mount is needed. The
    root gets its name when it is whole and its QEMU has answered.

    Args:
        output: descriptor that mmdebstrap writes its messages to; by default they go nowhere.

    Raises:
        LabError: it cannot be made; the message says what to install or to do.
        CacheError: somebody else could write to the cache folder.
    """
    folder, root = cache_folder.own_folder(), private_root()
    try:
        with _locked(folder / "qemu.lock"):
            for left in folder.glob("qemu-new-*"):
                shutil.rmtree(left, ignore_errors=True)
            if root.is_dir():
                with contextlib.suppress(LabError, CacheError):
                    cache_folder.require_own(root)
                    return probe(in_root(root))
            _remove(root)
            _make(folder, root, output)
    except OSError as error:
        raise LabError(f"{folder}: {error.strerror or error}", NO_ROOM) from None
    return probe(in_root(root))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _make(folder: Path, root: Path, output: int | None) -> None:
    new = Path(tempfile.mkdtemp(prefix="qemu-new-", dir=folder))
    try:
        new.chmod(0o755)  # apt reads in it as another user where it is started by root
        _unpack(new, output)
        probe(in_root(new / "root"))
        (new / "root").replace(root)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def command(root: Path, preferences: Path) -> list[str]:
    """Say how mmdebstrap(1) unpacks QEMU below a root."""
    folder = "etc/apt/preferences.d"
    keyring = [f"--keyring={KEYRING}"] if KEYRING.is_file() else []
    return [
        *("setpriv", "--pdeathsig", "TERM", "--", "mmdebstrap"),
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


def _unpack(folder: Path, output: int | None) -> None:
    target = subprocess.DEVNULL if output is None else output
    preferences = folder / "tpu-image"
    preferences.write_text(_PREFERENCES)
    if shutil.which("mmdebstrap") is None:
        raise LabError("mmdebstrap is not installed", INSTALL)
    done = subprocess.run(
        command(folder / "root", preferences),
        stdin=subprocess.DEVNULL,
        stdout=target,
        stderr=target,
        check=False,
    )
    if done.returncode:
        raise LabError(
            f"mmdebstrap failed with status {done.returncode}",
            "read its messages: tpu-image lab setup --verbose",
        )
