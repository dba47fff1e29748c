"""limits.conf(5): read, merged for a login as pam_limits(8) does, and appended to.

The merge follows ``modules/pam_limits/pam_limits.c`` of Linux-PAM. A line for the user beats one for a group,
which beats ``*``; among equals the later line wins. Debian and Ubuntu patch the module so that ``*`` and
``@group`` do not cover root; other distributions do not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.resource_limits import BYTE_ITEMS, UNLIMITED

ITEMS = BYTE_ITEMS | {"cpu", "locks", "msgqueue", "nice", "nofile", "nproc", "rtprio", "sigpending"}
"""Limits that setrlimit(2) knows; ``priority``, ``maxlogins`` and the like are none."""

UNLIMITED_WORDS = ("-1", "-", "unlimited", "infinity")
USER, GROUP, WILDCARD = 1, 3, 5
"""How specific a line is: the smaller wins."""

_SPACE = " \t\v\f\r"
_UPPER_TO_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


class Login(NamedTuple):
    """Who opens a session. ``groups`` are names; ranges and ids of groups look at ``gid`` alone."""

    name: str
    uid: int
    gid: int
    groups: tuple[str, ...] = ()


class Entry(NamedTuple):
    """One line. ``value`` is in the kernel's units, None on a line that frees its domain of all limits."""

    domain: str
    kind: str
    item: str
    value: int | None
    line: int


class Effective(NamedTuple):
    """One half of a limit as a login gets it, and the line that decides it."""

    value: int
    path: str
    entry: Entry


class Session(NamedTuple):
    """What pam_limits sets when a login opens a session; None where it leaves what was there.

    ``freed_by`` is the line that ends the work of the module before anything is set (``alice -``).
    """

    soft: Effective | None = None
    hard: Effective | None = None
    freed_by: tuple[str, Entry] | None = None


