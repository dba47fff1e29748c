"""What an image does at every boot for its TPU: finding what starts a task, and writing what does.

A task is done where something that runs at every boot (R14) ends in a program that does it. That is looked for in
systemd's units, in cloud-init's ``bootcmd`` and per-boot scripts, in ``rc.local`` and in cron's ``@reboot``.
cloud-init's ``runcmd`` and ``write_files`` are once per instance, which the document overlooks.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tpu_image.catalogue import files, runtime_archive
from tpu_image.catalogue.requirement import Evidence, Requirement, Verdict
from tpu_image.catalogue.runtime_archive import Condition
from tpu_image.catalogue.systemd import Units
from tpu_image.runtime import settings
from tpu_image.trees.base import Tree, TreeError
from tpu_image.trees.overlay import Overlay

UNIT_DIRECTORY = "/usr/lib/systemd/system"
ENABLED_DIRECTORY = "/etc/systemd/system/multi-user.target.wants"
SCRIPT_DIRECTORY = "/var/scripts"
SYSUSERS_PATH = "/usr/lib/sysusers.d/tpu-image.conf"

CLOUD_INIT = "/usr/bin/cloud-init"
CLOUD_INIT_DISABLED = "/etc/cloud/cloud-init.disabled"
SCRIPT_LIMIT = 64 * 1024
"""Bytes of a script that are read at most."""
SCRIPT_DEPTH = 2
"""Scripts that start one another, followed from a start."""
SCRIPTS_FOLLOWED = 32
"""Paths that are looked at in one script."""


@dataclass(frozen=True)
class BootTask:
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


@dataclass(frozen=True)
class Start:
    """A command that is started at a boot, and the line that says so."""

    path: str
    line: int
    words: tuple[str, ...]

    @property
    def evidence(self) -> Evidence:
        """Where it is started."""
        return Evidence(self.path, self.line, found=" ".join(self.words))


def judge(requirement: Requirement, tree: Tree, task: BootTask) -> Verdict:
    """Judge whether the task is done at every boot."""
    units = Units(tree)
    problem, evidence = _problem_of_our_unit(units, task)
    if not problem:
        return judge_archive(requirement, tree, f"{task.unit} does it at every boot", evidence)
    for start in _starts(tree, units, task):
        program = examine(tree, start.words, task)
        if program is Program.OURS:
            return judge_archive(requirement, tree, f"{start.path} does it at every boot", start.evidence)
        if program is Program.FOREIGN:
            message = f"{start.path} does it at every boot with a program that is not tpu-image's, which was not tried"
            return requirement.warned(message, start.evidence)
        if program is Program.MISSING:
            problem, evidence = f"{start.path} starts {task.script}, which does not exist", start.evidence
    for start in _once_starts(tree):
        if task.script in start.words or examine(tree, start.words, task) is not Program.UNRELATED:
            message = f"{start.path} does it once per instance, not at every boot"
            return requirement.failed(message, start.evidence)
    return requirement.failed(problem, evidence)


def _problem_of_our_unit(units: Units, task: BootTask) -> tuple[str, Evidence]:
    """Say why our service does not do the task, empty where it does, and where that stands."""
    unit = units.unit(task.unit)
    if unit is None:
        return "nothing does it at boot", Evidence(
            f"{UNIT_DIRECTORY}/{task.unit}", expected="a unit that does it"
        )
    if unit.masked:
        return f"{task.unit} is masked", Evidence(unit.path, found="masked", expected="the unit")
    if unit.problem:
        return f"systemd does not load {task.unit}: {unit.problem}", Evidence(unit.path, found=unit.problem)
    for command, located in unit.commands():
        if _runs_archive(command.words, task):
            evidence = Evidence(located.path, located.line, found=located.value)
            enabled = units.starts_at_boot(task.unit)
            return "" if enabled else f"{task.unit} is not enabled: nothing starts it", evidence
    return f"{task.unit} does something else", Evidence(
        unit.path, expected=f"{settings.ARCHIVE_PATH} {task.arguments[0]}"
    )


def judge_archive(requirement: Requirement, tree: Tree, message: str, evidence: Evidence) -> Verdict:
    """Give the verdict on something that works if the boot runtime does."""
    if not tree.exists(settings.INTERPRETER):
        missing = Evidence(settings.INTERPRETER, expected="Python 3.8 or newer")
        return requirement.failed(
            f"the boot tasks need {settings.INTERPRETER}, which does not exist", missing, evidence
        )
    path = settings.ARCHIVE_PATH
    if not tree.is_file(path):
        return requirement.failed(
            f"{path} does not exist", Evidence(path, expected="the boot runtime"), evidence
        )
    entry = tree.stat(path)
    if entry is not None and not entry.mode & 0o004:
        closed = Evidence(path, found=f"mode {entry.mode:04o}", expected=f"mode {runtime_archive.MODE:04o}")
        return requirement.failed(f"{path} can be read by its owner alone", closed, evidence)
    condition = runtime_archive.examine(tree.read_bytes(path, runtime_archive.SIZE_LIMIT))
    archive = Evidence(path, found=condition.value, expected=Condition.CURRENT.value)
    if condition is Condition.CURRENT:
        return requirement.passed(message, evidence)
    if condition is Condition.OTHER_VERSION:
        return requirement.warned(
            f"{message}, with the runtime of another version of tpu-image", archive, evidence
        )
    return requirement.failed(f"{path} {condition.value}", archive, evidence)


def examine(tree: Tree, words: Sequence[str], task: BootTask, depth: int = SCRIPT_DEPTH) -> Program:
    """Tell what a command is to a task, scripts that it starts included."""
    words = [part for word in words for part in (_words(word) if " " in word else (word,))]
    if _runs_archive(words, task):
        return Program.OURS
    found = {Program.FOREIGN} if any(task.marker in word for word in words) else set()
    for path in [word for word in words if word.startswith("/")][:SCRIPTS_FOLLOWED]:
        text = _script(tree, path)
        if text is None and path == task.script:
            found.add(Program.MISSING)
        elif text and depth:
            found.add(examine(tree, _words(_without_comments(text)), task, depth - 1))
    return min(found, default=Program.UNRELATED)


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))


def _runs_archive(words: Sequence[str], task: BootTask) -> bool:
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


def _starts(tree: Tree, units: Units, task: BootTask) -> Iterator[Start]:
    """Find whatever starts at every boot and may do the task."""
    for text in (settings.ARCHIVE_PATH, task.script, task.marker):
        for unit, command, located in units.services_running(lambda _: True, mentioning=text):
            first_boot = unit.configuration.last("Unit", "ConditionFirstBoot")
            if first_boot is None and units.starts_at_boot(unit.name):
                yield Start(located.path, located.line, command.words)
    yield from _lines_of_script(tree, "/etc/rc.local")
    for path in ("/etc/crontab", *tree.files("/etc/cron.d")):
        yield from _cron_starts(tree, path)
    if _cloud_init_runs(tree):
        for path in tree.files("/var/lib/cloud/scripts/per-boot"):
            if _is_executable(tree, path):
                yield Start(path, 0, (path,))
        for path in _cloud_configs(tree):
            yield from _section(tree, path, "bootcmd")


def _once_starts(tree: Tree) -> Iterator[Start]:
    """Find what cloud-init does once per instance."""
    if _cloud_init_runs(tree):
        for path in _cloud_configs(tree):
            yield from _section(tree, path, "runcmd")
            yield from _section(tree, path, "write_files")


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


def write_unit(overlay: Overlay, name: str, *, enable: bool = True) -> None:
    """Install one of our units, unmasked, and have it start at every boot."""
    path = f"{UNIT_DIRECTORY}/{name}"
    while (unit := Units(overlay).unit(name)) is not None and unit.masked and unit.path.startswith("/etc/"):
        overlay.remove(unit.path)
    overlay.write(path, files.read(name), mode=0o644, owner=(0, 0))
    if enable and not Units(overlay).starts_at_boot(name):
        overlay.symlink(f"{ENABLED_DIRECTORY}/{name}", path)


def write_script(overlay: Overlay, path: str, name: str) -> None:
    """Install one of the scripts that the document names."""
    overlay.write(path, files.read(name), mode=0o755, owner=(0, 0))


def write_sysusers(overlay: Overlay) -> None:
    """Have systemd-sysusers make the owner of the settings."""
    overlay.write(SYSUSERS_PATH, files.read("tpu-image.sysusers.conf"), mode=0o644, owner=(0, 0))


def write_archive(overlay: Overlay) -> None:
    """Install the boot runtime; the content of this version's own is kept."""
    path = settings.ARCHIVE_PATH
    entry = overlay.stat(path)
    content = b""
    if entry is not None and entry.size <= runtime_archive.SIZE_LIMIT:
        content = overlay.read_bytes(path)
    if runtime_archive.examine(content) is not Condition.CURRENT:
        content = runtime_archive.build()
    overlay.write(path, content, mode=runtime_archive.MODE, owner=(0, 0))
