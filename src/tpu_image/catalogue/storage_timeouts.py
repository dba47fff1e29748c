"""Time-outs of the Cloud Storage client that fit a TPU's work (R13).

Document, section "Aumenta i timeout di Cloud Storage".
"""

from __future__ import annotations

from tpu_image.catalogue import boot_tasks
from tpu_image.catalogue.boot_starts import BootTask
from tpu_image.catalogue.environment import (
    SYSTEM_ENVIRONMENT_CHANGES,
    SYSTEM_ENVIRONMENT_UNIT,
    judge_correction,
    read_system_environment,
    write_system_environment,
)
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.formats import pam_environment
from tpu_image.runtime import settings, system_environment
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

SCRIPT = f"{boot_tasks.SCRIPT_DIRECTORY}/configure-gcs-timeouts.sh"
TASK = BootTask(
    SYSTEM_ENVIRONMENT_UNIT,
    ("system-environment", "storage-timeouts"),
    SCRIPT,
    "GCS_REQUEST_CONNECTION_TIMEOUT_SECS",
)


class StorageTimeouts(Requirement):
    """Logins have the time-outs, be they in the image or set at boot."""

    id = "storage.timeouts"
    title = f"Cloud Storage time-outs in {settings.SYSTEM_ENVIRONMENT_PATH} are at least the document's"
    why = "Reading checkpoints and data from Cloud Storage with many workers at once runs into the defaults."
    source = "document, section “Aumenta i timeout di Cloud Storage” (R13)"
    changes = f"{SYSTEM_ENVIRONMENT_CHANGES}, {SCRIPT}"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the values that stand there, or else what sets them at every boot."""
        del profile
        path = settings.SYSTEM_ENVIRONMENT_PATH
        lacking = list(_lacking(read_system_environment(tree)))
        if not lacking:
            return self.passed(f"all {len(settings.STORAGE_TIMEOUTS)} stand in {path}", Evidence(path))
        verdict = judge_correction(self, tree, TASK)
        if verdict.status is not Status.FAIL:
            return verdict
        names = ", ".join(evidence.expected.partition("=")[0] for evidence in lacking)
        return self.failed(f"{path} lacks {names}; {verdict.message}", *lacking, *verdict.evidence)

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Set them in the image, and have a unit keep them set, unless all stand there."""
        del profile
        if not _lacking(read_system_environment(overlay)):
            return
        text = system_environment.with_storage_timeouts(read_system_environment(overlay))
        write_system_environment(overlay, text)
        boot_tasks.write_script(overlay, SCRIPT, "configure-gcs-timeouts.sh")


def _lacking(text: str) -> list[Evidence]:
    """Give the time-outs that are missing or too short, each with its line."""
    found = []
    for name, seconds in settings.STORAGE_TIMEOUTS.items():
        current = pam_environment.effective(text, name)
        value = "" if current is None else current.value or ""
        if not system_environment.is_long_enough(value, seconds):
            line = 0 if current is None else current.line
            found.append(
                Evidence(settings.SYSTEM_ENVIRONMENT_PATH, line, value, expected=f"{name}={seconds}")
            )
    return found


REQUIREMENTS: tuple[Requirement, ...] = (StorageTimeouts(),)
