"""QEMU: finding one that is new enough, on PATH or in the private root that ``tpu-image lab setup`` makes.

Emulated TPUs come through the device ``vfio-user-pci``, which QEMU has from 10.1 on. A private root is run from where
it lies, through its own dynamic loader (ld.so(8), ``--library-path``): no chroot, no mount, no privilege.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpu_image import cache_folder
from tpu_image.lab.errors import LabError

NEEDED = (10, 1)
"""The first version with ``vfio-user-pci`` (QEMU's change log of 10.1)."""

NEEDED_WITHOUT_TPUS = (7, 2)
"""Debian 12's, the oldest in which programs of an image were run."""

PROGRAM = "qemu-system-x86_64"
SETUP = "run: tpu-image lab setup"
PROBE_SECONDS = 60

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADERS = ("usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2")
_DATA = ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu")

UEFI_FIRMWARE = (
    ("usr/share/OVMF/OVMF_CODE_4M.fd", "usr/share/OVMF/OVMF_VARS_4M.fd"),
    ("usr/share/edk2/x64/OVMF_CODE.4m.fd", "usr/share/edk2/x64/OVMF_VARS.4m.fd"),
    ("usr/share/edk2/ovmf/OVMF_CODE.fd", "usr/share/edk2/ovmf/OVMF_VARS.fd"),
    ("usr/share/qemu/edk2-x86_64-code.fd", "usr/share/qemu/edk2-i386-vars.fd"),
)
"""Where distributions keep OVMF's code and its empty variable store, below the root: Debian, Arch, Fedora, QEMU."""


@dataclass(frozen=True)
class Qemu:
    """A QEMU that can emulate TPUs.

    Attributes:
        command: how it is started: a program and its first arguments.
        version: such as ``11.1.3``.
        root: where its firmware is looked for.
        environment: variables that it needs.
    """

    command: tuple[str, ...]
    version: str
    root: Path = Path("/")
    environment: dict[str, str] = field(default_factory=dict)

    def uefi(self) -> tuple[Path, Path]:
        """Give the files of the UEFI firmware: code, and variables to copy.

        Raises:
            LabError: it is not installed.
        """
        for code, variables in UEFI_FIRMWARE:
            found = self.root / code, self.root / variables
            if all(path.is_file() for path in found):
                return found
        raise LabError("the UEFI firmware OVMF is not installed", f"install the package ovmf, or {SETUP}")


def private_root() -> Path:
    """Where ``tpu-image lab setup`` puts QEMU."""
    return cache_folder.folder() / "qemu"


def find(*, tpus: bool = True) -> Qemu:
    """Find a QEMU that can emulate TPUs, or one that need not: the one on PATH, or else the private one.

    Raises:
        LabError: there is none; the message says why each one found does not do.
        CacheError: somebody else could have put the private one there.
    """
    problems = []
    for candidate in _candidates():
        try:
            return probe(candidate, tpus=tpus)
        except LabError as error:
            problems.append(error.what)
    found = "; ".join(problems) or f"{PROGRAM} is not installed"
    raise LabError(found, f"install QEMU {_dotted(_needed(tpus=tpus))} or newer, or {SETUP}")


def _needed(*, tpus: bool) -> tuple[int, ...]:
    return NEEDED if tpus else NEEDED_WITHOUT_TPUS


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _candidates() -> list[Qemu]:
    candidates = []
    on_path = shutil.which(PROGRAM)
    if on_path is not None:
        candidates.append(Qemu((on_path,), ""))
    if (private_root() / "usr/bin" / PROGRAM).is_file():
        cache_folder.require_own(private_root())
        if cache_folder.keep(private_root()):  # a guest would miss it if the cache were cleaned
            candidates.append(in_root(private_root()))
    return candidates


def in_root(root: Path) -> Qemu:
    """Describe the QEMU of a root that it is not installed in.

    Raises:
        LabError: the root has no dynamic loader.
    """
    loader = next((root / name for name in _LOADERS if (root / name).is_file()), None)
    if loader is None:
        raise LabError(f"{root} is incomplete", f"remove it and {SETUP}")
    libraries = [root / _LIBRARIES, root / "lib/x86_64-linux-gnu"]
    command = [str(loader), "--library-path", ":".join(map(str, libraries)), str(root / "usr/bin" / PROGRAM)]
    for folder in _DATA:
        command += ["-L", str(root / folder)]
    return Qemu(tuple(command), "", root, {"QEMU_MODULE_DIR": str(root / _LIBRARIES / "qemu")})


def probe(candidate: Qemu, *, tpus: bool = True) -> Qemu:
    """Ask a QEMU for its version and, where it is to emulate TPUs, for ``vfio-user-pci``.

    Raises:
        LabError: it does not start, is too old, or was built without it.
    """
    name = _name(candidate)
    version = parse_version(_output(candidate, ["--version"]))
    if version is None:
        raise LabError(f"{name} does not tell its version", SETUP)
    told, needed = _dotted(version), _needed(tpus=tpus)
    if version < needed:
        raise LabError(f"{name} is QEMU {told}, older than {_dotted(needed)}", SETUP)
    options = ["-machine", "none", "-device", "vfio-user-pci,help"]
    if tpus and "vfio-user-pci options" not in _output(candidate, options):
        raise LabError(f"{name} (QEMU {told}) was built without the device vfio-user-pci", SETUP)
    return Qemu(candidate.command, told, candidate.root, candidate.environment)


def parse_version(text: str) -> tuple[int, ...] | None:
    """Read what ``--version`` prints; None where it is something else."""
    match = re.match(r"QEMU emulator version (\d+)\.(\d+)\.(\d+)", text)
    return None if match is None else tuple(map(int, match.groups()))


def _name(candidate: Qemu) -> str:
    """Give the path that its user knows: of a private one, not that of its loader."""
    return candidate.command[0] if candidate.root == Path("/") else str(candidate.root)


def _output(candidate: Qemu, arguments: Sequence[str]) -> str:
    try:
        result = subprocess.run(
            [*candidate.command, *arguments],
            env={**os.environ, **candidate.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{_name(candidate)} does not start: {error}", SETUP) from None
    if result.returncode < 0:
        raise LabError(f"{_name(candidate)} was ended by signal {-result.returncode} when asked", SETUP)
    return result.stdout.decode("utf-8", "replace")
