"""What an image holds as nodes that :func:`tpu_image.disks.tree_writer.write_nodes` takes, one in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tpu_image.agents import filesystem
from tpu_image.agents.filesystem import walk
from tpu_image.agents.spool import Spool
from tpu_image.trees import memory


class LazyNodes(Mapping[str, "memory.Node | None"]):
    """Nodes by path: some as they are, and those of an image, whose contents are read when they are asked for.

    A hard link is a file of its own here, and file capabilities are not carried: nodes have neither.
    """

    def __init__(
        self,
        spool: Spool,
        folder: str,
        top: filesystem.Directory,
        beside: Mapping[str, memory.Node | None] | None = None,
    ) -> None:
        """Take the tree below ``top`` as what is at ``folder``; ``beside`` are nodes of elsewhere, which win."""
        self._spool = spool
        self._lazy = dict(walk(top, folder))
        self._beside = {} if beside is None else beside

    def __getitem__(self, path: str) -> memory.Node | None:
        if path in self._beside:
            return self._beside[path]
        node = self._lazy[path]
        if isinstance(node, filesystem.File):
            content = self._spool.read(node.offset, node.size)
            return memory.File(content, node.mode, node.uid, node.gid)
        if isinstance(node, filesystem.Link):
            return memory.Symlink(node.target, node.uid, node.gid)
        return memory.Directory(node.mode, node.uid, node.gid)

    def __iter__(self) -> Iterator[str]:
        yield from self._beside
        yield from (path for path in self._lazy if path not in self._beside)

    def __len__(self) -> int:
        return len(self._lazy.keys() | self._beside.keys())
