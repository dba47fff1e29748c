"""Writing a plan into a tree: all of it, or nothing and one error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tpu_image.plan.change import Change, Plan, PlanError
from tpu_image.plan.journal import Journal, encode
from tpu_image.plan.journal_file import JournalFile
from tpu_image.plan.preflight import check_disk, check_owners, check_plan
from tpu_image.plan.snapshot import CONTENT_SIGNATURE, Snapshot, digest
from tpu_image.plan.writer import OnStep, Writer, no_step
from tpu_image.trees.base import TreeError, parents
from tpu_image.trees.memory import Directory, File, Node, Symlink


class Applied(NamedTuple):
    """What an ``apply`` changed, in the order in which it did."""

    changed: tuple[Change, ...] = ()


def apply(plan: Plan, root: str | os.PathLike[str], *, on_step: OnStep = no_step) -> Applied:
    """Write a plan into the tree below ``root``; an empty plan writes nothing at all.

    Everything is made under temporary names first, then renamed into place, so that what can fail fails while
    nothing has changed yet. Killed at any moment, it is completed by planning and applying again, and taken
    back by :func:`~tpu_image.plan.undo.undo`.

    Args:
        plan: changes to the tree as it is.
        root: the directory, or ``/``.
        on_step: is told of each step just before it is done; an exception from it takes everything back.

    Raises:
        TreeError: the root cannot be used.
        PlanError: a change cannot be made. The tree is as it was then, or the message says that it is not.
    """
    if not plan.changes:
        return Applied()
    with Writer(root, on_step) as writer:
        _Application(writer, plan.changes).run()
    return Applied(plan.changes)


class _Application:
    def __init__(self, writer: Writer, changes: Sequence[Change]) -> None:
        self._writer = writer
        self._changes = changes
        self._journal_file = JournalFile(writer)
        check_plan(changes, self._journal_file)
        check_owners(changes)
        self._earlier = self._journal_file.load()
        self._made = {
            c.path for c in changes if isinstance(c.after, Directory) and not isinstance(c.before, Directory)
        }
        self._present = {change.path: self._look(change) for change in changes}
        noted = (self._earlier or Journal()).with_changes((c, self._present[c.path]) for c in changes)
        self._journal = self._journal_file.with_directories(noted)
        check_disk(writer, changes, self._journal_file.path, len(encode(self._journal)))
        self._begun: list[str] = []

    def _look(self, change: Change) -> Snapshot:
        if change.before is None and not self._made.isdisjoint(parents(change.path)):
            return Snapshot()  # a link may still be where its directory will be
        return self._writer.require(change.path, change.before)

    def run(self) -> None:
        try:
            self._discard_temporaries(self._earlier.records if self._earlier else ())
            self._journal_file.store(self._journal)
            self._stage()
            self._commit()
        except BaseException as error:
            self._take_back(error)
            raise

    def _discard_temporaries(self, paths: Iterable[str]) -> None:
        self._journal_file.discard_temporaries()
        for path in paths:
            self._writer.discard(path)

    def _stage(self) -> None:
        """Make new directories, and everything else under temporary names."""
        for change in self._changes:
            if change.path in self._made:
                self._make_directory(change)
            elif change.after is not None and not isinstance(change.after, Directory):
                self._writer.stage(change.path, _wanted(change, self._present[change.path]))

    def _make_directory(self, change: Change) -> None:
        if change.path not in self._journal.directories:  # those may have been made just now
            self._begin(change)
        if change.before is not None:
            self._writer.remove(change.path)
        self._writer.make_directory(change.path, Snapshot(change.after))

    def _commit(self) -> None:
        """Put everything into place; what a directory holds before its new mode, which may forbid that."""
        for change in reversed(self._changes):
            if change.path in self._made:
                continue
            self._begin(change)
            if change.after is None:
                self._writer.remove(change.path)
            elif isinstance(change.after, Directory):
                self._writer.make_directory(change.path, Snapshot(change.after))
            else:
                self._writer.place(change.path)
        self._writer.sync()

    def _begin(self, change: Change) -> None:
        self._writer.require(change.path, change.before)
        self._begun.append(change.path)

    def _take_back(self, error: BaseException) -> None:
        """Bring the tree back to where this run found it.

        Raises:
            PlanError: that failed too; the journal is still there then.
        """
        try:
            self._discard_temporaries(self._present)
            for path in reversed(self._begun):
                self._restore(path)
            self._writer.sync()
            if self._earlier is None:
                self._journal_file.remove(self._journal)
            else:
                self._journal_file.store(self._earlier)
        except TreeError as second:
            first = error if isinstance(error, TreeError) else TreeError(self._writer.root, "was interrupted")
            reason = f"{first.reason}; taking the changes back failed too ({second}): run undo"
            raise PlanError(first.path, reason) from error

    def _restore(self, path: str) -> None:
        present = self._writer.snapshot(path)
        if digest(present.node) in self._journal.records[path].written:
            self._writer.restore(path, self._present[path])


def _wanted(change: Change, present: Snapshot) -> Snapshot:
    """What a change makes, with the extended attributes of what it replaces if that is of the same kind."""
    if type(change.before) is not type(change.after):
        return Snapshot(change.after)
    if _content(change.before) == _content(change.after):
        return Snapshot(change.after, present.mtime_ns, present.xattrs)
    kept = {name: value for name, value in (present.xattrs or {}).items() if name != CONTENT_SIGNATURE}
    return Snapshot(change.after, None, kept)


def _content(node: Node | None) -> bytes | str | None:
    return node.content if isinstance(node, File) else node.target if isinstance(node, Symlink) else None
