"""Root, /boot and the EFI partition are found on every kind of disk, or it is said why not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from disk_tools import edit, fill, run, sparse
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree
from tpu_image.trees.base import Kind, NotFoundError, NotReadableError

MIB = 1 << 20
ROOT = "11111111-2222-3333-4444-555555555555"
BOOT = "aaaaaaaa-2222-3333-4444-555555555555"
ROOT_TYPE = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
BOOT_TYPE = "BC13C2FF-59E6-4262-A352-B275FD6F7172"
EFI_TYPE = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
LINUX_TYPE = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"

SYSTEM = {
    "etc/os-release": "ID=debian\n",
    "usr/sbin/init": "",
    "usr/bin/python3": "",
    "boot/efi/": "",
    "tmp/": "",
}
KERNEL = {"vmlinuz-6.1": "kernel", "grub/grub.cfg": "menuentry\n"}
STUB = {"EFI/debian/grub.cfg": f"search.fs_uuid {ROOT} root\n"}


class Workshop:
    """Makes file systems of a few files, and disks of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def path(self) -> Path:
        self.made += 1
        return self.folder / f"{self.made}"

    def files(self, files: dict[str, str]) -> Path:
        top = self.path()
        for name, content in files.items():
            path = top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                path.mkdir(exist_ok=True)
            else:
                path.write_text(content)
        if "usr/sbin/init" in files:
            (top / "sbin").symlink_to("usr/sbin")
        return top

    def ext4(self, files: dict[str, str], uuid: str = ROOT, *options: str) -> Path:
        return fill(self.path(), self.files(files), "-U", uuid, *options, size=16 * MIB)

    def fat(self, files: dict[str, str], label: str = "UEFI") -> Path:
        path = sparse(self.path(), 8 * MIB)
        run("mkfs.vfat", "-i", "ABCD1234", "-n", label, path)
        for entry in sorted(self.files(files).iterdir()):
            run("mcopy", "-s", "-i", path, entry, "::/")
        return path

    def disk(self, *parts: tuple[str, Path], label: str = "gpt", names: tuple[str, ...] = ()) -> Path:
        """Put file systems into partitions of the given types."""
        lines = [f"label: {label}", "label-id: 0xcafe0001" if label == "dos" else ""]
        for index, (kind, image) in enumerate(parts):
            name = f', name="{names[index]}"' if names else ""
            lines.append(f"size={-(-image.stat().st_size // MIB)}M, type={kind}{name}")
        path = sparse(self.path(), sum(-(-image.stat().st_size // MIB) * MIB for _, image in parts) + 3 * MIB)
        run("sfdisk", "-q", path, text="\n".join(lines) + "\n")
        listed = json.loads(run("sfdisk", "-J", path))["partitiontable"]["partitions"]
        with path.open("r+b") as file:
            for item, (_, image) in zip(listed, parts, strict=True):
                file.seek(item["start"] * 512)
                file.write(image.read_bytes())
        return path


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def tree_of(path: Path) -> ImageTree:
    return open_tree(open_image(path))


def places(tree: ImageTree) -> dict[str, str]:
    return {place.path: place.volume.called for place in tree.places}


def refusal(path: Path) -> str:
    with pytest.raises(DiskError) as error:
        tree_of(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def with_fstab(*lines: str, **more: str) -> dict[str, str]:
    return {**SYSTEM, "etc/fstab": "\n".join(lines) + "\n", **more}


# --- where things are ------------------------------------------------------------------------------------------


def test_debians_cloud_image_root_and_efi(workshop: Workshop) -> None:
    fstab = with_fstab(f"UUID={ROOT} / ext4 rw 0 1", "UUID=ABCD-1234 /boot/efi vfat umask=0077 0 0")
    tree = tree_of(workshop.disk((EFI_TYPE, workshop.fat(STUB)), (ROOT_TYPE, workshop.ext4(fstab))))
    assert places(tree) == {"/": "partition 2", "/boot/efi": "partition 1"}
    assert tree.read_text("/boot/efi/EFI/debian/grub.cfg") == STUB["EFI/debian/grub.cfg"]
    assert tree.read_text("/etc/os-release") == "ID=debian\n"
    assert tree.root.volume.partition is not None
    assert tree.root.volume.partition.type == ROOT_TYPE.lower()


def test_ubuntus_server_image_with_a_separate_boot(workshop: Workshop) -> None:
    fstab = with_fstab(
        "LABEL=cloudimg-rootfs / ext4 discard,commit=30,errors=remount-ro 0 1",
        "LABEL=BOOT /boot ext4 defaults 0 2",
        "LABEL=UEFI /boot/efi vfat umask=0077 0 1",
    )
    disk = workshop.disk(
        (LINUX_TYPE, workshop.ext4(fstab, ROOT, "-L", "cloudimg-rootfs")),
        (EFI_TYPE, workshop.fat(STUB)),
        (BOOT_TYPE, workshop.ext4({**KERNEL, "efi/": ""}, BOOT, "-L", "BOOT")),
    )
    tree = tree_of(disk)
    assert places(tree) == {"/": "partition 1", "/boot": "partition 3", "/boot/efi": "partition 2"}
    assert tree.names("/boot") == ["efi", "grub", "lost+found", "vmlinuz-6.1"]
    assert tree.read_text("/boot/grub/grub.cfg") == "menuentry\n"
    assert tree.names("/boot/efi/EFI/debian") == ["grub.cfg"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "device",
    [
        f"UUID={BOOT}",
        f'UUID="{BOOT}"',
        "LABEL=the\\040boot",
        "PARTLABEL=second",
        "PARTUUID=@",
        f"/dev/disk/by-uuid/{BOOT}",
        "/dev/disk/by-label/the\\x20boot",
        "/dev/sda2",
        "/dev/vda2",
        "/dev/nvme0n1p2",
    ],
)
def test_fstab_may_name_a_volume_in_any_way(workshop: Workshop, device: str) -> None:
    boot = workshop.ext4(KERNEL, BOOT, "-L", "the boot")
    draft = workshop.disk((ROOT_TYPE, workshop.ext4(SYSTEM)), (LINUX_TYPE, boot), names=("first", "second"))
    uuid = run("sfdisk", "--part-uuid", draft, 2).strip()
    fstab = with_fstab(f"{device.replace('@', uuid)} /boot ext4 defaults 0 2")
    disk = workshop.disk((ROOT_TYPE, workshop.ext4(fstab)), (LINUX_TYPE, boot), names=("first", "second"))
    run("sfdisk", "--part-uuid", disk, 2, uuid)
    assert places(tree_of(disk)) == {"/": "partition 1", "/boot": "partition 2"}


def test_an_mbr_disk_with_boot_and_root(workshop: Workshop) -> None:
    fstab = with_fstab("PARTUUID=cafe0001-01 /boot ext4 defaults 0 2", "/swapfile swap swap sw 0 0")
    disk = workshop.disk(("83", workshop.ext4(KERNEL, BOOT)), ("83", workshop.ext4(fstab)), label="dos")
    assert places(tree_of(disk)) == {"/": "partition 2", "/boot": "partition 1"}


def test_a_root_on_the_bare_disk(workshop: Workshop) -> None:
    tree = tree_of(workshop.ext4(SYSTEM))
    assert places(tree) == {"/": "the disk"}
    assert tree.table.scheme == "none"


def test_without_fstab_a_boot_without_a_kernel_is_found_by_type_and_otherwise_by_its_kernel(
    workshop: Workshop,
) -> None:
    for kind in (BOOT_TYPE, LINUX_TYPE):
        disk = workshop.disk(
            (EFI_TYPE, workshop.fat(STUB)),
            (kind, workshop.ext4({**KERNEL, "efi/": ""}, BOOT)),
            (ROOT_TYPE, workshop.ext4(SYSTEM)),
        )
        assert places(tree_of(disk)) == {
            "/": "partition 3",
            "/boot": "partition 2",
            "/boot/efi": "partition 1",
        }


def test_a_boot_that_has_its_kernel_is_not_covered(workshop: Workshop) -> None:
    system = workshop.ext4({**SYSTEM, "boot/vmlinuz-6.1": "the root's own"})
    tree = tree_of(workshop.disk((BOOT_TYPE, workshop.ext4(KERNEL, BOOT)), (ROOT_TYPE, system)))
    assert tree.read_text("/boot/vmlinuz-6.1") == "the root's own"


def test_the_efi_partition_alone_is_put_where_the_root_has_room_for_it(workshop: Workshop) -> None:
    system = {"etc/os-release": "", "usr/sbin/init": "", "efi/": ""}
    for files, path in ((system, "/efi"), (SYSTEM, "/boot/efi")):
        disk = workshop.disk((EFI_TYPE, workshop.fat(STUB)), (ROOT_TYPE, workshop.ext4(files)))
        assert places(tree_of(disk)) == {"/": "partition 2", path: "partition 1"}


def test_one_of_several_roots_is_chosen_by_type_label_or_its_own_fstab(workshop: Workshop) -> None:
    other = workshop.ext4(SYSTEM, BOOT)
    by_type = workshop.disk((LINUX_TYPE, other), (ROOT_TYPE, workshop.ext4(SYSTEM)))
    by_label = workshop.disk((LINUX_TYPE, other), (LINUX_TYPE, workshop.ext4(SYSTEM, ROOT, "-L", "root")))
    fstab = with_fstab(f"UUID={ROOT} / ext4 rw 0 1")
    by_fstab = workshop.disk((LINUX_TYPE, other), (LINUX_TYPE, workshop.ext4(fstab)))
    for disk in (by_type, by_label, by_fstab):
        assert places(tree_of(disk))["/"] == "partition 2"
    both = workshop.disk((LINUX_TYPE, other), (LINUX_TYPE, workshop.ext4(SYSTEM)))
    assert "several root file systems (partition 1, partition 2)" in refusal(both)


def test_what_is_optional_or_elsewhere_does_not_stop_a_check(workshop: Workshop) -> None:
    fstab = with_fstab(
        "UUID=0000-0000 /boot/efi vfat umask=0077,nofail 0 0",
        "UUID=99999999-0000-0000-0000-000000000000 /data xfs defaults 0 0",
        "tmpfs /tmp tmpfs defaults 0 0",
        "/srv /var/srv none bind 0 0",
        "server:/export /usr nfs defaults 0 0",
        "garbage",
        "# UUID=x /var ext4",
    )
    assert places(tree_of(workshop.disk((ROOT_TYPE, workshop.ext4(fstab))))) == {"/": "partition 1"}


# --- one tree --------------------------------------------------------------------------------------------------


def test_links_lead_from_one_file_system_into_another(workshop: Workshop) -> None:
    root = workshop.ext4(with_fstab(f"UUID={BOOT} /boot ext4 defaults 0 2"))
    boot = workshop.ext4(KERNEL, BOOT)
    edit(root, "symlink vmlinuz boot/vmlinuz-6.1")
    edit(boot, "symlink release ../etc/os-release", "symlink up ../../../../etc/os-release")
    tree = tree_of(workshop.disk((ROOT_TYPE, root), (LINUX_TYPE, boot)))
    assert tree.read_text("/vmlinuz") == "kernel"
    assert tree.read_text("/boot/release") == "ID=debian\n"
    assert tree.read_text("/boot/up") == "ID=debian\n"
    with pytest.raises(NotFoundError, match="/boot/none"):
        tree.read_text("/boot/none")


def test_an_error_names_the_path_in_the_whole_tree(workshop: Workshop) -> None:
    boot = workshop.ext4({**KERNEL, "broken/x": ""}, BOOT)
    edit(boot, "sif /grub/grub.cfg block[0] 0", "sif /broken block[0] 0")
    root = workshop.ext4(with_fstab(f"UUID={BOOT} /boot ext4"))
    tree = tree_of(workshop.disk((ROOT_TYPE, root), (LINUX_TYPE, boot)))
    uses: list[tuple[Callable[[str], object], str]] = [
        (tree.read_text, "/boot/grub/grub.cfg"),
        (tree.lstat, "/boot/broken/x"),
        (tree.names, "/boot/broken"),
    ]
    for use, path in uses:
        with pytest.raises(NotReadableError) as error:
            use(path)
        assert error.value.path == path
        assert str(error.value).startswith(f"{path}: ")


def test_the_disks_own_names_are_there_as_udev_makes_them(workshop: Workshop) -> None:
    efi = workshop.fat(STUB)
    disk = workshop.disk(
        (EFI_TYPE, efi), (ROOT_TYPE, workshop.ext4(SYSTEM, ROOT, "-L", "my root")), names=("efi part", "x")
    )
    tree = tree_of(disk)
    assert tree.names("/dev/disk/by-uuid") == [ROOT, "ABCD-1234"]
    assert tree.names("/dev/disk/by-label") == ["UEFI", "my\\x20root"]
    assert tree.names("/dev/disk/by-partlabel") == ["efi\\x20part", "x"]
    uuid = run("sfdisk", "--part-uuid", disk, 2).strip().lower()
    entry = tree.stat(f"/dev/disk/by-partuuid/{uuid}")
    assert entry is not None
    assert entry.kind is Kind.BLOCK_DEVICE
    assert tree.resolve(f"/dev/disk/by-uuid/{ROOT}") == "/dev/sda2"
    assert not tree.exists(f"/dev/disk/by-uuid/{BOOT}")
    assert tree.names("/dev") == ["disk", "sda1", "sda2"]


def test_a_canonical_path_leads_to_its_volume(workshop: Workshop) -> None:
    fstab = with_fstab(f"UUID={BOOT} /boot ext4 defaults 0 2")
    tree = tree_of(
        workshop.disk((ROOT_TYPE, workshop.ext4(fstab)), (LINUX_TYPE, workshop.ext4(KERNEL, BOOT)))
    )
    place, inner = tree.place_of("/boot/grub/grub.cfg")
    assert (place.volume.called, inner) == ("partition 2", "/grub/grub.cfg")
    place, inner = tree.place_of("/bootx")
    assert (place.volume.called, inner) == ("partition 1", "/bootx")
    with pytest.raises(KeyError):
        tree.place_of("/dev/sda1")


# --- what is refused -------------------------------------------------------------------------------------------

SUPPORTED_LATER = {
    "XFS": ["mkfs.xfs", "-q"],
    "Btrfs": ["mkfs.btrfs", "-q"],
}


@pytest.mark.parametrize("name", SUPPORTED_LATER)
def test_a_root_on_another_file_system_is_refused_by_name(workshop: Workshop, name: str) -> None:
    other = sparse(workshop.path(), 320 * MIB)
    run(*SUPPORTED_LATER[name], other)
    message = refusal(workshop.disk((EFI_TYPE, workshop.fat(STUB)), (ROOT_TYPE, other)))
    assert f"the root can only be on {name} (partition 2); mount it" in message


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("LVM", {512: b"LABELONE" + bytes(16) + b"LVM2 001" + bytes(480)}),
        ("LUKS encryption", {0: b"LUKS\xba\xbe\0\2" + bytes(4088)}),
        ("Linux software RAID", {4096: bytes.fromhex("fc4e2ba901000000") + bytes(100)}),
    ],
)
def test_a_root_below_another_layer_is_refused_by_name(
    workshop: Workshop, name: str, parts: dict[int, bytes]
) -> None:
    disk = workshop.disk((EFI_TYPE, workshop.fat(STUB)), (LINUX_TYPE, sparse(workshop.path(), MIB, parts)))
    assert f"the root can only be on {name} (partition 2)" in refusal(disk)


def test_a_boot_that_this_disk_does_not_have_is_refused_with_its_name(workshop: Workshop) -> None:
    fstab = with_fstab(f"UUID={BOOT} /boot ext4 defaults 0 2")
    message = refusal(workshop.disk((ROOT_TYPE, workshop.ext4(fstab))))
    assert f"/etc/fstab mounts /boot from 'UUID={BOOT}', which this disk does not have" in message


def test_a_boot_on_another_file_system_is_refused_by_name(workshop: Workshop) -> None:
    boot = sparse(workshop.path(), 320 * MIB)
    run("mkfs.xfs", "-q", "-L", "BOOT", boot)
    fstab = with_fstab("LABEL=BOOT /boot xfs defaults 0 2")
    message = refusal(workshop.disk((ROOT_TYPE, workshop.ext4(fstab)), (LINUX_TYPE, boot)))
    assert "/boot is on XFS (partition 2)" in message


def test_a_data_partition_that_was_not_unmounted_does_not_stop_a_check(workshop: Workshop) -> None:
    data = workshop.ext4({"x": ""}, BOOT)
    edit(data, "feature needs_recovery")
    for path, seen in (("/data", {"/": "partition 1"}), ("/var", None)):
        fstab = with_fstab(f"UUID={BOOT} {path} ext4 defaults 0 2")
        disk = workshop.disk((ROOT_TYPE, workshop.ext4(fstab)), (LINUX_TYPE, data))
        if seen:
            assert places(tree_of(disk)) == seen
        else:
            assert "needs replay" in refusal(disk)


def test_an_endless_fstab_takes_no_time(workshop: Workshop) -> None:
    lines = [f"UUID={BOOT} /{'a/' * 100_000} ext4"] + [f"UUID={BOOT} /{index} ext4" for index in range(3000)]
    disk = workshop.disk((ROOT_TYPE, workshop.ext4(with_fstab(*lines))))
    began = time.perf_counter()
    assert places(tree_of(disk)) == {"/": "partition 1"}
    assert time.perf_counter() - began < 5


def test_a_root_that_was_not_unmounted_is_refused_by_name(workshop: Workshop) -> None:
    root = workshop.ext4(SYSTEM)
    edit(root, "feature needs_recovery")
    message = refusal(workshop.disk((ROOT_TYPE, root)))
    assert "journal of the file system needs replay" in message
    assert "partition 1" in message


def test_a_damaged_fstab_folder_is_damage(workshop: Workshop) -> None:
    root = workshop.ext4(
        with_fstab(f"UUID={BOOT} /mnt/boot ext4", **{"mnt/x": ""}), ROOT, "-O", "^metadata_csum"
    )
    edit(root, "sif /mnt block[0] 0")
    boot = workshop.ext4(KERNEL, BOOT)
    with pytest.raises(DamagedError, match=r"/mnt/boot.*extent block"):
        tree_of(workshop.disk((ROOT_TYPE, root), (LINUX_TYPE, boot)))


@pytest.mark.parametrize("files", [{"data": "x"}, {"etc/os-release": ""}, {"usr/sbin/init": ""}])
def test_a_disk_without_a_system_is_refused(workshop: Workshop, files: dict[str, str]) -> None:
    assert "no file system with /etc/os-release and an init" in refusal(
        workshop.disk((ROOT_TYPE, workshop.ext4(files)))
    )


def test_a_file_that_is_no_disk_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes\n" * 1000)
    message = refusal(tmp_path / "notes.txt")
    assert "no partition table or file system is found; name the image of a whole disk" in message


def test_feature_sets_of_old_and_new_systems_are_read(workshop: Workshop) -> None:
    for options in (
        ["-O", "orphan_file,metadata_csum_seed"],
        ["-t", "ext3"],
        ["-O", "^metadata_csum", "-b", "1024"],
    ):
        tree = tree_of(workshop.disk((ROOT_TYPE, workshop.ext4(SYSTEM, ROOT, *options))))
        assert tree.read_text("/etc/os-release") == "ID=debian\n"


def test_the_refusal_is_an_unsupported_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError):
        tree_of(sparse(tmp_path / "disk", MIB))
