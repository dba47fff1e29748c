"""Changing files of an ext4 without mounting it: each change is a handful of blocks laid over the disk.

What the kernel would do at the same change is done here, journal apart: the file system must be clean, and the blocks
go to a disk that nothing else uses. ``e2fsck -fn`` finds nothing to complain of afterwards; the tests ask it.
"""

from __future__ import annotations

import io
import posixpath
import stat
from typing import BinaryIO

from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.ext4.edit_content import ContentEditor
from tpu_image.disks.ext4.edit_directory import (
    DirectoryBlock,
    DirectoryError,
    flattened,
)
from tpu_image.disks.ext4.edit_inode import InodeRecord
from tpu_image.disks.ext4.features import INCOMPATIBLE_NAMES, READ_ONLY_NAMES, feature_names
from tpu_image.disks.ext4.filesystem import DIRECTORY_LIMIT
from tpu_image.disks.ext4.inode import (
    FLAG_CASEFOLD,
    FLAG_EA_INODE,
    FLAG_ENCRYPT,
    FLAG_INLINE_DATA,
    FLAG_VERITY,
    ROOT_INODE,
)
from tpu_image.disks.ext4.mapping import Run
from tpu_image.disks.ext4.superblock import REPAIR, UNCLEAN_REMEDY
from tpu_image.trees.memory import Directory, File, Node, Symlink

FLAG_INDEX = 0x1000
"""A hash tree lies over the directory (``EXT4_INDEX_FL``)."""
FLAG_IMMUTABLE = 0x10
FLAG_APPEND_ONLY = 0x20

INCOMPATIBLE_FILE_TYPE = 0x2

# Features under which an edit would have to keep books that are not kept here.
REFUSED_READ_ONLY = 0x80 | 0x100 | 0x200 | 0x1000 | 0x2000 | 0x4000
REFUSED_INCOMPATIBLE = 0x100 | 0x400

READ_ONLY_DIRECTORY_LINKS = 0x20
LINK_LIMIT = 65_000
"""Links of an inode at most (``EXT4_LINK_MAX``); a directory that has more subdirectories says 1 (dir_nlink)."""

REFUSED_FLAGS = {
    FLAG_ENCRYPT: "encrypted",
    FLAG_VERITY: "protected by fs-verity",
    FLAG_CASEFOLD: "case-insensitive",
    FLAG_EA_INODE: "a store of extended attributes",
    FLAG_IMMUTABLE: "immutable",
    FLAG_APPEND_ONLY: "append-only",
}

FILE_TYPES: dict[type[Node], int] = {File: 1, Directory: 2, Symlink: 7}
"""File types in directory entries (``EXT4_FT_*``)."""
FORMATS: dict[type[Node], int] = {File: stat.S_IFREG, Directory: stat.S_IFDIR, Symlink: stat.S_IFLNK}


