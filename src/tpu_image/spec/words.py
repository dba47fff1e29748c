"""What single values of a specification may be: each function accepts one, or says what is wrong with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo

from tpu_image import catalogue
from tpu_image.catalogue import choices

CONTENT_LIMIT = 1024 * 1024
"""Bytes of a script, a requirements file or package sources."""

IN_MEMORY = ("/dev", "/proc", "/run", "/sys", "/tmp")  # noqa: S108 - named to be refused
"""Where a machine mounts something over what an image has there."""

SIZE_UNITS = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
TIME_UNITS = {"s": 1, "m": 60, "h": 3600}

SIZE = re.compile(r"([1-9][0-9]{0,6})([MGT])(iB|B)?")
DURATION = re.compile(r"([1-9][0-9]{0,6})([smh])")
MODE = re.compile(r"[0-7]{3,4}")
SHA256 = re.compile(r"[0-9a-fA-F]{64}")
REFERENCE = re.compile(r"(debian|ubuntu):[a-z0-9][a-z0-9.-]*")
URL = re.compile(r"https?://[^\s/]+/\S*")
OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*", re.DOTALL)
PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?")
PACKAGE_VERSION = re.compile(PACKAGE.pattern + r"(=[A-Za-z0-9.+:~-]+|/[a-z0-9.-]+)?")
OWNER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?|[0-9]{1,10}")


class UnfitError(ValueError):
    """A value is not what its key takes; the message goes on from the key's name: ``is ...; do ...``."""


def generation(word: str) -> str:
    """Accept the name of a TPU generation."""
    return choices.generations(word)[0].name


def split(value: Any) -> Any:
    """Let ``v5p, v6e`` stand for the list, as on the command line."""
    return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


def device_group(name: str) -> str:
    """Accept a group's name, or nothing."""
    return choices.device_group(name) if name else name


def requirement(name: str) -> str:
    """Accept the id of a requirement."""
    try:
        return catalogue.find(name).id
    except catalogue.UnknownRequirementError as error:
        raise ValueError(*error.args) from error


def image_path(path: str) -> str:
    """Accept a path in the image that stays there."""
    if not path.startswith("/"):
        raise UnfitError("is no path from the image's root; begin it with /")
    parts = path.split("/")
    if "\0" in path:
        raise UnfitError("has a NUL in it, which no path has; take it out")
    if ".." in parts:
        raise UnfitError("leads through ..; write the path without it")
    path = "/" + "/".join(part for part in parts if part not in ("", "."))
    if path == "/":
        raise UnfitError("is the root itself; name something in it")
    for folder in IN_MEMORY:
        if path == folder or path.startswith(f"{folder}/"):
            raise UnfitError(
                f"is below {folder}, which a running machine has in memory; choose another folder"
            )
    return path


def own_path(text: Any, info: ValidationInfo) -> Any:
    """Give a path of this machine; a relative one counts from the specification's folder."""
    if not isinstance(text, str):
        return text
    if not text or "\0" in text:
        raise UnfitError("names nothing; give a path")
    folder: Path = (info.context or {}).get("folder", Path())
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:  # there is no such user
        raise UnfitError(
            f"is {text}, and nobody of that name has a home here; write the path whole"
        ) from None


def existing(text: Any, info: ValidationInfo) -> Any:
    """Give the path of a file or folder that exists."""
    return _existing(text, info, "file or folder", Path.exists)


def existing_file(text: Any, info: ValidationInfo) -> Any:
    """Give the path of a file that exists."""
    return _existing(text, info, "file", Path.is_file)


def existing_folder(text: Any, info: ValidationInfo) -> Any:
    """Give the path of a folder that exists."""
    return _existing(text, info, "folder", Path.is_dir)


def _existing(text: Any, info: ValidationInfo, what: str, is_there: Any) -> Any:
    path = own_path(text, info)
    if not isinstance(path, Path) or not files_are_wanted(info):
        return path
    try:
        found = is_there(path)
    except OSError:
        found = False
    if not found:
        raise UnfitError(f"is {path}, where no {what} is; paths count from the folder of the specification")
    return path


def files_are_wanted(info: ValidationInfo) -> bool:
    """Whether the files that are named have to be there: for a build, and not for a check."""
    return bool((info.context or {}).get("files", True))


