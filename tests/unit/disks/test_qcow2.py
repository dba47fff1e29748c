"""qcow2 images read as qemu-img reads them."""

from __future__ import annotations

import os
import random
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from disk_tools import check_extents, run, sparse, whole, write_at
from tpu_image.disks import inflate, qcow2
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.image import open_image
from tpu_image.disks.qcow2 import Qcow2Source
from tpu_image.disks.source import ExtentKind

MIB = 1 << 20
SIZE = 5 * MIB + 512

OPTIONS = [
    "compat=0.10",
    "compat=0.10,cluster_size=512",
    "compat=1.1",
    "compat=1.1,cluster_size=4096",
    "compat=1.1,cluster_size=2097152",
    "compat=1.1,extended_l2=on,cluster_size=16384",
    "compat=1.1,extended_l2=on,cluster_size=131072",
    "compat=1.1,compression_type=zstd",
    "compat=1.1,compression_type=zstd,extended_l2=on,cluster_size=32768",
    "compat=1.1,preallocation=metadata",
]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw disk with noise, text, zeros that are written, and holes."""
    noise = random.Random(7)
    parts = {
        0: b"boot" * 128,
        300_000: noise.randbytes(200_000),
        MIB: b"text that deflates well " * 20_000,
        3 * MIB: bytes(300_000),
        SIZE - 512: b"end!" * 128,
    }
    return sparse(tmp_path_factory.mktemp("qcow2") / "disk.raw", SIZE, parts)


def convert(source: Path, target: Path, options: str, *more: str) -> Path:
    run("qemu-img", "convert", "-t", "unsafe", *more, "-O", "qcow2", "-o", options, source, target)
    return target


def written(path: Path, *commands: str) -> Path:
    """Write into an image as a guest would."""
    run("qemu-io", "-t", "unsafe", *(word for command in commands for word in ("-c", command)), path)
    return path


def truth(path: Path) -> bytes:
    """What qemu-img says that an image holds."""
    run("qemu-img", "convert", "-t", "unsafe", "-O", "raw", path, path.with_suffix(".truth"))
    return path.with_suffix(".truth").read_bytes()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_gives_the_bytes_that_qemu_img_gives(
    content: Path, tmp_path: Path, options: str, compressed: bool
) -> None:
    if compressed and "preallocation" in options:
        options = "compat=1.1"
    image = convert(content, tmp_path / "image.qcow2", options, *(["-c"] if compressed else []))
    with open_image(image) as source:
        assert source.container == "qcow2"
        data = whole(source)
        assert data == content.read_bytes()
        check_extents(source, data)
        kinds = {extent.kind for extent in source.extents()}
        assert (ExtentKind.COMPRESSED in kinds) is compressed


@pytest.mark.parametrize("options", OPTIONS)
def test_what_a_guest_wrote_zeroed_and_discarded_reads_back(
    content: Path, tmp_path: Path, options: str
) -> None:
    image = convert(content, tmp_path / "image.qcow2", options.replace(",preallocation=metadata", ""), "-c")
    written(
        image,
        "write -P 1 0 64k",
        "write -z 70k 100k",
        "write -P 2 1030k 3k",
        "write -P 4 1536k 192k",
        "write -z 1536k 192k",
        "discard 2M 1M",
        "write -z -u 3M 256k",
        "write -P 9 5000k 1k",
    )
    with open_image(image) as source:
        data = whole(source)
        assert data == truth(image)
        check_extents(source, data)


@pytest.mark.parametrize("options", [o for o in OPTIONS if "prealloc" not in o])
def test_reads_of_any_place_and_length_agree_with_the_whole(
    content: Path, tmp_path: Path, options: str
) -> None:
    image = convert(content, tmp_path / "image.qcow2", options, "-c")
    written(image, "write -P 3 600k 77k")
    expected = truth(image)
    places = random.Random(3)
    with open_image(image) as source:
        for _ in range(400):
            offset = places.randrange(SIZE)
            length = min(places.choice([1, 100, 4096, 70_000, 300_000]), SIZE - offset)
            assert source.read_at(offset, length) == expected[offset : offset + length]


def test_threads_read_the_same_bytes(content: Path, tmp_path: Path) -> None:
    image = convert(content, tmp_path / "image.qcow2", "compat=1.1", "-c")
    expected = content.read_bytes()
    offsets = [random.Random(5).randrange(SIZE - 5000) for _ in range(2000)]
    with open_image(image) as source, ThreadPoolExecutor(4) as threads:
        parts = threads.map(lambda offset: source.read_at(offset, 5000), offsets)
        assert all(part == expected[at : at + 5000] for at, part in zip(offsets, parts, strict=True))


def test_streaming_whole_clusters_keeps_none_of_them(content: Path, tmp_path: Path) -> None:
    image = convert(content, tmp_path / "image.qcow2", "compat=1.1", "-c")
    with open_image(image) as source:
        assert isinstance(source, Qcow2Source)
        for offset in range(0, 5 * MIB, source.unit):
            source.read_at(offset, source.unit)
        assert source._decoded._held == 0
        source.read_at(MIB, 10)
        assert source._decoded._held == source.unit


def test_zlib_decodes_where_isal_is_not_installed(
    content: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = convert(content, tmp_path / "image.qcow2", "compat=1.1", "-c")
    monkeypatch.setitem(__import__("sys").modules, "isal", None)
    with open_image(image) as source:
        assert whole(source) == content.read_bytes()


def test_zstd_without_a_decoder_is_refused_by_name(
    content: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = convert(content, tmp_path / "image.qcow2", "compression_type=zstd", "-c")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with open_image(image) as source, pytest.raises(UnsupportedError, match=r"zstd.*install.*zstandard"):
        source.read_at(0, 10)


def test_decoders_refuse_what_they_cannot_decode() -> None:
    for decoder in (inflate.deflate_decoder(), inflate.zstd_decoder("x")):
        with pytest.raises(ValueError):
            decoder(b"\xff" * 100, 65536)


# --- backing files ---------------------------------------------------------------------------------------------


def overlay(path: Path, backing: str, form: str, size: str = "") -> Path:
    run("qemu-img", "create", "-u", "-f", "qcow2", "-b", backing, "-F", form, path, size or str(SIZE + MIB))
    return path


@pytest.mark.parametrize("form", ["raw", "qcow2"])
@pytest.mark.parametrize("extended", ["", "extended_l2=on,cluster_size=16384"])
def test_clusters_that_are_absent_come_from_the_backing_file(
    content: Path, tmp_path: Path, form: str, extended: str
) -> None:
    base = tmp_path / "base"
    disk = bytearray(content.read_bytes())
    disk[510:512] = b"\x55\xaa"
    (tmp_path / "raw").write_bytes(disk)
    run("qemu-img", "convert", "-O", form, tmp_path / "raw", base)
    options = ["-o", extended] if extended else []
    image = tmp_path / "overlay.qcow2"
    run("qemu-img", "create", "-f", "qcow2", *options, "-b", "base", "-F", form, image, str(SIZE + MIB))
    written(image, "write -P 5 310k 2k", "write -z 1M 64k", f"write -P 6 {SIZE + 4096} 512")
    with open_image(image) as source:
        data = whole(source)
        assert data == truth(image)
        check_extents(source, data)


def test_a_chain_of_images_is_followed(content: Path, tmp_path: Path) -> None:
    convert(content, tmp_path / "0", "compat=1.1", "-c")
    for level in range(1, 6):
        written(overlay(tmp_path / f"{level}", f"{level - 1}", "qcow2"), f"write -P {level} {level}M 64k")
    with open_image(tmp_path / "5") as source:
        assert whole(source) == truth(tmp_path / "5")


def test_the_format_in_the_header_decides_what_a_backing_file_is(content: Path, tmp_path: Path) -> None:
    inner = convert(content, tmp_path / "inner.qcow2", "compat=1.1")
    write_at(inner, 510, b"\x55\xaa")
    image = overlay(tmp_path / "overlay", "inner.qcow2", "raw", str(inner.stat().st_size))
    with open_image(image) as source:
        assert source.read_at(0, 4) == b"QFI\xfb"


def refused_backing(tmp_path: Path, backing: str, form: str = "raw") -> str:
    (tmp_path / "images").mkdir(exist_ok=True)
    image = overlay(tmp_path / "images" / "overlay", backing, form)
    with pytest.raises(DiskError) as error:
        open_image(image)
    return str(error.value)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A disk that lies outside the image's folder."""
    return sparse(tmp_path / "secret", 4096, {510: b"\x55\xaa"})


