"""What a user wants of an image beyond the catalogue, as plain values; :mod:`tpu_image.spec` reads them from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Placement(NamedTuple):
    """A file or directory to have in the image.

    Attributes:
        path: absolute, in the image; links on the way are followed.
        source: a file or folder of this machine to copy; None where ``content`` is given, or for a directory.
        content: what a file is to hold; None for a directory.
        mode: permission bits; None for those of what is there, else 0644 or 0755.
        owner, group: names in the image or numbers; empty for those of what is there, else root's.
    """

    path: str
    source: Path | None = None
    content: bytes | None = None
    mode: int | None = None
    owner: str = ""
    group: str = ""


class Script(NamedTuple):
    """A program to run in the image as root: its name in messages, and its text, a shell's without ``#!``."""

    name: str
    content: bytes


class PythonEnvironment(NamedTuple):
    """A Python virtual environment to make in the image.

    Attributes:
        path: absolute, in the image.
        packages: as pip takes them.
        requirements: content of a requirements file; empty for none.
        wheels: folder of this machine that alone gives packages; None for the network.
        python: the interpreter in the image.
    """

    path: str
    packages: tuple[str, ...] = ()
    requirements: bytes = b""
    wheels: Path | None = None
    python: str = "/usr/bin/python3"


class GcloudArchive(NamedTuple):
    """Google's archive of its Cloud CLI: a file of this machine, and its SHA-256 where that must match."""

    path: Path
    sha256: str = ""


@dataclass(frozen=True)
class Customisation:
    """Everything that is wanted; nothing by default.

    Attributes:
        files: in order; later ones may replace earlier ones.
        packages, remove: names of Debian packages to install and to purge.
        kernel: name of the package of the kernel that is to boot; empty to leave that as it is.
        environments: Python environments.
        scripts: to run last, in order.
        gcloud: the Cloud CLI to unpack.
        sources: package sources (sources.list(5), either style) to use in place of the image's own; empty for those.
        time_limit: seconds that everything executed may take; 0 for the usual limit.
    """

    files: tuple[Placement, ...] = ()
    packages: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    kernel: str = ""
    environments: tuple[PythonEnvironment, ...] = ()
    scripts: tuple[Script, ...] = ()
    gcloud: GcloudArchive | None = None
    sources: bytes = b""
    time_limit: float = 0

    @property
    def executes(self) -> bool:
        """Whether programs of the image have to run."""
        return bool(self.packages or self.remove or self.kernel or self.environments or self.scripts)
