"""Where packages come from: the mirrors, proxies and keys that this machine's own apt uses."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_image.bases.errors import BaseError
from tpu_image.bases.namespace import find_tool
from tpu_image.bases.releases import Release

KEYRINGS = Path("/usr/share/keyrings")

_FORMAT = "$(ORIGIN)\t$(RELEASE)\t$(REPO_URI)"
_OPTION = re.compile(
    r'Acquire::(?:https?::(?:Proxy|Timeout)[^ ]*|Retries|Check-Date|Check-Valid-Until) ".*";'
)
_IMPATIENT = ('Acquire::http::Timeout "30";', 'Acquire::https::Timeout "30";', 'Acquire::Retries "2";')
"""What stands where the machine says nothing: a server that does not answer is given up in two minutes."""


@dataclass(frozen=True)
class Sources:
    """``archive`` and ``security_archive`` are URLs; ``options`` are lines of apt.conf(5)."""

    archive: str
    security_archive: str
    options: tuple[str, ...]


def sources_for(release: Release) -> Sources:
    """Say where this machine has the packages of a release from.

    A mirror in its apt configuration stands for every release of its distribution. A URL in the environment, in
    TPU_IMAGE_DEBIAN_MIRROR or TPU_IMAGE_UBUNTU_MIRROR, goes before it.

    Raises:
        BaseError: this machine has no apt.
    """
    archive, security = choose_mirrors(release, _index_targets(), os.environ)
    return Sources(archive, security, _options())


def choose_mirrors(release: Release, targets: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Pick the archive and the security archive.

    Args:
        release: what is wanted.
        targets: a line for each index that apt reads: origin, suite, URL, with tabs between.
        environment: may name a mirror, which then has the security updates too.
    """
    variable = f"TPU_IMAGE_{release.distribution.upper()}_MIRROR"
    named = environment.get(variable, "").rstrip("/")
    if named:
        security = f"{named}-security" if release.distribution == "debian" else named
        return named, security
    archive, security = release.archive, release.security_archive
    origin = release.distribution.capitalize()
    # The first one of the machine's list goes before the others.
    for line in reversed(targets.splitlines()):
        of, suite, uri = [*line.split("\t"), "", ""][:3]
        # Before the first apt-get update the origin is not known; others than distributions have no -updates.
        if of != origin and (of or not suite.endswith(("-updates", "-security"))):
            continue
        if not of and not _is_suite_of(release, suite):
            continue
        if suite.endswith("-security"):
            security = uri.rstrip("/")
        else:
            archive = uri.rstrip("/")
    return archive, security


_DEBIAN_SUITES = ("bullseye", "bookworm", "trixie", "forky", "duke", "stable", "oldstable", "testing")


def _is_suite_of(release: Release, suite: str) -> bool:
    debian = suite.partition("-")[0] in _DEBIAN_SUITES
    return debian == (release.distribution == "debian")


def _index_targets() -> str:
    command = [find_tool("apt-get", "apt"), "indextargets", "--format", _FORMAT, "Created-By: Packages"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _options() -> tuple[str, ...]:
    command = [find_tool("apt-config", "apt"), "dump"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    # A later line goes before an earlier one.
    return (*_IMPATIENT, *(line for line in text.splitlines() if _OPTION.fullmatch(line)))


def require_keyring(release: Release) -> None:
    """Make sure that the keys are here which the packages of a release are signed with.

    Raises:
        BaseError: they are not; says what to do.
    """
    name = f"{release.distribution}-archive-keyring.gpg"
    if not (KEYRINGS / name).is_file():
        package = {"debian": "debian-archive-keyring", "ubuntu": "ubuntu-keyring"}[release.distribution]
        raise BaseError(
            f"{release.reference}: the keys of its archive are not here ({KEYRINGS / name}); "
            f"run: apt-get install {package}, or put the file there; or give another BASE"
        )
