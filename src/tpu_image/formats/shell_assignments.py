"""Shell files made of assignments: /etc/default/grub, os-release and their like.

A file is read without running it, evaluated together with others in order, and edited in place. A value that
only a shell could compute is unknown in exactly that part: ``"$(cat x) quiet"`` ends in a known word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit, apply_edits
from tpu_image.formats.shell_syntax import Assignment, Disturbance, Statement, Unset, parse_statements
from tpu_image.formats.shell_words import (
    Expansion,
    Literal,
    Reference,
    edit_value,
    quoted,
    style_of,
    width,
)

SIZE_LIMIT = 256 * 1024
"""Characters of a file at most: no file of settings is longer."""

VALUE_LIMIT = 64 * 1024
"""Characters of one value at most; a longer one (``A="$A$A"`` again and again) is unknown."""

PIECES_LIMIT = 256
"""Pieces of one value at most, for the same reason."""

UNKNOWN = "\0"
"""Stands for an unknown part in :attr:`Value.text`; no shell variable can hold it."""


class Known(NamedTuple):
    """Characters of a value, and the assignment that wrote them from position ``offset`` of its own value."""

    text: str
    origin: Assignment | None = None
    offset: int = 0


class Unknown(NamedTuple):
    """A part of a value that only a shell could compute, and where that is asked."""

    path: str
    line: int
    reason: str


class Value(NamedTuple):
    """What a variable holds, piece by piece."""

    pieces: tuple[Known | Unknown, ...] = ()

    @property
    def text(self) -> str:
        """The value with :data:`UNKNOWN` for every part that is not known."""
        return "".join(piece.text if isinstance(piece, Known) else UNKNOWN for piece in self.pieces)

    @property
    def known(self) -> str | None:
        """The value; None where any part of it is unknown."""
        return None if self.unknowns else self.text

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """The parts that are not known."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Unknown))

    def locate(self, start: int, end: int) -> tuple[Assignment, int] | None:
        """Find the assignment that wrote the characters from ``start`` up to ``end``, and where in its value.

        An empty range means the place behind the character before it. None where no single assignment did.
        """
        position = 0
        for piece in self.pieces:
            size = len(piece.text) if isinstance(piece, Known) else 1
            if start <= position + size and (start < position + size or start == end):
                fits = isinstance(piece, Known) and piece.origin is not None and end <= position + size
                if fits and isinstance(piece, Known) and piece.origin is not None:
                    return piece.origin, piece.offset + start - position
                return None
            position += size
        return None


class ShellFile(NamedTuple):
    """One file as written (``text``) and what it does to variables."""

    path: str
    text: str
    statements: tuple[Statement, ...]

    @classmethod
    def parse(cls, path: str, text: str) -> ShellFile:
        """Read a file; whatever cannot be followed becomes an unknown, never an error.

        Raises:
            FormatError: it is longer than :data:`SIZE_LIMIT`.
        """
        if len(text) > SIZE_LIMIT:
            raise FormatError(f"{path} is longer than {SIZE_LIMIT} characters")
        return cls(path, text, tuple(parse_statements(path, text)))

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """Every assignment, in order."""
        return tuple(s for s in self.statements if isinstance(s, Assignment))

    def last_touching(self, name: str) -> Statement | None:
        """The last statement that may change a variable; None where none does."""
        for statement in reversed(self.statements):
            names = {statement.name} if isinstance(statement, Assignment) else statement.names
            if names is None or name in names:
                return statement
        return None

    def touches(self, name: str) -> bool:
        """Whether the file may change a variable."""
        return self.last_touching(name) is not None

    def with_value(self, assignment: Assignment, value: str) -> ShellFile:
        """Give the file with another value for one assignment, in its old quotes where they can hold it."""
        word = assignment.value
        return self.edited([Edit(word.start, word.end, quoted(value, style_of(word)))])

    def with_value_edits(self, edits: Mapping[Assignment, Sequence[Edit]]) -> ShellFile:
        """Give the file with edits inside values, whose positions count in the assignment's own value."""
        return self.edited(
            Edit(a.value.start, a.value.end, edit_value(a.value, changes)) for a, changes in edits.items()
        )

    def edited(self, edits: Iterable[Edit]) -> ShellFile:
        """Give the file after edits to its text."""
        return ShellFile.parse(self.path, apply_edits(self.text, edits))


