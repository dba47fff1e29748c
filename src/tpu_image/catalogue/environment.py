"""The settings of the TPU and of the gcloud CLI that programs find at every boot (R11).

Document, section "Configura le variabili di ambiente".
"""

from __future__ import annotations

from tpu_image.catalogue import accounts, boot_tasks, vfio_live
from tpu_image.catalogue.boot_starts import BootTask
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.formats import FormatError, pam_environment, tpu_env
from tpu_image.formats.tpu_env import Assignment
from tpu_image.formats.variable_names import READONLY_IN_SHELLS
from tpu_image.runtime import settings, system_environment
from tpu_image.trees.base import Entry, Tree
from tpu_image.trees.overlay import Overlay

SECTION = "document, section “Configura le variabili di ambiente” (R11)"
SCRIPT = f"{boot_tasks.SCRIPT_DIRECTORY}/configure-env-vars.sh"
SYSTEM_ENVIRONMENT_UNIT = "tpu-image-system-environment.service"
SYSTEM_ENVIRONMENT_CHANGES = (
    f"{settings.SYSTEM_ENVIRONMENT_PATH}, {settings.KNOWN_ENVIRONMENT_PATH}, {settings.ARCHIVE_PATH}, "
    f"{SYSTEM_ENVIRONMENT_UNIT} (enabled)"
)
READY_TARGET = "tpu-image-ready.target"
"""Others order themselves after it."""

TPU_ENV_TASK = BootTask(
    "tpu-image-environment.service", ("environment",), SCRIPT, f"attributes/{settings.ATTRIBUTE}"
)
CLOUDSDK_PYTHON_TASK = BootTask(
    SYSTEM_ENVIRONMENT_UNIT, ("system-environment", "cloudsdk-python"), SCRIPT, settings.CLOUDSDK_PYTHON
)


class TpuEnv(Requirement):
    """The tpu-env attribute becomes a file at every boot."""

    id = "environment.tpu-env"
    title = f"the TPU's settings are written to {settings.ENVIRONMENT_PATH} at every boot"
    why = (
        "jax, PyTorch/XLA and the agents learn the topology, the worker's number and the metrics ports from it; "
        "they change from machine to machine, so an image cannot hold them."
    )
    source = SECTION
    changes = (
        f"{settings.ARCHIVE_PATH}, {SCRIPT}, {TPU_ENV_TASK.unit} (enabled), {READY_TARGET}, "
        f"{boot_tasks.SYSUSERS_PATH}"
    )

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Find what writes the file at every boot."""
        del profile
        return boot_tasks.judge(self, tree, TPU_ENV_TASK)

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Install our unit, its user and its program."""
        if self.inspect(overlay, profile).status is Status.PASS:
            return
        boot_tasks.write_archive(overlay)
        boot_tasks.write_script(overlay, SCRIPT, "configure-env-vars.sh")
        boot_tasks.write_sysusers(overlay)
        boot_tasks.write_unit(overlay, READY_TARGET, enable=False)
        boot_tasks.write_unit(overlay, TPU_ENV_TASK.unit)


class CloudsdkPython(Requirement):
    """Logins know which Python the gcloud CLI runs with."""

    id = "environment.cloudsdk-python"
    title = f"{settings.CLOUDSDK_PYTHON} names a Python in {settings.SYSTEM_ENVIRONMENT_PATH}"
    why = "gcloud otherwise takes whichever Python it finds first, be it a user's virtual environment."
    source = SECTION
    changes = f"{SYSTEM_ENVIRONMENT_CHANGES}, {SCRIPT}"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the value that stands there, or else what sets it at every boot."""
        del profile
        path = settings.SYSTEM_ENVIRONMENT_PATH
        current = pam_environment.effective(read_system_environment(tree), settings.CLOUDSDK_PYTHON)
        if current is None or not (current.value or "").strip():
            return judge_correction(self, tree, CLOUDSDK_PYTHON_TASK)
        value = current.value or ""
        evidence = Evidence(path, current.line, found=value, expected=settings.INTERPRETER)
        if not _is_program(tree, value):
            return self.failed(f"{settings.CLOUDSDK_PYTHON} names {value}, which does not exist", evidence)
        return self.passed(f"{settings.CLOUDSDK_PYTHON} is {value}", evidence)

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Set it in the image, and have a unit keep it set, unless a good value stands there."""
        del profile
        current = pam_environment.effective(read_system_environment(overlay), settings.CLOUDSDK_PYTHON)
        if current is not None and _is_program(overlay, current.value or ""):
            return
        text = pam_environment.set_value(
            read_system_environment(overlay), settings.CLOUDSDK_PYTHON, settings.INTERPRETER
        )
        write_system_environment(overlay, text)
        boot_tasks.write_script(overlay, SCRIPT, "configure-env-vars.sh")


def read_system_environment(tree: Tree) -> str:
    """Give the text of ``/etc/environment``, empty where there is none.

    Raises:
        TreeError: it cannot be read.
        FormatError: pam_env stops reading it; the message names the file.
    """
    path = settings.SYSTEM_ENVIRONMENT_PATH
    text = tree.read_text_if_present(path, system_environment.SIZE_LIMIT) or ""
    try:
        pam_environment.parse(text)
    except FormatError as error:
        raise FormatError(f"{path}: {error.reason}", error.line) from error
    return text


