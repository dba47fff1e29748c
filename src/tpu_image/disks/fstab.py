"""What /etc/fstab mounts (fstab(5)), and which of a disk's volumes it means."""

from __future__ import annotations

import re
from typing import NamedTuple

PATH_LIMIT = 4096
"""Bytes of a path (``PATH_MAX``, include/uapi/linux/limits.h); lines with longer ones are left out."""

_VIRTUAL = ("swap", "tmpfs", "proc", "sysfs", "devpts", "devtmpfs", "overlay", "none", "nfs", "nfs4", "cifs")

_TAGS = {"uuid": "uuid", "label": "label", "partuuid": "partuuid", "partlabel": "partlabel"}
_DEVICE = re.compile(r"/dev/(?:(?:[shv]d|xvd)a|nvme0n1p|mmcblk0p)([0-9]{1,3})\Z")


class Mount(NamedTuple):
    """One line: ``device`` is mounted at ``path``; ``optional`` where boot goes on without it."""

    device: str
    path: str
    optional: bool = False


def parse_fstab(text: str) -> list[Mount]:
    """Read the mounts of real file systems, in the order of the lines; malformed lines are left out."""
    mounts = []
    for line in text.split("\n"):
        fields = [_unescaped(field) for field in line.replace("\t", " ").split(" ") if field]
        if len(fields) < 3 or fields[0].startswith("#") or fields[2] in _VIRTUAL:
            continue
        if fields[1][:1] != "/" or len(fields[1]) > PATH_LIMIT:
            continue
        options = fields[3].split(",") if len(fields) > 3 else []
        if "bind" in options or "rbind" in options:
            continue
        mounts.append(Mount(fields[0], fields[1], "nofail" in options or "noauto" in options))
    return mounts


def device_key(device: str) -> tuple[str, str]:
    """Take apart how a device is named.

    Returns:
        ``uuid``, ``label``, ``partuuid`` or ``partlabel`` with the value; ``number`` with the number of a
        partition of the first disk; or two empty strings for another device.
    """
    tag, equals, value = device.partition("=")
    if equals and tag.lower() in _TAGS:
        return _TAGS[tag.lower()], value.strip("\"'")
    if device.startswith("/dev/disk/by-"):
        tag, _, value = device.removeprefix("/dev/disk/by-").partition("/")
        return (tag, re.sub(r"\\x([0-9a-f]{2})", _character, value)) if tag in _TAGS else ("", "")
    match = _DEVICE.match(device)
    return ("number", match[1]) if match else ("", "")


def _unescaped(field: str) -> str:
    """Put back blanks that are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))
