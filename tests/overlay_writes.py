"""Calls of an overlay as data, and what each does to a dictionary of nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from disk_trees import NAMES, targets
from tpu_image.plan import Plan
from tpu_image.trees.base import TreeError
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay


@dataclass(frozen=True)
class Write:
    """One call of an overlay, and what it does to a dictionary of nodes."""

    method: str
    path: str
    content: str = ""
    mode: int | None = None

    def on_overlay(self, overlay: Overlay) -> None:
        if self.method == "write":
            overlay.write(self.path, self.content, mode=self.mode)
        elif self.method == "symlink":
            overlay.symlink(self.path, self.content)
        elif self.method == "make_directory":
            overlay.make_directory(self.path, mode=self.mode or 0o755)
        else:
            overlay.remove(self.path)

    def on_nodes(self, nodes: dict[str, Node]) -> dict[str, Node]:
        """The nodes after the write; the same where a file system would refuse."""
        try:
            path = MemoryTree(nodes).resolve(
                self.path, follow_last=self.method in ("write", "make_directory")
            )
        except TreeError:
            return nodes
        there = {"/": Directory(), **nodes}.get(path)
        new: Node
        if self.method == "remove":
            return {p: n for p, n in nodes.items() if p != path or isinstance(n, Directory)}
        if self.method == "write":
            if not isinstance(there, File | None):
                return nodes
            old = there or File(b"")
            new = File(self.content.encode(), old.mode if self.mode is None else self.mode, old.uid, old.gid)
        elif self.method == "symlink":
            if isinstance(there, Directory):
                return nodes
            new = Symlink(self.content)
        else:
            if not isinstance(there, Directory | None):
                return nodes
            new = Directory(self.mode or 0o755)
        try:
            after = dict(MemoryTree({**{p: n for p, n in nodes.items() if p != path}, path: new}).nodes())
        except TreeError:
            return nodes
        return {p: n for p, n in after.items() if p != "/" or "/" in (path, *nodes)}


def paths() -> st.SearchStrategy[str]:
    parts = st.lists(st.sampled_from([*NAMES, ".."]), min_size=1, max_size=4)
    return parts.map(lambda names: "/" + "/".join(names))


def writes() -> st.SearchStrategy[Write]:
    modes = st.sampled_from([None, 0o600, 0o755])
    return st.one_of(
        st.builds(
            Write, st.sampled_from(["write", "make_directory"]), paths(), st.sampled_from(["", "x\n"]), modes
        ),
        st.builds(Write, st.just("symlink"), paths(), targets()),
        st.builds(Write, st.just("remove"), paths()),
    )


def plan_of(root: Path, calls: Iterable[Write]) -> Plan:
    """The plan that those calls which are possible make of a tree on the disk, but for its root."""
    with DirectoryTree(root) as tree:
        overlay = Overlay(tree)
        for call in calls:
            with contextlib.suppress(TreeError):
                call.on_overlay(overlay)
        plan = Plan.from_overlay(overlay)
        return Plan(tuple(change for change in plan.changes if change.path != "/"))
