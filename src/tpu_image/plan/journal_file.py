"""Where the journal is kept, and how it appears and goes whole with the directories made for it.

A kill may come between any two steps. So the journal, which names the directories made for it, is first
written into the innermost directory that exists and moved to its place when they are made, and it leaves the
same way.
"""

from __future__ import annotations

import os
import posixpath

from tpu_image.plan.change import PlanError
from tpu_image.plan.journal import JOURNAL, Journal, decode, encode, unusable
from tpu_image.plan.snapshot import Snapshot
from tpu_image.plan.writer import Writer, remove_if_empty
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import Directory, File

STAGED_NAME = ".tpu-image-undo.json"
"""Name of the journal while its directories are being made or removed."""


class JournalFile:
    """The journal of the tree that a writer holds."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        with DirectoryTree(writer.root) as tree:
            directory = tree.resolve(posixpath.dirname(JOURNAL))
        self.path = posixpath.join(directory, posixpath.basename(JOURNAL))
        parts = directory.strip("/").split("/")
        self.directories = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
        """From the outermost to the one that holds the journal."""
        self._staged = [posixpath.join(d, STAGED_NAME) for d in ("/", *self.directories)]

    def load(self) -> Journal | None:
        """Read the journal, or the one that a killed run was putting into place or removing.

        Raises:
            PlanError: what is there cannot be trusted or is no journal.
        """
        path = self._found()
        if path is None:
            return None
        node = self._writer.snapshot(path).node
        return self._parse(path, node if isinstance(node, File) else None)

    def _found(self) -> str | None:
        """Where the journal is; the innermost staged one is the newest."""
        candidates = (self.path, *reversed(self._staged))
        return next((path for path in candidates if self._writer.look(path) is not None), None)

    def _parse(self, path: str, file: File | None) -> Journal:
        if file is None or file.mode & 0o022 or file.uid not in (0, os.geteuid()):
            raise PlanError(path, unusable("others than root and you could have written it"))
        journal = decode(file.content)
        if not set(journal.directories) <= set(self.directories):
            raise PlanError(path, unusable("it names directories that are not its own"))
        return journal

    def with_directories(self, journal: Journal) -> Journal:
        """Note in the journal which directories :meth:`store` would make for it."""
        ours = {*journal.directories, *self._missing()}
        return journal._replace(directories=tuple(path for path in self.directories if path in ours))

    def store(self, journal: Journal) -> None:
        """Have the journal on the disk, with its directories."""
        missing = self._missing()
        owner = (os.geteuid(), os.getegid())
        place = posixpath.join(posixpath.dirname(missing[0]), STAGED_NAME) if missing else self.path
        self._writer.stage(place, Snapshot(File(encode(journal), 0o600, *owner)))
        self._writer.place(place)
        self._writer.sync()
        for directory in missing:
            self._writer.make_directory(directory, Snapshot(Directory(0o755, *owner)))
        if missing:
            self._writer.sync()
            self._writer.move(place, self.path)
        self._remove_all(self._staged)
        self._writer.sync()

    def _missing(self) -> list[str]:
        return [path for path in self.directories if self._writer.look(path) is None]

    def remove(self, journal: Journal) -> None:
        """Take the journal away, with those directories made for it that hold nothing else."""
        kept = next(d for d in ("/", *self.directories)[::-1] if d not in journal.directories)
        staged = posixpath.join(kept, STAGED_NAME)
        found = self._found()
        if found not in (None, staged):
            self._writer.move(found, staged)
            self._writer.sync()
        self._remove_all([path for path in (self.path, *self._staged) if path != staged])
        for directory in reversed(journal.directories):
            if not remove_if_empty(self._writer, directory):
                break
        self._remove_all([staged])
        self._writer.sync()

    def discard_temporaries(self) -> None:
        """Remove what a killed run may have left of the journal and its directories."""
        for path in (self.path, *self._staged, *self.directories):
            self._writer.discard(path)

    def _remove_all(self, paths: list[str]) -> None:
        for path in paths:
            if self._writer.look(path) is not None:
                self._writer.remove(path)