def judge_correction(requirement: Requirement, tree: Tree, task: BootTask) -> Verdict:
    """Judge whether every boot mends ``/etc/environment``, which lacks what the task sets.

    Raises:
        TreeError, FormatError: see :func:`read_system_environment`.
    """
    known = tree.read_text_if_present(settings.KNOWN_ENVIRONMENT_PATH, system_environment.SIZE_LIMIT)
    if known is not None and known == read_system_environment(tree):
        same = Evidence(
            settings.KNOWN_ENVIRONMENT_PATH, found=f"a copy of {settings.SYSTEM_ENVIRONMENT_PATH}"
        )
        return requirement.failed(f"{task.unit} takes {settings.SYSTEM_ENVIRONMENT_PATH} for right", same)
    return boot_tasks.judge(requirement, tree, task)


def write_system_environment(overlay: Overlay, text: str) -> None:
    """Write ``/etc/environment``, and have a unit mend it at every boot at which it is no longer this."""
    overlay.write(settings.SYSTEM_ENVIRONMENT_PATH, text)
    boot_tasks.write_archive(overlay)
    original = overlay.stat(settings.SYSTEM_ENVIRONMENT_PATH)
    # A copy that more may read than the original would give it away.
    mode = original.mode if original else 0o600
    overlay.write(settings.KNOWN_ENVIRONMENT_PATH, text, mode=mode, owner=(0, 0))
    boot_tasks.write_unit(overlay, SYSTEM_ENVIRONMENT_UNIT)


def _is_program(tree: Tree, value: str) -> bool:
    places = [""] if value.startswith("/") else ["/usr/local/bin/", "/usr/bin/"]
    return any((entry := tree.stat(place + value)) is not None and entry.executable for place in places)


class MachineEnvironment(Requirement):
    """The running machine has the settings where programs look for them."""

    id = "machine.environment"
    title = f"{settings.ENVIRONMENT_PATH} and {settings.SYSTEM_ENVIRONMENT_PATH} hold this machine's settings"
    why = "Programs read them silently: what is missing or unreadable shows as a hang or a wrong topology later."
    source = SECTION
    remedy = f"run: systemctl restart {TPU_ENV_TASK.unit}; then read: journalctl -u {TPU_ENV_TASK.unit}"
    live = True

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the files of the machine that runs."""
        del profile
        path = settings.ENVIRONMENT_PATH
        entry = tree.stat(path)
        if entry is None:
            return self._judge_missing(tree)
        try:
            assignments = tpu_env.parse(tree.read_text(path, tpu_env.SIZE_LIMIT))
        except FormatError as error:
            return self.failed(f"{path} {error}", Evidence(path, error.line, found=error.reason))
        return (
            self._judge_access(tree, entry)
            or self._judge_values(assignments)
            or self._judge_system_environment(tree)
            or self.passed(f"{path} holds {len(tpu_env.values(assignments))} variables", Evidence(path))
        )

    def _judge_missing(self, tree: Tree) -> Verdict:
        path = settings.ENVIRONMENT_PATH
        if not vfio_live.functions(tree):
            return self.skipped(f"no TPU is present, and so no {path}")
        return self.failed(
            f"{path} does not exist on a machine with a TPU", Evidence(path, expected="settings")
        )

    def _judge_access(self, tree: Tree, entry: Entry) -> Verdict | None:
        path = settings.ENVIRONMENT_PATH
        evidence = Evidence(path, found=f"mode {entry.mode:04o}, uid {entry.uid}", expected="mode 0644")
        if entry.mode & 0o022:
            return self.failed(f"others than its owner can write {path}: mode {entry.mode:04o}", evidence)
        if entry.mode & 0o444 != 0o444:
            return self.failed(f"not every user can read {path}: mode {entry.mode:04o}", evidence)
        owner = accounts.user_id(tree, settings.USER)
        if entry.uid not in (0, owner):
            return self.failed(f"{path} belongs to uid {entry.uid}, not to {settings.USER}", evidence)
        return None

    def _judge_values(self, assignments: list[Assignment]) -> Verdict | None:
        path = settings.ENVIRONMENT_PATH
        for assignment in assignments:
            if assignment.shell and assignment.name in READONLY_IN_SHELLS:
                evidence = Evidence(path, assignment.line, found=f"{assignment.name}={assignment.value}")
                return self.failed(
                    f"sourcing {path} ends at {assignment.name}, which is readonly in bash", evidence
                )
        last = {assignment.name: assignment for assignment in assignments}
        if not last:
            return self.failed(f"{path} holds no variable", Evidence(path, expected="the tpu-env attribute"))
        worker = last.get("WORKER_ID")
        if worker is None or not worker.value.strip():
            state = "is not set" if worker is None else "is blank"
            evidence = Evidence(
                path, worker.line if worker else 0, found="", expected="the number of this worker"
            )
            message = f"WORKER_ID {state}: this is not worker 0, its number is not known"
            return self.warned(message, evidence, remedy="look at the tpu-env attribute of the VM")
        return None

    def _judge_system_environment(self, tree: Tree) -> Verdict | None:
        text = read_system_environment(tree)
        corrected = system_environment.with_storage_timeouts(system_environment.with_cloudsdk_python(text))
        if corrected == text:
            return None
        wanted = {assignment.name for assignment in pam_environment.parse(corrected)}
        lacking = [
            name
            for name in (settings.CLOUDSDK_PYTHON, *settings.STORAGE_TIMEOUTS)
            if name in wanted
            and pam_environment.effective(text, name) != pam_environment.effective(corrected, name)
        ]
        path = settings.SYSTEM_ENVIRONMENT_PATH
        return self.failed(
            f"{path} lacks {', '.join(lacking)}",
            Evidence(path, expected=", ".join(lacking)),
            remedy=f"run: systemctl restart {SYSTEM_ENVIRONMENT_UNIT}",
        )


REQUIREMENTS: tuple[Requirement, ...] = (TpuEnv(), CloudsdkPython(), MachineEnvironment())
