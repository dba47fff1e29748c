"""Reading a specification file: every problem at its line and column."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from tpu_image.report.printable import printable
from tpu_image.spec.explaining import problem_of
from tpu_image.spec.model import Specification

SIZE_LIMIT = 64 * 1024
"""Bytes that a specification may have; the parser takes memory of some hundred times the size."""

NESTING_LIMIT = 1000
"""Brackets and braces that are opened in a file: the parser's time grows with their square."""

_PARSER_WORDS = {
    "found character '\\t' that cannot start any token": "a tab stands where only blanks may; indent with blanks",
    "found '<stream end>'": "the file ends there",
}
"""What the parser says in terms of its own, in words."""


class SpecificationError(Exception):
    """A specification cannot be used: ``problems`` holds a line for each thing to correct."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def load(path: Path, *, files: bool = True) -> Specification:
    """Read a specification file; paths in it count from its folder.

    Args:
        path: the file.
        files: whether what it names has to be there, as a build needs it; a check takes the profile alone.

    Raises:
        SpecificationError: it cannot be read, is no YAML, or holds something that is not allowed.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise SpecificationError([f"{path}: {error.strerror}; give a specification file"]) from error
    if len(data) > SIZE_LIMIT:
        raise SpecificationError([f"{path}: larger than {SIZE_LIMIT} bytes; give a specification file"])
    return parse(data, str(path), path.parent, files=files)


def parse(data: bytes, name: str, folder: Path | None = None, *, files: bool = True) -> Specification:
    """Read the bytes of a specification.

    Args:
        data: the file.
        name: stands before each problem.
        folder: what paths in it count from; the current one by default.
        files: as for :func:`load`.

    Raises:
        SpecificationError: as :func:`load`.
    """
    document = _document(data, name)
    try:
        return Specification.model_validate(
            {} if document is None else document, context={"folder": folder or Path(), "files": files}
        )
    except ValidationError as error:
        problems = sorted(problem_of(document, details) for details in error.errors())
    raise SpecificationError([f"{name}:{line}:{column}: {text}" for line, column, text in problems])


def _document(data: bytes, name: str) -> Any:
    """Parse YAML, keeping the place of every key and item."""
    if data.count(b"[") + data.count(b"{") > NESTING_LIMIT:
        raise SpecificationError([f"{name}:1:1: more than {NESTING_LIMIT} brackets; a specification has few"])
    try:
        return YAML(typ="rt").load(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"{name}:{line}:1: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        problem = f"{name}:{place}: {_in_words(error)}; correct the YAML"
    except RecursionError:
        problem = f"{name}:1:1: nested too deeply; a specification has four levels"
    except YAMLError as error:
        problem = f"{name}:1:1: {printable(' '.join(str(error).split()))}; correct the YAML"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # What the parser makes of numbers, dates and tags, before anybody has asked for them.
        problem = (
            f"{name}:1:1: a number, a date or a tag (!) in it is none; put it in quotes, or correct the YAML"
        )
    raise SpecificationError([problem])


def _in_words(error: MarkedYAMLError) -> str:
    reason = " ".join(f"{error.context or ''} {error.problem or ''}".split())
    for theirs, ours in _PARSER_WORDS.items():
        reason = reason.replace(theirs, ours)
    return printable(reason)
