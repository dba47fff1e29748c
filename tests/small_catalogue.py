"""A catalogue of a few requirements, for tests of what reads it: they say nothing about TPUs.

``python -m small_catalogue`` is the command line with this catalogue in place of the real one.
"""

from __future__ import annotations

from tpu_image import catalogue
from tpu_image.catalogue.requirement import Evidence, Platform, Profile, Requirement, Verdict
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay


class Greeting(Requirement):
    """A file with one right content."""

    id = "kernel.greeting"
    title = "The greeting is there"
    why = "Every machine greets."
    source = "R0, section of the greeting"
    changes = "/etc/greeting"
    content = "hello\n"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        text = tree.read_text_if_present("/etc/greeting")
        if text == self.content:
            return self.passed("the greeting is right")
        found = Evidence("/etc/greeting", 1 if text else 0, found=text or "", expected=self.content)
        return self.failed("the greeting is wrong" if text else "no greeting", found)

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        if overlay.read_text_if_present("/etc/greeting") != self.content:
            overlay.write("/etc/greeting", self.content)


class Rule(Requirement):
    """A udev rule, so that changes have commands to follow them."""

    id = "vfio.rule"
    title = "The rule is there"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        if tree.is_file("/etc/udev/rules.d/99-tpu.rules"):
            return self.passed("the rule is there", Evidence("/etc/udev/rules.d/99-tpu.rules"))
        return self.failed("no rule")

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        if not overlay.is_file("/etc/udev/rules.d/99-tpu.rules"):
            overlay.write("/etc/udev/rules.d/99-tpu.rules", f"mode {profile.device_mode:o}\n")


class OnGke(Requirement):
    """One that the default profile skips."""

    id = "gke.tools"
    title = "The tools are there"

    def applies(self, profile: Profile) -> str:
        return "" if profile.platform is Platform.GKE else "GKE alone needs it"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        return self.warned("no tools", remedy="install the tools")


class Running(Requirement):
    """One about a running machine."""

    id = "machine.kernel"
    title = "The kernel runs"
    live = True

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        if tree.is_file("/proc/version"):
            return self.passed("it runs")
        return self.unknown("no /proc", remedy="mount /proc")


class RunningToo(Running):
    """Another, so that there are two to put together."""

    id = "machine.thp"


REQUIREMENTS = (Greeting(), Rule(), OnGke(), Running(), RunningToo())


def install() -> None:
    """Have it stand in for the real catalogue in this process."""
    catalogue.requirements = lambda: REQUIREMENTS  # type: ignore[assignment]


if __name__ == "__main__":
    from tpu_image.cli import run

    install()
    run()
