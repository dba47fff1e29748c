"""Images are told apart by content; raw ones and other hypervisors' read as qemu-img reads them."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from disk_tools import check_extents, run, sparse, whole, write_at
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.image import open_image
from tpu_image.disks.raw import RawSource
from tpu_image.disks.source import BlockSource, ExtentKind, Section

MIB = 1 << 20
SIZE = 6 * MIB


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    noise = random.Random(4).randbytes(100_000)
    return sparse(tmp_path_factory.mktemp("raw") / "disk", SIZE, {0: b"boot", MIB: noise, 5 * MIB: b"end"})


def test_a_raw_disk_reads_as_it_is_and_its_holes_are_seen(disk: Path) -> None:
    with open_image(disk) as source:
        data = whole(source)
        assert data == disk.read_bytes()
        check_extents(source, data)
        stored = sum(extent.length for extent in source.extents() if extent.kind is ExtentKind.DATA)
        assert 0 < stored < MIB


def test_extents_of_a_part_are_those_of_the_whole_cut_to_it(disk: Path) -> None:
    with open_image(disk) as source:
        part = list(source.extents(MIB + 5, 5 * MIB + 1))
        assert (part[0].offset, part[-1].end) == (MIB + 5, 5 * MIB + 1)
        assert list(source.extents(SIZE, SIZE + 100)) == []


def test_a_section_reads_and_describes_its_part(disk: Path) -> None:
    with open_image(disk) as source:
        section = Section(source, MIB, 2 * MIB, "partition 1")
        data = whole(section)
        assert data == disk.read_bytes()[MIB : 3 * MIB]
        check_extents(section, data)
        for offset, length in ((2 * MIB - 1, 2), (-1, 1), (0, -1)):
            with pytest.raises(DamagedError):
                section.read_at(offset, length)
        with pytest.raises(DamagedError, match="beyond the disk"):
            Section(source, MIB, SIZE)


def test_a_file_that_shrinks_while_it_is_read_is_damage(tmp_path: Path) -> None:
    path = sparse(tmp_path / "disk", 10_000)
    with open_image(path) as source:
        os.truncate(path, 5000)
        with pytest.raises(DamagedError, match="shrank to 5000 bytes"):
            source.read_at(0, 10_000)


def test_closing_closes_the_file_and_twice_is_once(disk: Path) -> None:
    source = open_image(disk)
    assert isinstance(source, RawSource)
    descriptor = source.descriptor
    source.close()
    source.close()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_an_image_that_is_refused_leaves_no_file_open(tmp_path: Path) -> None:
    path = sparse(tmp_path / "image", 4096, {0: b"QFI\xfb\0\0\0\x09"})
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UnsupportedError):
        open_image(path)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "device"])
def test_what_is_no_image_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/null")
    error: list[BaseException] = []

    def attempt() -> None:
        try:
            open_image(path)
        except DiskError as refused:
            error.append(refused)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(5)
    assert len(error) == 1
    assert str(path) in str(error[0])


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"\xfd7zXZ\0", "is xz-compressed"),
        (b"\x28\xb5\x2f\xfd", "is zstd-compressed"),
        (b"PK\x03\x04", "is zip-compressed"),
        (b"7z\xbc\xaf\x27\x1c", "is 7z-compressed"),
        (b"QED\0", "format qed"),
        (b"WithoutFreeSpace", "format parallels"),
        (b"# Disk DescriptorFile\n", "vmdk descriptor"),
        (b"vhdxfile", "qemu-img cannot read this vhdx"),
        (b"QFI\xfb\0\0\0\x01", "qcow2 version 1"),
    ],
)
def test_a_format_that_is_not_read_is_named_whatever_its_suffix(
    tmp_path: Path, start: bytes, message: str
) -> None:
    with pytest.raises(DiskError, match=message):
        open_image(sparse(tmp_path / "image.raw", 4096, {0: start}))


# --- other hypervisors' formats --------------------------------------------------------------------------------

FOREIGN = {
    "vmdk": ["-O", "vmdk"],
    "vmdk for streaming": ["-O", "vmdk", "-o", "subformat=streamOptimized"],
    "vhd": ["-O", "vpc", "-o", "subformat=dynamic"],
    "vhd fixed": ["-O", "vpc", "-o", "subformat=fixed,force_size=on"],
    "vhdx": ["-O", "vhdx"],
    "vdi": ["-O", "vdi"],
}


def converted(disk: Path, target: Path, name: str) -> Path:
    run("qemu-img", "convert", "-t", "unsafe", *FOREIGN[name], disk, target)
    return target


@pytest.mark.parametrize("name", FOREIGN)
def test_other_formats_read_as_qemu_img_reads_them(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    image = converted(disk, tmp_path / "image", name)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    with open_image(image) as source:
        assert source.container == name.split()[0]
        data = whole(source)
        assert data.rstrip(b"\0") == disk.read_bytes().rstrip(b"\0")
        assert len(data) >= SIZE
        check_extents(source, data)
        assert os.listdir(tmp_path / "scratch") == []


def test_other_formats_name_the_package_where_qemu_img_is_missing(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = converted(disk, tmp_path / "image", "vmdk")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"format vmdk.*install qemu-utils"):
        open_image(image)


def test_a_fixed_vhd_needs_no_qemu_img(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = converted(disk, tmp_path / "image", "vhd fixed")
    monkeypatch.setenv("PATH", str(tmp_path))
    with open_image(image) as source:
        assert source.read_at(5 * MIB, 3) == b"end"


def refusal(path: Path) -> str:
    with pytest.raises(DiskError) as error:
        open_image(path)
    return str(error.value)


def test_a_vmdk_cannot_take_in_a_file_of_this_machine(disk: Path, tmp_path: Path) -> None:
    secret = sparse(tmp_path / "secret", MIB, {0: b"secret"})
    description = (
        "# Disk DescriptorFile\nversion=1\nCID=12345678\nparentCID=ffffffff\n"
        f'createType="monolithicFlat"\nRW 2048 FLAT "{secret}" 0\nddb.adapterType = "ide"\n'
    )
    (tmp_path / "flat.vmdk").write_text(description)
    assert "vmdk descriptor" in refusal(tmp_path / "flat.vmdk")
    image = converted(disk, tmp_path / "image", "vmdk")
    write_at(
        image, 12, bytes(8)
    )  # without a capacity, qemu-img takes the description inside for a list of files
    assert "names other files" in refusal(image)


def test_a_vmdk_cannot_name_a_parent(disk: Path, tmp_path: Path) -> None:
    parent = converted(disk, tmp_path / "parent.vmdk", "vmdk")
    image = tmp_path / "child.vmdk"
    run("qemu-img", "create", "-f", "vmdk", "-b", parent, "-F", "vmdk", image)
    with open_image(image) as source:
        assert not any(whole(source))


def test_a_damaged_vhd_is_refused_by_name(disk: Path, tmp_path: Path) -> None:
    image = converted(disk, tmp_path / "fixed", "vhd fixed")
    write_at(image, image.stat().st_size - 512 + 60, (4).to_bytes(4, "big"))
    assert "differencing VHD" in refusal(image)
    image = converted(disk, tmp_path / "dynamic", "vhd")
    with image.open("r+b") as file:
        file.truncate(image.stat().st_size - 512)
    assert "no VHD footer" in refusal(image)


def test_every_refusal_is_one_line_that_ends_in_what_to_do(tmp_path: Path) -> None:
    message = refusal(sparse(tmp_path / "image", 4096, {0: b"BZh"}))
    assert message == f"{tmp_path / 'image'}: is bzip2-compressed; decompress it first"


def test_a_source_is_a_context_manager(disk: Path) -> None:
    with open_image(disk) as source:
        assert isinstance(source, BlockSource)