def test_a_backing_file_outside_the_folder_is_not_opened(secret: Path, tmp_path: Path) -> None:
    assert "lies outside" in refused_backing(tmp_path, str(secret))
    assert "lies outside" in refused_backing(tmp_path, "../secret")
    (tmp_path / "images" / "link").symlink_to(secret)
    assert "lies outside" in refused_backing(tmp_path, "link")


def test_a_caller_may_allow_a_wider_folder(secret: Path, tmp_path: Path) -> None:
    refused_backing(tmp_path, "../secret")
    with open_image(tmp_path / "images" / "overlay", backing_folder=tmp_path) as source:
        assert source.read_at(510, 2) == b"\x55\xaa"


def test_a_raw_backing_file_that_is_no_disk_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / ".netrc").write_text("password hunter2\n" * 100)
    assert "does not start as a disk" in refused_backing(tmp_path, ".netrc")


@pytest.mark.parametrize("name", ["json:{}", "nbd://localhost/", "nbd:localhost:10809", "fat:rw:/etc"])
def test_a_backing_file_that_is_no_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "images").mkdir()
    image = tmp_path / "images" / "overlay"
    run("qemu-img", "create", "-f", "qcow2", image, "1M")
    write_at(image, 4096, name.encode())
    write_at(image, 8, struct.pack(">QI", 4096, len(name)))
    with pytest.raises(UnsupportedError, match="no plain path"):
        open_image(image)


