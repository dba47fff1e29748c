"""The configuration files of GRUB in a tree: grub.cfg, custom.cfg, and what either takes in.

Source: the GRUB manual, "configfile", "source", "prefix".
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.catalogue.requirement import Evidence
from tpu_image.formats import FormatError
from tpu_image.formats.grub_config import Command, GrubConfig
from tpu_image.trees.base import Tree

DIRECTORIES = ("/boot/grub", "/boot/grub2")
NAMES = ("grub.cfg", "custom.cfg")
FILES_LIMIT = 32
"""Files that are read at most."""

_TAKING_IN = ("source", ".", "configfile")
_OWN_DIRECTORY = ("$prefix/", "${prefix}/", "$config_directory/", "${config_directory}/")


class GrubFiles(NamedTuple):
    """The files by path, the main one first, and the lines that take in what is not known here."""

    configs: dict[str, GrubConfig]
    unread: tuple[Evidence, ...]


def read(tree: Tree) -> GrubFiles:
    """Read every configuration file that GRUB may come to.

    Raises:
        TreeError: a file cannot be read.
        FormatError: a file does not parse; the reason names it.
    """
    configs: dict[str, GrubConfig] = {}
    unread: list[Evidence] = []
    todo = [f"{directory}/{name}" for directory in DIRECTORIES for name in NAMES]
    while todo:
        path = todo.pop(0)
        text = None if path in configs or len(configs) == FILES_LIMIT else tree.read_text_if_present(path)
        if text is None:
            continue
        configs[path] = _parse(path, text)
        for command in _taking_in(configs[path]):
            found = _file(tree, posixpath.dirname(path), command.words[1].text)
            if found:
                todo.append(found)
            elif found is None:
                written = " ".join(word.text for word in command.words)
                unread.append(Evidence(path, command.words[0].line, written, "entries that are read here"))
    return GrubFiles(configs, tuple(unread))


def _parse(path: str, text: str) -> GrubConfig:
    try:
        return _parse_text(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error.reason}", error.line) from error


@functools.lru_cache(maxsize=8)
def _parse_text(text: str) -> GrubConfig:
    return GrubConfig.parse(text)


def _taking_in(config: GrubConfig) -> Iterator[Command]:
    for command in config.commands:
        if command.name in _TAKING_IN and len(command.words) > 1:
            yield command


def _file(tree: Tree, directory: str, written: str) -> str | None:
    """Find the file that a path of GRUB's means; empty where there is none, None where that is not known.

    GRUB's own directory is that of the file; a path in parentheses names a disk, of which the root and /boot are tried.
    """
    if posixpath.basename(written) in NAMES:
        return ""  # read anyway
    for variable in _OWN_DIRECTORY:
        if written.startswith(variable):
            path = f"{directory}/{written.removeprefix(variable)}"
            return path if tree.is_file(path) else ""
    path = re.sub(r"^\((?:[^()]*|\$\{?root\}?)\)", "", written)
    if "$" in path or not path.startswith("/"):
        return None
    found = next((place for place in (path, f"/boot{path}") if tree.is_file(place)), None)
    return found or ("" if path == written else None)
