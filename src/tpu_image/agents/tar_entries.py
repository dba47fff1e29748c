"""Entries of a layer's tar, by the place of their content: ustar, GNU and pax.

Layouts: POSIX.1-2017 pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual, "Basic Tar Format". What
an OCI layer may hold: image-spec layer.md. A view of the whole archive is read, so that no content is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.agents.errors import ImageError

BLOCK = 512
ZEROS = bytes(BLOCK)

EXTENDED_LIMIT = 1024 * 1024
"""Bytes of one extended header."""

DIGITS_LIMIT = 20
"""Digits of a number in a header."""

TIME_LIMIT = (1 << 34) - 1
"""Seconds since 1970 that ext4 can hold (Documentation/filesystems/ext4/inodes.rst, "Inode Timestamps")."""

FILE, HARD_LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = "0", "1", "2", "3", "4", "5", "6"

CAPABILITY = b"SCHILY.xattr.security.capability"
"""Name under which tars carry the file capabilities of a program (capabilities(7))."""

_WITHOUT_CONTENT = frozenset((HARD_LINK, SYMLINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO))
_KINDS = {"\0": FILE, "7": FILE}
_TEXT = (b"path", b"linkpath", b"size", b"uid", b"gid", b"mtime", CAPABILITY)


class Entry(NamedTuple):
    """One entry: ``kind`` is its type flag; ``offset`` is where its ``size`` bytes start in the archive."""

    name: str
    kind: str
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int
    offset: int
    target: str
    capability: bytes = b""


def entries(archive: memoryview, where: str) -> Iterator[Entry]:
    """Read the entries of an archive in order.

    Raises:
        ImageError: a header is damaged, the archive is cut short, or has a sparse file; ``where`` names it.
    """
    position, length = 0, len(archive)
    long_name = long_target = None
    pax: dict[bytes, bytes] = {}
    while position + BLOCK <= length:
        header = bytes(archive[position : position + BLOCK])
        if header == ZEROS:
            return
        _check(header, position, where)
        kind = chr(header[156])
        kind = _KINDS.get(kind, kind)
        size = _number(pax.get(b"size"), header[124:136], position, where)
        data = position + BLOCK
        position = data + (0 if kind in _WITHOUT_CONTENT else -(-size // BLOCK) * BLOCK)
        if data + (0 if kind in _WITHOUT_CONTENT else size) > length:
            raise ImageError(f"is cut short in the entry at byte {data - BLOCK}", where)
        if kind in "LKxg":
            if size > EXTENDED_LIMIT:
                raise ImageError(f"has an extended header of {size} bytes at byte {data - BLOCK}", where)
            content = bytes(archive[data : data + size])
            if kind == "L":
                long_name = content.partition(b"\0")[0]
            elif kind == "K":
                long_target = content.partition(b"\0")[0]
            elif kind == "x":
                pax = _records(content, data, where)
            continue
        yield _entry(header, kind, size, data, pax, long_name, long_target, where)
        long_name = long_target = None
        pax = {}
    if position < length:
        raise ImageError(f"is cut short at byte {length}", where)


def _entry(
    header: bytes,
    kind: str,
    size: int,
    data: int,
    pax: dict[bytes, bytes],
    long_name: bytes | None,
    long_target: bytes | None,
    where: str,
) -> Entry:
    name = pax.get(b"path") or long_name or _short_name(header)
    if kind == "S" or b"GNU.sparse" in pax:
        raise ImageError(f"{_shown(name)} is a sparse file, which layers do not have", where)
    if kind == FILE and name.endswith(b"/"):
        kind = DIRECTORY
    at = data - BLOCK
    target = pax.get(b"linkpath") or long_target or header[157:257].partition(b"\0")[0]
    return Entry(
        name.decode("utf-8", "surrogateescape"),
        kind,
        _number(None, header[100:108], at, where) & 0o7777,
        _number(pax.get(b"uid"), header[108:116], at, where),
        _number(pax.get(b"gid"), header[116:124], at, where),
        _time(pax, header, where, at),
        0 if kind in _WITHOUT_CONTENT else size,
        data,
        target.decode("utf-8", "surrogateescape"),
        pax.get(CAPABILITY, b""),
    )


def _short_name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0":
        prefix = header[345:500].partition(b"\0")[0]
        return prefix + b"/" + name if prefix else name
    return name


def _check(header: bytes, position: int, where: str) -> None:
    """Hold a header against its checksum: the sum of its bytes, those of the checksum taken as blanks."""
    written = _number(None, header[148:156], position, where)
    if sum(header) - sum(header[148:156]) + 8 * 0x20 != written:
        raise ImageError(f"has a damaged tar header at byte {position}", where)


def _number(extended: bytes | None, field: bytes, position: int, where: str) -> int:
    """Read a number: of an extended header in decimal, of a field in octal or, marked, in base 256."""
    if extended is None and field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    # A sign is refused with all else that is no digit: negative sizes would lead back to entries before.
    text = field.partition(b"\0")[0].strip() if extended is None else extended
    digits, base = (b"01234567", 8) if extended is None else (b"0123456789", 10)
    if text.translate(None, digits) or len(text) > DIGITS_LIMIT or (not text and extended is not None):
        raise ImageError(f"has a number that is none at byte {position}", where)
    return int(text or b"0", base)


def _time(pax: dict[bytes, bytes], header: bytes, where: str, position: int) -> int:
    """Read when a file was changed, in seconds since 1970, as near as ext4 has it."""
    written = pax.get(b"mtime", b"").partition(b".")[0]
    if written.startswith(b"-") or (not written and header[136] == 0xFF):  # before 1970
        return 0
    return min(_number(written or None, header[136:148], position, where), TIME_LIMIT)


def _records(content: bytes, position: int, where: str) -> dict[bytes, bytes]:
    """Read the records of a pax header, ``LENGTH KEY=VALUE``, those that are of use here."""
    found: dict[bytes, bytes] = {}
    start = 0
    while start < len(content):
        digits, blank, _ = content[start : start + 20].partition(b" ")
        end = start + int(digits) if blank and digits.isdigit() else 0
        if not start < end <= len(content) or content[end - 1 : end] != b"\n":
            raise ImageError(f"has a damaged pax header at byte {position}", where)
        key, _, value = content[start + len(digits) + 1 : end - 1].partition(b"=")
        if key in _TEXT:
            found[key] = value
        elif key.startswith(b"GNU.sparse"):
            found[b"GNU.sparse"] = value
        start = end
    return found


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
