"""SELinux: files that are placed in an image carry no label, and an enforcing machine denies them."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.catalogue.placed import PLACED
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.catalogue.running import is_running
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

CONFIGURATION = "/etc/selinux/config"
AUTORELABEL = "/.autorelabel"
RELABELLERS = (
    "/usr/lib/systemd/system-generators/selinux-autorelabel-generator.sh",
    "/lib/systemd/system-generators/selinux-autorelabel-generator.sh",
)
"""What makes a boot relabel where ``/.autorelabel`` is (package policycoreutils)."""


class Configuration(NamedTuple):
    """What ``/etc/selinux/config`` says; ``line`` is where the mode stands."""

    mode: str
    policy: str
    relabels: bool
    line: int


def read_configuration(text: str) -> Configuration:
    """Read the file as libselinux does: the first ``SELINUX=`` decides, case and trailing text aside."""
    mode, policy, relabels, line = "", "targeted", True, 0
    for number, content in enumerate(text.splitlines(), 1):
        key, _, value = content.partition("=")
        value = value.strip()
        if key == "SELINUX" and not mode:
            mode, line = value.lower(), number
        elif key.strip() == "SELINUXTYPE":
            policy = value
        elif key == "AUTORELABEL":
            relabels = value != "0"
    return Configuration(mode, policy, relabels, line)


class LabelsAreRight(Requirement):
    """The first boot labels what was placed while no SELinux kernel was looking."""

    id = "image.selinux"
    title = "files placed in an image with SELinux get their labels before they are used"
    why = (
        "A file written into an image from outside has no SELinux label, and an enforcing machine refuses to "
        "run or read it: the bind script and the boot programs fail with 'permission denied'."
    )
    source = "selinux(8), policycoreutils: selinux-autorelabel"
    changes = f"{AUTORELABEL}, which makes the first boot relabel every file and reboot once"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge by the configured mode, and by what the next boot does about labels."""
        del profile
        text = tree.read_text_if_present(CONFIGURATION)
        if text is None:
            return self.skipped("the image has no SELinux")
        configuration = read_configuration(text)
        mode = configuration.mode
        if not mode.startswith(("enforcing", "permissive")):
            return self.skipped(f"SELinux is off ({CONFIGURATION}: SELINUX={mode})")
        if not has_policy(tree, configuration.policy):
            return self.skipped(f"no SELinux policy {configuration.policy!r} is installed")
        return self._judge(tree, configuration)

    def _judge(self, tree: Tree, configuration: Configuration) -> Verdict:
        evidence = Evidence(CONFIGURATION, configuration.line, f"SELINUX={configuration.mode}")
        placed = [path for path in PLACED if tree.is_file(path)]
        if not placed:
            return self.passed(
                f"SELinux is {configuration.mode}, and no file of a TPU image is there yet", evidence
            )
        if configuration.mode.startswith("permissive"):
            return self.warned(
                "SELinux is permissive: files without label work, and would not once it enforces",
                evidence,
                remedy=f"before enforcing: touch {AUTORELABEL} and reboot",
            )
        if is_running(tree):
            return self.warned(
                "SELinux enforces, and labels are not seen from here",
                evidence,
                remedy=f"run: restorecon -v {' '.join(placed)}",
            )
        if not tree.exists(AUTORELABEL):
            return self.unknown(
                f"SELinux enforces, and whether {placed[0]} has its label cannot be seen in an image",
                evidence,
                Evidence(
                    AUTORELABEL, found="absent", expected="present, or files labelled by an earlier boot"
                ),
                remedy="run: tpu-image apply, or waive image.selinux where a boot has relabelled the image",
            )
        return self._judge_relabelling(tree, configuration, evidence)

    def _judge_relabelling(self, tree: Tree, configuration: Configuration, evidence: Evidence) -> Verdict:
        marker = Evidence(AUTORELABEL, found="present")
        if not any(tree.is_file(path) for path in RELABELLERS):
            return self.failed(
                f"SELinux enforces, and nothing in the image heeds {AUTORELABEL}: files stay unlabelled",
                evidence,
                Evidence(RELABELLERS[0], found="absent", expected="present"),
                remedy="install policycoreutils in the image",
            )
        if not configuration.relabels:
            return self.failed(
                f"AUTORELABEL=0 makes {AUTORELABEL} stop the boot at a root shell",
                evidence,
                marker,
                remedy=f"take AUTORELABEL=0 out of {CONFIGURATION}",
            )
        return self.warned(
            "the first boot relabels every file for SELinux and reboots once: it takes minutes longer",
            evidence,
            marker,
            remedy="to spare machines that, boot the image once and capture it again",
        )

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Order a relabel where files are placed. This comes last in the catalogue, so they are known."""
        del profile
        text = overlay.read_text_if_present(CONFIGURATION)
        if text is None or is_running(overlay) or overlay.exists(AUTORELABEL):
            return
        configuration = read_configuration(text)
        enforces = configuration.mode.startswith("enforcing") and has_policy(overlay, configuration.policy)
        if enforces and (overlay.written or any(overlay.is_file(path) for path in PLACED)):
            overlay.write(AUTORELABEL, "")


def has_policy(tree: Tree, policy: str) -> bool:
    """Whether files of the policy are there for the kernel or for labelling."""
    directory = f"/etc/selinux/{policy}"
    binary = tree.names(f"{directory}/policy", "policy.[0-9]*")
    return bool(binary) or tree.is_file(f"{directory}/contexts/files/file_contexts")
