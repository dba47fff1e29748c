"""What an image does at every boot for its TPU: judging whether it does, and writing what does.

A task is done where something that starts at every boot (R14) comes down to our program, or to another one that
does it. The document relies on cloud-init's ``runcmd`` and ``write_files``, which are once per instance.
"""

from __future__ import annotations

from tpu_image.catalogue import boot_starts, files, runtime_archive
from tpu_image.catalogue.boot_loader import masked_at_boot
from tpu_image.catalogue.boot_starts import BootTask, Examiner, Program, runs_archive
from tpu_image.catalogue.requirement import Evidence, Requirement, Status, Verdict
from tpu_image.catalogue.runtime_archive import Condition
from tpu_image.catalogue.systemd import Unit, Units, units_of
from tpu_image.formats.systemd_unit import UnitFile
from tpu_image.runtime import settings
from tpu_image.trees.base import Kind, Tree
from tpu_image.trees.overlay import Overlay

UNIT_DIRECTORY = "/usr/lib/systemd/system"
ENABLED_DIRECTORY = "/etc/systemd/system/multi-user.target.wants"
SCRIPT_DIRECTORY = "/var/scripts"
SYSUSERS_PATH = "/usr/lib/sysusers.d/tpu-image.conf"

_CONDITIONS = ("Condition", "Assert")
"""How the settings begin that keep a unit from being started (systemd.unit(5))."""
_CONFINING = (
    *("DynamicUser", "ExecCondition", "ExecStartPre", "InaccessiblePaths", "PrivateNetwork", "ProtectHome"),
    *("ReadOnlyPaths", "RootDirectory", "RootImage", "TemporaryFileSystem", "User"),
)
"""Settings that take from a service what our tasks need, or fail before them (systemd.exec(5))."""


def judge(requirement: Requirement, tree: Tree, task: BootTask) -> Verdict:
    """Judge whether the task is done at every boot."""
    units = units_of(tree)
    verdict = _judge_our_unit(requirement, tree, units, task)
    if verdict.status is not Status.FAIL:
        return verdict
    examiner = Examiner(tree, task)
    for start in boot_starts.every_boot(tree, units, task):
        program = examiner.examine(start.words)
        if program is Program.OURS:
            return judge_archive(requirement, tree, f"{start.path} does it at every boot", start.evidence)
        if program is Program.FOREIGN:
            message = f"{start.path} does it at every boot, with a program that is not tpu-image's and was not tried"
            return requirement.warned(message, start.evidence)
        if program is Program.MISSING:
            verdict = requirement.failed(
                f"{start.path} starts {task.script}, which does not exist", start.evidence
            )
    for start in boot_starts.once_per_instance(tree):
        if examiner.is_about(start.words):
            message = f"{start.path} does it once per instance, not at every boot"
            return requirement.failed(message, start.evidence)
    return verdict


def _judge_our_unit(requirement: Requirement, tree: Tree, units: Units, task: BootTask) -> Verdict:
    unit = units.unit(task.unit)
    if unit is None:
        missing = Evidence(f"{UNIT_DIRECTORY}/{task.unit}", expected="a unit that does it")
        return requirement.failed("nothing does it at boot", missing)
    if unit.masked:
        return requirement.failed(
            f"{task.unit} is masked", Evidence(unit.path, found="masked", expected="the unit")
        )
    masking = masked_at_boot(tree, task.unit)
    if masking is not None:
        remedy = f"take {masking.found} off the boot entry and out of the GRUB defaults"
        return requirement.failed(f"a boot entry masks {task.unit}", masking, remedy=remedy)
    for command, located in unit.commands():
        if runs_archive(command.words, task):
            evidence = Evidence(located.path, located.line, found=located.value)
            if units.starts_at_boot(task.unit):
                hindrance = _hindrance(unit, task)
                if hindrance is not None:
                    message = f"{hindrance.path}:{hindrance.line} may keep {task.unit} from doing it: {hindrance.found}"
                    remedy = f"look at it, then on a TPU VM: systemctl status {task.unit}"
                    return requirement.unknown(message, hindrance, evidence, remedy=remedy)
                return judge_archive(requirement, tree, f"{task.unit} does it at every boot", evidence)
            return requirement.failed(f"{task.unit} is not enabled: nothing starts it", evidence)
    problem = f"is not loaded by systemd: {unit.problem}" if unit.problem else "does something else"
    wanted = Evidence(unit.path, expected=f"{settings.ARCHIVE_PATH} {task.arguments[0]}")
    remedy = f"remove {unit.path} and its drop-ins, then run: tpu-image apply"
    return requirement.failed(f"{task.unit} {problem}", wanted, remedy=remedy)


def _hindrance(unit: Unit, task: BootTask) -> Evidence | None:
    """Find the first setting beside those of our unit on which its start, or its writing, depends."""
    ours = {(s.section, s.key, s.value) for s in UnitFile(files.read(task.unit)).settings}
    for path, file in unit.configuration.files:
        for setting in file.settings:
            decides = (
                setting.key.startswith(_CONDITIONS)
                if setting.section == "Unit"
                else setting.key in _CONFINING
            )
            if decides and setting.value and (setting.section, setting.key, setting.value) not in ours:
                return Evidence(path, setting.line, f"{setting.key}={setting.value}", "no such setting")
    return None


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


def write_unit(overlay: Overlay, name: str, *, enable: bool = True) -> None:
    """Install one of our units, unmasked, and have it start at every boot."""
    override = f"/etc/systemd/system/{name}"
    if _is_mask(overlay, override):
        overlay.remove(override)
    path = f"{UNIT_DIRECTORY}/{name}"
    overlay.write(path, files.read(name), mode=0o644, owner=(0, 0))
    if enable:
        overlay.symlink(f"{ENABLED_DIRECTORY}/{name}", path)


def _is_mask(tree: Tree, path: str) -> bool:
    entry = tree.lstat(path)
    if entry is None:
        return False
    return not entry.size if entry.kind is Kind.FILE else entry.target == "/dev/null"


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
