"""Root's powers for a command, over files of ours alone.

A root file system has files of many owners. As root, commands get a mount namespace of their own, so that nothing
stays mounted; as a normal user, a user namespace beside it (user_namespaces(7)), in which the user is root and the
user's subordinate ids (subuid(5)) are everybody else. Either way they are in a process namespace that ends as a whole
when the process that started it ends: see ``--kill-child`` in unshare(1), and :mod:`tpu_image.parent_death`.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from tpu_image.bases.errors import BaseError
from tpu_image.parent_death import ends_with_us

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where tools of the system are; a user's own path need not name all."""

_OWN_MOUNTS = ("--mount", "--pid", "--fork", "--kill-child")


def find_tool(name: str, package: str) -> str:
    """Give the path of a tool.

    Raises:
        BaseError: it is not installed.
    """
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")
    if path is None:
        raise BaseError(f"{name} is not installed, which making a base needs; run: apt-get install {package}")
    return path


def as_root() -> list[str]:
    """Give what to put before a command so that it runs as root.

    Raises:
        BaseError: this user may not have a user namespace with many users; says what to do.
        FileNotFoundError: setpriv is not installed.
    """
    guarded = ends_with_us()
    unshare = [*guarded, find_tool("unshare", "util-linux")]
    if os.geteuid() == 0:
        own = [*unshare, *_OWN_MOUNTS]
        # In a container root may have no namespaces of its own; nothing can be mounted there either.
        return own if not _refusal(own) else guarded
    find_tool("newuidmap", "uidmap")
    own = [*unshare, "--user", "--map-root-user", "--map-auto", *_OWN_MOUNTS]
    refusal = _refusal(own)
    if refusal:
        raise BaseError(
            f"a base needs root, or user namespaces and lines for you in /etc/subuid and /etc/subgid: {refusal}; "
            "run it as root, or have them allowed"
        )
    return own


def _refusal(prefix: list[str]) -> str:
    done = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"{prefix[0]} failed"])[-1]
