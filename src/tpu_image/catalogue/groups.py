"""The group that owns device nodes where a profile names one.

udev looks a group up when it loads its rules, so it must stand in ``/etc/group``; from systemd 258 on it must
be a system group. Sources: group(5), gshadow(5), sysusers.d(5).
"""

from __future__ import annotations

import re

from tpu_image.catalogue import accounts
from tpu_image.formats import FormatError
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

SYSUSERS_FILE = "/usr/lib/sysusers.d/tpu-image-group.conf"
"""Beside the file of the boot runtime's user, which has its own."""

NAME_LIMIT = 32
"""Characters of a group name at most: ``GROUP_NAME_MAX_LENGTH`` of Debian's shadow, groupadd(8)."""

SYSTEM_IDS = range(999, 99, -1)
"""Ids that a new system group may get, in the order in which systemd-sysusers takes them."""


def is_name(name: str) -> bool:
    """Whether groupadd(8) takes the name by default, so that it is safe in a udev rule and a shell script."""
    acceptable = re.fullmatch(r"[a-z_][a-z0-9_-]*", name) is not None
    return acceptable and len(name) <= NAME_LIMIT


def is_declared(tree: Tree, name: str) -> bool:
    """Whether sysusers.d makes the group on a machine whose ``/etc/group`` is not known here."""
    declared = tree.read_text_if_present(SYSUSERS_FILE) or ""
    return not tree.exists(accounts.GROUP) and _declaration(name) == declared


def ensure_group(overlay: Overlay, name: str) -> None:
    """Have a system group of this name in ``/etc/group``, and in sysusers.d so that it is known as ours.

    Where no ``/etc/group`` is there, the plan is for any machine, and systemd-sysusers finds an id on it.

    Raises:
        FormatError: every id of a system group is taken.
    """
    if accounts.group_id(overlay, name) is not None or is_declared(overlay, name):
        return
    overlay.write(SYSUSERS_FILE, _declaration(name))
    if overlay.exists(accounts.GROUP):
        _add_group(overlay, name)


def _declaration(name: str) -> str:
    return f"# Owns the device nodes of Cloud TPUs. Written by tpu-image.\ng {name} -\n"


def _add_group(overlay: Overlay, name: str) -> None:
    taken = {fields[2] for fields in overlay.derive(accounts.groups) if len(fields) > 2}
    taken |= {fields[3] for fields in overlay.derive(accounts.users) if len(fields) > 3}
    number = next((number for number in SYSTEM_IDS if str(number) not in taken), None)
    if number is None:
        raise FormatError(f"{accounts.GROUP} has no free id below 1000 for the group {name}")
    _append(overlay, accounts.GROUP, f"{name}:x:{number}:\n")
    if overlay.is_file("/etc/gshadow"):
        _append(overlay, "/etc/gshadow", f"{name}:!::\n")


def _append(overlay: Overlay, path: str, line: str) -> None:
    text = overlay.read_text_if_present(path) or ""
    separator = "\n" if text and not text.endswith("\n") else ""
    overlay.write(path, text + separator + line)
