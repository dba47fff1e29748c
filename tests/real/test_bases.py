"""The embedded base as it is: made once by the real tools, kept in the cache, and judged by others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_tools import run
from tpu_image import catalogue
from tpu_image.bases.layout import SECTOR, Layout, make_layout
from tpu_image.bases.make import clean, resolve
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.disks.image import open_image
from tpu_image.disks.objections import open_system
from tpu_image.downloads import cache
from tpu_image.trees.base import Tree

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def base() -> Path:
    """The base, from the cache of whoever runs the tests where it is there."""
    return resolve("debian:bookworm")


@pytest.fixture(scope="module")
def layout(base: Path) -> Layout:
    return make_layout(base.name)


@pytest.fixture(scope="module")
def disk(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base as a sparse raw disk."""
    path = tmp_path_factory.mktemp("base") / "disk.raw"
    run("qemu-img", "convert", "-O", "raw", base, path)
    return path


@pytest.fixture
def tree(base: Path) -> Iterator[Tree]:
    with open_image(base) as source:
        yield open_system(source)


def test_the_partition_table_and_the_file_systems_are_sound(disk: Path, layout: Layout) -> None:
    assert "No errors detected" in run("sfdisk", "--verify", disk)
    run("e2fsck", "-fn", f"{disk}?offset={layout.root.offset}")
    assert (
        run("blkid", "-p", "-O", layout.root.offset, "-s", "UUID", "-o", "value", disk)
        == f"{layout.root_uuid}\n"
    )


def test_the_efi_partition_starts_by_its_removable_path_and_holds_a_stub(disk: Path, layout: Layout) -> None:
    esp = f"{disk}@@{layout.esp.offset}"
    listing = run("mdir", "-i", esp, "-/", "-b", "::/").split()
    assert {"::/EFI/BOOT/BOOTX64.EFI", "::/EFI/BOOT/grubx64.efi", "::/EFI/debian/grub.cfg"} <= set(listing)
    stub = run("mtype", "-i", esp, "::/EFI/debian/grub.cfg")
    assert stub.splitlines()[0] == f"search.fs_uuid {layout.root_uuid} root hd0,gpt1"


@pytest.mark.parametrize(
    "identifier",
    [
        "image.root-device",
        "image.efi-stub",
        "image.disk",
        "image.identity",
        "image.cloud-config",
        "prerequisites.python",
        "support.architecture",
    ],
)
def test_our_own_check_finds_nothing_to_object_to(tree: Tree, identifier: str) -> None:
    verdict = catalogue.find(identifier).inspect(tree, Profile())
    assert verdict.status is Status.PASS, verdict


def test_the_kernel_has_the_modules_that_hand_out_tpus(tree: Tree) -> None:
    assert "every kernel has them" in catalogue.find("vfio.modules").inspect(tree, Profile()).message


def test_nothing_of_the_machine_that_made_it_is_left(tree: Tree) -> None:
    assert tree.read_bytes("/etc/machine-id") == b""
    link = tree.lstat("/etc/resolv.conf")
    assert link is not None
    assert link.target == "/run/systemd/resolve/stub-resolv.conf"
    assert tree.names("/etc/apt/apt.conf.d", "*mmdebstrap*") == []
    assert tree.names("/var/lib/apt/lists", "*Packages*") == []
    assert tree.names("/var/cache/apt/archives", "*.deb") == []
    assert tree.names("/usr/sbin", "grub-probe*") == ["grub-probe"]
    assert "/dev/loop" not in tree.read_text("/boot/grub/grub.cfg")
    assert tree.read_text("/etc/apt/sources.list").startswith("deb http://deb.debian.org/debian bookworm ")


def test_the_boot_code_is_what_grub_bios_setup_writes(disk: Path, layout: Layout, tmp_path: Path) -> None:
    """The image's own grub-bios-setup writes the boot code anew, on a loop device, where ours was taken away."""
    other, root = tmp_path / "other.raw", tmp_path / "root"
    run("cp", "--sparse=always", disk, other)
    with other.open("r+b") as file:
        file.write(bytes(440))
        file.seek(layout.bios_boot.offset)
        file.write(bytes(layout.bios_boot.length))
    root.mkdir()
    script = f"""
        set -eu
        part=$(losetup --find --show --offset {layout.root.offset} --sizelimit {layout.root.length} {other})
        trap 'umount -R {root} || :; losetup --detach "$part"; [ -z "$whole" ] || losetup --detach "$whole"' EXIT
        whole=
        whole=$(losetup --find --show {other})
        mount -o ro "$part" {root}
        mount --bind /dev {root}/dev
        mount -t proc proc {root}/proc
        mount -t tmpfs tmpfs {root}/tmp
        echo "(hd0) $whole" > {root}/tmp/device.map
        chroot {root} /usr/lib/grub/i386-pc/grub-bios-setup --no-rs-codes --skip-fs-probe \\
            --directory=/boot/grub/i386-pc --device-map=/tmp/device.map "$whole"
        blockdev --flushbufs "$whole"
    """
    run("unshare", "--mount", "sh", "-c", script)
    assert first_bytes(other, layout) == first_bytes(disk, layout)


def first_bytes(disk: Path, layout: Layout) -> bytes:
    with disk.open("rb") as file:
        data = file.read(layout.bios_boot.end)
    assert data[layout.bios_boot.offset : layout.bios_boot.offset + SECTOR].strip(b"\0")
    return data


def making(folder: Path) -> list[str]:
    """The command lines of processes that work in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_a_killed_run_leaves_no_process_and_no_mount_and_the_next_one_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache.subfolder("bases")
    code = "from tpu_image.bases.make import resolve; resolve('debian:bookworm')"
    source = str(Path(cache.__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": source})
    try:
        wait_until(lambda: any(folder.glob("new-*/*/var/lib/dpkg")) or process.poll() is not None)
        assert making(folder)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not making(folder))
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    assert [path.name[:4] for path in folder.iterdir()] == ["new-"]
    clean()
    assert list(folder.iterdir()) == []


def wait_until(condition: object, seconds: float = 300) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
