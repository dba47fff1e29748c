"""Whether an image finds its own root: in a boot loader's files, names of devices that a VM will have.

Sources: case reports of images made on a build machine's loop or network block devices; the GRUB manual
("search", "configfile"); /etc/grub.d/10_linux for ``root=``; Ubuntu's GRUB for ``GRUB_FORCE_PARTUUID``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tpu_image.catalogue.boot_loader import BootEntry, BootLoader, read_boot_loader
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.formats import FormatError
from tpu_image.formats.fstab import Mount, parse_fstab
from tpu_image.formats.grub_config import Command, GrubConfig
from tpu_image.trees.base import Tree

FSTAB = "/etc/fstab"
ESP = "/boot/efi"

_TAGS = ("UUID", "PARTUUID", "LABEL", "PARTLABEL")
_LINKS = {f"/dev/disk/by-{tag.lower()}/": tag for tag in _TAGS}
_EXPECTED = "root=UUID=…, PARTUUID=… or LABEL=…"
_BUILD_DEVICE = re.compile(r"/dev/(?:loop|nbd|mapper/(?:loop|nbd))\d")
_REMAKE = "run update-grub on a machine or chroot that sees the image's own disk"

Found = tuple[Status, str, Evidence]


def identity(device: str) -> tuple[str, str]:
    """Give the tag and value by which a device is named; an empty tag where it is named by its own path.

    ``/dev/disk/by-uuid/X`` is ``UUID=X``. Partition UUIDs compare without regard to case, as the kernel does.
    """
    tag, equals, value = device.partition("=")
    for prefix, name in _LINKS.items():
        if device.startswith(prefix):
            tag, equals, value = name, "=", device[len(prefix) :]
    if not equals or tag not in _TAGS:
        return "", device
    return tag, value.lower() if tag == "PARTUUID" else value


def mount_of(mounts: Sequence[Mount], target: str) -> Mount | None:
    """The last line of fstab for a place; None where there is none."""
    return next((mount for mount in reversed(mounts) if mount.target.rstrip("/") == target.rstrip("/")), None)


class RootDevice(Requirement):
    """Boot entries name the root file system as a VM will know it."""

    id = "image.root-device"
    title = "boot entries name the root file system by UUID, PARTUUID or LABEL"
    why = "A device name of the machine that built the image is not there when the image boots."
    source = "case reports; GRUB manual; fstab(5)"
    remedy = _REMAKE

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge ``root=`` of every entry, beside fstab and the GRUB defaults."""
        del profile
        loader = read_boot_loader(tree)
        if not loader.entries:
            return self.skipped("no boot entry yet")
        mounts = parse_fstab(tree.read_text_if_present(FSTAB) or "")
        root = mount_of(mounts, "/")
        found = [item for entry in loader.entries for item in _judged_root(entry, root)]
        found += _judged_partuuid(loader)
        for status, make in ((Status.FAIL, self.failed), (Status.WARN, self.warned)):
            messages = list(dict.fromkeys(message for own, message, _ in found if own is status))
            if messages:
                return make("; ".join(messages[:3]), *(evidence for *_, evidence in found))
        devices = list(dict.fromkeys(_root(entry) for entry in loader.entries))
        first = loader.entries[0]
        return self.passed(
            f"every boot entry names the root as {' or '.join(devices)}",
            Evidence(first.path, first.line, f"root={devices[0]}", _EXPECTED),
        )


def _root(entry: BootEntry) -> str:
    token = entry.lines[0].last("root")
    return token.value or "" if token else ""


def _judged_root(entry: BootEntry, mount: Mount | None) -> Iterator[Found]:
    device = _root(entry)
    evidence = Evidence(entry.path, entry.line, f"entry “{entry.title}”: root={device}", _EXPECTED)
    tag, value = identity(device)
    if not device:
        yield Status.WARN, "an entry names no root", evidence
    elif tag:
        own, expected = identity(mount.spec) if mount else ("", "")
        if mount and own == tag and expected != value:
            at = Evidence(FSTAB, mount.line, mount.spec, f"{tag}={value}")
            message = f"entries boot root={device}, but fstab mounts {mount.spec} as /"
            yield Status.FAIL, message, evidence
            yield Status.FAIL, message, at
    elif _BUILD_DEVICE.match(device):
        yield Status.FAIL, f"root={device} is a device of the machine that built the image", evidence
    elif device.startswith("/dev/mapper/") and not (mount and mount.spec == device):
        yield Status.FAIL, f"root={device} is in a device mapper that fstab does not know of", evidence
    else:
        yield Status.WARN, f"root={device} depends on the order in which a VM finds its disks", evidence


def _judged_partuuid(loader: BootLoader) -> Iterator[Found]:
    """GRUB_FORCE_PARTUUID goes into every entry at the next update-grub."""
    name = "GRUB_FORCE_PARTUUID"
    forced = loader.defaults.known(name)
    if not forced:
        return
    path, line = loader.defaults.deciding(name)
    for entry in loader.entries:
        tag, value = identity(_root(entry))
        if tag == "PARTUUID" and value != forced.lower():
            message = f"{name} is {forced}, but entries boot PARTUUID {value}"
            yield Status.FAIL, message, Evidence(path, line, f"{name}={forced}", f"{name}={value}")
            yield Status.FAIL, message, Evidence(entry.path, entry.line, f"root=PARTUUID={value}", forced)
            return


