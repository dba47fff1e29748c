"""What a boot writes over what the kernel and udev have set: tmpfiles.d, sysfs.conf, commands of services.

Sources: tmpfiles.d(5), systemd-tmpfiles-setup.service; Debian's sysfsutils for sysfs.conf.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from tpu_image.catalogue.requirement import Evidence
from tpu_image.catalogue.systemd import units_of
from tpu_image.formats import tmpfiles
from tpu_image.trees.base import Tree, parents

SYSFS_CONF = "/etc/sysfs.conf"
SYSFS_SERVICE = "sysfsutils.service"
SYSFS_SCRIPT = "/etc/init.d/sysfsutils"


def tmpfiles_lines(tree: Tree) -> list[tuple[str, tmpfiles.Line]]:
    """Give path and content of every line of tmpfiles.d in the order in which files are read."""
    by_name: dict[str, str] = {}
    for directory in tmpfiles.DIRECTORIES:
        for path in tree.files(directory, "*.conf"):
            by_name.setdefault(posixpath.basename(path), path)
    paths = [path for _, path in sorted(by_name.items())]
    return [(path, line) for path in paths for line in tmpfiles.parse(tree.read_text(path))]


def last_write(tree: Tree, attribute: str) -> tuple[str, Evidence] | None:
    """Find what a boot writes last to an attribute of sysfs: the value and where it stands."""
    found = None
    for path, line in tree.derive(tmpfiles_lines):
        if line.kind == "w" and line.means(attribute):
            found = line.argument, Evidence(path, line.number, f"w {line.path}: {line.argument}")
    for value, evidence in _sysfs_settings(tree, attribute):
        found = value, evidence
    for value, evidence in _written_by_services(tree, attribute):
        found = value, evidence
    return found


def _sysfs_settings(tree: Tree, attribute: str) -> Iterator[tuple[str, Evidence]]:
    if not tree.exists(SYSFS_SCRIPT) and units_of(tree).unit(SYSFS_SERVICE) is None:
        return
    main = [SYSFS_CONF] if tree.is_file(SYSFS_CONF) else []
    for path in [*main, *tree.files("/etc/sysfs.d", "*.conf")]:
        for number, content in enumerate(tree.read_text(path).splitlines(), 1):
            name, equals, value = content.partition("=")
            if equals and posixpath.join("/sys", name.strip()) == attribute:
                yield value.strip(), Evidence(path, number, content.strip())


def _written_by_services(tree: Tree, attribute: str) -> Iterator[tuple[str, Evidence]]:
    """Find ``sh -c 'echo VALUE > ATTRIBUTE'`` in services that a boot starts."""
    units = units_of(tree)

    def writes(words: tuple[str, ...]) -> bool:
        text = " ".join(words)
        return attribute in text and "echo" in text

    services = units.services_running(lambda command: writes(command.words), mentioning=(attribute,))
    for unit, command, located in services:
        words = " ".join(command.words).replace('"', " ").replace("'", " ").split()
        value = words[words.index("echo") + 1] if "echo" in words[:-1] else ""
        if units.starts_at_boot(unit.name):
            yield value, Evidence(located.path, located.line, " ".join(command.words))


def changed_mode(tree: Tree, node: str) -> tuple[int, Evidence] | None:
    """Find the mode that tmpfiles.d gives a device node last: the permission bits and where that stands."""
    found = None
    for path, line in tree.derive(tmpfiles_lines):
        if line.mode is None or line.kind not in "zZmcbfF":
            continue
        above = parents(node) if line.kind == "Z" else []
        if any(map(line.means, (node, *above))):
            found = line.mode & 0o777, Evidence(path, line.number, f"{line.kind} {line.path} {line.mode:04o}")
    return found


def closed_directory(tree: Tree, node: str, needed: int = 0o001) -> Evidence | None:
    """Find a line of tmpfiles.d that takes every ``needed`` permission bit from the directory of a node."""
    found = None
    for path, line in tree.derive(tmpfiles_lines):
        directory = posixpath.dirname(node)
        if line.means(directory) and line.mode is not None and line.kind in "dDezZm":
            closes = not line.mode & needed
            where = Evidence(path, line.number, f"{line.kind} {line.path} {line.mode:04o}")
            found = where if closes else None
    return found
