"""Docker's own defaults for containers: daemon.json and dockerd's command line (dockerd(8))."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_image.catalogue.limits_in_effect import Item
from tpu_image.catalogue.requirement import Evidence
from tpu_image.catalogue.systemd import Unit
from tpu_image.formats.resource_limits import UNLIMITED, Limit
from tpu_image.trees.base import Tree

DAEMON_JSON = "/etc/docker/daemon.json"
OPTION = "--default-ulimit"


def container_defaults(tree: Tree, docker: Unit, item: Item) -> Iterator[tuple[Limit, Evidence]]:
    """Yield each default that dockerd is told to give containers; what it would not accept is left out."""
    for command, located in docker.commands():
        for argument in _option_values(command.arguments):
            limit = _parse_option(argument.partition("=")[2])
            if argument.partition("=")[0] == item.name and limit is not None:
                evidence = Evidence(located.path, located.line, f"{OPTION} {argument}", item.expectation)
                yield limit, evidence
    limit = _daemon_default(tree.read_text_if_present(DAEMON_JSON) or "", item)
    if limit is not None:
        found = f"default-ulimits.{item.name} {item.show(limit)}"
        yield limit, Evidence(DAEMON_JSON, 0, found, item.expectation)


def _option_values(arguments: tuple[str, ...]) -> Iterator[str]:
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == OPTION and equals:
            yield value
        elif argument == OPTION:
            yield from arguments[position + 1 : position + 2]


def _parse_option(text: str) -> Limit | None:
    """Read ``SOFT[:HARD]`` in the kernel's units; -1 is unlimited."""
    values = [_number(word) for word in text.split(":")]
    if not 1 <= len(values) <= 2 or values[0] is None or values[-1] is None:
        return None
    return Limit(values[0], values[-1])


def _number(word: str) -> int | None:
    if word == "-1":
        return UNLIMITED
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 20 else None


def _daemon_default(text: str, item: Item) -> Limit | None:
    if item.name not in text:
        return None
    import json

    try:
        default = json.loads(text)["default-ulimits"][item.name]
        soft, hard = (_number(str(int(default[half]))) for half in ("Soft", "Hard"))
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return None if soft is None or hard is None else Limit(soft, hard)
