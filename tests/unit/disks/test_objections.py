"""What Compute Engine's import and GRUB do not take is said with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from disk_tools import fill, run, sparse
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.objections import grub_objections, import_objections
from tpu_image.disks.partitions import read_partition_table

GIB = 1 << 30


def objections(
    tmp_path: Path, size: int, *options: str, archive: str = "image.tar.gz", member: str = "disk.raw"
) -> str:
    disk = sparse(tmp_path / "disk.raw", GIB)
    run("sfdisk", "-q", disk, text="label: gpt\nsize=1M\n")
    with disk.open("r+b") as file:
        file.truncate(size)
    run("tar", "-C", tmp_path, *options, "-Sczf", tmp_path / archive, member)
    with open_image(tmp_path / archive) as source:
        found = import_objections(source, read_partition_table(source))
        return "\n".join(f"{objection.what}; {objection.remedy}" for objection in found)


@pytest.mark.parametrize("form", ["gnu", "oldgnu"])
def test_an_archive_as_compute_engine_wants_it_has_none(tmp_path: Path, form: str) -> None:
    assert objections(tmp_path, GIB, f"--format={form}") == ""


@pytest.mark.parametrize(
    ("size", "options", "names", "message"),
    [
        (
            GIB,
            ["--format=pax"],
            {},
            "pax format, not GNU or old GNU; pack it again with: tar --format=oldgnu",
        ),
        (GIB, ["--format=gnu"], {"archive": "image.tgz"}, "does not end in .tar.gz"),
        (GIB, ["--format=gnu"], {"member": "./disk.raw"}, "named './disk.raw', not 'disk.raw'"),
        (
            GIB + 512,
            ["--format=gnu"],
            {},
            "not a whole number of GiB; grow it with: qemu-img resize -f raw disk.raw 2G",
        ),
        (
            2 * GIB,
            ["--format=gnu"],
            {},
            "backup GPT is not at the end of the disk; correct it with: sgdisk -e",
        ),
    ],
)
def test_each_rule_of_the_import_is_named(
    tmp_path: Path, size: int, options: list[str], names: dict[str, str], message: str
) -> None:
    assert message in objections(tmp_path, size, *options, **names)


def test_a_raw_disk_is_held_to_its_partition_table_alone(tmp_path: Path) -> None:
    disk = sparse(tmp_path / "disk", 5_000_000)
    with open_image(disk) as source:
        assert import_objections(source, read_partition_table(source)) == []


@pytest.mark.parametrize(
    ("options", "message", "required"),
    [
        ("^metadata_csum_seed", "", True),
        (
            "metadata_csum_seed,orphan_file",
            "GRUB before 2.12 may not read ext4 with metadata_csum_seed",
            False,
        ),
        ("inline_data", "GRUB does not read ext4 with inline_data", True),
    ],
)
def test_features_that_grub_does_not_read_are_named(
    tmp_path: Path, options: str, message: str, required: bool
) -> None:
    for name in ("etc/os-release", "sbin/init", "boot/grub/grub.cfg"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).touch()
    image = fill(tmp_path / "image", tmp_path / "in", "-O", options, size=16 << 20)
    with open_image(image) as source:
        found = grub_objections(open_tree(source))
    assert [objection.required for objection in found] == ([required] if message else [])
    assert all(message in objection.what for objection in found)
