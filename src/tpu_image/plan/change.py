"""What a plan is: changes of paths, in the order in which they are made."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.plan.difference import difference, visible
from tpu_image.trees.base import TreeError
from tpu_image.trees.memory import File, Node, Symlink, entry_of
from tpu_image.trees.overlay import Overlay


class PlanError(TreeError):
    """A plan cannot be applied or taken back: ``path`` says where it fails, ``reason`` why."""


class Change(NamedTuple):
    """One path, canonical, that becomes something else; None stands for nothing there."""

    path: str
    before: Node | None
    after: Node | None

    def __str__(self) -> str:
        """Say the change in one line: ``change /etc/fstab (content, mode 0644 -> 0600)``."""
        name = visible(self.path)
        if self.after is None:
            return f"remove {name}"
        if self.before is None:
            return f"create {name} ({_description(self.after)})"
        if type(self.before) is not type(self.after):
            return f"replace {name} ({entry_of(self.before).kind.value} -> {_description(self.after)})"
        return f"change {name} ({', '.join(_aspects(self.before, self.after))})"


class Plan(NamedTuple):
    """Changes, each directory before what is in it."""

    changes: tuple[Change, ...] = ()

    @classmethod
    def from_overlay(cls, overlay: Overlay) -> Plan:
        """Take what was really changed: content, mode, owner or target differ from the base.

        Raises:
            TreeError: what the base has at a changed path cannot be read.
        """
        changes = (
            Change(path, overlay.before(path), overlay.written[path]) for path in sorted(overlay.written)
        )
        return cls(tuple(change for change in changes if change.before != change.after))

    def summary(self) -> str:
        """One line a change."""
        return "".join(f"{change}\n" for change in self.changes)

    def diff(self) -> str:
        """Show every change as ``git diff`` does, owners too; safe to print whatever the files hold."""
        return "".join(difference(change.path, change.before, change.after) for change in self.changes)


def _description(node: Node) -> str:
    entry = entry_of(node)
    if isinstance(node, Symlink):
        return f"symbolic link to {visible(node.target)}"
    owner = f", owner {node.uid}:{node.gid}" if (node.uid, node.gid) != (0, 0) else ""
    size = f", {len(node.content)} bytes" if isinstance(node, File) else ""
    return f"{entry.kind.value}, mode {node.mode:04o}{owner}{size}"


def _aspects(before: Node, after: Node) -> list[str]:
    aspects = []
    if isinstance(before, File) and isinstance(after, File) and before.content != after.content:
        aspects.append("content")
    if isinstance(before, Symlink) and isinstance(after, Symlink):
        if before.target != after.target:
            aspects.append(f"target {visible(before.target)} -> {visible(after.target)}")
    elif entry_of(before).mode != entry_of(after).mode:
        aspects.append(f"mode {entry_of(before).mode:04o} -> {entry_of(after).mode:04o}")
    if (before.uid, before.gid) != (after.uid, after.gid):
        aspects.append(f"owner {before.uid}:{before.gid} -> {after.uid}:{after.gid}")
    return aspects
