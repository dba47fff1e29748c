"""Command lines of Docker and the programs that take its options (podman, nerdctl).

Source: the reference of ``docker container run``, ``image load``, ``image pull``; podman-run(1). Which
options take no value must be known to find the image; every other option takes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

ENGINES = ("docker", "podman", "nerdctl")

_FLAGS = frozenset(
    (
        "detach",
        "disable-content-trust",
        "env-host",
        "help",
        "http-proxy",
        "init",
        "interactive",
        "no-healthcheck",
        "no-hosts",
        "no-hostname",
        "oom-kill-disable",
        "privileged",
        "publish-all",
        "quiet",
        "read-only",
        "read-only-tmpfs",
        "replace",
        "rm",
        "rmi",
        "rootfs",
        "sig-proxy",
        "tls-verify",
        "tty",
        "all-tags",
        "force",
        "volumes",
        "link",
    )
)
_START_FLAGS = _FLAGS | {"attach"}
_GLOBAL_FLAGS = frozenset(("debug", "tls", "tlsverify"))
_SHORT = {
    "a": "attach",
    "c": "cpu-shares",
    "d": "detach",
    "e": "env",
    "f": "force",
    "h": "hostname",
    "i": "interactive",
    "l": "label",
    "m": "memory",
    "p": "publish",
    "P": "publish-all",
    "q": "quiet",
    "t": "tty",
    "u": "user",
    "v": "volume",
    "w": "workdir",
}
_GLOBAL_SHORT = {"c": "context", "D": "debug", "H": "host", "l": "log-level"}
_LOAD_SHORT = {**_SHORT, "i": "input"}
_SAME = {"net": "network"}
_OBJECTS = ("container", "image")
"""Words that may stand before the action: ``docker image load``."""


class ContainerCommand(NamedTuple):
    """What an engine is asked to do."""

    engine: str
    """Its program, as written."""
    action: str
    """``run``, ``create``, ``start``, ``load``, ``pull``, ``rm``, …"""
    operands: tuple[str, ...] = ()
    """What stands behind the options: the image and its command for ``run``, names for the others."""
    options: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """Long names of options to their values, in order; an option without value has ``true``."""

    @property
    def image(self) -> str:
        """The image of ``run``, ``create`` or ``pull``; empty where none stands there."""
        return self.operands[0] if self.operands and self.action in ("run", "create", "pull") else ""

    def flag(self, name: str) -> bool:
        """Whether an option without value is given, and not as ``=false``."""
        return self.last(name) not in ("", "false", "0", "f", "F", "False", "FALSE")

    def last(self, name: str) -> str:
        """The last value of an option; empty where it is not given."""
        return self.options.get(name, ("",))[-1]


def parse(words: Sequence[str]) -> ContainerCommand | None:
    """Read the words of a command; None where it is none of a container engine."""
    if not words or words[0].rpartition("/")[2] not in ENGINES:
        return None
    _, rest = _options(words[1:], _GLOBAL_SHORT, _GLOBAL_FLAGS)
    if len(rest) > 1 and rest[0] in _OBJECTS:
        rest = rest[1:]
    if not rest:
        return ContainerCommand(words[0], "")
    action = rest[0]
    short = _LOAD_SHORT if action == "load" else _SHORT
    options, operands = _options(rest[1:], short, _START_FLAGS if action == "start" else _FLAGS)
    return ContainerCommand(words[0], action, tuple(operands), options)


def _options(
    words: Sequence[str], short: Mapping[str, str], flags: frozenset[str]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Read options up to the first word that is none."""
    options: dict[str, tuple[str, ...]] = {}
    remaining = list(words)[::-1]
    while remaining and remaining[-1].startswith("-") and remaining[-1] != "-":
        word = remaining.pop()
        if word == "--":
            break
        for name, value in _split(word, short, flags):
            if value is None:
                value = remaining.pop() if remaining else ""
            name = _SAME.get(name, name)
            options[name] = (*options.get(name, ()), value)
    return options, remaining[::-1]


def _split(word: str, short: Mapping[str, str], flags: frozenset[str]) -> list[tuple[str, str | None]]:
    """Give the options of one word; a value of None is the next word."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return [(name, value if equals else "true" if name in flags else None)]
    found: list[tuple[str, str | None]] = []
    for place, letter in enumerate(word[1:], 2):
        name = short.get(letter, letter)
        rest = word[place:]
        if rest.startswith("="):
            return [*found, (name, rest[1:])]
        if name not in flags:
            return [*found, (name, rest or None)]
        found.append((name, "true"))
    return found
