"""Zip archives that Python runs (PEP 441): the same bytes on every host, for the same members."""

from __future__ import annotations

from collections.abc import Mapping

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip archive can hold; every member gets it."""

_UNIX = 3
"""``create_system`` of a member, whatever this host is."""


def pack(members: Mapping[str, bytes], *, before: bytes = b"", deflated: bool = False) -> bytes:
    """Give an archive of members by their names, behind ``before``, which tells how to run it."""
    import io
    import zipfile

    stream = io.BytesIO()
    stream.write(before)
    compression = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", compression, compresslevel=9) as archive:
        for name, content in sorted(members.items()):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.compress_type = compression
            member.create_system = _UNIX
            member.external_attr = 0o100644 << 16
            archive.writestr(member, content)
    return stream.getvalue()
