"""Unpacking Google's archive of its Cloud CLI onto a disk, piece by piece: some 25,000 files, 600 MB.

The archive is taken for hostile all the same: whatever it says, it fills one new folder with plain files, folders and
links between them, within bounds of memory and room.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import tarfile
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from tpu_image.customise.customisation import GcloudArchive
from tpu_image.customise.session import CustomisationError
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.tree_writer import TreeWriter
from tpu_image.report.printable import printable
from tpu_image.trees.base import Kind, TreeError
from tpu_image.trees.memory import Directory, File, Symlink
from tpu_image.trees.overlay import Overlay

if TYPE_CHECKING:
    from typing_extensions import Self

TOP = "google-cloud-sdk"
FOLDER = "/usr/lib/google-cloud-sdk"
"""Where Google's Debian package has it too."""

PROGRAMS = ("gcloud", "gsutil", "bq")

SIZE_LIMIT = 4 << 30
"""Bytes that the archive may unpack to; the CLI with every component stays below 2 GiB."""

MEMBERS_LIMIT = 500_000

HEADERS_LIMIT = 4 << 20
"""Bytes that may stand between one file's content and the next: headers with long names take a few hundred."""

EXTENDED_LIMIT = 10 * 1024
"""Bytes of a header with a long name and a long target, each of 4095 bytes at most: Python's tarfile, before the
correction of CVE-2024-6232, takes time that grows with the square of them."""

ALL_EXTENDED_LIMIT = 16 << 20
"""Bytes of all such headers."""

EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)

BUFFER = 256 * 1024

NAME_LIMIT = 255
"""Bytes of a name in ext4."""

Report = Callable[[int], None]
"""Is told how many bytes are unpacked."""

GET_IT = "get it from https://cloud.google.com/sdk/docs/install"


class _Stream:
    """What the archive unpacks to, in order, with a bound on how much is read at a time."""

    def __init__(self, file: gzip.GzipFile) -> None:
        self._file = file
        self.left = HEADERS_LIMIT

    def read(self, length: int) -> bytes:
        data = self._file.read(length)
        self.left -= len(data)
        if self.left < 0:
            raise tarfile.HeaderError("a header is larger than any file's")
        return data


class _Headers:
    """Looks at each header before what it announces is read."""

    def __init__(self) -> None:
        self._left = ALL_EXTENDED_LIMIT

    def checked(self) -> type[tarfile.TarInfo]:
        """Give the class that tarfile is to make of headers."""
        look = self._look

        class Header(tarfile.TarInfo):
            @classmethod
            def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
                header = super().frombuf(buf, encoding, errors)
                look(header)
                return header

        return Header

    def _look(self, header: tarfile.TarInfo) -> None:
        if header.size < 0:
            raise tarfile.TarError("a file has a size below zero")
        if header.type in EXTENDED:
            self._left -= header.size
            if header.size > EXTENDED_LIMIT or self._left < 0:
                raise tarfile.TarError("a header is larger than any file's")