def test_a_backing_format_that_is_not_supported_is_named(content: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    shutil.copy(content, tmp_path / "images" / "base")
    assert "format 'vmdk'" in refused_backing(tmp_path, "base", "vmdk")


def test_images_that_are_their_own_backing_file_are_refused(tmp_path: Path) -> None:
    for name, backing in (("a", "b"), ("b", "a"), ("self", "self")):
        overlay(tmp_path / name, backing, "qcow2")
    for name in ("a", "self"):
        with pytest.raises(DamagedError, match="its own backing file"):
            open_image(tmp_path / name)


def test_a_chain_that_is_too_long_is_refused(tmp_path: Path) -> None:
    run("qemu-img", "create", "-f", "qcow2", tmp_path / "0", "1M")
    for level in range(1, 19):
        overlay(tmp_path / f"{level}", f"{level - 1}", "qcow2", "1M")
    with pytest.raises(UnsupportedError, match="more than 16 backing files"):
        open_image(tmp_path / "18")


def test_a_refused_chain_leaves_no_file_open(content: Path, tmp_path: Path) -> None:
    convert(content, tmp_path / "base", "compat=1.1")
    image = overlay(tmp_path / "image", "base", "qcow2")
    with image.open("r+b") as file:
        file.truncate(0x50000)
    write_at(image, entries_of(image)[0], struct.pack(">QQ", 0x40000, 0x40000))
    write_at(image, 36, struct.pack(">I", 2))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DamagedError, match="share an L2 table"):
        open_image(image)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_backing_file_is_named(tmp_path: Path) -> None:
    overlay(tmp_path / "image", "gone.qcow2", "qcow2")
    with pytest.raises(DiskError, match=r"gone\.qcow2.*No such file"):
        open_image(tmp_path / "image")


# --- what is refused -------------------------------------------------------------------------------------------

