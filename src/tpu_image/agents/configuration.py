"""The collector's own configuration: whether it is YAML is all that can be said, since its schema is not public."""

from __future__ import annotations

from pathlib import Path

from tpu_image.agents.errors import AgentError
from tpu_image.formats import yaml_text

SIZE_LIMIT = 1024 * 1024
"""Bytes of a configuration."""


def read(path: Path) -> bytes:
    """Read a configuration file that parses.

    Raises:
        AgentError: it cannot be read, or is no YAML; line and column are named.
    """
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
    except OSError as error:
        raise AgentError(f"cannot be read: {error.strerror}", str(path), "name another file") from error
    if len(data) > SIZE_LIMIT:
        raise AgentError(f"is larger than {SIZE_LIMIT} bytes", str(path), "name another file")
    try:
        document = yaml_text.parse(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AgentError("is no UTF-8", f"{path}:{line}", "save it as UTF-8") from None
    except yaml_text.YamlError as error:
        place = ":".join(str(n) for n in (path, error.line, error.column) if n)
        raise AgentError(f"is no YAML: {error.reason}", place, "correct it") from None
    if document.duplicates:
        twice = document.duplicates[0]
        raise AgentError(
            f"has the key {twice.key} twice, first in line {twice.first_line}",
            f"{path}:{twice.line}:{twice.column}",
            "keep one of them",
        )
    return data