class Ext4Editor(ContentEditor):
    """An editing session; nothing of it is to be found on the disk before :meth:`flush`."""

    def __init__(self, disk: EditedDisk | EditedSection, *, time: int) -> None:
        """Open the file system of a partition.

        Args:
            disk: the partition, writable.
            time: seconds since 1970 that new and changed files carry.

        Raises:
            UnsupportedError: a feature that editing does not keep right; ``what`` names it.
            DamagedError: the superblock or a group's descriptor contradicts itself.
        """
        super().__init__(disk, time=time)
        self._inodes: dict[int, InodeRecord] = {}
        self._directories: dict[int, list[DirectoryBlock]] = {}
        self._folders: dict[str, int] = {"/": ROOT_INODE}

    def _refuse_filesystem(self) -> None:
        superblock = self._superblock
        names = [
            *feature_names(superblock.incompatible & REFUSED_INCOMPATIBLE, INCOMPATIBLE_NAMES),
            *feature_names(superblock.read_only & REFUSED_READ_ONLY, READ_ONLY_NAMES),
            *(n for n in superblock.features if n.startswith("unknown")),
        ]
        if names:
            raise UnsupportedError(
                f"editing an ext4 with the feature {', '.join(names)} is not supported",
                self._disk.name,
                "copy its files to a file system without it",
            )
        if not superblock.is_clean:
            raise UnsupportedError(
                "the file system was not unmounted cleanly or has errors", self._disk.name, UNCLEAN_REMEDY
            )

    # Changes

    def put(self, path: str, node: Node | None) -> None:
        """Have this node at a path that holds no link; None takes a file or link away.

        A file or directory that exists keeps its inode, so its extended attributes; a file with several names gets an
        inode of its own under this one. Directories above must exist.

        Raises:
            UnsupportedError: no room, or a file or directory in a form that editing does not keep right.
            DamagedError: the file system contradicts itself.
        """
        content = node.content if isinstance(node, File) else b""
        self.put_stream(path, node, io.BytesIO(content), len(content))

    def put_stream(self, path: str, node: Node | None, content: BinaryIO, size: int) -> None:
        """Have this node at a path, as :meth:`put` does, a file with what is read in place of its own content.

        Args:
            path: holds no link.
            node: its kind, mode and owner.
            content: ``size`` bytes are read from it, piece by piece.
            size: bytes.

        Raises:
            UnsupportedError, DamagedError: as :meth:`put`.
            EOFError: the content is shorter.
        """
        try:
            self._put(path, node, content, size)
        except DirectoryError as error:
            raise DamagedError(f"a directory of {path}: {error}", self._disk.name, REPAIR) from None

    def link(self, path: str, target: str) -> None:
        """Give a file that exists another name, in place of a file or link that has it.

        Raises:
            UnsupportedError, DamagedError: as :meth:`put`; a file that is not there or no file is damage too.
        """
        parent, name = self._parent(target)
        number = self._lookup(parent, name)
        if number is None or not stat.S_ISREG(self._record(number).inode.mode):
            raise DamagedError(f"{target} is no file to link {path} to", self._disk.name, REPAIR)
        self.put(path, None)
        parent, name = self._parent(path)
        record = self._record(number)
        if record.inode.links >= LINK_LIMIT:
            raise UnsupportedError(f"{target} has too many names", self._disk.name, "copy it instead")
        record.set_links(record.inode.links + 1)
        self._add_name(parent, name, number, self._file_type(File))

    def _put(self, path: str, node: Node | None, content: BinaryIO, size: int) -> None:
        parent, name = self._parent(path)
        number = self._lookup(parent, name)
        if node is None:
            if number is not None:
                self._unlink(parent, name, number, path)
            return
        if number is not None and not self._fits(number, node):
            self._unlink(parent, name, number, path)
            number = None
        if number is None:
            record = self._create(parent, name, node)
        else:
            record = self._record(number)
            self._refuse_record(record, path)
            record.set_mode(stat.S_IFMT(record.inode.mode) | _permissions(node))
            record.set_owner(node.uid, node.gid)
        if isinstance(node, File):
            self._set_content(record, content, size)
        elif isinstance(node, Symlink):
            self._set_target(record, node.target.encode("utf-8", "surrogateescape"))

    def flush(self) -> None:
        """Lay everything that changed over the disk."""
        size = self._superblock.block_size
        self._flush_directories()
        for block, data in self._blocks.items():
            self._disk.write_at(block * size, data)
        for number, record in self._inodes.items():
            self._disk.write_at(self._filesystem.inode_offset(number), record.sealed())
        self._groups.flush()
        self._blocks.clear()

    # Names

    def _parent(self, path: str) -> tuple[InodeRecord, bytes]:
        folder, name = posixpath.split("/" + path.strip("/"))
        return self._folder(folder), name.encode("utf-8", "surrogateescape")

    def _folder(self, path: str) -> InodeRecord:
        """The record of a directory that exists; it stays that, since none is ever removed here."""
        if path not in self._folders:
            record, name = self._parent(path)
            number = self._lookup(record, name)
            if number is None:
                raise DamagedError(f"no directory {path}", self._disk.name, REPAIR)
            self._folders[path] = number
        return self._record(self._folders[path])

    def _lookup(self, directory: InodeRecord, name: bytes) -> int | None:
        for block in self._directory_blocks(directory):
            entry = block.find(name)
            if entry is not None:
                return entry.inode
        return None

    def _directory_blocks(self, directory: InodeRecord) -> list[DirectoryBlock]:
        if directory.number in self._directories:
            return self._directories[directory.number]
        inode = directory.inode
        if not stat.S_ISDIR(inode.mode):
            raise DamagedError(f"inode {directory.number} is no directory", self._disk.name, REPAIR)
        self._refuse_record(directory, f"directory inode {directory.number}")
        self._check_directory(directory)
        contents = [self._block(block) for block in self._block_numbers(directory)]
        checksums = self._superblock.has_checksums
        if inode.flags & FLAG_INDEX:
            blocks = flattened(contents, checksums=checksums)
        else:
            blocks = [DirectoryBlock(data, checksums=checksums) for data in contents]
        self._directories[directory.number] = blocks
        return blocks

    def _check_directory(self, directory: InodeRecord) -> None:
        """Refuse a directory that is too large, or has a hole or blocks behind its end."""
        size, end = self._superblock.block_size, 0
        for run in self._runs(directory):
            end = end + run.blocks if run.logical == end else -1
        if end * size != directory.inode.size or directory.inode.size > DIRECTORY_LIMIT:
            raise DamagedError(
                f"directory inode {directory.number} has blocks that are not its size",
                self._disk.name,
                REPAIR,
            )

    def _flush_directories(self) -> None:
        """Seal the blocks of directories that changed; one that had an index loses it with its first change."""
        for number, blocks in self._directories.items():
            directory = self._record(number)
            if not any(block.changed for block in blocks):
                continue
            indexed = directory.inode.flags & FLAG_INDEX
            directory.clear_flag(FLAG_INDEX)
            directory.set_times(self._time)
            for block_number, block in zip(self._block_numbers(directory), blocks, strict=True):
                if block.changed or indexed:
                    self._blocks[block_number] = block.sealed(directory.checksum_seed)
        self._directories.clear()

    def _add_name(self, directory: InodeRecord, name: bytes, number: int, file_type: int) -> None:
        blocks = self._directory_blocks(directory)
        if not any(block.add(name, number, file_type) for block in blocks):
            block = DirectoryBlock.empty(
                self._superblock.block_size, checksums=self._superblock.has_checksums
            )
            block.add(name, number, file_type)
            blocks.append(block)
            runs = self._runs(directory)
            (new,) = self._groups.take_blocks(1, self._group_of(directory))
            self._map(directory, [*runs, Run(len(blocks) - 1, new.physical, 1)])
            directory.set_size(len(blocks) * self._superblock.block_size)

    def _unlink(self, directory: InodeRecord, name: bytes, number: int, path: str) -> None:
        record = self._record(number)
        if stat.S_ISDIR(record.inode.mode):
            raise UnsupportedError(f"{path} is a directory", self._disk.name, "remove it from the base")
        self._refuse_record(record, path)
        any(block.remove(name) for block in self._directory_blocks(directory))
        links = record.inode.links - 1
        if links > 0:
            record.set_links(links)
            return
        if record.inode.attribute_block:
            raise UnsupportedError(
                f"{path} keeps extended attributes in a block of their own",
                self._disk.name,
                "remove them first",
            )
        self._free_content(record)
        record.mark_deleted(self._time)
        self._groups.give_back_inode(number)

    # Inodes

    def _record(self, number: int) -> InodeRecord:
        """The record of an inode in use, or taken in this session."""
        if number not in self._inodes:
            inode = self._filesystem.inode(number)  # judges number, place and checksum
            if not inode.links or (number < self._superblock.first_inode and number != ROOT_INODE):
                raise self._filesystem.damaged(f"a name leads to inode {number}, which no file can have")
            self._load(number)
        return self._inodes[number]

    def _load(self, number: int) -> InodeRecord:
        if number not in self._inodes:
            data = self._disk.read_at(self._filesystem.inode_offset(number), self._superblock.inode_size)
            self._inodes[number] = InodeRecord(self._superblock, number, data)
        return self._inodes[number]

    def _refuse_record(self, record: InodeRecord, path: str) -> None:
        flags = record.inode.flags
        for flag, name in REFUSED_FLAGS.items():
            if flags & flag:
                raise UnsupportedError(f"{path} is {name}", self._disk.name, "take that from the base first")
        if flags & FLAG_INLINE_DATA:
            raise UnsupportedError(
                f"{path} keeps its content in the inode (ext4 feature inline_data)",
                self._disk.name,
                "copy the files to a file system without it",
            )

    def _fits(self, number: int, node: Node) -> bool:
        inode = self._record(number).inode
        if isinstance(node, Directory):
            return stat.S_ISDIR(inode.mode)
        kind = stat.S_IFREG if isinstance(node, File) else stat.S_IFLNK
        return stat.S_IFMT(inode.mode) == kind and inode.links == 1

    def _create(self, parent: InodeRecord, name: bytes, node: Node) -> InodeRecord:
        directory = isinstance(node, Directory)
        number = self._groups.take_inode(self._group_of(parent), directory=directory)
        held = self._inodes.get(number)
        if held is not None and held.inode.links:
            raise self._filesystem.damaged(f"inode {number} is free and in use at once")
        record = self._load(number)
        record.reset(FORMATS[type(node)] | _permissions(node), node.uid, node.gid, self._time)
        if directory:
            self._make_directory(parent, record)
        else:
            self._map(record, [])
        self._add_name(parent, name, number, self._file_type(type(node)))
        return record

    def _file_type(self, kind: type[Node]) -> int:
        return FILE_TYPES[kind] if self._superblock.incompatible & INCOMPATIBLE_FILE_TYPE else 0

    def _make_directory(self, parent: InodeRecord, record: InodeRecord) -> None:
        size = self._superblock.block_size
        block = DirectoryBlock.empty(size, checksums=self._superblock.has_checksums)
        block.add(b".", record.number, self._file_type(Directory))
        block.add(b"..", parent.number, self._file_type(Directory))
        (run,) = self._groups.take_blocks(1, self._group_of(record))
        self._map(record, [run])
        record.set_size(size)
        record.set_links(2)
        self._directories[record.number] = [block]
        self._add_link(parent)

    def _add_link(self, directory: InodeRecord) -> None:
        """Count a new subdirectory's link to its parent; 1 stands for too many to count."""
        links = directory.inode.links
        if links == 1:
            return
        if links >= LINK_LIMIT and not self._superblock.read_only & READ_ONLY_DIRECTORY_LINKS:
            raise UnsupportedError("a directory is full of directories", self._disk.name, "remove some")
        directory.set_links(links + 1 if links < LINK_LIMIT else 1)


def _permissions(node: Node) -> int:
    return 0o777 if isinstance(node, Symlink) else node.mode