class Variables:
    """What variables hold after files were read in order, by name in ``values``."""

    def __init__(self, initial: Mapping[str, str]) -> None:
        self.values = {name: Value((Known(text),)) for name, text in initial.items()}
        self.unset: set[str] = set()
        self.unsettled: dict[str, Unknown] = {}
        self.anything: Unknown | None = None
        """Why any variable that was not assigned since may hold anything."""

    def get(self, name: str) -> Value | None:
        """The value of a variable; None where the files leave it unset."""
        if name in self.values:
            return self.values[name]
        if self.anything is not None and name not in self.unset:
            return Value((self.anything,))
        return None

    def known(self, name: str) -> str | None:
        """The value where it is wholly known; None where it is not, or unset."""
        value = self.get(name)
        return None if value is None else value.known

    def apply(self, statement: Statement) -> None:
        """Let a statement take effect."""
        if isinstance(statement, Assignment):
            self._assign(statement)
        elif isinstance(statement, Unset):
            for name in statement.names:
                self.values.pop(name, None)
                self.unset.add(name)
        else:
            self._disturb(statement)

    def _disturb(self, disturbance: Disturbance) -> None:
        unknown = Unknown(disturbance.path, disturbance.line, disturbance.reason)
        if disturbance.names is None:
            self.values.clear()
            self.unset.clear()
            self.anything = unknown
            return
        for name in disturbance.names:
            self.values[name] = Value((unknown,))
            if disturbance.lasting:
                self.unsettled[name] = unknown

    def _assign(self, assignment: Assignment) -> None:
        name = assignment.name
        pieces: list[Known | Unknown] = []
        if assignment.uncertain:
            pieces.append(Unknown(assignment.path, assignment.line, assignment.uncertain))
        elif name in self.unsettled:
            pieces.append(self.unsettled[name])
        else:
            if assignment.appends:
                pieces += self._referenced(name, assignment)
            pieces += self._pieces(assignment)
        size = sum(len(piece.text) for piece in pieces if isinstance(piece, Known))
        if size > VALUE_LIMIT or len(pieces) > PIECES_LIMIT:
            pieces = [Unknown(assignment.path, assignment.line, "a value that is too long")]
        self.values[name] = Value(tuple(pieces))
        self.unset.discard(name)

    def _pieces(self, assignment: Assignment) -> list[Known | Unknown]:
        pieces: list[Known | Unknown] = []
        literals: list[str] = []
        offset = 0
        for part in (*assignment.value.parts, None):
            if isinstance(part, Literal):
                literals.append(part.value)
            elif literals:
                text = "".join(literals)
                pieces.append(Known(text, assignment, offset - len(text)))
                literals = []
            if isinstance(part, Reference):
                pieces += self._referenced(part.name, assignment)
            elif isinstance(part, Expansion):
                pieces.append(Unknown(assignment.path, assignment.line, part.reason))
            if len(pieces) > PIECES_LIMIT:
                break
            offset += width(part) if part else 0
        return pieces

    def _referenced(self, name: str, assignment: Assignment) -> list[Known | Unknown]:
        value = self.get(name)
        if value is not None:
            return list(value.pieces)
        if name in self.unset:
            return []
        reason = f"${name} is set in none of these files"
        return [Unknown(assignment.path, assignment.line, reason)]


def evaluate(files: Iterable[ShellFile], initial: Mapping[str, str] | None = None) -> Variables:
    """Read files in order, as a shell that sources one after the other.

    ``initial`` holds what is known of variables before the first file; a variable in neither is unknown where
    it is referenced, since the environment of the shell may hold it.
    """
    variables = Variables(initial or {})
    for file in files:
        for statement in file.statements:
            variables.apply(statement)
    return variables
