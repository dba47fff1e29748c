"""Headers of a tar archive up to its first file: ustar, old GNU, GNU and pax, sparse or not.

Layouts: POSIX.1-2017 pax "ustar Interchange Format"; GNU tar manual, "Basic Tar Format" and "Sparse Formats".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tpu_image.disks.errors import DamagedError

BLOCK = 512
"""Bytes of a tar block."""

RECORDS_LIMIT = 1024 * 1024
"""Bytes of extended header records that are read before the first file."""

HEADERS_LIMIT = 64
"""Headers (extended ones, directories) that may stand before the first file."""

SPARSE_LIMIT = 1 << 19
"""Parts that a sparse file may have."""

DIGITS_LIMIT = 20

Reader = Callable[[int, int], bytes]
"""Reads up to ``length`` bytes from ``offset`` of the archive."""

Part = tuple[int, int]
"""Offset in the file and length of a part that is stored, in bytes."""


class Member(NamedTuple):
    """The first file of an archive.

    Attributes:
        name: as the archive spells it.
        form: ``v7``, ``ustar``, ``gnu`` (old GNU included: the header is the same) or ``pax``.
        size: bytes of the file with its holes.
        data: where its stored bytes start in the archive.
        parts: what is stored, in order; None for a file without holes.
    """

    name: str
    form: str
    size: int
    data: int
    parts: tuple[Part, ...] | None = None


class _Pending:
    """What extended headers say of the header that follows them."""

    def __init__(self) -> None:
        self.name = ""
        self.pax: dict[str, str] = {}
        self.sparse: list[int] = []
        self.form = ""


class HeaderReader:
    """Reads the headers of one archive; ``where`` names it in messages."""

    def __init__(self, read: Reader, where: str) -> None:
        self._read = read
        self._where = where

    def first_file(self) -> Member | None:
        """Find the first regular file; None for an archive without one.

        Raises:
            DamagedError: a header is malformed, or says more than the limits of this module.
        """
        offset = 0
        pending = _Pending()
        for _ in range(HEADERS_LIMIT):
            header = self._read(offset, BLOCK)
            if len(header) < BLOCK or header == bytes(BLOCK):
                return None
            self._verify(header)
            kind = header[156:157]
            if kind in (b"0", b"\0", b"7", b"S"):
                return self._file(header, offset + BLOCK, pending)
            size = self._number(header[124:136])
            if kind in (b"x", b"g", b"L", b"K"):
                self._extend(pending, kind, self._content(offset + BLOCK, size))
            else:
                pending = _Pending()
            offset += BLOCK + padded(size)
        raise self._damaged(f"no file among its first {HEADERS_LIMIT} headers")

    def _damaged(self, what: str) -> DamagedError:
        return DamagedError(f"tar: {what}", self._where)

    def _verify(self, header: bytes) -> None:
        stored = self._number(header[148:156])
        if stored != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise self._damaged("a header's checksum is wrong")

    def _number(self, text: bytes) -> int:
        """Read octal digits, or GNU's base 256 marked by a first bit of one."""
        if text[0] == 0x80:
            return int.from_bytes(text[1:], "big")
        digits = text.split(b"\0")[0].strip() or b"0"
        if digits.translate(None, b"01234567"):
            raise self._damaged(f"{digits!r} is no number")
        return int(digits, 8)

    def _decimal(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < DIGITS_LIMIT):
            raise self._damaged(f"{text[:40]!r} is no number")
        return int(text)

    def _content(self, offset: int, size: int) -> bytes:
        if size > RECORDS_LIMIT:
            raise self._damaged(f"an extended header of {size} bytes")
        data = self._read(offset, size)
        if len(data) < size:
            raise self._damaged("an extended header is cut short")
        return data

    def _extend(self, pending: _Pending, kind: bytes, data: bytes) -> None:
        if kind == b"L":
            pending.name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            pending.form = "gnu"
        elif kind != b"K":
            pending.form = "pax"
            self._pax_records(pending, data)

    def _pax_records(self, pending: _Pending, data: bytes) -> None:
        """Take ``LENGTH KEY=VALUE`` records apart; sparse offsets repeat (format 0.0), so they are listed."""
        position = 0
        while position < len(data):
            blank = data.find(b" ", position, position + DIGITS_LIMIT)
            if blank < 0:
                raise self._damaged("a malformed pax record")
            length = self._decimal(data[position:blank].decode("latin-1"))
            record = data[blank + 1 : position + length]
            if not record.endswith(b"\n") or position + length > len(data):
                raise self._damaged("a malformed pax record")
            key, _, value = record[:-1].decode("utf-8", "surrogateescape").partition("=")
            if key in ("GNU.sparse.offset", "GNU.sparse.numbytes"):
                pending.sparse.append(self._decimal(value))
            pending.pax[key] = value
            position += length

    def _file(self, header: bytes, data: int, pending: _Pending) -> Member:
        name = header[:100].split(b"\0")[0]
        form = pending.form or _form(header)
        if form == "ustar" and header[345]:
            name = header[345:500].split(b"\0")[0] + b"/" + name
        size = self._number(header[124:136])
        if header[156:157] == b"S":
            return self._old_gnu_sparse(header, data, pending.name or name.decode("utf-8", "surrogateescape"))
        spelled = pending.pax.get("path") or pending.name or name.decode("utf-8", "surrogateescape")
        if "size" in pending.pax:
            size = self._decimal(pending.pax["size"])
        if any(key.startswith("GNU.sparse.") for key in pending.pax):
            return self._pax_sparse(spelled, data, pending)
        return Member(spelled, form, size, data)

    def _old_gnu_sparse(self, header: bytes, data: int, name: str) -> Member:
        parts = self._sparse_fields(header[386:482])
        more = header[482]
        while more:
            block = self._read(data, BLOCK)
            if len(block) < BLOCK or len(parts) > SPARSE_LIMIT:
                raise self._damaged("the map of a sparse file is cut short or has too many parts")
            parts += self._sparse_fields(block[:504])
            more = block[504]
            data += BLOCK
        return self._sparse(name, "gnu", self._number(header[483:495]), data, parts)

    def _sparse_fields(self, fields: bytes) -> list[Part]:
        """Read pairs of 12-byte numbers until an empty one."""
        parts = []
        for start in range(0, len(fields), 24):
            if not fields[start]:
                break
            parts.append(
                (self._number(fields[start : start + 12]), self._number(fields[start + 12 : start + 24]))
            )
        return parts

    def _pax_sparse(self, name: str, data: int, pending: _Pending) -> Member:
        pax = pending.pax
        name = pax.get("GNU.sparse.name", name)
        size = self._decimal(pax.get("GNU.sparse.realsize") or pax.get("GNU.sparse.size") or "")
        if pax.get("GNU.sparse.major") == "1":
            numbers, data = self._decimal_map(data)
        elif "GNU.sparse.map" in pax:
            numbers = [self._decimal(number) for number in pax["GNU.sparse.map"].split(",") if number]
        else:
            numbers = pending.sparse
        return self._sparse(name, "pax", size, data, list(zip(numbers[::2], numbers[1::2], strict=False)))

    def _decimal_map(self, data: int) -> tuple[list[int], int]:
        """Read the map that sparse format 1.0 puts before the content: a count, then numbers, one a line."""
        text = self._read(data, BLOCK)
        end = data + BLOCK
        count = 2 * self._decimal(text.partition(b"\n")[0].decode("latin-1"))
        if count > 2 * SPARSE_LIMIT:
            raise self._damaged("the map of a sparse file has too many parts")
        pieces = [text]
        lines = text.count(b"\n")
        while lines <= count:
            block = self._read(end, BLOCK)
            if len(block) < BLOCK or b"\n" not in block:
                raise self._damaged("the map of a sparse file is cut short")
            pieces.append(block)
            lines += block.count(b"\n")
            end += BLOCK
        words = b"".join(pieces).decode("latin-1").split("\n")[1 : count + 1]
        return [self._decimal(word) for word in words], end

    def _sparse(self, name: str, form: str, size: int, data: int, parts: list[Part]) -> Member:
        end = 0
        for offset, length in parts:
            if offset < end or offset + length > size:
                raise self._damaged("the map of a sparse file is not in order or beyond its size")
            end = offset + length
        return Member(name, form, size, data, tuple(part for part in parts if part[1]))


def _form(header: bytes) -> str:
    magic = header[257:265]
    if magic == b"ustar  \0":
        return "gnu"
    return "ustar" if magic[:5] == b"ustar" else "v7"


def padded(size: int) -> int:
    """Round up to whole tar blocks."""
    return -(-size // BLOCK) * BLOCK
