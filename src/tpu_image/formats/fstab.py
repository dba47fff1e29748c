"""fstab: which file system is mounted where. Source: fstab(5)."""

from __future__ import annotations

import re
from typing import NamedTuple

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line: ``spec`` is the device or a tag such as ``UUID=...``, without quotes around its value."""

    spec: str
    target: str
    type: str
    options: tuple[str, ...]
    line: int


def parse_fstab(text: str) -> tuple[Mount, ...]:
    """Read every line that names a device and a place; others mean nothing."""
    mounts = []
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if len(fields) < 2 or fields[0].startswith("#"):
            continue
        spec, target, kind, options = [*map(_unescaped, fields), "", ""][:4]
        tag, equals, value = spec.partition("=")
        if equals and not tag.startswith("/"):
            spec = f"{tag}={value.strip(chr(34))}"
        mounts.append(Mount(spec, target, kind, tuple(options.split(",")), number))
    return tuple(mounts)


def _unescaped(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), field)