def unpack(
    disk: EditedDisk, archive: GcloudArchive, *, time: int, report: Report | None = None
) -> tuple[str, ...]:
    """Unpack the archive to :data:`FOLDER`, and link its programs into /usr/bin.

    Args:
        disk: the disk; its root file system has room.
        archive: a gzip'd tar.
        time: seconds since 1970 that everything carries.
        report: is told how far it is.

    Returns:
        What was done, a line each.

    Raises:
        CustomisationError: it is not that archive, or the image has the folder already.
        DiskError: the disk is of a form that is not written to, or has no room.
    """
    _verify(archive)
    tree = open_tree(disk)
    overlay = Overlay(tree)
    writer = TreeWriter(disk, tree, time=time)
    try:
        if overlay.exists(FOLDER):
            raise CustomisationError(f"gcloud: {FOLDER} is in the image already; leave gcloud out")
        unpacked = _Unpacked(writer, posixpath.join(overlay.resolve(posixpath.dirname(FOLDER)), TOP), report)
    except TreeError as error:
        raise CustomisationError(f"gcloud: {error}") from None
    name = printable(archive.path.name)
    try:
        with gzip.open(archive.path, "rb") as file:
            _unpack(file, unpacked)
    except (tarfile.TarError, zlib.error, EOFError, ValueError, RecursionError) as error:
        # tarfile takes what extended headers say for numbers, and follows them one inside the other.
        raise CustomisationError(
            f"gcloud: {name} is damaged ({error or 'it is cut short'}); {GET_IT}"
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise CustomisationError(f"gcloud: {name} cannot be unpacked: {reason}; {GET_IT}") from None
    if unpacked.kinds.get("bin/gcloud") is not Kind.FILE:
        raise CustomisationError(f"gcloud: {name} has no {TOP}/bin/gcloud; {GET_IT}")
    linked = _link_programs(overlay, unpacked)
    for path in sorted(overlay.written, key=lambda path: path.count("/")):
        writer.put(path, overlay.written[path])
    writer.flush()
    files = sum(kind is Kind.FILE for kind in unpacked.kinds.values())
    return (f"unpack {name} to {FOLDER} ({files} files, {unpacked.size >> 20} MiB)", *linked)


def _verify(archive: GcloudArchive) -> None:
    try:
        with archive.path.open("rb") as file:
            digest = hashlib.sha256()
            while data := file.read(1 << 20):
                digest.update(data)
    except OSError as error:
        raise CustomisationError(f"gcloud: {archive.path}: {error.strerror}; name the archive") from None
    if archive.sha256 and digest.hexdigest() != archive.sha256:
        raise CustomisationError(
            f"gcloud: {archive.path} has the SHA-256 {digest.hexdigest()}, not {archive.sha256}; get it again"
        )


class _Unpacked:
    """What has been written so far, by path below the folder."""

    def __init__(self, writer: TreeWriter, folder: str, report: Report | None) -> None:
        self.writer = writer
        self.report = report
        self.folder = folder
        self.kinds: dict[str, Kind] = {}
        self.size = 0
        writer.put(folder, Directory())

    def full(self, path: str) -> str:
        return posixpath.join(self.folder, path)

    def make_directories(self, path: str) -> None:
        """Have the directories that lead to a path."""
        parent = posixpath.dirname(path)
        if not parent or self.kinds.get(parent) is Kind.DIRECTORY:
            return
        if parent in self.kinds:
            raise tarfile.TarError(f"{printable(path)} is below something that is no folder")
        self.make_directories(parent)
        self.writer.put(self.full(parent), Directory())
        self.kinds[parent] = Kind.DIRECTORY


def _unpack(file: gzip.GzipFile, unpacked: _Unpacked) -> None:
    stream = _Stream(file)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BUFFER, tarinfo=_Headers().checked()) as tar:  # type: ignore[call-overload]
        for _ in range(MEMBERS_LIMIT):
            stream.left = HEADERS_LIMIT
            member = tar.next()
            tar.members = []  # which otherwise keeps all of them
            if member is None:
                return
            stream.left = member.size + HEADERS_LIMIT
            _add(tar, member, unpacked)
            if unpacked.size > SIZE_LIMIT:
                raise tarfile.TarError(f"it unpacks to more than {SIZE_LIMIT >> 30} GiB")
    raise tarfile.TarError(f"it has more than {MEMBERS_LIMIT} files")


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, unpacked: _Unpacked) -> None:
    path = _inside(member.name)
    if path == "":
        return
    if path in unpacked.kinds and not (member.isdir() and unpacked.kinds[path] is Kind.DIRECTORY):
        raise tarfile.TarError(f"it has {printable(path)} twice")
    unpacked.make_directories(path)
    if member.isdir():
        if path not in unpacked.kinds:
            unpacked.writer.put(unpacked.full(path), Directory())
        unpacked.kinds[path] = Kind.DIRECTORY
    elif member.issym():
        unpacked.writer.put(unpacked.full(path), Symlink(_target(path, member.linkname)))
        unpacked.kinds[path] = Kind.SYMLINK
    elif member.islnk():
        target = _inside(member.linkname)
        if unpacked.kinds.get(target) is not Kind.FILE:
            raise tarfile.TarError(f"{printable(path)} is a link to no file before it")
        unpacked.writer.link(unpacked.full(path), unpacked.full(target))
        unpacked.kinds[path] = Kind.FILE
    elif member.isreg() and not member.issparse():
        _add_file(tar, member, unpacked, path)
    else:
        raise tarfile.TarError(f"{printable(path)} is neither file, folder nor link")


def _add_file(tar: tarfile.TarFile, member: tarfile.TarInfo, unpacked: _Unpacked, path: str) -> None:
    unpacked.size += member.size
    if unpacked.size > SIZE_LIMIT:
        raise tarfile.TarError(f"it unpacks to more than {SIZE_LIMIT >> 30} GiB")
    content = tar.extractfile(member)
    assert content is not None  # noqa: S101 - a regular file
    mode = 0o755 if member.mode & 0o111 else 0o644
    unpacked.writer.put_stream(unpacked.full(path), File(b"", mode), content, member.size)  # type: ignore[arg-type]
    unpacked.kinds[path] = Kind.FILE
    if unpacked.report is not None:
        unpacked.report(unpacked.size)


def _inside(name: str) -> str:
    """Give a member's path below the top folder; empty for that itself.

    Raises:
        TarError: it is not there, or no file can have it.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    wrong = name.startswith("/") or "\0" in name or ".." in parts or parts[:1] != [TOP]
    if wrong or any(len(part.encode("utf-8", "surrogateescape")) > NAME_LIMIT for part in parts):
        raise tarfile.TarError(f"{printable(name, 200)} is not below {TOP}/")
    return "/".join(parts[1:])


def _target(path: str, target: str) -> str:
    """Accept a link's target below the top folder: up to some folder, then down, so that no other link can bend it.

    Raises:
        TarError: it leaves, or is no path.
    """
    parts = target.split("/")
    up = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    wrong = not target or "\0" in target or target.startswith("/") or ".." in parts[up:]
    if wrong or up > path.count("/"):
        raise tarfile.TarError(f"the link {printable(path)} leads outside")
    if len(target.encode("utf-8", "surrogateescape")) > 1024:
        raise tarfile.TarError(f"the link {printable(path)} is too long")
    return target


def _link_programs(overlay: Overlay, unpacked: _Unpacked) -> list[str]:
    lines = []
    for name in PROGRAMS:
        if unpacked.kinds.get(f"bin/{name}") is Kind.FILE:
            try:
                overlay.symlink(f"/usr/bin/{name}", f"../lib/{TOP}/bin/{name}")
            except TreeError as error:
                raise CustomisationError(f"gcloud: {error}") from None
            lines.append(f"link /usr/bin/{name} to {FOLDER}/bin/{name}")
    return lines
