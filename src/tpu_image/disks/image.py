"""Opening a disk image by its content, whatever its name ends in."""

from __future__ import annotations

import os
from pathlib import Path

from tpu_image.disks.conversion import VHD_FOOTER, open_foreign
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.qcow2 import open_qcow2
from tpu_image.disks.qcow2_header import FLATTEN, MAGIC
from tpu_image.disks.raw import RawSource, open_raw
from tpu_image.disks.source import BlockSource

SIZE_LIMIT = 64 << 40
"""Bytes of the largest disk: 64 TiB, as on Compute Engine ("About Persistent Disk")."""

BACKING_LIMIT = 16
"""Images that may stand behind one another."""

_STARTS = (
    (0, MAGIC, "qcow2"),
    (0, b"\x1f\x8b\x08", "tar.gz"),
    (0, b"KDMV", "vmdk"),
    (0, b"COWD", "vmdk"),
    (0, b"# Disk Descriptor", "vmdk descriptor"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vhd"),
    (64, b"\x7f\x10\xda\xbe", "vdi"),
    (0, b"QED\0", "qed"),
    (0, b"WithoutFreeSpace", "parallels"),
    (0, b"WithouFreSpacExt", "parallels"),
    (0, b"\xfd7zXZ\0", "xz"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (0, b"BZh", "bzip2"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z"),
    (257, b"ustar", "tar"),
)
"""Offset, bytes and name of the formats that are told by how they start."""

_COMPRESSED = ("xz", "zstd", "bzip2", "zip", "7z")


class _Chain:
    """The images behind one image: the folder they may lie in, and those already opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[tuple[int, int]] = set()


def container_format(file: BlockSource) -> str:
    """Name the format of an image by its content; ``raw`` where no other is recognised."""
    start = file.read_at(0, min(file.size, 512))
    for offset, magic, name in _STARTS:
        if start.startswith(magic, offset):
            return name
    if file.size >= VHD_FOOTER and file.read_at(file.size - VHD_FOOTER, 8) == b"conectix":
        return "vhd"
    return "raw"


def open_image(
    path: str | os.PathLike[str], *, backing_folder: str | os.PathLike[str] | None = None
) -> BlockSource:
    """Open a disk image for reading; the caller closes it.

    A qcow2 image names its backing file itself, so a hostile one could name any file of this machine. Backing
    files are therefore followed only below ``backing_folder`` (by default the folder that the image is in),
    wherever links lead, and a raw one only where it starts as a disk does.

    Raises:
        UnsupportedError: the format, or a feature of it, is not supported; named.
        DamagedError: the content contradicts its format.
        DiskError: the file, or one behind it, cannot be opened or may not be.
    """
    folder = Path(backing_folder) if backing_folder is not None else Path(path).parent
    return _open(os.fspath(path), "", _Chain(folder.resolve()))


def _open(path: str, form: str, chain: _Chain) -> BlockSource:
    file = open_raw(path)
    try:
        source = _open_file(file, form or container_format(file), chain)
    except BaseException:
        file.close()
        raise
    source.files = frozenset(chain.seen)
    if source.size > SIZE_LIMIT:
        source.close()
        raise UnsupportedError(f"is a disk of {source.size} bytes, more than 64 TiB", path, "name another")
    return source


def _open_file(file: RawSource, form: str, chain: _Chain) -> BlockSource:
    if not file.size:
        raise UnsupportedError("is empty", file.name, "name a disk image")
    if file.identity in chain.seen:
        raise DamagedError("is its own backing file", file.name, FLATTEN)
    if len(chain.seen) > BACKING_LIMIT:
        raise UnsupportedError(f"more than {BACKING_LIMIT} backing files in a chain", file.name, FLATTEN)
    if form == "raw" and chain.seen and not starts_as_disk(file):
        raise DiskError(
            "is named as a raw backing file and does not start as a disk does", file.name, FLATTEN
        )
    chain.seen.add(file.identity)
    if form == "raw":
        return file
    if form == "qcow2":
        return open_qcow2(file, lambda name, backing: _open_backing(file.name, name, backing, chain))
    if form == "tar.gz":
        from tpu_image.disks.tar_disk import open_tar_disk

        return open_tar_disk(file)
    if form in _COMPRESSED:
        raise UnsupportedError(f"is {form}-compressed", file.name, "decompress it first")
    if form == "tar":
        raise UnsupportedError("is a tar archive that is not gzip'd", file.name, "compress it with gzip")
    return open_foreign(file, form)


def _open_backing(image: str, name: str, form: str, chain: _Chain) -> BlockSource:
    if "\0" in name or ":" in name.partition("/")[0]:
        raise UnsupportedError(f"its backing file {name[:80]!r} is no plain path", image, FLATTEN)
    if form not in ("", "raw", "qcow2"):
        raise UnsupportedError(f"its backing file has the format {form[:80]!r}", image, FLATTEN)
    try:
        path = (Path(image).resolve().parent / name).resolve()
    except (OSError, RuntimeError):
        raise DiskError(f"its backing file {name[:80]!r} cannot be found", image, "put it there") from None
    if not path.is_relative_to(chain.folder):
        raise DiskError(
            f"its backing file {name[:80]!r} lies outside {chain.folder}",
            image,
            f"if you trust it, {FLATTEN}",
        )
    return _open(os.fspath(path), form, chain)


def starts_as_disk(source: BlockSource) -> bool:
    """Whether a boot sector, a partition table or a known file system stands at the start."""
    from tpu_image.disks.filesystems import identify

    return source.read_at(0, min(source.size, 512))[510:] == b"\x55\xaa" or identify(source) is not None
