"""The group that owns device nodes where a profile names one.

udev looks a group up when it loads its rules, so it must stand in ``/etc/group``; from systemd 258 on it must
be a system group. Sources: group(5), gshadow(5), sysusers.d(5).
"""

from __future__ import annotations

from collections.abc import Iterator

from tpu_image.formats import FormatError
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

SYSUSERS_FILE = "/usr/lib/sysusers.d/tpu-image.conf"
SYSTEM_IDS = range(999, 99, -1)
"""Ids that a new system group may get, in the order in which systemd-sysusers takes them."""


def group_id(tree: Tree, name: str) -> int | None:
    """Give the id of a group of ``/etc/group``; None where it is not there."""
    for fields in _entries(tree, "/etc/group"):
        if fields[0] == name and len(fields) > 2 and fields[2].isdecimal():
            return int(fields[2])
    return None


def ensure_group(overlay: Overlay, name: str) -> None:
    """Have a system group of this name in ``/etc/group``, and in sysusers.d so that it is known as ours.

    Raises:
        FormatError: every id of a system group is taken.
    """
    if group_id(overlay, name) is not None:
        return
    taken = {fields[2] for fields in _entries(overlay, "/etc/group") if len(fields) > 2}
    taken |= {fields[3] for fields in _entries(overlay, "/etc/passwd") if len(fields) > 3}
    number = next((number for number in SYSTEM_IDS if str(number) not in taken), None)
    if number is None:
        raise FormatError(f"/etc/group has no free id below 1000 for the group {name}")
    _append(overlay, "/etc/group", f"{name}:x:{number}:\n")
    if overlay.is_file("/etc/gshadow"):
        _append(overlay, "/etc/gshadow", f"{name}:!::\n")
    overlay.write(
        SYSUSERS_FILE, f"# Owns the device nodes of Cloud TPUs. Written by tpu-image.\ng {name} -\n"
    )


def _entries(tree: Tree, path: str) -> Iterator[list[str]]:
    for line in (tree.read_text_if_present(path) or "").splitlines():
        yield line.split(":")


def _append(overlay: Overlay, path: str, line: str) -> None:
    text = overlay.read_text_if_present(path) or ""
    separator = "\n" if text and not text.endswith("\n") else ""
    overlay.write(path, text + separator + line)