MUTATIONS = {
    "version 4": (4, struct.pack(">I", 4), "qcow2 version 4"),
    "version 1": (4, struct.pack(">I", 1), "qcow2 version 1"),
    "clusters of 256 bytes": (20, struct.pack(">I", 8), "cluster_bits is 8"),
    "clusters of 4 MiB": (20, struct.pack(">I", 22), "cluster_bits is 22"),
    "AES": (32, struct.pack(">I", 1), "encrypted (AES)"),
    "LUKS": (32, struct.pack(">I", 2), "encrypted (LUKS)"),
    "dirty": (72, struct.pack(">Q", 1), "dirty bit"),
    "corrupt": (72, struct.pack(">Q", 2), "marked as corrupt"),
    "external data": (72, struct.pack(">Q", 4), "external data file"),
    "bit 5": (72, struct.pack(">Q", 1 << 5), "unknown incompatible qcow2 feature bit 5"),
    "bit 63": (72, struct.pack(">Q", 1 << 63), "unknown incompatible qcow2 feature bit 63"),
    "compression without its bit": (104, b"\x01", "contradicts the feature bits"),
    "a huge L1 table": (36, struct.pack(">I", 0xFFFF_FFFF), "beyond the end of the file"),
    "an L1 table elsewhere": (40, struct.pack(">Q", 1 << 60), "beyond the end of the file"),
    "an L1 table askew": (40, struct.pack(">Q", 0x10200), "does not start at a cluster"),
    "a disk beyond its L1 table": (24, struct.pack(">Q", 1 << 50), "too small for a disk"),
    "a short header": (100, struct.pack(">I", 80), "header length is 80"),
    "a far backing name": (8, struct.pack(">QI", 1 << 40, 10), "name of the backing file"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_header_that_is_not_supported_is_refused_by_name(content: Path, tmp_path: Path, name: str) -> None:
    offset, data, message = MUTATIONS[name]
    image = convert(content, tmp_path / "image.qcow2", "compat=1.1")
    write_at(image, offset, data)
    with pytest.raises(DiskError) as error:
        open_image(image)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def entries_of(image: Path) -> tuple[int, int]:
    """Where the first L1 entry and the first L2 table of an image are."""
    with image.open("rb") as file:
        file.seek(40)
        l1 = int.from_bytes(file.read(8), "big")
        file.seek(l1)
        return l1, int.from_bytes(file.read(8), "big") & qcow2.OFFSET_MASK


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (1 << 40, "beyond its end"),
        (0x200, "not aligned"),
        (qcow2.COMPRESSED_FLAG | 1 << 45, "beyond its end"),
        (qcow2.COMPRESSED_FLAG | 0x10000, "cannot be decoded"),
    ],
)
def test_a_cluster_that_is_nowhere_is_damage(content: Path, tmp_path: Path, entry: int, message: str) -> None:
    image = convert(content, tmp_path / "image.qcow2", "compat=1.1")
    write_at(image, entries_of(image)[1], struct.pack(">Q", entry))
    with open_image(image) as source, pytest.raises(DamagedError, match=message):
        source.read_at(0, 512)


def test_an_l2_table_that_is_nowhere_is_damage(content: Path, tmp_path: Path) -> None:
    image = convert(content, tmp_path / "image.qcow2", "compat=1.1")
    write_at(image, entries_of(image)[0], struct.pack(">Q", 1 << 40))
    with open_image(image) as source:
        with pytest.raises(DamagedError, match="L2 table"):
            source.read_at(0, 512)
        with pytest.raises(DamagedError, match="L2 table"):
            list(source.extents())


def test_an_l2_table_that_is_used_twice_is_damage(content: Path, tmp_path: Path) -> None:
    image = convert(content, tmp_path / "image.qcow2", "cluster_size=512")
    l1, l2 = entries_of(image)
    write_at(image, l1 + 8, struct.pack(">Q", l2))
    with pytest.raises(DamagedError, match="share an L2 table"):
        open_image(image)


def test_a_disk_larger_than_any_of_compute_engine_is_refused(tmp_path: Path) -> None:
    run("qemu-img", "create", "-f", "qcow2", "-o", "cluster_size=2M", tmp_path / "image", "65T")
    with pytest.raises(UnsupportedError, match="more than 64 TiB"):
        open_image(tmp_path / "image")


def test_an_extended_entry_that_contradicts_itself_is_damage(content: Path, tmp_path: Path) -> None:
    image = convert(content, tmp_path / "image.qcow2", "extended_l2=on,cluster_size=16384")
    write_at(image, entries_of(image)[1] + 8, struct.pack(">Q", 0x1_0000_0001))
    with open_image(image) as source, pytest.raises(DamagedError, match="contradicts itself"):
        source.read_at(0, 512)


def test_an_image_that_is_cut_short_is_damage(content: Path, tmp_path: Path) -> None:
    image = convert(content, tmp_path / "image.qcow2", "compat=1.1", "-c")
    with image.open("r+b") as file:
        file.truncate(image.stat().st_size // 2)
    with open_image(image) as source, pytest.raises(DamagedError):
        whole(source)
