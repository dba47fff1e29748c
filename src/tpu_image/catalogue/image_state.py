"""What must not be captured with an image, and what an image still owes to its first boot."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.catalogue.cloud_init import BakedCloudConfig
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.catalogue.running import is_running
from tpu_image.catalogue.selinux import LabelsAreRight
from tpu_image.trees.base import Entry, Kind, Tree
from tpu_image.trees.overlay import Overlay

SHOWN = 20
"""Paths of one kind that are listed as evidence, at most."""

BLANK_MACHINE_IDS = (b"", b"uninitialized")
"""What makes the first boot generate an id (machine-id(5), "First Boot Semantics")."""

HOMES = ("/root", "/home/*")


class Trace(NamedTuple):
    """What one machine leaves behind: where, and how to take it away in an image."""

    name: str
    patterns: tuple[str, ...]
    """Paths in the tree; each part may be a shell pattern. Empty files and directories do not count."""
    removal: str
    """A shell command to run in the image."""


MACHINE_ID = Trace("a machine-id", ("/etc/machine-id",), "truncate -s 0 /etc/machine-id")

TRACES: tuple[Trace, ...] = (
    MACHINE_ID,
    Trace(
        "a D-Bus machine-id",
        ("/var/lib/dbus/machine-id",),
        "ln -sf /etc/machine-id /var/lib/dbus/machine-id",
    ),
    Trace("SSH host keys", ("/etc/ssh/ssh_host_*_key",), "rm -f /etc/ssh/ssh_host_*"),
    Trace(
        "cloud-init instance data",
        (
            "/var/lib/cloud/instance/*",
            "/var/lib/cloud/instances/*/*",
            "/var/lib/cloud/instances/*/*/*",
            "/var/lib/cloud/data/*",
            "/var/lib/cloud/sem/*",
        ),
        "rm -rf /var/lib/cloud/{instance,instances,data,sem}",
    ),
    Trace(
        "a random seed",
        ("/var/lib/systemd/random-seed", "/var/lib/urandom/random-seed"),
        "rm -f /var/lib/systemd/random-seed /var/lib/urandom/random-seed",
    ),
    Trace(
        "DHCP leases",
        (
            "/var/lib/dhcp/*.lease*",
            "/var/lib/dhclient/*.lease*",
            "/var/lib/dhcpcd/*.lease*",
            "/var/lib/NetworkManager/*.lease*",
        ),
        "rm -f /var/lib/{dhcp,dhclient,dhcpcd,NetworkManager}/*.lease*",
    ),
    Trace(
        "network names by hardware address",
        ("/etc/udev/rules.d/*-persistent-net.rules",),
        "rm -f /etc/udev/rules.d/*-persistent-net.rules",
    ),
    Trace(
        "shell history",
        tuple(f"{home}/.{shell}_history" for home in HOMES for shell in ("bash", "zsh", "python")),
        "rm -f /root/.*_history /home/*/.*_history",
    ),
    Trace(
        "Google Cloud credentials",
        tuple(
            f"{home}/.config/gcloud/{name}"
            for home in HOMES
            for name in ("credentials.db", "access_tokens.db", "application_default_credentials.json")
        ),
        "rm -rf /root/.config/gcloud /home/*/.config/gcloud",
    ),
)


class NoIdentity(Requirement):
    """Machines made from the image do not share what is one machine's own."""

    id = "image.identity"
    title = "no machine's identity is baked in"
    why = (
        "Machines that share a machine-id, host keys or a random seed cannot be told apart or trusted, and "
        "cloud-init skips its work on a machine that has the data of another."
    )
    source = "machine-id(5), systemd-random-seed(8); Compute Engine, preparing a disk for import"
    remedy = "take away in the image what is named; virt-sysprep and cloud-init clean do much of it"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Look for what a machine that ran leaves behind."""
        del profile
        if is_running(tree):
            return self.skipped("this is a running machine, to which its identity belongs: check its image")
        found = {trace: paths for trace in TRACES if (paths := list(_left(tree, trace)))}
        if not found:
            return self.passed("no machine-id, host key, instance data or other trace of a machine")
        evidence = [
            Evidence(path, found=trace.name, expected="blank or absent")
            for trace, paths in found.items()
            for path in paths[:SHOWN]
        ]
        names = ", ".join(trace.name for trace in found)
        return self.warned(
            f"baked in, so that every machine shares it: {names}",
            *evidence,
            remedy="in the image: " + "; ".join(trace.removal for trace in found),
        )


def wipe(overlay: Overlay) -> None:
    """Take every trace of one machine away; a machine-id is left blank, so that the first boot makes one."""
    for trace in TRACES:
        for path in list(_left(overlay, trace)):
            if trace is MACHINE_ID:
                overlay.write(path, b"")
            else:
                overlay.remove(path)
        if trace.name == "SSH host keys":
            for path in overlay.files("/etc/ssh", "ssh_host_*_key.pub"):
                overlay.remove(path)


def _left(tree: Tree, trace: Trace) -> Iterator[str]:
    for pattern in trace.patterns:
        for path, entry in _matches(tree, pattern):
            if entry.kind is not Kind.FILE or not entry.size:
                continue
            if trace is MACHINE_ID and tree.read_bytes(path).strip() in BLANK_MACHINE_IDS:
                continue
            yield path


def _matches(tree: Tree, pattern: str) -> Iterator[tuple[str, Entry]]:
    """Entries whose path matches part by part; a link at the end is not followed."""
    paths = ["/"]
    for part in pattern.strip("/").split("/"):
        if "*" in part:
            paths = [posixpath.join(path, name) for path in paths for name in tree.names(path, part)]
        else:
            paths = [posixpath.join(path, part) for path in paths]
    for path in paths:
        entry = tree.lstat(path)
        if entry is not None:
            yield path, entry


REQUIREMENTS: tuple[Requirement, ...] = (NoIdentity(), BakedCloudConfig(), LabelsAreRight())
