"""The releases that a base can be made of, and what goes into one."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_image.bases.errors import BaseError

_COMMON = (
    "ca-certificates",
    "cloud-guest-utils",
    "cloud-init",
    "dbus",
    "e2fsprogs",
    "ethtool",
    "fdisk",
    "gdisk",
    "grub-efi-amd64-signed",
    "grub-pc-bin",
    "initramfs-tools",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "netbase",
    "openssh-server",
    "pciutils",
    "procps",
    "python3",
    "shim-signed",
    "sudo",
    "systemd-sysv",
    "systemd-timesyncd",
    "udev",
    "vim-tiny",
    "zstd",
)


@dataclass(frozen=True)
class Release:
    """A release of a distribution: ``distribution`` is its ID in os-release."""

    distribution: str
    suite: str
    version: str
    components: tuple[str, ...]
    own_packages: tuple[str, ...]
    archive: str
    security_archive: str
    security_suite: str

    @property
    def reference(self) -> str:
        """How it is asked for, and shown."""
        shown = self.suite if self.distribution == "debian" else self.version
        return f"{self.distribution}:{shown}"

    @property
    def packages(self) -> tuple[str, ...]:
        """What goes into a base, sorted."""
        return tuple(sorted({*_COMMON, *self.own_packages}))

    @property
    def public_sources(self) -> tuple[str, ...]:
        """The lines of sources.list by which a machine updates itself from the public archive."""
        return self.sources(self.archive, self.security_archive)

    def sources(self, archive: str, security_archive: str) -> tuple[str, ...]:
        """The lines of sources.list for some mirror of the archive."""
        components = " ".join(self.components)
        return (
            f"deb {archive} {self.suite} {components}",
            f"deb {archive} {self.suite}-updates {components}",
            f"deb {security_archive} {self.security_suite} {components}",
        )


def _debian(suite: str, version: str, components: tuple[str, ...]) -> Release:
    return Release(
        "debian",
        suite,
        version,
        components,
        # grub-cloud-amd64 keeps both boot loaders up to date when GRUB is updated.
        ("grub-cloud-amd64", "linux-image-cloud-amd64", "systemd-resolved"),
        "http://deb.debian.org/debian",
        "http://deb.debian.org/debian-security",
        f"{suite}-security",
    )


def _ubuntu(suite: str, version: str, own: tuple[str, ...]) -> Release:
    return Release(
        "ubuntu",
        suite,
        version,
        ("main", "universe"),
        ("grub-pc", "linux-image-gcp", "netplan.io", *own),
        "http://archive.ubuntu.com/ubuntu",
        "http://security.ubuntu.com/ubuntu",
        f"{suite}-security",
    )


RELEASES = (
    _debian("bookworm", "12", ("main", "non-free-firmware")),
    _debian("trixie", "13", ("main", "non-free-firmware")),
    _ubuntu("jammy", "22.04", ()),
    _ubuntu("noble", "24.04", ("systemd-resolved",)),
)

DEFAULT = "debian:bookworm"
"""What a build without a base is made of."""

REFERENCES = tuple(
    f"{release.distribution}:{name}" for release in RELEASES for name in (release.suite, release.version)
)
"""Every name that a base can be asked for by."""


def find(reference: str) -> Release:
    """Give the release of a reference such as ``debian:bookworm`` or ``ubuntu:24.04``.

    Raises:
        BaseError: there is none of that name.
    """
    distribution, _, name = reference.partition(":")
    for release in RELEASES:
        if distribution == release.distribution and name in (release.suite, release.version):
            return release
    raise BaseError(f"{reference}: is no base that can be made; there are {', '.join(REFERENCES)}")
