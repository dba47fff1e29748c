"""The script with which people and programs on the VM ask for its metadata (R12).

Document, section "Recupera i metadati della VM".
"""

from __future__ import annotations

from tpu_image.catalogue import boot_starts, boot_tasks, files
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.runtime import settings
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

SCRIPT = f"{boot_tasks.SCRIPT_DIRECTORY}/get-vm-metadata.py"
RESOURCE = "get_vm_metadata.py"


class MetadataScript(Requirement):
    """The script prints a value as it is."""

    id = "metadata.script"
    title = f"{SCRIPT} KEY prints a value of the VM's metadata"
    why = "Start scripts of workloads ask it for their worker number and for attributes of their own."
    source = "document, section “Recupera i metadati della VM” (R12)"
    changes = f"{SCRIPT}, {settings.ARCHIVE_PATH}"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the script and what it runs."""
        del profile
        entry = tree.stat(SCRIPT)
        if entry is None:
            return self.failed(f"{SCRIPT} does not exist", Evidence(SCRIPT, expected="the script"))
        if not entry.mode & 0o004:
            evidence = Evidence(SCRIPT, found=f"mode {entry.mode:04o}", expected="mode 0755")
            return self.failed(f"{SCRIPT} can be read by its owner alone", evidence)
        text = tree.read_text(SCRIPT, boot_starts.SCRIPT_LIMIT)
        if text == files.read(RESOURCE):
            return boot_tasks.judge_archive(
                self, tree, f"{SCRIPT} asks the metadata server", Evidence(SCRIPT)
            )
        return self._judge_foreign(text)

    def _judge_foreign(self, text: str) -> Verdict:
        for number, line in enumerate(text.split("\n"), 1):
            if "print(request.content)" in line:
                evidence = Evidence(SCRIPT, number, found=line.strip(), expected="the text, not bytes")
                message = "prints b'VALUE' in place of VALUE, as the document's script does"
                return self.failed(f"{SCRIPT} line {number} {message}", evidence)
        if "computeMetadata" not in text:
            return self.failed(f"{SCRIPT} does not ask the metadata server", Evidence(SCRIPT))
        return self.warned(f"{SCRIPT} is not tpu-image's and was not tried", Evidence(SCRIPT))

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Install the script and the program behind it; one of somebody else's that may work is kept."""
        verdict = self.inspect(overlay, profile)
        is_foreign = overlay.is_file(SCRIPT) and overlay.read_text(SCRIPT) != files.read(RESOURCE)
        if verdict.status is Status.PASS or (verdict.status is Status.WARN and is_foreign):
            return
        boot_tasks.write_archive(overlay)
        boot_tasks.write_script(overlay, SCRIPT, RESOURCE)


REQUIREMENTS: tuple[Requirement, ...] = (MetadataScript(),)
