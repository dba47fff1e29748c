"""Putting back what was there before tpu-image first changed it."""

from __future__ import annotations

import os
from typing import NamedTuple

from tpu_image.plan.change import PlanError
from tpu_image.plan.journal import Journal, Record
from tpu_image.plan.journal_file import JournalFile
from tpu_image.plan.snapshot import Snapshot, digest
from tpu_image.plan.writer import OnStep, UnreachableError, Writer, is_not_empty, no_step, remove_if_empty
from tpu_image.trees.base import TreeError, parents
from tpu_image.trees.memory import Symlink


class Kept(NamedTuple):
    """A path that was left as it is, and why."""

    path: str
    reason: str


class Undone(NamedTuple):
    """What an ``undo`` put back, and what it left because somebody else had changed it."""

    restored: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    removed: frozenset[str] = frozenset()
    """Those of ``restored`` that had not been there, and are gone again."""


def undo(root: str | os.PathLike[str], *, force: bool = False, on_step: OnStep = no_step) -> Undone:
    """Restore every path that was ever changed, and remove what was made, the journal last.

    A path that is neither as it was nor as tpu-image left it is kept, with its record, unless ``force`` is
    given. A directory that was made and holds anything else stays. Killed at any moment, it can be run again.

    Raises:
        TreeError: the root or its journal cannot be used, or (PlanError) the system refuses a change.
    """
    with Writer(root, on_step) as writer:
        return _Undo(writer, force).run()


class _Undo:
    def __init__(self, writer: Writer, force: bool) -> None:
        self._writer = writer
        self._force = force
        self._journal_file = JournalFile(writer)
        self._journal = self._journal_file.load()
        self._restored: list[str] = []
        self._removed: set[str] = set()
        self._kept: list[Kept] = []

    def run(self) -> Undone:
        self._journal_file.discard_temporaries()
        if self._journal is not None:
            for path in sorted(self._journal.records, reverse=True):
                self._undo(path, self._journal.records[path])
            self._writer.sync()
            self._finish(self._journal)
        restored, kept = tuple(reversed(self._restored)), tuple(reversed(self._kept))
        return Undone(restored, kept, frozenset(self._removed))

    def _finish(self, journal: Journal) -> None:
        """Forget what is done; a kept path's record stays, with those of the directories it is in."""
        kept = {kept.path for kept in self._kept}
        above = {directory for path in kept for directory in parents(path)}
        remaining = {path: record for path, record in journal.records.items() if path in kept | above}
        if kept:
            self._journal_file.store(journal._replace(records=remaining))
        else:
            self._journal_file.remove(journal)

    def _undo(self, path: str, record: Record) -> None:
        self._writer.discard(path)
        reason = self._reason_to_keep(path, record)
        if reason is None:
            return
        if reason and not self._force:
            self._kept.append(Kept(path, reason))
            return
        try:
            self._restore(path, record.original)
        except PlanError as error:
            if not isinstance(error, UnreachableError) and not is_not_empty(error):
                raise
            self._kept.append(Kept(path, error.reason))

    def _reason_to_keep(self, path: str, record: Record) -> str | None:
        """Why a path is not ours to restore; empty where it is, None where there is nothing to restore."""
        try:
            present = self._writer.snapshot(path)
        except TreeError as error:
            return (
                None if record.original.node is None and self._is_below_restored_link(path) else error.reason
            )
        ours = digest(present.node) in record.written
        if present == record.original or (present.node == record.original.node and not ours):
            return None
        return "" if ours else "was changed by something else since"

    def _is_below_restored_link(self, path: str) -> bool:
        """Whether a link is back where a directory had been made, so that nothing can be in it any more."""
        records = self._journal.records if self._journal else {}
        return any(
            self._is_restored_link(above, records[above]) for above in parents(path) if above in records
        )

    def _is_restored_link(self, path: str, record: Record) -> bool:
        try:
            present = self._writer.snapshot(path).node
        except TreeError:
            return False
        return isinstance(present, Symlink) and present == record.original.node

    def _restore(self, path: str, original: Snapshot) -> None:
        if original.node is None and not remove_if_empty(self._writer, path):
            return  # a directory in which others have put something
        if original.node is None:
            self._removed.add(path)
        else:
            self._writer.restore(path, original)
        self._restored.append(path)
