"""The Cloud CLI's archive, unpacked into an image; a hostile one is refused, by name, before it does anything."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import build_bases as bases
import customise_lab as lab
from disk_tools import sparse
from tpu_image.customise import gcloud
from tpu_image.customise.customisation import GcloudArchive
from tpu_image.customise.session import CustomisationError
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree

TIME = 1_700_000_000
Make = Callable[[tarfile.TarFile], None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with a small system and room; tests only read it."""
    folder = tmp_path_factory.mktemp("base")
    root = bases.root_folder(folder / "root", efi=False)
    (root / "usr/bin/gcloud").unlink()
    shutil.rmtree(root / "usr/lib/google-cloud-sdk")
    image = bases.file_system(folder / "root.ext4", root, size=200 * bases.MIB)
    return bases.disk(folder / "base.raw", (bases.ROOT, image))


def add(tar: tarfile.TarFile, name: str, content: bytes = b"", **attributes: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for key, value in attributes.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(content))


def add_all(tar: tarfile.TarFile, *members: tuple[str, dict[str, object]]) -> None:
    for name, attributes in members:
        add(tar, name, b"", **attributes)


def pax(tar: tarfile.TarFile, records: dict[str, str]) -> None:
    member = tarfile.TarInfo("google-cloud-sdk/x")
    member.pax_headers = records
    add_raw(tar, member.tobuf(tarfile.PAX_FORMAT))


def pax_record(size: int) -> bytes:
    start = b"%d comment=" % size
    return start + b"x" * (size - len(start) - 1) + b"\n"


def add_raw(tar: tarfile.TarFile, data: bytes) -> None:
    assert tar.fileobj is not None
    tar.fileobj.write(data)