class LimitsFile:
    """One file. ``entries`` are the lines with an effect on resource limits, ``ignored`` those malformed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.entries: list[Entry] = []
        self.ignored: list[int] = []
        for number, line in enumerate(text.split("\n"), 1):
            fields = _fields(line)
            if fields:
                self._read(fields, number)

    def _read(self, fields: list[str], number: int) -> None:
        domain, kind = fields[0], fields[1] if len(fields) > 1 else ""
        if not _is_domain(domain) or len(fields) not in (2, 4):
            self.ignored.append(number)
        elif len(fields) == 2:
            if kind.startswith("-"):
                self.entries.append(Entry(domain, "-", "", None, number))
        else:
            item = fields[2].translate(_UPPER_TO_LOWER)
            value = _parse_value(item, fields[3].translate(_UPPER_TO_LOWER)) if item in ITEMS else None
            kind = kind.translate(_UPPER_TO_LOWER)
            if value is not None and kind in ("soft", "hard", "-"):
                self.entries.append(Entry(domain, kind, item, value, number))
            elif item in ITEMS:
                self.ignored.append(number)

    def with_line(self, domain: str, kind: str, item: str, value: str) -> LimitsFile:
        """Give a copy with one more line at the end, which wins over earlier ones of its domain.

        Raises:
            FormatError: a field is empty or holds white space or ``#``.
        """
        fields = (domain, kind, item, value)
        for field in fields:
            if _fields(field) != [field] or "\n" in field:
                raise FormatError(f"not one field of a limits.conf line: {field!r}")
        start = self.text if not self.text or self.text.endswith("\n") else self.text + "\n"
        return LimitsFile(f"{start}{domain:<15} {kind:<7} {item:<15} {value}\n")


def _fields(line: str) -> list[str]:
    """At most four fields of a line, without its comment; a NUL ends a line in C."""
    text = line.partition("#")[0].partition("\0")[0]
    for space in _SPACE:
        text = text.replace(space, " ")
    return [field for field in text.split(" ") if field][:4]


def _parse_value(item: str, text: str) -> int | None:
    """Read a value as strtoul(3) does: what follows the digits is ignored, no digits at all is no value."""
    if item == "nice":
        return None
    if text in UNLIMITED_WORDS:
        return UNLIMITED
    negative = text.startswith("-")
    rest = text[1:] if text.startswith(("-", "+")) else text
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    if not digits:
        return None
    value = min(int(digits[:32]), UNLIMITED)
    if negative and value != UNLIMITED:
        value = -value % 2**64
    if item in BYTE_ITEMS and value != UNLIMITED:
        value = UNLIMITED if value >= UNLIMITED // 1024 else value * 1024
    return value


def format_value(item: str, value: int) -> str:
    """Write a value as limits.conf has it: sizes in KiB, rounded down."""
    if value == UNLIMITED:
        return "unlimited"
    return str(value // 1024 if item in BYTE_ITEMS else value)


def parse_range(domain: str) -> tuple[int, int] | None:
    """Read ``1000:``, ``1000:2000`` or ``:1000`` (with ``@`` or ``%`` before it) as smallest and largest id.

    Raises:
        FormatError: it has a colon and is none of these; pam_limits skips the line.
    """
    if ":" not in domain:
        return None
    first, _, last = domain.lstrip("@%").partition(":")
    if not all(part == "" or (part.isascii() and part.isdigit()) for part in (first, last)):
        raise FormatError(f"not a range of ids: {domain}")
    if not first and not last:
        raise FormatError(f"not a range of ids: {domain}")
    smallest = int(first[:20] or last[:20])
    return smallest, int(last[:20]) if last else 2**32


def _is_domain(domain: str) -> bool:
    try:
        parse_range(domain)
    except FormatError:
        return False
    return True


def specificity(domain: str, login: Login, *, root_by_name_only: bool) -> int | None:
    """Say how specifically a line of this domain names the login; None where it does not.

    With ``root_by_name_only``, as Debian patches the module, root is named by its name and by ranges; these
    are then taken for ranges of user ids, even behind ``@`` or ``%``.
    """
    bounds = parse_range(domain)
    if root_by_name_only and login.uid == 0:
        named = domain == login.name if bounds is None else bounds[0] == 0
        return USER if named else None
    if domain.startswith("%"):
        return None
    if domain.startswith("@"):
        if bounds is not None:
            return GROUP if bounds[0] <= login.gid <= bounds[1] else None
        return GROUP if domain[1:] in login.groups else None
    if domain == login.name:
        return USER
    if bounds is not None:
        return USER if bounds[0] <= login.uid <= bounds[1] else None
    return WILDCARD if domain == "*" else None


def effective(
    files: Sequence[tuple[str, LimitsFile]], login: Login, item: str, *, root_by_name_only: bool = True
) -> Session:
    """Merge files for one login and one limit, as pam_limits does when the session opens.

    ``files`` are paths and contents in the order of :func:`order`. A soft value above the hard one is
    lowered to it.
    """
    found: dict[str, Effective] = {}
    ranks = {"soft": WILDCARD, "hard": WILDCARD}
    for path, file in files:
        for entry in file.entries:
            rank = specificity(entry.domain, login, root_by_name_only=root_by_name_only)
            if rank is None or (entry.value is None and entry.domain == "*"):
                continue
            if entry.value is None:
                return Session(freed_by=(path, entry))
            if entry.item != item:
                continue
            for half in ("soft", "hard") if entry.kind == "-" else (entry.kind,):
                if rank > ranks[half]:
                    break  # the module leaves the line altogether here, even if "hard" were still to come
                ranks[half] = rank
                found[half] = Effective(entry.value, path, entry)
    soft, hard = found.get("soft"), found.get("hard")
    if soft and hard and soft.value > hard.value:
        soft = hard
    return Session(soft, hard)


def order(main: str, drop_ins: Sequence[str]) -> list[str]:
    """Order paths as pam_limits reads them: the main file, then ``limits.d`` by name in the C locale."""
    return [main, *sorted(drop_ins, key=lambda path: os.fsencode(path.rpartition("/")[2]))]
