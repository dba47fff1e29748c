"""How a container of an image is run, as Docker would: command, environment, directory, user."""

from __future__ import annotations

import posixpath
import re

from tpu_image.agents.errors import ImageError
from tpu_image.agents.filesystem import RootFileSystem, quoted
from tpu_image.agents.manifest import Configuration
from tpu_image.agents.units import Program
from tpu_image.catalogue.agents import Agent

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What Docker sets where an image does not."""

ACCOUNTS_LIMIT = 1024 * 1024
"""Bytes of an image's ``/etc/passwd``."""

_DIRECTORY = re.compile(r"/|/[^\x00-\x1f\x7f\\\"']*[^\x00-\x20\x7f\\\"']")
"""Paths that mean in a unit what they are."""

_TARGET = re.compile(r"(/[A-Za-z0-9_.+-]*[A-Za-z0-9_+-])+")
"""Paths that a mount may have: of plain characters, without ``..`` or a colon."""


def command(agent: Agent, configuration: Configuration) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the words before and behind the image in ``docker run --entrypoint``: what is run, and its arguments.

    The document's arguments take the place of the image's own. Where the image has no entry point, the first word is
    a program: the one that it names, if that is the agent, or the agent's own.
    """
    entrypoint, own = configuration.entrypoint, configuration.arguments
    if not entrypoint:
        names_it = own and (not agent.arguments or posixpath.basename(own[0]) == agent.program)
        entrypoint, own = (own[:1], own[1:]) if names_it else ((agent.program,), ())
    arguments = tuple(a for a in agent.arguments if a not in entrypoint) if agent.arguments else own
    return entrypoint, arguments


def program(agent: Agent, configuration: Configuration, filesystem: RootFileSystem, where: str) -> Program:
    """Say how an unpacked image is run without a container engine.

    Raises:
        ImageError: it does not have the program, or the user, that it is said to have.
    """
    entrypoint, arguments = command(agent, configuration)
    environment = configuration.environment
    search_path = next((e.partition("=")[2] for e in environment if e.startswith("PATH=")), "")
    if not search_path:
        search_path, environment = SEARCH_PATH, (f"PATH={SEARCH_PATH}", *environment)
    path = filesystem.program(entrypoint[0], search_path)
    if not path:
        raise ImageError(
            f"has no program {quoted(entrypoint[0])}", where, f"give an image or directory of {agent.program}"
        )
    user = _user(configuration.user, filesystem, where)
    directory = posixpath.normpath(posixpath.join("/", configuration.working_directory))
    if not _DIRECTORY.fullmatch(directory):
        raise ImageError(f"has the working directory {quoted(directory)}", where, "give another image")
    if not any(setting.startswith("HOME=") for setting in environment):
        environment = (f"HOME={_home(user, filesystem)}", *environment)
    return Program((path, *entrypoint[1:], *arguments), environment, directory, user)


def configuration_target(agent: Agent, configuration: Configuration) -> str:
    """Where an agent looks for its own configuration: what its image gives as ``--config``, or the usual place."""
    words = (*configuration.entrypoint, *configuration.arguments)
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        path = (value if equals else following).removeprefix("file:")
        if name == "--config" and _TARGET.fullmatch(path):
            return path
    return agent.configuration


def _user(user: str, filesystem: RootFileSystem, where: str) -> str:
    """The user of an image in numbers, looked up in the image's own accounts; empty for root."""
    name, _, group = user.partition(":")
    if name in ("", "root", "0"):
        return ""
    if name.isascii() and name.isdecimal():
        uid, gid = name, ""
        for fields in _accounts(filesystem, "/etc/passwd"):
            if fields[2] == name:
                gid = fields[3]
    else:
        found = next((f for f in _accounts(filesystem, "/etc/passwd") if f[0] == name), None)
        if found is None:
            raise ImageError(
                f"is to be run as {quoted(name)}, whom it does not have", where, "give another image"
            )
        uid, gid = found[2], found[3]
    if group and not (group.isascii() and group.isdecimal()):
        entry = next((f for f in _accounts(filesystem, "/etc/group") if f[0] == group), None)
        if entry is None:
            raise ImageError(
                f"has no group {quoted(group)}, as which it is to be run", where, "give another image"
            )
        group = entry[2]
    return f"{uid}:{group or gid or '0'}"


def _home(user: str, filesystem: RootFileSystem) -> str:
    """The home of a user by the image's own accounts, as Docker sets it: ``/`` for one whom they do not have."""
    uid = user.partition(":")[0] or "0"
    found = next((f for f in _accounts(filesystem, "/etc/passwd") if f[2] == uid), [])
    return (found[5] if len(found) > 5 else "") or "/"


def _accounts(filesystem: RootFileSystem, path: str) -> list[list[str]]:
    """Lines of an account file with numbers where they should be."""
    lines = [line.split(":") for line in filesystem.text(path, ACCOUNTS_LIMIT).splitlines()]
    numbers = slice(2, 4 if path == "/etc/passwd" else 3)
    return [f for f in lines if len(f) > 3 and all(n.isascii() and n.isdecimal() for n in f[numbers])]