def header(kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo("google-cloud-sdk/x")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def many_headers(tar: tarfile.TarFile) -> None:
    for _ in range(gcloud.ALL_EXTENDED_LIMIT // 10240 + 1):
        add_raw(tar, header(b"g", 10240) + pax_record(10240) + header(tarfile.DIRTYPE, 0))


def plain(tar: tarfile.TarFile) -> None:
    """What Google's archive is like."""
    add(tar, "google-cloud-sdk/", type=tarfile.DIRTYPE, mode=0o755)
    add(tar, "google-cloud-sdk/bin/gcloud", b"#!/bin/sh\n", mode=0o755)
    add(tar, "google-cloud-sdk/bin/gsutil", b"#!/bin/sh\n", mode=0o4777)
    add(tar, "google-cloud-sdk/lib/deep/" + "n" * 120 + "/module.py", b"x = 1\n", mode=0o666, uid=1000)
    add(tar, "google-cloud-sdk/lib/empty", type=tarfile.DIRTYPE, mode=0o700)
    add(tar, "google-cloud-sdk/lib/python3", type=tarfile.SYMTYPE, linkname="deep/python3.12")
    add(tar, "google-cloud-sdk/lib/same.py", type=tarfile.LNKTYPE, linkname="google-cloud-sdk/bin/gcloud")


def archive(folder: Path, *makes: Make, form: int = tarfile.GNU_FORMAT) -> GcloudArchive:
    path = folder / "sdk.tar.gz"
    with tarfile.open(path, "w:gz", format=form) as tar:
        for make in makes:
            make(tar)
    return GcloudArchive(path)


def unpacked(base: Path, made: GcloudArchive, output: Path) -> tuple[ImageTree, tuple[str, ...]]:
    with open_image(base) as source:
        disk = EditedDisk(source)
        lines = gcloud.unpack(disk, made, time=TIME)
        with output.open("wb") as file:
            write_raw(disk, file)
    lab.clean(output)
    return open_tree(open_image(output)), lines


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_archive_is_unpacked_and_its_programs_are_on_the_path(
    base: Path, tmp_path: Path, form: int
) -> None:
    tree, lines = unpacked(base, archive(tmp_path, plain, form=form), tmp_path / "out.raw")
    assert lines == (
        "unpack sdk.tar.gz to /usr/lib/google-cloud-sdk (4 files, 0 MiB)",
        "link /usr/bin/gcloud to /usr/lib/google-cloud-sdk/bin/gcloud",
        "link /usr/bin/gsutil to /usr/lib/google-cloud-sdk/bin/gsutil",
    )
    assert tree.read_text("/usr/bin/gcloud") == "#!/bin/sh\n"
    modes = {
        "bin/gcloud": 0o755,
        "bin/gsutil": 0o755,
        f"lib/deep/{'n' * 120}/module.py": 0o644,
        "lib/empty": 0o755,
        "lib/same.py": 0o755,
    }
    for path, mode in modes.items():
        entry = tree.lstat(f"/usr/lib/google-cloud-sdk/{path}")
        assert entry is not None
        assert (entry.mode, entry.uid, entry.gid) == (mode, 0, 0), path
    link = tree.lstat("/usr/lib/google-cloud-sdk/lib/python3")
    assert link is not None
    assert link.target == "deep/python3.12"
    assert tree.read_text("/usr/lib/google-cloud-sdk/lib/same.py") == "#!/bin/sh\n"


def test_the_digest_must_match(base: Path, tmp_path: Path) -> None:
    made = archive(tmp_path, plain)
    digest = hashlib.sha256(made.path.read_bytes()).hexdigest()
    with open_image(base) as source:
        gcloud.unpack(EditedDisk(source), GcloudArchive(made.path, digest), time=TIME)
        with pytest.raises(CustomisationError, match=f"has the SHA-256 {digest}, not 0000"):
            gcloud.unpack(EditedDisk(source), GcloudArchive(made.path, "0" * 64), time=TIME)


def test_an_image_that_has_it_is_left_alone(base: Path, tmp_path: Path) -> None:
    made = archive(tmp_path, plain)
    unpacked(base, made, tmp_path / "out.raw")
    with open_image(tmp_path / "out.raw") as source:
        disk = EditedDisk(source)
        with pytest.raises(CustomisationError, match="is in the image already; leave gcloud out"):
            gcloud.unpack(disk, made, time=TIME)
        assert not disk.changed_bytes


TOP = "google-cloud-sdk"
HOSTILE: dict[str, tuple[Make, str]] = {
    "absolute": (lambda t: add(t, "/etc/passwd", b"x"), "/etc/passwd is not below google-cloud-sdk/"),
    "upwards": (lambda t: add(t, f"{TOP}/../../etc/x", b"x"), "is not below google-cloud-sdk/"),
    "elsewhere": (lambda t: add(t, "other/x", b"x"), "other/x is not below google-cloud-sdk/"),
    "a device": (lambda t: add(t, f"{TOP}/d", type=tarfile.BLKTYPE), "d is neither file, folder nor link"),
    "a pipe": (lambda t: add(t, f"{TOP}/p", type=tarfile.FIFOTYPE), "p is neither file, folder nor link"),
    "a link to the root": (
        lambda t: add(t, f"{TOP}/l", type=tarfile.SYMTYPE, linkname="/etc"),
        "the link l leads outside",
    ),
    "a link upwards": (
        lambda t: add(t, f"{TOP}/a/l", type=tarfile.SYMTYPE, linkname="../../x"),
        "the link a/l leads outside",
    ),
    "a link that another bends": (
        lambda t: add(t, f"{TOP}/l", type=tarfile.SYMTYPE, linkname="s/s/../../etc"),
        "the link l leads outside",
    ),
    "a hard link outside": (
        lambda t: add(t, f"{TOP}/h", type=tarfile.LNKTYPE, linkname="../etc/shadow"),
        "is not below google-cloud-sdk/",
    ),
    "a hard link to nothing": (
        lambda t: add(t, f"{TOP}/h", type=tarfile.LNKTYPE, linkname=f"{TOP}/none"),
        "h is a link to no file before it",
    ),
    "through a link": (
        lambda t: add_all(t, (f"{TOP}/s", {"type": tarfile.SYMTYPE, "linkname": "bin"}), (f"{TOP}/s/x", {})),
        "s/x is below something that is no folder",
    ),
    "below a file": (
        lambda t: add_all(t, (f"{TOP}/f", {}), (f"{TOP}/f/x", {})),
        "f/x is below something that is no folder",
    ),
    "twice": (lambda t: add_all(t, (f"{TOP}/f", {}), (f"{TOP}/f", {})), "it has f twice"),
    "a size that is no number": (lambda t: pax(t, {"GNU.sparse.size": "many"}), "is damaged"),
    "a sparse map of words": (
        lambda t: pax(t, {"GNU.sparse.size": "9", "GNU.sparse.map": "a,b"}),
        "is damaged",
    ),
    "a size below zero": (lambda t: add_raw(t, header(b"0", -1536)), "a file has a size below zero"),
    "a header of digits alone": (
        lambda t: add_raw(t, header(b"x", 61440) + b"1" * 61440),
        "a header is larger than any file's",
    ),
    "headers within headers": (lambda t: add_raw(t, header(b"x", 0) * 2000), "is damaged"),
    "many headers": (many_headers, "a header is larger than any file's"),
    "a name too long": (lambda t: add(t, f"{TOP}/{'n' * 256}", b"x"), "is not below google-cloud-sdk/"),
}


@pytest.mark.parametrize(("make", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_archive_is_refused(base: Path, tmp_path: Path, make: Make, message: str) -> None:
    with open_image(base) as source, pytest.raises(CustomisationError) as caught:
        gcloud.unpack(EditedDisk(source), archive(tmp_path, plain, make), time=TIME)
    assert message in caught.value.message
    assert caught.value.message.endswith(f"; {gcloud.GET_IT}")


def write_gzip(path: Path, *parts: bytes) -> GcloudArchive:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in parts:
            file.write(part)
    return GcloudArchive(path)


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_a_header_of_a_gigabyte_takes_no_memory(base: Path, tmp_path: Path, kind: bytes) -> None:
    zeros = [bytes(1 << 20)] * 32
    made = write_gzip(tmp_path / "sdk.tar.gz", header(kind, 1 << 30), *zeros)
    with open_image(base) as source:
        disk = EditedDisk(source)
        tracemalloc.start()
        with pytest.raises(CustomisationError, match="a header is larger than any file's"):
            gcloud.unpack(disk, made, time=TIME)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 24 << 20


def test_more_than_any_cli_has_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcloud, "SIZE_LIMIT", 1 << 20)
    made = write_gzip(tmp_path / "sdk.tar.gz", header(b"0", 1 << 34))
    with open_image(base) as source, pytest.raises(CustomisationError, match="unpacks to more than"):
        gcloud.unpack(EditedDisk(source), made, time=TIME)


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda data: data[: len(data) // 2],
    "no gzip": lambda data: b"PK\x03\x04" + data,
    "empty": lambda data: b"",
    "bent": lambda data: data[:60] + bytes(40) + data[100:],
    "another archive": lambda data: gzip.compress(bytes(10240)),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_archive_is_named(base: Path, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    made = archive(tmp_path, plain)
    made.path.write_bytes(damage(made.path.read_bytes()))
    with (
        open_image(base) as source,
        pytest.raises(CustomisationError, match=r"gcloud: sdk.tar.gz .*; get it"),
    ):
        gcloud.unpack(EditedDisk(source), made, time=TIME)


@pytest.mark.slow
def test_large_contents_stay_out_of_memory(base: Path, tmp_path: Path) -> None:
    content = sparse(tmp_path / "content", 100 << 20)

    def large(tar: tarfile.TarFile) -> None:
        with content.open("rb") as file:
            member = tarfile.TarInfo(f"{TOP}/large")
            member.size = 100 << 20
            tar.addfile(member, file)

    made = archive(tmp_path, plain, large)
    with open_image(base) as source:
        disk = EditedDisk(source)
        tracemalloc.start()
        gcloud.unpack(disk, made, time=TIME)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert disk.changed_bytes > 100 << 20
    assert peak < 80 << 20
