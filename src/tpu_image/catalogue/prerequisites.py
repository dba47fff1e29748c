"""What the base image must bring: Python 3 and the gcloud CLI (R1).

Source: the document, section "Prerequisiti". The CLI comes as a Debian package, as a snap (Ubuntu seeds it in cloud
images and installs it at first boot), or as an archive unpacked anywhere.
"""

from __future__ import annotations

from tpu_image.catalogue import snaps
from tpu_image.catalogue.distribution import distribution_of
from tpu_image.catalogue.programs import Program, find_program
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.trees.base import Tree

SOURCE = "document, section “Prerequisiti” (R1)"

UNPACKED = (
    "/usr/lib/google-cloud-sdk",
    "/usr/lib64/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/usr/local/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/root/google-cloud-sdk",
)
"""Where packages and people put Google's archive."""

SNAP = "google-cloud-cli"
SNAP_NAMES = (SNAP, "google-cloud-sdk")


class PythonPresent(Requirement):
    """Python 3 can be run as ``python3``."""

    id = "prerequisites.python"
    title = "python3 is on the PATH and can run"
    why = "The boot tasks and the gcloud CLI are Python programs."
    source = SOURCE
    remedy = "install Python 3 in the image"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Look for python3 where a service looks for it."""
        program = find_program(tree, "python3", profile.architecture)
        if program is not None and not program.problem:
            return self.passed(f"{program.path} can run", Evidence(program.path))
        install = _install_command(
            tree, {"debian": "apt-get install python3", "fedora": "dnf install python3"}
        )
        return _absent(self, "python3", program, install or self.remedy)


class GcloudPresent(Requirement):
    """The gcloud CLI can be run as ``gcloud``, now or from the first boot on."""

    id = "prerequisites.gcloud"
    title = "the gcloud CLI is on the PATH and can run, or is a snap that the first boot installs"
    why = "The document's steps and many workloads call it."
    source = SOURCE
    remedy = "install the gcloud CLI in the image"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Look for it on the PATH, among snaps, and unpacked somewhere."""
        program = find_program(tree, "gcloud", profile.architecture)
        if program is not None and not program.problem:
            return self.passed(f"{program.path} can run", Evidence(program.path))
        snap = _snap(tree)
        if snap:
            return self.passed(f"the snap {SNAP} brings it ({snap})", Evidence(snap))
        for folder in UNPACKED:
            path = f"{folder}/bin/gcloud"
            if tree.is_file(path):
                return self.failed(
                    f"{path} is there and not on the PATH",
                    Evidence(path, found="on no directory of the PATH", expected="/usr/bin/gcloud"),
                    remedy=f"in the image: ln -s {path} /usr/bin/gcloud",
                )
        return _absent(self, "gcloud", program, _how_to_get_gcloud(tree))


def _absent(requirement: Requirement, name: str, program: Program | None, remedy: str) -> Verdict:
    if program is None:
        evidence = Evidence(f"/usr/bin/{name}", found="absent", expected="an executable program")
        return requirement.failed(f"{name} is not on the PATH", evidence, remedy=remedy)
    evidence = Evidence(program.path, found=program.problem, expected="an executable program")
    return requirement.failed(f"{name} cannot run: {program.path} {program.problem}", evidence, remedy=remedy)


def _snap(tree: Tree) -> str:
    """Path of the CLI's snap, installed or seeded with snapd there to install it; empty where there is none."""
    for name in SNAP_NAMES:
        if path := snaps.installed(tree, name):
            return path
    for name in SNAP_NAMES:
        path = snaps.seeded(tree, name)
        if path and snaps.has_snapd(tree) and snaps.is_listed(tree, name):
            return path
    return ""


def _install_command(tree: Tree, commands: dict[str, str]) -> str:
    distribution = distribution_of(tree)
    return next(
        (f"in the image: {command}" for family, command in commands.items() if distribution.is_a(family)), ""
    )


def _how_to_get_gcloud(tree: Tree) -> str:
    if tree.is_file("/usr/bin/snap"):
        return f"in the image: snap install {SNAP} --classic"
    return (
        "unpack Google's archive to /usr/lib/google-cloud-sdk and link bin/gcloud to /usr/bin/gcloud;"
        " tpu-image build does it with gcloud: ARCHIVE in the specification"
    )


REQUIREMENTS: tuple[Requirement, ...] = (PythonPresent(), GcloudPresent())