class EfiStub(Requirement):
    """The EFI partition's grub.cfg only points to the one on the root or boot file system."""

    id = "image.efi-stub"
    title = "grub.cfg on the EFI partition is a stub that finds the real one"
    why = "A full configuration there is never updated again, and a wrong UUID ends in GRUB's prompt."
    source = "grub-install of Debian and Ubuntu; GRUB manual, “search”"
    remedy = (
        "run grub-install, which writes the stub; never write grub-mkconfig's output to the EFI partition"
    )

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge every ``EFI/*/grub.cfg``."""
        del profile
        paths = [f"{ESP}/EFI/{name}/grub.cfg" for name in tree.names(f"{ESP}/EFI")]
        paths = [path for path in paths if tree.is_file(path)]
        if not paths:
            return self.skipped(f"no grub.cfg under {ESP}/EFI: no EFI partition, or not in this tree")
        expected = _boot_uuid(tree)
        found = [item for path in paths for item in _judged_stub(path, tree.read_text(path), expected)]
        failures = [message for status, message, _ in found if status is Status.FAIL]
        evidence = [item for *_, item in found]
        if failures:
            return self.failed("; ".join(dict.fromkeys(failures)), *evidence)
        return self.passed(f"{' and '.join(paths)} leads to the real grub.cfg", *evidence)


def _judged_stub(path: str, text: str, expected: Evidence | None) -> Iterator[Found]:
    try:
        config = GrubConfig.parse(text)
    except FormatError as error:
        yield Status.FAIL, f"{path} cannot be read by GRUB: {error.reason}", Evidence(path, error.line)
        return
    full = config.entries or config.linux_lines
    if full:
        line = full[0].line
        found = "a full configuration"
        yield (
            Status.FAIL,
            f"{path} is a full configuration",
            Evidence(path, line, found, "a stub: configfile"),
        )
        return
    chains = [c for c in config.commands if c.name in ("configfile", "source", "normal")]
    if not chains:
        yield Status.FAIL, f"{path} leads nowhere", Evidence(path, 0, "no configfile", "configfile")
        return
    for command in config.commands:
        uuid = searched_uuid(command)
        line = command.words[0].line
        if uuid and expected and uuid.lower() != expected.found.lower():
            message = f"{path} searches for UUID {uuid}, but {expected.path} has {expected.found}"
            yield Status.FAIL, message, Evidence(path, line, uuid, expected.found)
            yield Status.FAIL, message, expected
        elif uuid:
            yield Status.PASS, "", Evidence(path, line, uuid, expected.found if expected else "")


def searched_uuid(command: Command) -> str:
    """The file system UUID that a ``search`` command looks for; empty where it looks for something else."""
    words = [word.text for word in command.words]
    by_option = words[0] == "search" and any(w in ("--fs-uuid", "-u") for w in words)
    if words[0] != "search.fs_uuid" and not by_option:
        return ""
    values = [w for w in words[1:] if not w.startswith("-") and re.fullmatch(r"[0-9A-Fa-f-]{8,}", w)]
    return values[0] if values else ""


def _boot_uuid(tree: Tree) -> Evidence | None:
    """The UUID of the file system with /boot/grub, from fstab or else from what grub.cfg searches for."""
    mounts = parse_fstab(tree.read_text_if_present(FSTAB) or "")
    mount = mount_of(mounts, "/boot") or mount_of(mounts, "/")
    if mount and identity(mount.spec)[0] == "UUID":
        return Evidence(FSTAB, mount.line, identity(mount.spec)[1])
    for path, config in read_boot_loader(tree).configs.items():
        for command in config.commands:
            # Outside the entries GRUB also searches for fonts, which are on the root file system.
            uuid = searched_uuid(command) if command.entry else ""
            if uuid:
                return Evidence(path, command.words[0].line, uuid)
    return None


class ImportableDisk(Requirement):
    """Compute Engine imports the disk, and its boot loader can read it."""

    id = "image.disk"
    title = "the disk can be imported into Compute Engine, and GRUB can read it"
    why = "A disk that is refused, or does not find its own files, is noticed only after the upload."
    source = "Compute Engine, “Manually import boot disks”; GRUB, grub-core/fs/ext2.c"
    remedy = "run: tpu-image build"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge what was noted when the disk was opened."""
        del profile
        if tree.faults is None:
            return self.skipped("not a disk image")
        evidence = [Evidence(fault.where, found=fault.what) for fault in tree.faults]
        if not evidence:
            return self.passed("nothing stands against the disk")
        message = "; ".join(fault.what for fault in tree.faults)
        remedy = "; ".join(dict.fromkeys(fault.remedy for fault in tree.faults))
        if any(fault.required for fault in tree.faults):
            return self.failed(message, *evidence, remedy=remedy)
        return self.warned(message, *evidence, remedy=remedy)


REQUIREMENTS: tuple[Requirement, ...] = (RootDevice(), EfiStub(), ImportableDisk())
