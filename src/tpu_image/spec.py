"""The specification file, ``tpu-image.yaml``: what an image is to be, kept beside the rest of a project.

The models below are the file's format: a field added here is read, checked, and in the published JSON schema.
Reading collects every problem of a file, each with its line and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from tpu_image import catalogue
from tpu_image.catalogue import choices, hardware
from tpu_image.catalogue.requirement import Platform, Profile

SIZE_LIMIT = 64 * 1024
"""Bytes that a specification may have; the parser takes memory of some hundred times the size."""

NESTING_LIMIT = 1000
"""Brackets and braces that are opened in a file: the parser's time grows with their square."""

SCHEMA = "tpu-image/spec/1"


class SpecificationError(Exception):
    """A specification cannot be used: ``problems`` holds a line for each thing to correct."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def _generation(word: str) -> str:
    return choices.generations(word)[0].name


def _split(value: Any) -> Any:
    """Let ``v5p, v6e`` stand for the list, as on the command line."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def _group(name: str) -> str:
    return choices.device_group(name) if name else name


def _requirement(name: str) -> str:
    try:
        return catalogue.find(name).id
    except catalogue.UnknownRequirementError as error:
        raise ValueError(*error.args) from error


_GENERATION_NAMES = [generation.name for generation in hardware.GENERATIONS]
_Generations = Annotated[
    list[Annotated[str, AfterValidator(_generation)]],
    BeforeValidator(_split),
    Field(min_length=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"enum": _GENERATION_NAMES}, "minItems": 1},
                {"type": "string", "description": "Names separated by commas."},
            ]
        }
    ),
]
_PlatformName = Literal["compute-engine", "gke"]
_RequirementId = Annotated[str, AfterValidator(_requirement)]
_Reason = Annotated[str, AfterValidator(choices.waiver_reason)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ProfileSection(_Section):
    """What the image is made for; the options of the command line of the same names go before it."""

    platform: _PlatformName = Field(default="compute-engine", description="Who starts the machines.")
    tpu: _Generations = Field(default=[], description="TPU generations that it is to work on.")
    generations: _Generations = Field(default=[], description="Another name of tpu.")
    telemetry: bool = Field(default=False, description="Whether the telemetry collector is required.")
    device_group: Annotated[str, AfterValidator(_group)] = Field(
        default="", description="Group that owns the device nodes (mode 0660); empty for everyone (0666)."
    )
    agent: Literal["install", "elsewhere"] = Field(
        default="install", description="Whether the vBar agent is to be in the image or comes from elsewhere."
    )

    @model_validator(mode="after")
    def _named_once(self) -> ProfileSection:
        if self.tpu and self.generations:
            raise ValueError("tpu and generations are two names of one thing; keep one")
        return self


class Specification(_Section):
    """The whole file. Every part may be left out."""

    profile: ProfileSection = Field(default=ProfileSection(), description="What the image is made for.")
    waive: dict[_RequirementId, _Reason] = Field(
        default_factory=dict, description="Requirements that need not hold, each with the reason."
    )

    def to_profile(self) -> Profile:
        """Give the profile that the file describes."""
        section = self.profile
        names = section.tpu or section.generations or list(hardware.DOCUMENTED)
        return Profile(
            platform=Platform(section.platform),
            generations=choices.generations(",".join(names)),
            telemetry=section.telemetry,
            device_group=section.device_group,
            agent_elsewhere=section.agent == "elsewhere",
            waivers=dict(self.waive),
        )


def load(path: Path) -> Specification:
    """Read a specification file.

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
    return parse(data, str(path))


def parse(data: bytes, name: str) -> Specification:
    """Read the bytes of a specification; ``name`` stands before each problem.

    Raises:
        SpecificationError: as :func:`load`.
    """
    document = _document(data, name)
    try:
        return Specification.model_validate({} if document is None else document)
    except ValidationError as error:
        problems = sorted(_problem(document, details) for details in error.errors())
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
        reason = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        problem = f"{name}:{place}: {reason}; correct the YAML"
    except RecursionError:
        problem = f"{name}:1:1: nested too deeply; a specification has three levels"
    except (YAMLError, ValueError) as error:
        problem = f"{name}:1:1: {str(error).splitlines()[0]}; correct the YAML"
    raise SpecificationError([problem])


def _problem(document: Any, details: ErrorDetails) -> tuple[int, int, str]:
    """Give line and column, counted from 1, and what is wrong and what to do."""
    at_key = details["type"] == "extra_forbidden" or details["loc"][-1:] == ("[key]",)
    path = [part for part in details["loc"] if part != "[key]"]
    line, column = _place(document, path, at_key=at_key)
    return line + 1, column + 1, _explanation(path, details)


def _place(document: Any, path: Sequence[str | int], *, at_key: bool) -> tuple[int, int]:
    """Find the line and column, counted from 0, of the deepest part of the path that the file has."""
    node, place = document, (0, 0)
    for depth, part in enumerate(path):
        last = depth == len(path) - 1
        if isinstance(node, CommentedMap) and part in node:
            place = node.lc.key(part) if last and at_key else node.lc.value(part)
        elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
            place = node.lc.item(part)
        else:
            break
        node = node[part]
    return place


def _explanation(path: Sequence[str | int], details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    where = ".".join(map(str, path)) or "the file"
    if kind == "extra_forbidden":
        return str(choices.unknown("key", str(path[-1]), _fields(path[:-1])))
    if kind == "literal_error":
        return f"{where} is {details['input']!r}; give {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    wanted = {
        "bool_type": "true or false",
        "string_type": "text",
        "list_type": "a list",
        "too_short": "at least one",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
    }.get(kind)
    return f"{where} is {_described(details['input'])}; give {wanted}" if wanted else details["msg"]


def _fields(path: Sequence[str | int]) -> list[str]:
    model: type[BaseModel] = Specification
    for part in path:
        inner = model.model_fields[str(part)].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return list(model.model_fields)


def _described(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) and value else repr(value)


def json_schema() -> dict[str, Any]:
    """Give the JSON schema (draft 2020-12) of the file."""
    schema = Specification.model_json_schema()
    ids = [requirement.id for requirement in catalogue.requirements()]
    schema["properties"]["waive"]["propertyNames"] = {"enum": ids}
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
    }
    return {**head, **schema, "title": "Specification of a TPU image", "type": "object"}