def small_file(path: Path, info: ValidationInfo) -> Path:
    """Accept a file that can be read and is no longer than scripts and lists are."""
    if not files_are_wanted(info):
        return path
    try:
        with path.open("rb") as file:
            length = len(file.read(CONTENT_LIMIT + 1))
    except OSError as error:
        raise UnfitError(f"is {path}, which cannot be read ({error.strerror}); make it readable") from None
    if length > CONTENT_LIMIT:
        raise UnfitError(f"is {path}, larger than {CONTENT_LIMIT >> 20} MiB; give a smaller file")
    return path


def size(value: Any) -> Any:
    """Give the bytes of a size such as 20G; units are powers of 1024."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise UnfitError(f"has no unit; write {value}G for GiB")
    if not isinstance(value, str):
        return value
    match = SIZE.fullmatch(value)
    if not match:
        raise UnfitError("is no size; write it such as 20G")
    return int(match.group(1)) * SIZE_UNITS[match.group(2)]


def duration(value: Any) -> Any:
    """Give the seconds of a time such as 90m."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise UnfitError(f"has no unit; write {value}s, {value}m or {value}h")
    if not isinstance(value, str):
        return value
    match = DURATION.fullmatch(value)
    if not match:
        raise UnfitError("is no time; write it such as 90m or 2h")
    return int(match.group(1)) * TIME_UNITS[match.group(2)]


def mode(value: Any) -> Any:
    """Give the permission bits of an octal number in quotes: without them, YAML reads another number."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise UnfitError('is a number, which YAML may have read as another; put it in quotes, such as "0644"')
    if not isinstance(value, str):
        return value
    if not MODE.fullmatch(value):
        raise UnfitError('is no mode; give three or four octal digits in quotes, such as "0644"')
    return int(value, 8)


def owner(value: Any) -> Any:
    """Accept the name or number of a user or group."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, str) and not OWNER.fullmatch(value):
        raise UnfitError("is no name or number of a user or group; give one that the image has")
    return value


def sha256(text: str) -> str:
    """Accept a SHA-256 in hexadecimal."""
    if not SHA256.fullmatch(text):
        raise UnfitError("is no SHA-256; give 64 hexadecimal digits")
    return text.lower()


def package(name: str) -> str:
    """Accept the name of a Debian package (Debian policy 5.6.7)."""
    if not PACKAGE.fullmatch(name):
        raise UnfitError("is no name of a Debian package; write it as apt-get remove takes it")
    return name


def package_version(name: str) -> str:
    """Accept the name of a Debian package, with a version or release where one is wanted."""
    if not PACKAGE_VERSION.fullmatch(name):
        raise UnfitError("is no Debian package; write NAME, NAME=VERSION or NAME/RELEASE")
    return name


def python_package(text: str) -> str:
    """Accept what pip install takes as a package, without an option among it."""
    if not text.strip() or text.lstrip().startswith("-") or not text.isprintable():
        raise UnfitError("is no Python package; options belong into a requirements file")
    return text


def is_url(text: str) -> bool:
    """Whether a text is a URL that can be downloaded."""
    return URL.fullmatch(text) is not None


def file_or_url(text: str, info: ValidationInfo) -> str:
    """Accept a URL that can be downloaded, or the path of a file that exists, which is given whole."""
    if is_url(text):
        return text
    if OTHER_URL.fullmatch(text):
        raise UnfitError("is a URL that is not downloaded; give one of https, or a file")
    return str(existing_file(text, info))


def image_to_begin_with(text: str, info: ValidationInfo) -> str:
    """Accept what :func:`file_or_url` does, or a reference to an image that can be made."""
    return text if REFERENCE.fullmatch(text) else file_or_url(text, info)


def agent_source(text: str, info: ValidationInfo) -> str:
    """Accept what names a container image; an archive or folder that exists counts from the specification's folder."""
    if not text.strip() or "\0" in text:
        raise UnfitError("names nothing; give a registry's image, an archive or a folder")
    folder: Path = (info.context or {}).get("folder", Path())
    path = folder / text
    return str(path) if text.startswith(("./", "../")) or path.exists() else text
