"""Small base images for builds: a Debian-like root in every kind of disk, made without root."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from case_trees import nodes_of, start
from disk_tools import run, sparse
from disk_trees import materialise, owned
from tpu_image.trees.memory import MemoryTree, Node

MIB = 1 << 20
ROOT_UUID = "0b2a5f2c-5f0c-4c9e-9b8a-3f0f3a5d2c11"
EFI_UUID = "7A2B11CC"
BOOT_UUID = "5ad0a4a8-93c1-4a35-a8a8-6f7c6a1f3c10"
LINUX, EFI, ROOT, BOOT = (
    "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
    "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
    "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
    "BC13C2FF-59E6-4262-A352-B275FD6F7172",
)
BUILD = ("--no-agent",)
"""What a build of these bases needs: they have no container agent."""


EFI_STUB = "/boot/efi/EFI/debian/grub.cfg"


def root_folder(folder: Path, without: Sequence[str] = (), *, efi: bool = True) -> Path:
    """The start of Debian as files, without some of its paths, or for a disk that has no EFI partition."""
    without = without if efi else [*without, EFI_STUB]
    folder.mkdir()
    nodes: dict[str, Node] = nodes_of(MemoryTree(start("debian")))
    kept = {path: owned(node) for path, node in sorted(nodes.items()) if path not in without}
    materialise(kept, folder)
    for name in ("boot/efi", "dev", "var/lib/dpkg"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    status = "Package: {0}\nStatus: install ok {1}\nVersion: {2}\nDescription: text\n more: text\n\n"
    (folder / "var/lib/dpkg/status").write_text(
        status.format("udev", "installed", "252.39-1")
        + status.format("bash", "installed", "5.2.15-2+b8")
        + status.format("gone", "deinstall", "1")
    )
    (folder / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (folder / "etc/ssh/ssh_host_rsa_key").write_text("the private key of one machine\n" * 50)
    if not efi:
        fstab = folder / "etc/fstab"
        fstab.write_text(fstab.read_text().splitlines()[0] + "\n")
    return folder


def file_system(
    path: Path, content: Path, *options: str, uuid: str = ROOT_UUID, size: int = 24 * MIB
) -> Path:
    """An ext file system that holds a folder, owned by root."""
    sparse(path, size)
    run("mkfs.ext4", "-q", "-F", "-U", uuid, "-E", "root_owner=0:0", *options, "-d", content, path)
    return path


def efi_partition(path: Path, uuid: str = ROOT_UUID, prefix: str = "/boot/grub") -> Path:
    """An EFI system partition with GRUB's stub, which leads to a folder on a file system."""
    sparse(path, 4 * MIB)
    run("mkfs.vfat", "-i", EFI_UUID, path)
    stub = path.with_name("grub.cfg")
    stub.write_text(f"search.fs_uuid {uuid} root\nconfigfile ($root){prefix}/grub.cfg\n")
    run("mmd", "-i", path, "::/EFI", "::/EFI/debian")
    run("mcopy", "-i", path, stub, "::/EFI/debian/grub.cfg")
    return path


def disk(path: Path, *parts: tuple[str, Path], label: str = "gpt", size: int = 0) -> Path:
    """A disk with these file systems in partitions of these types, 3 MiB longer than they are."""
    sparse(path, size or sum(image.stat().st_size for _, image in parts) + 3 * MIB)
    lines = [
        f"label: {label}",
        *(f"size={image.stat().st_size // MIB}M, type={kind}" for kind, image in parts),
    ]
    run("sfdisk", "-q", path, text="\n".join(lines) + "\n")
    with path.open("r+b") as file:
        for (_, image), offset in zip(parts, offsets(path), strict=True):
            file.seek(offset)
            file.write(image.read_bytes())
    return path


def offsets(path: Path) -> list[int]:
    """Where the partitions of a disk start, in bytes."""
    table = json.loads(run("sfdisk", "-J", path))["partitiontable"]
    return [512 * partition["start"] for partition in table["partitions"]]


def gpt_disk(folder: Path, *options: str, without: Sequence[str] = ()) -> Path:
    """The usual base: GPT, an EFI partition and a root, raw."""
    root = file_system(folder / "root.ext4", root_folder(folder / "root", without), *options)
    return disk(folder / "base.raw", (EFI, efi_partition(folder / "efi.fat")), (ROOT, root))
