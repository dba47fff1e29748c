"""What a machine starts when it boots, and whether that does a task of ours.

Looked at are systemd's units, cloud-init's ``bootcmd`` and per-boot scripts, ``rc.local`` and cron's ``@reboot``, all
of which run at every boot; and cloud-init's ``runcmd`` and ``write_files``, which are once per instance.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpu_image.catalogue.bind_script import code
from tpu_image.catalogue.boot_loader import masked_at_boot
from tpu_image.catalogue.requirement import Evidence
from tpu_image.catalogue.systemd import Units
from tpu_image.runtime import settings
from tpu_image.trees.base import Tree, TreeError

CLOUD_INIT = "/usr/bin/cloud-init"
CLOUD_INIT_DISABLED = "/etc/cloud/cloud-init.disabled"
CRON_PROGRAMS = ("/usr/sbin/cron", "/usr/sbin/crond")
SCRIPT_LIMIT = 64 * 1024
"""Bytes of a script or configuration that are read at most."""
SCRIPTS_FOLLOWED = 128
"""Different paths that are looked into for one task."""


_CLOUD_KEYS = ("bootcmd", "runcmd", "write_files")


class BootTask(NamedTuple):
    """Work of every boot: how it is recognised and what does it in our images."""

    unit: str
    """Our service."""
    arguments: tuple[str, ...]
    """Tasks of the archive, any of which does it."""
    script: str
    """The document's path."""
    marker: str
    """Text that whatever program does it has to hold."""


class Program(enum.IntEnum):
    """What a started command is to a task; of several, the first in this order counts."""

    OURS = enum.auto()
    """It comes down to our archive."""
    FOREIGN = enum.auto()
    """A program of somebody else's that has to do with it."""
    MISSING = enum.auto()
    """The document's script, and there is none."""
    UNRELATED = enum.auto()


class Start(NamedTuple):
    """A command that is started at a boot, and the line that says so."""

    path: str
    line: int
    words: tuple[str, ...]

    @property
    def evidence(self) -> Evidence:
        """Where it is started."""
        return Evidence(self.path, self.line, found=" ".join(self.words))


class Examiner:
    """Tells what commands are to one task, scripts that they start included; each path is looked into once."""

    def __init__(self, tree: Tree, task: BootTask) -> None:
        self._tree = tree
        self._task = task
        self._known: dict[str, Program] = {}

    def examine(self, words: Sequence[str]) -> Program:
        """Tell what a command is, be it a program with arguments or a line of shell."""
        words = [part for word in words for part in (_words(word) if " " in word else (word,))]
        if runs_archive(words, self._task):
            return Program.OURS
        found = {Program.FOREIGN} if any(self._task.marker in word for word in words) else set()
        found.update(self._examine_file(word) for word in words if word.startswith("/"))
        return min(found, default=Program.UNRELATED)

    def is_about(self, words: Sequence[str]) -> bool:
        """Whether a command has to do with the task, even where the script that it names is yet to be written."""
        return self._task.script in words or self.examine(words) is not Program.UNRELATED

    def _examine_file(self, path: str) -> Program:
        if path not in self._known and len(self._known) < SCRIPTS_FOLLOWED:
            self._known[path] = Program.UNRELATED  # should it start itself
            text = _script(self._tree, path)
            if text is None:
                self._known[path] = Program.MISSING if path == self._task.script else Program.UNRELATED
            else:
                self._known[path] = self.examine(_words(code(text)))
        return self._known.get(path, Program.UNRELATED)


def runs_archive(words: Sequence[str], task: BootTask) -> bool:
    """Whether a command has our archive do the task."""
    return any(settings.ARCHIVE_PATH in word for word in words) and any(
        word in task.arguments for word in words
    )


def _script(tree: Tree, path: str) -> str | None:
    """Give the text of a script; None where it is missing, and empty where it is no text."""
    if not tree.exists(path):
        return None
    try:
        content = tree.read_bytes(path, SCRIPT_LIMIT)
    except TreeError:
        return ""
    return "" if b"\0" in content else content.decode("utf-8", "replace")


def every_boot(tree: Tree, units: Units, task: BootTask) -> Iterator[Start]:
    """Find whatever starts at every boot and may do the task."""
    mentioning = (settings.ARCHIVE_PATH, task.script, task.marker)
    for unit, command, located in units.services_running(lambda _: True, mentioning=mentioning):
        first_boot = unit.configuration.last("Unit", "ConditionFirstBoot")
        if first_boot is None and units.starts_at_boot(unit.name) and masked_at_boot(tree, unit.name) is None:
            yield Start(located.path, located.line, command.words)
    yield from _lines_of_script(tree, "/etc/rc.local")
    if any(map(tree.exists, CRON_PROGRAMS)):
        for path in ("/etc/crontab", *tree.files("/etc/cron.d")):
            yield from _cron_starts(tree, path)
    if _cloud_init_runs(tree):
        for path in tree.files("/var/lib/cloud/scripts/per-boot"):
            if _is_executable(tree, path):
                yield Start(path, 0, (path,))
        yield from tree.derive(_cloud_init_starts)["bootcmd"]


def _cloud_init_starts(tree: Tree) -> dict[str, list[Start]]:
    """Give the lines of the keys that make cloud-init run or write something."""
    paths = list(_cloud_configs(tree)) if _cloud_init_runs(tree) else []
    return {key: [start for path in paths for start in _section(tree, path, key)] for key in _CLOUD_KEYS}


def once_per_instance(tree: Tree) -> Iterator[Start]:
    """Find what cloud-init does once per instance."""
    starts = tree.derive(_cloud_init_starts)
    yield from starts["runcmd"]
    yield from starts["write_files"]


def _lines_of_script(tree: Tree, path: str) -> Iterator[Start]:
    if _is_executable(tree, path):
        for number, line in enumerate((_script(tree, path) or "").split("\n"), 1):
            if not line.lstrip().startswith("#"):
                yield Start(path, number, _words(line))


def _cron_starts(tree: Tree, path: str) -> Iterator[Start]:
    text = (_script(tree, path) or "") if tree.is_file(path) else ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("@reboot"):
            yield Start(path, number, _words(line)[2:])


def _is_executable(tree: Tree, path: str) -> bool:
    entry = tree.stat(path)
    return entry is not None and entry.executable


def _cloud_init_runs(tree: Tree) -> bool:
    return tree.exists(CLOUD_INIT) and not tree.exists(CLOUD_INIT_DISABLED)


def _cloud_configs(tree: Tree) -> Iterator[str]:
    for path in ("/etc/cloud/cloud.cfg", *tree.files("/etc/cloud/cloud.cfg.d", "*.cfg")):
        if tree.is_file(path):
            yield path
    for seed in ("nocloud", "nocloud-net"):
        for name in ("user-data", "vendor-data"):
            path = posixpath.join("/var/lib/cloud/seed", seed, name)
            if tree.is_file(path):
                yield path


def _section(tree: Tree, path: str, key: str) -> Iterator[Start]:
    """Lines of one top-level key of a cloud-config, split at blanks: enough to see which scripts they name."""
    inside = False
    for number, line in enumerate((_script(tree, path) or "").split("\n"), 1):
        if line[:1] not in ("", " ", "\t", "-", "#"):
            inside = line.startswith(f"{key}:")
        if inside and not line.lstrip().startswith("#"):
            yield Start(path, number, _words(line))


def _words(line: str) -> tuple[str, ...]:
    for punctuation in "\"'[],;&|()":
        line = line.replace(punctuation, " ")
    return tuple(line.split())
