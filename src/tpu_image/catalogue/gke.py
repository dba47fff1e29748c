"""What GKE's TPU device plugin finds and sets on a node.

Source: GoogleCloudPlatform/gke-os-image-certification-suite, whose checks name these tools and settings.
"""

from __future__ import annotations

from tpu_image.catalogue.distribution import distribution_of
from tpu_image.catalogue.programs import find_program
from tpu_image.catalogue.requirement import Evidence, Platform, Profile, Requirement, Verdict
from tpu_image.trees.base import Tree

SOURCE = "GKE OS image certification suite"

HOST_TOOLS = {"ethtool": "ethtool", "ip": "iproute2", "sysctl": "procps", "lspci": "pciutils"}
"""Tools that the plugin runs, and the Debian package that brings each."""

TUNABLES = (
    "/proc/sys/net/ipv4/tcp_slow_start_after_idle",
    "/proc/sys/net/ipv4/tcp_no_metrics_save",
    "/proc/sys/net/ipv4/tcp_max_syn_backlog",
    "/proc/sys/net/ipv4/tcp_mtu_probing",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/core/optmem_max",
    "/sys/module/tcp_cubic/parameters/hystart_detect",
)
"""Settings of the running kernel that the plugin writes."""

WRITABLE = 0o200


class _ForGke(Requirement):
    def applies(self, profile: Profile) -> str:
        """Only GKE's plugin asks for it."""
        return "" if profile.platform is Platform.GKE else "only GKE asks for it"


class HostTools(_ForGke):
    """The tools that the device plugin runs on its host are there."""

    id = "gke.host-tools"
    title = f"{', '.join(HOST_TOOLS)} are on the PATH and can run"
    why = "GKE's TPU device plugin runs them on its host."
    source = SOURCE
    remedy = f"install {' '.join(HOST_TOOLS.values())} in the image"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Look for each of them where a service looks."""
        found = {tool: find_program(tree, tool, profile.architecture) for tool in HOST_TOOLS}
        missing = {tool: p for tool, p in found.items() if p is None or p.problem}
        if not missing:
            return self.passed(f"{', '.join(HOST_TOOLS)} can run")
        evidence = [
            Evidence(
                p.path if p else f"/usr/bin/{tool}", found=p.problem if p else "absent", expected="a program"
            )
            for tool, p in missing.items()
        ]
        packages = " ".join(HOST_TOOLS[tool] for tool in missing)
        debian = distribution_of(tree).is_a("debian")
        remedy = f"in the image: apt-get install {packages}" if debian else f"install {packages}"
        return self.failed(f"missing: {', '.join(missing)}", *evidence, remedy=remedy)


class Tunables(_ForGke):
    """The network settings that the device plugin writes exist and can be written."""

    id = "gke.tunables"
    title = "the running kernel has the network settings that the device plugin writes"
    why = "GKE's TPU device plugin tunes the network of its host."
    source = SOURCE
    remedy = "use a kernel with TCP CUBIC (tcp_cubic) and a writable /proc/sys"
    live = True

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Look at each file's mode; read-only mounts show when the plugin runs."""
        del profile
        evidence = []
        for path in TUNABLES:
            entry = tree.stat(path)
            if entry is None:
                evidence.append(Evidence(path, found="absent", expected="a writable setting"))
            elif not entry.mode & WRITABLE:
                evidence.append(Evidence(path, found=f"mode {entry.mode:04o}", expected="a writable setting"))
        if not evidence:
            return self.passed(f"all {len(TUNABLES)} settings are there and writable")
        places = ", ".join(f"{item.path} ({item.found})" for item in evidence)
        return self.failed(f"cannot be tuned: {places}", *evidence)


REQUIREMENTS: tuple[Requirement, ...] = (HostTools(), Tunables())
