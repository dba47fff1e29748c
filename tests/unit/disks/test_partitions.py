"""Partition tables read as sfdisk reads them, damaged ones as far as one copy is sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disk_tools import run, sparse, write_at
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.image_tree import EFI_TYPES
from tpu_image.disks.partitions import PartitionTable, partition_source, read_partition_table
from tpu_image.disks.raw import open_raw

MIB = 1 << 20
SIZE = 64 * MIB

GPT = """label: gpt
size=1M, type=21686148-6449-6E6F-744E-656564454649, name="boot code"
size=8M, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, attrs="RequiredPartition"
size=8M, type=BC13C2FF-59E6-4262-A352-B275FD6F7172
size=4M, type=E6D6D379-F507-44C2-A23C-238F2A3DF928
size=4M, type=A19D880F-05FC-4D3B-A006-743F0F84911E
size=4M, type=0657FD6D-A4AB-43C4-84E5-0933C84B4F4F
type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, name="r\u00f6\u00f6t"
"""
MBR = """label: dos
label-id: 0x1234abcd
size=8M, type=83, bootable
size=4M, type=82
size=1M, type=7
size=40M, type=5
size=4M, type=8e
size=6M, type=83
size=7M, type=fd
"""


def partitioned(path: Path, script: str) -> Path:
    sparse(path, SIZE)
    run("sfdisk", "-q", path, text=script)
    return path


def table_of(path: Path) -> PartitionTable:
    with open_raw(str(path)) as source:
        return read_partition_table(source)


def agrees_with_sfdisk(path: Path) -> PartitionTable:
    ours = table_of(path)
    theirs = json.loads(run("sfdisk", "-J", path))["partitiontable"]
    assert ours.scheme == {"dos": "mbr"}.get(theirs["label"], theirs["label"])
    assert ours.sector_size == 512
    assert ours.uuid == theirs["id"].lower().removeprefix("0x")
    expected = []
    for item in theirs["partitions"]:
        kind = item["type"].lower()
        if ours.scheme == "mbr":
            kind = f"{int(kind, 16):#04x}"
        number = int(item["node"].removeprefix(str(path)))
        expected.append((number, item["start"] * 512, item["size"] * 512, kind, item.get("name", "")))
    found = [(p.number, p.start, p.size, p.type, p.name) for p in ours.partitions]
    assert found == [item for item in expected if item[3] != "0x05"]
    return ours


def test_a_gpt_reads_as_sfdisk_reads_it(tmp_path: Path) -> None:
    path = partitioned(tmp_path / "disk", GPT)
    table = agrees_with_sfdisk(path)
    assert table.partitions[1].attributes == 1
    assert table.problems == ()
    assert table.backup == SIZE - 512
    listed = json.loads(run("sfdisk", "-J", path))["partitiontable"]
    assert table.last_usable == (listed["lastlba"] + 1) * 512 - 1
    with open_raw(str(path)) as source:
        assert partition_source(source, table.partitions[1]).size == 8 * MIB


def test_a_gpt_of_large_sectors_reads_as_fdisk_reads_it(tmp_path: Path) -> None:
    path = sparse(tmp_path / "disk", SIZE)
    run("fdisk", "-b", 4096, path, text="g\nn\n\n\n+8M\nn\n\n\n+4M\nn\n\n\n\nt\n1\n1\nw\n")
    table = table_of(path)
    assert (table.sector_size, table.backup, table.problems) == (4096, SIZE - 4096, ())
    listed = run("fdisk", "-b", 4096, "-l", "-o", "Start,Sectors,UUID", path).splitlines()[-3:]
    found = [f"{p.start // 4096} {p.size // 4096} {p.uuid.upper()}" for p in table.partitions]
    assert found == [" ".join(line.split()) for line in listed]
    assert table.partitions[0].type in EFI_TYPES


def test_partition_uuids_are_those_that_sfdisk_gives(tmp_path: Path) -> None:
    path = partitioned(tmp_path / "disk", GPT)
    uuids = [run("sfdisk", "--part-uuid", path, p.number).strip().lower() for p in table_of(path).partitions]
    assert uuids == [partition.uuid for partition in table_of(path).partitions]


def test_an_mbr_with_logical_partitions_reads_as_sfdisk_reads_it(tmp_path: Path) -> None:
    table = agrees_with_sfdisk(partitioned(tmp_path / "disk", MBR))
    assert [partition.number for partition in table.partitions] == [1, 2, 3, 5, 6, 7]
    assert table.partitions[0].attributes == 4
    assert table.partitions[3].uuid == "1234abcd-05"
    assert table.partitions[5].type == "0xfd"


def test_a_table_of_many_entries_is_read(tmp_path: Path) -> None:
    lines = [f"start={4096 + index * 128}, size=128" for index in range(200)]
    path = partitioned(tmp_path / "disk", "\n".join(["label: gpt", "table-length: 512", *lines, ""]))
    assert len(agrees_with_sfdisk(path).partitions) == 200


def test_more_partitions_than_linux_takes_are_refused(tmp_path: Path) -> None:
    lines = [f"start={4096 + index * 128}, size=128" for index in range(300)]
    path = partitioned(tmp_path / "disk", "\n".join(["label: gpt", "table-length: 512", *lines, ""]))
    with pytest.raises(UnsupportedError, match="more than 256 partitions"):
        table_of(path)


@pytest.mark.parametrize("offset", [512 + 16, 512 + 80, 1024 + 20])
def test_the_backup_is_used_where_the_primary_is_damaged(tmp_path: Path, offset: int) -> None:
    path = partitioned(tmp_path / "disk", GPT)
    before = table_of(path)
    write_at(path, offset, b"\xff\xff\xff")
    table = table_of(path)
    assert table.partitions == before.partitions
    assert table.problems == ("the primary GPT is damaged, its backup is used",)


@pytest.mark.parametrize("primary", ["sound", "damaged"])
def test_a_backup_that_growth_left_behind_is_found(tmp_path: Path, primary: str) -> None:
    path = partitioned(tmp_path / "disk", GPT)
    before = table_of(path)
    if primary == "damaged":
        write_at(path, 512 + 16, b"\xff\xff\xff")
    with path.open("r+b") as file:
        file.truncate(2 * SIZE)
    table = table_of(path)
    assert table.partitions == before.partitions
    assert table.backup == SIZE - 512
    assert table.problems[-1] == "the backup GPT is not at the end of the disk"


def test_a_missing_backup_is_a_problem_and_no_more(tmp_path: Path) -> None:
    path = partitioned(tmp_path / "disk", GPT)
    write_at(path, SIZE - 512, bytes(512))
    table = table_of(path)
    assert table.backup is None
    assert table.problems == ("the backup GPT is missing or damaged",)


def test_copies_that_differ_are_a_problem(tmp_path: Path) -> None:
    path, other = partitioned(tmp_path / "disk", GPT), partitioned(tmp_path / "other", GPT)
    write_at(path, SIZE - 33 * 512, other.read_bytes()[SIZE - 33 * 512 :])
    assert table_of(path).problems == ("the two copies of the GPT differ, the primary is used",)


def test_a_gpt_without_a_sound_copy_is_damage(tmp_path: Path) -> None:
    path = partitioned(tmp_path / "disk", GPT)
    write_at(path, 512, bytes(512))
    write_at(path, SIZE - 512, bytes(512))
    with pytest.raises(DamagedError, match="both copies of the GPT are damaged"):
        table_of(path)


@pytest.mark.parametrize("script", [GPT, MBR])
def test_a_disk_that_is_cut_short_is_damage(tmp_path: Path, script: str) -> None:
    path = partitioned(tmp_path / "disk", script)
    with path.open("r+b") as file:
        file.truncate(30 * MIB)
    with pytest.raises(DamagedError, match="beyond the end of the disk"):
        table_of(path)


def test_logical_partitions_that_loop_are_damage(tmp_path: Path) -> None:
    path = partitioned(tmp_path / "disk", MBR)
    start = json.loads(run("sfdisk", "-J", path))["partitiontable"]["partitions"][3]["start"]
    second = int.from_bytes(path.read_bytes()[start * 512 + 470 : start * 512 + 474], "little")
    write_at(
        path, (start + second) * 512 + 462, b"\0\0\0\0\x05\0\0\0" + second.to_bytes(4, "little") + b"\1\0\0\0"
    )
    with pytest.raises(DamagedError, match="does not end"):
        table_of(path)


@pytest.mark.parametrize("maker", [["mkfs.ext4", "-q"], ["mkfs.vfat"]])
def test_a_file_system_on_the_bare_disk_is_no_partition_table(tmp_path: Path, maker: list[str]) -> None:
    path = sparse(tmp_path / "disk", SIZE)
    run(*maker, path)
    table = table_of(path)
    assert (table.scheme, table.partitions) == ("none", ())


@pytest.mark.parametrize("size", [0, 1, 470, 511, 512, 1000])
def test_a_disk_of_a_few_bytes_has_no_partitions(tmp_path: Path, size: int) -> None:
    assert table_of(sparse(tmp_path / "disk", size)).scheme == "none"
