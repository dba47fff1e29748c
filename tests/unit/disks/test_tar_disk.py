"""disk.raw inside tar.gz reads as GNU tar unpacks it, in every form of tar."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from disk_tools import BytesSource, check_extents, run, sparse, whole
from tpu_image.disks import gzip_stream
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.gzip_stream import GzipStream
from tpu_image.disks.image import open_image
from tpu_image.disks.source import ExtentKind
from tpu_image.disks.tar_disk import TarDiskSource

MIB = 1 << 20
SIZE = 9 * MIB + 512

FORMS = {
    "v7": ["--format=v7"],
    "ustar": ["--format=ustar"],
    "gnu": ["--format=gnu"],
    "old gnu": ["--format=oldgnu"],
    "pax": ["--format=pax"],
    "old gnu sparse": ["--format=oldgnu", "-S"],
    "gnu sparse": ["--format=gnu", "-S"],
    "pax sparse 0.0": ["--format=pax", "-S", "--sparse-version=0.0"],
    "pax sparse 0.1": ["--format=pax", "-S", "--sparse-version=0.1"],
    "pax sparse 1.0": ["--format=pax", "-S", "--sparse-version=1.0"],
}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with so many holes that its map fills several blocks in every form."""
    noise = random.Random(9)
    parts = {index * 65536 + 4096: noise.randbytes(4096) for index in range(140)}
    return sparse(tmp_path_factory.mktemp("disk") / "disk.raw", SIZE, {0: b"boot", **parts})


def packed(disk: Path, archive: Path, *options: str) -> Path:
    run("tar", "-C", disk.parent, *options, "-czf", archive, disk.name)
    return archive


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_disk_that_went_in(disk: Path, tmp_path: Path, form: str) -> None:
    archive = packed(disk, tmp_path / "image", *FORMS[form])
    expected = disk.read_bytes()
    with open_image(archive) as source:
        assert isinstance(source, TarDiskSource)
        assert source.container == "tar.gz"
        assert source.member.form == form.split()[0].replace("old", "gnu")
        assert whole(source, 300_000) == expected
        check_extents(source, expected)
        kinds = {extent.kind for extent in source.extents()}
        assert (ExtentKind.ZERO in kinds) == ("sparse" in form)
        places = random.Random(8)
        for _ in range(200):
            offset = places.randrange(SIZE)
            length = min(places.choice([1, 512, 70_000]), SIZE - offset)
            assert source.read_at(offset, length) == expected[offset : offset + length]


def test_bsdtar_and_python_agree_with_the_map(disk: Path, tmp_path: Path) -> None:
    archive = packed(disk, tmp_path / "image", "--format=oldgnu", "-S")
    (tmp_path / "out").mkdir()
    run("bsdtar", "-xf", archive, "-C", tmp_path / "out")
    with tarfile.open(archive) as tar, open_image(archive) as source:
        assert isinstance(source, TarDiskSource)
        parts: Any = tar.getmembers()[0].sparse
        assert [part for part in parts if part[1]] == list(source.member.parts or ())
        assert whole(source) == (tmp_path / "out/disk.raw").read_bytes()


def test_a_disk_beyond_8_gib_and_one_that_is_all_hole_are_read(tmp_path: Path) -> None:
    for size, parts in ((9 << 30, {(9 << 30) - 4: b"last"}), (1 << 30, {})):
        disk = sparse(tmp_path / "disk.raw", size, parts)
        with open_image(packed(disk, tmp_path / "image", "--format=oldgnu", "-S")) as source:
            assert source.size == size
            assert source.read_at(size - 4, 4) == (b"last" if parts else bytes(4))


def test_a_directory_and_comments_may_stand_before_the_disk(disk: Path, tmp_path: Path) -> None:
    with tarfile.open(
        tmp_path / "image", "w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "made"}
    ) as tar:
        directory = tarfile.TarInfo("./")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        tar.add(disk, "./disk.raw")
    with open_image(tmp_path / "image") as source:
        assert source.read_at(0, 4) == b"boot"


def test_several_gzip_members_are_one_archive(disk: Path, tmp_path: Path) -> None:
    data = gzip.decompress(packed(disk, tmp_path / "one").read_bytes())
    parts = [gzip.compress(data[at : at + 700_000], 1) for at in range(0, len(data), 700_000)]
    (tmp_path / "many").write_bytes(b"".join(parts) + bytes(1000))
    with open_image(tmp_path / "many") as source:
        assert whole(source) == disk.read_bytes()


def test_threads_read_the_same_bytes(disk: Path, tmp_path: Path) -> None:
    expected = disk.read_bytes()
    offsets = [random.Random(6).randrange(SIZE - 9000) for _ in range(300)]
    with open_image(packed(disk, tmp_path / "image")) as source, ThreadPoolExecutor(4) as threads:
        parts = threads.map(lambda offset: source.read_at(offset, 9000), offsets)
        assert all(part == expected[at : at + 9000] for at, part in zip(offsets, parts, strict=True))


