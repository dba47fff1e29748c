"""Saying what is wrong with a value of a specification: where it stands, what it is, what to give instead."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from tpu_image.catalogue import choices
from tpu_image.report.printable import printable
from tpu_image.spec.model import Specification
from tpu_image.spec.words import UnfitError

SHOWN = 60
"""Characters of a value that are shown."""

Path = Sequence[str | int]

_WANTED = {
    "bool_type": "true or false",
    "string_type": "text",
    "int_type": "text, with its unit",
    "list_type": "a list",
    "too_short": "at least one",
    "string_too_short": "a name",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "path_type": "a path",
    "is_instance_of": "a path",
}
"""What each kind of pydantic's errors asks for (its documentation, "Validation Errors")."""


def problem_of(document: Any, details: ErrorDetails) -> tuple[int, int, str]:
    """Give line and column, counted from 1, and what is wrong and what to do."""
    at_key = details["type"] == "extra_forbidden" or details["loc"][-1:] == ("[key]",)
    whole = [part for part in details["loc"] if part != "[key]"]
    path, (line, column) = _place(document, whole, at_key=at_key)
    if details["type"] == "missing":
        path = whole
    return line + 1, column + 1, _explanation(path, whole, details)


def _place(document: Any, whole: Path, *, at_key: bool) -> tuple[Path, tuple[int, int]]:
    """Find as much of a path as the file has, and the line and column, counted from 0, of that."""
    node, place = document, (0, 0)
    for depth, part in enumerate(whole):
        last = depth == len(whole) - 1
        if isinstance(node, CommentedMap) and part in node:
            # A mapping that is written as another kind (!!omap) has no places of its own.
            place = (node.lc.key(part) if last and at_key else node.lc.value(part)) or place
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            place = node.lc.item(part)
        else:
            return whole[:depth], place
        node = node[part]
    return whole, place


def _explanation(path: Path, whole: Path, details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    where = _where(path)
    if kind == "extra_forbidden":
        return printable(_unknown_key(str(whole[-1]), _fields(whole[:-1])))
    if kind == "missing":
        return f"{_where(whole[:-1])} has no {whole[-1]}; give one"
    if kind == "literal_error":
        expected = "true" if context["expected"] == "True" else context["expected"].replace("'", "")
        return f"{where} is {_described(details['input'])}; give {expected}"
    if kind == "value_error":
        error = context["error"]
        if isinstance(error, UnfitError):
            return printable(f"{where} {error}")
        return printable(str(error))
    wanted = _WANTED.get(kind)
    if wanted:
        return f"{where} is {_described(details['input'])}; give {wanted}"
    return printable(f"{where}: {details['msg']}")


def _unknown_key(word: str, names: list[str]) -> str:
    return str(choices.unknown("key", word, names))


def _where(path: Path) -> str:
    """Name a place as people do: ``mode in item 1 of files``."""
    names: list[str] = []
    while path and isinstance(path[-1], str):
        names.insert(0, path[-1])
        path = path[:-1]
    own = printable(".".join(names))
    if not path:
        return own or "the file"
    item = f"item {int(path[-1]) + 1} of {_where(path[:-1])}"
    return f"{own} in {item}" if own else item


def _fields(path: Path) -> list[str]:
    """Names of the keys that a mapping may have."""
    model: type[BaseModel] = Specification
    for part in path:
        if isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, alone, in a list, or where it is not absent."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := _model_in(inner))), None)


def _described(value: Any) -> str:
    """Show a value as a specification would write it."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return f"'{printable(value, SHOWN)}'"
    return "a date" if isinstance(value, date) else "a value with a tag of YAML's (!)"
