"""Zip archives that Python runs (PEP 441): the same bytes on every host, for the same members.

Written by hand, since the zipfile module takes as long to load as a quarter of an apply. The layout is that of PKWARE's
APPNOTE.TXT, sections 4.3.7, 4.3.12 and 4.3.16.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")

_VERSION = 20
"""Version 2.0 of the format: deflate."""
_DATE = 1 << 5 | 1
"""The first day that an archive can hold, 1 January 1980; every member gets it."""
_UNIX = 3 << 8
"""Who made it, whatever this host is: mode bits are Unix's."""
_MODE = 0o100644 << 16
_NAME_IN_UTF_8 = 1 << 11
_STORED, _DEFLATED = 0, 8


def pack(members: Mapping[str, bytes], *, before: bytes = b"", deflated: bool = False) -> bytes:
    """Give an archive of members by their names, behind ``before``, which tells how to run it."""
    archive = bytearray(before)
    directory = bytearray()
    for name, content in sorted(members.items()):
        encoded = name.encode()
        stored = _deflate(content) if deflated else content
        common = (
            0 if name.isascii() else _NAME_IN_UTF_8,
            _DEFLATED if deflated else _STORED,
            0,
            _DATE,
            zlib.crc32(content),
            len(stored),
            len(content),
            len(encoded),
            0,
        )
        directory += _CENTRAL.pack(
            b"PK\1\2", _UNIX | _VERSION, _VERSION, *common, 0, 0, 0, _MODE, len(archive)
        )
        directory += encoded
        archive += _LOCAL.pack(b"PK\3\4", _VERSION, *common) + encoded + stored
    count = len(members)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, len(directory), len(archive), 0)
    return bytes(archive + directory + end)


def _deflate(content: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()
