"""What a user says about the metadata: ``--metadata KEY=VALUE`` or ``KEY=@FILE``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tpu_image.catalogue.choices import ChoiceError

KEY_LIMIT = 128
VALUE_LIMIT = 256 * 1024
"""Compute Engine's limits of a custom key, in characters, and of its value, in bytes."""

_KEY = re.compile(rf"[a-zA-Z0-9_-]{{1,{KEY_LIMIT}}}")


def attribute(words: str) -> tuple[str, str]:
    """Read one ``KEY=VALUE``, or ``KEY=@FILE`` for what stands in a file.

    Raises:
        ChoiceError: it is neither, or Compute Engine would refuse it, or the file cannot be read.
    """
    key, equals, value = words.partition("=")
    if not equals:
        raise ChoiceError(f"{words[:80]!r} is no metadata; write KEY=VALUE or KEY=@FILE")
    if not _KEY.fullmatch(key):
        raise ChoiceError(
            f"{key[:80]!r} is no key of metadata; use 1 to {KEY_LIMIT} of a-z, A-Z, 0-9, - and _"
        )
    if value.startswith("@"):
        value = _content(key, Path(value[1:]))
    _require_room(key, value.encode("utf-8", "surrogateescape"))
    return key, value


def _require_room(key: str, value: bytes) -> None:
    if len(value) > VALUE_LIMIT:
        raise ChoiceError(
            f"the value of {key} is longer than the {VALUE_LIMIT} bytes that Compute Engine takes"
        )


def attributes(settings: Iterable[str]) -> dict[str, str]:
    """Read several; a key that is given again takes the last value.

    Raises:
        ChoiceError: as :func:`attribute`.
    """
    return dict(map(attribute, settings))


def _content(key: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(VALUE_LIMIT + 1)
        _require_room(key, content)  # cut, it may not be UTF-8
        return content.decode()
    except UnicodeDecodeError as error:
        raise ChoiceError(
            f"{path}: metadata is text in UTF-8; encode it and set {key}-encoding=base64"
        ) from error
    except OSError as error:
        raise ChoiceError(f"{path}: {error.strerror}") from error