def test_going_back_starts_at_a_snapshot_and_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_stream, "FRAME", 16 * 1024)
    monkeypatch.setattr(gzip_stream, "FRAMES_KEPT", 64 * 1024)
    monkeypatch.setattr(gzip_stream, "SNAPSHOTS", 16)
    content = random.Random(2).randbytes(4 * MIB)
    stream = GzipStream(BytesSource(gzip.compress(content, 1)))
    tracemalloc.start()
    assert stream.read_at(4 * MIB - 10, 100) == content[-10:]
    assert tracemalloc.get_traced_memory()[0] < 2 * MIB
    tracemalloc.stop()
    assert 8 <= len(stream._snapshots) <= 16
    for offset in range(4 * MIB - 100, 0, -333_333):
        assert stream.read_at(offset, 50) == content[offset : offset + 50]


# --- what is refused -------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(DiskError) as error:
        open_image(path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_wrong_member_name_is_named(disk: Path, tmp_path: Path) -> None:
    sparse(tmp_path / "image.raw", MIB)
    message = refusal(packed(tmp_path / "image.raw", tmp_path / "image.tar.gz"))
    assert "first file is 'image.raw', not 'disk.raw'" in message
    assert "tar --format=oldgnu -Sczf" in message


def test_gzip_data_that_is_no_tar_is_named(tmp_path: Path) -> None:
    for content in (b"", b"text" * 1000, bytes(4096), random.Random(1).randbytes(4096)):
        (tmp_path / "image").write_bytes(gzip.compress(content))
        assert "no tar archive" in refusal(tmp_path / "image")


def test_an_archive_without_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "holds no file" in refusal(packed(tmp_path / "folder", tmp_path / "image"))


def test_compressions_that_compute_engine_does_not_take_are_named(tmp_path: Path) -> None:
    import bz2
    import lzma

    for name, data in (("xz", lzma.compress(b"x")), ("bzip2", bz2.compress(b"x"))):
        (tmp_path / "image.tar.gz").write_bytes(data)
        assert f"is {name}-compressed; decompress it first" in refusal(tmp_path / "image.tar.gz")


def test_a_tar_that_is_not_compressed_is_named(disk: Path, tmp_path: Path) -> None:
    run("tar", "-C", disk.parent, "-cf", tmp_path / "image", disk.name)
    assert "not gzip'd; compress it with gzip" in refusal(tmp_path / "image")


def test_an_archive_that_is_cut_short_is_damage(disk: Path, tmp_path: Path) -> None:
    archive = packed(disk, tmp_path / "image")
    with archive.open("r+b") as file:
        file.truncate(archive.stat().st_size // 2)
    with open_image(archive) as source, pytest.raises(DamagedError, match="ends early"):
        whole(source)


def test_a_flipped_bit_is_caught_at_the_end_of_the_member(disk: Path, tmp_path: Path) -> None:
    archive = packed(disk, tmp_path / "image")
    data = bytearray(archive.read_bytes())
    data[-6] ^= 1  # in the checksum
    archive.write_bytes(data)
    with open_image(archive) as source, pytest.raises(DamagedError, match="gzip data is damaged"):
        source._stream.read_at(SIZE + 20_000, 1)  # type: ignore[attr-defined]


def header(**fields: object) -> bytes:
    """A header of a sparse old GNU member, with some fields overwritten."""
    info = tarfile.TarInfo("disk.raw")
    info.size = 1024
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[156:157] = b"S"
    block[483:495] = b"00000100000\0"
    block[386:410] = b"00000000000\0" + b"00000002000\0"
    for name, value in fields.items():
        at, size = {"parts": (386, 96), "more": (482, 1), "real": (483, 12), "size": (124, 12)}[name]
        assert isinstance(value, bytes)
        block[at : at + size] = value.ljust(size, b"\0")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            header(parts=b"00000002000\0" + b"00000002000\0" + b"00000000000\0" + b"00000001000\0"),
            "not in order",
        ),
        (header(parts=b"00000000000\0" + b"77777777777\0"), "beyond its size"),
        (header(parts=b"what is it?\0" + b"00000000000\0"), "is no number"),
        (header(real=b"9"), "is no number"),
        (header(real=b"-1"), "is no number"),
        (header(real=b"0o17"), "is no number"),
        (header(more=b"\1"), "cut short"),
        (header()[:148] + b"0000000\0" + header()[156:], "checksum"),
    ],
)
def test_a_header_that_lies_is_damage(tmp_path: Path, block: bytes, message: str) -> None:
    (tmp_path / "image").write_bytes(gzip.compress(block))
    assert message in refusal(tmp_path / "image")


def test_a_map_without_end_is_refused(tmp_path: Path) -> None:
    part = b"00000000000\0" + b"00000000000\0"
    block = (part * 21 + b"\1").ljust(512, b"\0")
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as file:
        file.write(header(more=b"\1"))
        for _ in range(60_000):
            file.write(block)
    (tmp_path / "image").write_bytes(stream.getvalue())
    assert "too many parts" in refusal(tmp_path / "image")


@pytest.mark.parametrize(
    "record", [b"99999999999999999999 a=b\n", b"5 a=b\n", b"-1 a\n", b"abc\n", b"6 a=b\nx"]
)
def test_a_pax_record_that_lies_is_damage(tmp_path: Path, record: bytes) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = b"x", len(record)
    (tmp_path / "image").write_bytes(
        gzip.compress(info.tobuf() + record.ljust(512, b"\0") + header() + bytes(2048))
    )
    assert "pax record" in refusal(tmp_path / "image") or "is no number" in refusal(tmp_path / "image")


def test_an_empty_disk_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(UnsupportedError, match="is empty"):
        open_image(tmp_path / "empty")
