"""A root file system of packages, made bootable: mmdebstrap, with :file:`files/finish.sh` as its last step."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from tpu_image.bases.contents import configuration, write_configuration
from tpu_image.bases.errors import BaseError
from tpu_image.bases.layout import Layout
from tpu_image.bases.namespace import SYSTEM_PATH, find_tool
from tpu_image.bases.releases import Release
from tpu_image.bases.sources import Sources

Report = Callable[[str, int, int], None]
"""Is told what is being done, and how many of how many packages are; 0 of 0 where packages do not count."""

FINISH = Path(__file__).parent / "files" / "finish.sh"
LOG_LIMIT = 64 << 20

_STAGE = re.compile(r"I: (?P<stage>[a-z].*?)(?:\.\.\.)?")
_UNREACHABLE = "reading package lists"
_DOWNLOADING = "downloading packages"
_INSTALLING = "installing packages"
_STAGES = {
    "running apt-get update": _UNREACHABLE,
    "downloading packages with apt": _DOWNLOADING,
    "extracting archives": "unpacking essential packages",
    "installing essential packages": "installing essential packages",
    "installing remaining packages inside the chroot": _INSTALLING,
}
_CONFIGURED = re.compile(rb" status installed (\S+) ")
_FINISHING = re.compile(r"I: finishing: (?P<stage>.*)")


def make_root(
    release: Release,
    layout: Layout,
    packages: Sequence[str],
    sources: Sources,
    work: Path,
    as_root: Sequence[str],
    report: Report,
) -> Path:
    """Make the root in a folder of the work folder, beside ``esp``, the files of the EFI system partition.

    Args:
        release: of what.
        layout: the disk that it is for.
        packages: their names.
        sources: where they come from.
        work: an empty folder.
        as_root: what makes a command run as root.
        report: is told how far it is.

    Raises:
        BaseError: it did not work; says at what.
    """
    root = work / "root"
    for name in ("configuration", "esp", "tmp"):
        (work / name).mkdir()
    write_configuration(work / "configuration", configuration(release, layout))
    (work / "sources.list").write_text(
        "".join(f"{line}\n" for line in release.sources(sources.archive, sources.security_archive))
    )
    (work / "apt.conf").write_text("".join(f"{line}\n" for line in sources.options))
    command = [
        *as_root,
        find_tool("mmdebstrap", "mmdebstrap"),
        "--mode=root",
        "--format=directory",
        "--variant=minbase",
        "--architectures=amd64",
        f"--include={','.join(packages)}",
        f"--aptopt={work / 'apt.conf'}",
        '--aptopt=APT::Install-Recommends "false"',
        '--customize-hook=sh "$FINISH" "$1"',
        release.suite,
        str(root),
        str(work / "sources.list"),
    ]
    _run(command, _environment(release, layout, work), work, report, release.reference)
    return root


def _environment(release: Release, layout: Layout, work: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        kept["SOURCE_DATE_EPOCH"] = epoch
    return {
        **kept,
        "PATH": SYSTEM_PATH,
        "LC_ALL": "C.UTF-8",
        "HOME": str(work / "tmp"),
        "TMPDIR": str(work / "tmp"),
        "FINISH": str(FINISH),
        "CONFIGURATION": str(work / "configuration"),
        "ESP": str(work / "esp"),
        "ROOT_UUID": layout.root_uuid,
        "ROOT_PARTITION": layout.grub_root,
        "DISTRIBUTION": release.distribution,
    }


def _run(command: Sequence[str], environment: dict[str, str], work: Path, report: Report, what: str) -> None:
    """Run mmdebstrap, saying how far it is: the packages that are there are counted in its root."""
    log = work / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            cwd=work,
            umask=0o022,
        )
    with log.open("r", encoding="utf-8", errors="replace") as said:
        progress = _Progress(work / "root", said)
        try:
            while process.poll() is None:
                report(*progress.look())
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
        except BaseException:
            process.kill()  # unshare waits out what is milder
            process.wait()
            raise
        progress.look()
    if process.returncode:
        raise BaseError(failure(what, progress.stage, log.read_text("utf-8", "replace")))


class _Progress:
    """What mmdebstrap is at, read from what it says and from the root that it makes."""

    def __init__(self, root: Path, said: TextIO) -> None:
        self.stage = "starting"
        self._root = root
        self._said = said
        self._essential = 0
        self._others = 0

    def look(self) -> tuple[str, int, int]:
        """Give the stage, and how many of how many packages it has done."""
        for line in self._said:
            if match := _STAGE.fullmatch(line.rstrip()):
                self.stage = _STAGES.get(match["stage"], self.stage)
            if match := _FINISHING.fullmatch(line.rstrip()):
                self.stage = match["stage"]
        archives = _count(self._root / "var/cache/apt/archives", ".deb")
        if self.stage == _INSTALLING:
            self._others = max(self._others, archives)  # those of the essential packages are gone then
        else:
            self._essential = max(self._essential, archives)
        total = self._essential + self._others
        if self.stage == _DOWNLOADING:
            return self.stage, archives, 0
        return (self.stage, self._configured(), total) if "installing" in self.stage else (self.stage, 0, 0)

    def _configured(self) -> int:
        """Packages that dpkg is done with, which its log says (some more than once)."""
        with contextlib.suppress(OSError), (self._root / "var/log/dpkg.log").open("rb") as file:
            return len(set(_CONFIGURED.findall(file.read(LOG_LIMIT))))
        return 0


def _count(folder: Path, suffix: str) -> int:
    try:
        return sum(path.suffix == suffix for path in folder.iterdir())
    except OSError:
        return 0


def failure(what: str, stage: str, log: str) -> str:
    """Say in one line why mmdebstrap failed."""
    lines = [line.strip() for line in log.splitlines()]
    fetches = [line[3:] for line in lines if line.startswith(("W: Failed to fetch", "E: Failed to fetch"))]
    errors = [line[3:] for line in lines if line.startswith("E: ")]
    unmet = [line for line in lines if " : Depends: " in line]
    reason = (fetches or unmet or errors or ["mmdebstrap failed"])[0]
    if stage == _UNREACHABLE or fetches:
        variable = f"TPU_IMAGE_{what.partition(':')[0].upper()}_MIRROR"
        return (
            f"{what}: its archive cannot be used from here: {reason}; "
            f"name a mirror of it in {variable}, or give another BASE"
        )
    return f"{what}: {stage} failed: {reason}"
