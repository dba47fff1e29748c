"""A build turns every kind of base into an image that the field's own tools read, find clean and take apart alike."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest

import build_bases as bases
from disk_tools import edit, run, sparse, write_at
from tpu_image.build import Built, Request, build
from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.ext4.tree import Ext4Tree
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree
from tpu_image.disks.objections import open_system
from tpu_image.manifest import build_schema, documents
from tpu_image.progress import BYTES, Progress

PROFILE = Profile(agent_elsewhere=True)
TIME = 1_700_000_000
GIB = 1 << 30

FEATURES = {
    "as Ubuntu 24.04 makes it": ["-O", "metadata_csum_seed,orphan_file"],
    "without checksums": ["-O", "^metadata_csum,uninit_bg"],
    "small blocks": ["-b", "1024"],
    "ext3": ["-t", "ext3"],
    "ext2": ["-t", "ext2", "-I", "128"],
    "meta block groups": ["-O", "meta_bg,^resize_inode"],
    "without 64 bit numbers": ["-O", "^64bit"],
}


def request(base: Path, output: Path, **options: object) -> Request:
    return Request(base, output, PROFILE, time=TIME, **options)  # type: ignore[arg-type]


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    for piece in pieces(path):
        digest.update(piece)
    return digest.hexdigest()


def pieces(path: Path) -> Iterator[bytes]:
    """The content of a file, some MiB at a time."""
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            yield piece


def unpacked(archive: Path) -> Path:
    """The disk in an archive, as GNU tar takes it out."""
    folder = archive.with_name(archive.name + ".d")
    folder.mkdir()
    run("tar", "-xzSf", archive, "-C", folder)
    return folder / "disk.raw"


def assert_clean(disk: Path, *starts: int) -> None:
    """Each file system on the disk is one that e2fsck finds nothing to complain of in."""
    for start in starts:
        run("e2fsck", "-fn", f"{disk}?offset={start}" if start else disk)


def built(base: Path, folder: Path, **options: object) -> tuple[Path, Built]:
    """Build, and hold the base and the folder to what a build promises."""
    before, there = sha256(base), set(folder.iterdir())
    output = folder / "out.tar.gz"
    result = build(request(base, output, **options))
    assert result.holds, [v for v in result.verdicts if v.status in (Status.FAIL, Status.UNKNOWN)]
    assert sha256(base) == before
    assert set(folder.iterdir()) - there == {output}
    return output, result


def statuses(image: Path) -> dict[str, Status]:
    with open_image(image) as source:
        return {v.requirement: v.status for v in readings.check(open_system(source), PROFILE)}


def in_tree(image: Path, look: Callable[[ImageTree], object]) -> object:
    with open_image(image) as source:
        return look(open_system(source))


# --- every kind of base ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual base; tests only read it."""
    return bases.gpt_disk(tmp_path_factory.mktemp("base"))


def gpt(folder: Path) -> tuple[Path, list[int]]:
    path = bases.gpt_disk(folder)
    return path, bases.offsets(path)[1:]


def mbr(folder: Path) -> tuple[Path, list[int]]:
    root = bases.file_system(folder / "root.ext4", bases.root_folder(folder / "root"))
    path = bases.disk(folder / "base", ("ef", bases.efi_partition(folder / "efi")), ("83", root), label="dos")
    return path, bases.offsets(path)[1:]


def unpartitioned(folder: Path) -> tuple[Path, list[int]]:
    root = bases.root_folder(folder / "root", efi=False)
    return bases.file_system(folder / "base", root), [0]


def separate_boot(folder: Path) -> tuple[Path, list[int]]:
    top = bases.root_folder(folder / "root", without=[bases.EFI_STUB])
    (top / "boot").rename(folder / "boot")
    (top / "boot").mkdir()
    fstab = top / "etc/fstab"
    fstab.write_text(f"{fstab.read_text()}UUID={bases.BOOT_UUID} /boot ext4 defaults 0 2\n")
    boot = bases.file_system(folder / "boot.ext4", folder / "boot", uuid=bases.BOOT_UUID, size=8 * bases.MIB)
    root = bases.file_system(folder / "root.ext4", top)
    efi = bases.efi_partition(folder / "efi", bases.BOOT_UUID, "/grub")
    parts = [(bases.EFI, efi), (bases.BOOT, boot), (bases.ROOT, root)]
    path = bases.disk(folder / "base", *parts)
    return path, bases.offsets(path)[1:]


def converted(folder: Path, *options: str) -> tuple[Path, list[int]]:
    raw, starts = gpt(folder)
    run("qemu-img", "convert", "-O", "qcow2", *options, raw, folder / "base.qcow2")
    raw.unlink()
    return folder / "base.qcow2", starts


def zstd(folder: Path) -> tuple[Path, list[int]]:
    return converted(folder, "-c", "-o", "compression_type=zstd")


def backing_chain(folder: Path) -> tuple[Path, list[int]]:
    backing, starts = converted(folder, "-c")
    path = folder / "top.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", backing.name, path)
    run("qemu-io", "-c", f"write -P 7 {starts[0] + 23 * bases.MIB} 4096", path)  # in free space
    return path, starts


def archive(folder: Path) -> tuple[Path, list[int]]:
    raw, starts = gpt(folder)
    os.truncate(raw, GIB)
    run("sgdisk", "-e", raw)
    raw.rename(folder / "disk.raw")
    run("tar", "-C", folder, "--format=oldgnu", "-Sczf", folder / "base.tar.gz", "disk.raw")
    (folder / "disk.raw").unlink()
    return folder / "base.tar.gz", starts


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [gpt, mbr, unpartitioned, separate_boot, converted, zstd, backing_chain, archive]
)
def test_an_image_of_every_kind_of_disk_is_clean_and_holds(
    kind: Callable[[Path], tuple[Path, list[int]]], tmp_path: Path
) -> None:
    made, starts = kind(tmp_path)
    output, _ = built(made, tmp_path)
    disk = unpacked(output)
    assert disk.stat().st_size == GIB
    assert_clean(disk, *starts)
    assert not {Status.FAIL, Status.UNKNOWN} & set(statuses(output).values())
    if kind in (gpt, zstd, backing_chain, archive, separate_boot):
        assert "No problems found" in run("sgdisk", "--verify", disk)


@pytest.mark.parametrize("kind", [gpt, mbr, unpartitioned, separate_boot, zstd])
def test_the_root_fills_a_disk_that_was_grown(
    kind: Callable[[Path], tuple[Path, list[int]]], tmp_path: Path
) -> None:
    made, starts = kind(tmp_path)
    output, result = built(made, tmp_path, size=2 * GIB)
    assert result.disk_size == 2 * GIB
    disk = unpacked(output)
    assert_clean(disk, *starts)
    header = run("dumpe2fs", "-h", f"{disk}?offset={starts[-1]}" if starts[-1] else disk)
    blocks, size = (int(re.findall(rf"^Block {what}: +(\d+)", header, re.M)[0]) for what in ("count", "size"))
    assert 0 <= 2 * GIB - starts[-1] - blocks * size < 2 * bases.MIB
    if starts[-1]:
        assert "overlap" not in run("sfdisk", "--verify", disk)
    assert output.stat().st_size < 40 * bases.MIB


def test_a_size_below_the_base_is_refused(base: Path, tmp_path: Path) -> None:
    large = sparse(tmp_path / "large", 3 * GIB)
    with large.open("r+b") as file:
        file.write(base.read_bytes())
    with pytest.raises(DiskError, match=r"more than --size gives .*; give --size 3G or more"):
        build(request(large, tmp_path / "out.tar.gz", size=2 * GIB))


def test_a_root_before_another_partition_is_not_grown(tmp_path: Path) -> None:
    root = bases.file_system(tmp_path / "root.ext4", bases.root_folder(tmp_path / "root"))
    parts = [(bases.EFI, bases.efi_partition(tmp_path / "efi")), (bases.ROOT, root)]
    for label, kinds in (("gpt", [bases.ROOT, bases.EFI]), ("dos", ["83", "ef"])):
        swapped = [(kind, image) for kind, (_, image) in zip(kinds, reversed(parts), strict=True)]
        made = bases.disk(tmp_path / label, *swapped, label=label)
        with pytest.raises(UnsupportedError, match="partition 2 lies behind the root partition 1"):
            build(request(made, tmp_path / "out.tar.gz", size=2 * GIB))


@pytest.mark.parametrize("features", FEATURES)
def test_every_set_of_ext4_features_gives_a_clean_file_system(features: str, tmp_path: Path) -> None:
    made = bases.gpt_disk(tmp_path, *FEATURES[features])
    output, _ = built(made, tmp_path)
    assert_clean(unpacked(output), bases.offsets(made)[1])


@pytest.mark.slow
def test_three_readers_take_the_same_disk_out(base: Path, tmp_path: Path) -> None:
    output, _ = built(base, tmp_path)
    wanted = sha256(unpacked(output))
    with tarfile.open(output) as tar:
        (member,) = tar.getmembers()
        assert (member.name, member.size, member.mtime) == ("disk.raw", GIB, TIME)
        tar.extractall(tmp_path / "python", filter="data")
    assert sha256(tmp_path / "python/disk.raw") == wanted
    (tmp_path / "bsd").mkdir()
    run("bsdtar", "-xf", output, "-C", tmp_path / "bsd")
    assert sha256(tmp_path / "bsd/disk.raw") == wanted


@pytest.mark.slow
def test_a_raw_image_is_the_disk_in_the_archive(base: Path, tmp_path: Path) -> None:
    output, _ = built(base, tmp_path)
    raw = tmp_path / "out.raw"
    result = build(request(base, raw, form="raw"))
    assert sha256(raw) == sha256(unpacked(output))
    assert result.archive is not None
    assert result.archive.sha256 == sha256(raw)
    assert raw.stat().st_blocks * 512 < 64 * bases.MIB, "holes were filled"


# --- what a build leaves, and what it takes away -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["qcow2", "qcow2-zstd"])
def test_a_qcow2_image_is_the_same_disk(base: Path, tmp_path: Path, form: str) -> None:
    qcow2 = build(request(base, tmp_path / "out.qcow2", form=form))
    build(request(base, tmp_path / "out.raw", form="raw"))
    run("qemu-img", "check", tmp_path / "out.qcow2")
    run("qemu-img", "compare", tmp_path / "out.qcow2", tmp_path / "out.raw")
    assert qcow2.archive
    assert qcow2.archive.sha256 == sha256(tmp_path / "out.qcow2")
    assert ("zstd" in run("qemu-img", "info", tmp_path / "out.qcow2")) == form.endswith("zstd")


@pytest.mark.slow
def test_a_second_build_changes_nothing(base: Path, tmp_path: Path) -> None:
    output, _ = built(base, tmp_path)
    again = tmp_path / "again.tar.gz"
    assert build(request(output, again)).changes == ()
    assert sha256(unpacked(again)) == sha256(unpacked(output))


def test_two_builds_of_one_base_are_byte_for_byte_the_same(base: Path, tmp_path: Path) -> None:
    texts = []
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        folder.mkdir()
        asked = request(base, folder / "out.tar.gz", threads=threads)
        build(asked, describe=documents)
        texts.append((sha256(asked.output), (folder / "out.tar.gz.json").read_text()))
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.parametrize("block_size", ["1024", "4096"])
def test_the_identity_is_gone_from_every_block(block_size: str, tmp_path: Path) -> None:
    made = bases.gpt_disk(tmp_path, "-b", block_size)
    secrets = (b"the private key of one machine", b"0123456789abcdef0123456789abcdef")
    assert all(secret in made.read_bytes() for secret in secrets)
    output, _ = built(made, tmp_path)
    for piece in pieces(unpacked(output)):
        assert not any(secret in piece for secret in secrets)


def test_the_identity_stays_where_that_is_asked_for(base: Path, tmp_path: Path) -> None:
    output, _ = built(base, tmp_path, keep_identity=True)
    assert in_tree(output, lambda tree: tree.read_text("/etc/machine-id")) == (
        "0123456789abcdef0123456789abcdef\n"
    )
    assert statuses(output)["image.identity"] is Status.WARN


def test_extended_attributes_outlive_a_change(tmp_path: Path) -> None:
    root = bases.file_system(tmp_path / "root.ext4", bases.root_folder(tmp_path / "root", efi=False))
    label = "system_u:object_r:etc_t:s0"
    for path in ("/etc/environment", "/boot/grub/grub.cfg"):
        edit(root, f"ea_set {path} security.selinux {label}", f"ea_set {path} user.note {'long ' * 30}")
    made = bases.disk(tmp_path / "base", (bases.ROOT, root))
    output, result = built(made, tmp_path)
    assert {"/etc/environment", "/boot/grub/grub.cfg"} <= {change.path for change in result.changes}

    def attributes(tree: ImageTree) -> object:
        assert isinstance(tree.root.tree, Ext4Tree)
        return [
            tree.root.tree.extended_attributes(path)["security.selinux"]
            for path in ("/etc/environment", "/boot/grub/grub.cfg")
        ]

    assert in_tree(output, attributes) == [label.encode()] * 2
    assert_clean(unpacked(output), bases.offsets(made)[0])


# --- the manifest ----------------------------------------------------------------------------------------------------


def test_the_manifest_tells_what_was_done(base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.tar.gz"
    result = build(request(base, output), describe=documents)
    document = json.loads((tmp_path / "out.tar.gz.json").read_text())
    jsonschema.validate(document, build_schema())
    assert document["base"] == {"name": base.name, "sha256": sha256(base)}
    assert document["output"] == {
        "name": "out.tar.gz",
        "format": "gce",
        "size": output.stat().st_size,
        "sha256": sha256(output),
        "disk_size": GIB,
    }
    assert document["packages"] == [
        {"name": "bash", "version": "5.2.15-2+b8"},
        {"name": "udev", "version": "252.39-1"},
    ]
    assert document["changes"] == [str(change) for change in result.changes]
    assert "remove /etc/ssh/ssh_host_rsa_key" in document["changes"]
    assert {v["requirement"]: v["status"] for v in document["verdicts"]} == {
        name: status.value for name, status in statuses(output).items()
    }


# --- what is refused -------------------------------------------------------------------------------------------------


def xfs(folder: Path) -> Path:
    image = sparse(folder / "xfs", 310 * bases.MIB)
    run("mkfs.xfs", "-q", image)
    return bases.disk(folder / "base", (bases.ROOT, image))


def lvm(folder: Path) -> Path:
    label = b"LABELONE" + bytes(16) + b"LVM2 001"
    image = sparse(folder / "lvm", 4 * bases.MIB, {512: label})
    return bases.disk(folder / "base", (bases.ROOT, image))


def luks(folder: Path) -> Path:
    image = sparse(folder / "luks", 20 * bases.MIB)
    options = ["--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--key-file=-"]
    run("cryptsetup", "luksFormat", "-q", *options, image, text="secret")
    return bases.disk(folder / "base", (bases.ROOT, image))


def with_superblock(offset: int, data: bytes) -> Callable[[Path], Path]:
    """Make bases whose superblock, without a checksum, has these bytes."""

    def make(folder: Path) -> Path:
        path = bases.gpt_disk(folder, "-O", "^metadata_csum")
        write_at(path, bases.offsets(path)[1] + 1024 + offset, data)
        return path

    return make


def with_quota(folder: Path) -> Path:
    return bases.gpt_disk(folder, "-O", "quota")


def with_journal(folder: Path) -> tuple[Path, Path]:
    """A base whose journal holds the content of /etc/note, and its root."""
    top = bases.root_folder(folder / "root", efi=False)
    (top / "etc/note").write_bytes(b"old\n" * 1024)
    root = bases.file_system(folder / "root.ext4", top, "-b", "4096")
    block = run("debugfs", "-R", "blocks /etc/note", root).strip()
    (folder / "new").write_bytes(b"new\n" * 1024)
    edit(root, "jo -c", f"jw -b {block} {folder / 'new'}", "jc")
    return bases.disk(folder / "base", (bases.ROOT, root)), root


def damaged_journal(folder: Path) -> Path:
    base, _ = with_journal(folder)
    start = bases.offsets(base)[0]
    data = base.read_bytes()
    at = data.index(bytes.fromhex("c03b399800000004"), start)
    write_at(base, at, b"?")
    return base


def test_a_journal_is_replayed_for_a_build_and_for_a_check(tmp_path: Path) -> None:
    made, _ = with_journal(tmp_path)
    assert in_tree(made, lambda tree: tree.read_text("/etc/note")) == "new\n" * 1024
    found = in_tree(made, lambda tree: [fault.what for fault in tree.faults or () if not fault.required])
    assert found == ["partition 1 was not unmounted"]
    output, _ = built(made, tmp_path)
    disk = unpacked(output)
    start = bases.offsets(made)[0]
    assert_clean(disk, start)
    assert run("debugfs", "-R", "cat /etc/note", f"{disk}?offset={start}") == "new\n" * 1024


def full(folder: Path) -> Path:
    top = bases.root_folder(folder / "root", efi=False)
    root = bases.file_system(
        folder / "root.ext4", top, "-b", "1024", "-O", "^has_journal", size=8 * bases.MIB
    )
    free = int(run("dumpe2fs", "-h", root).partition("Free blocks:")[2].split()[0])
    large = sparse(folder / "large", 0, {0: os.urandom((free - 100) * 1024)})
    edit(root, f"write {large} large")
    return bases.disk(folder / "base", (bases.ROOT, root))


def overlapping(folder: Path) -> Path:
    path, _ = mbr(folder)
    write_at(path, 446 + 12, (20 * bases.MIB // 512).to_bytes(4, "little"))  # the first partition's length
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "XFS": (xfs, "the root can only be on XFS"),
    "LVM": (lvm, "the root can only be on LVM"),
    "LUKS": (luks, "the root can only be on LUKS encryption"),
    "journal that is damaged": (damaged_journal, "the journal needs replay and its superblock is damaged"),
    "not unmounted": (with_superblock(0x3A, b"\0\0"), "not unmounted cleanly or has errors"),
    "errors": (with_superblock(0x3A, b"\3\0"), "not unmounted cleanly or has errors"),
    "partitions over one another": (overlapping, "lies over another"),
    "quota": (with_quota, "feature quota is not supported"),
    "no room": (full, "no room for .* more blocks"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", REFUSED)
def test_a_base_that_cannot_be_edited_is_named(kind: str, tmp_path: Path) -> None:
    make, message = REFUSED[kind]
    made = make(tmp_path)
    before, there = sha256(made), set(tmp_path.iterdir())
    with pytest.raises((UnsupportedError, DamagedError), match=message):
        build(request(made, tmp_path / "out.tar.gz"), describe=documents)
    assert set(tmp_path.iterdir()) == there
    assert sha256(made) == before


def test_an_output_in_place_of_the_base_is_refused(base: Path, tmp_path: Path) -> None:
    top = tmp_path / "top.qcow2"
    (tmp_path / "backing.tar.gz").write_bytes(base.read_bytes())
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "backing.tar.gz", top)
    (tmp_path / "link.tar.gz").symlink_to(top)
    (tmp_path / "other.tar.gz.json").hardlink_to(top)
    for name in ("backing.tar.gz", "link.tar.gz", "other.tar.gz"):
        with pytest.raises(DiskError, match="is the base itself"):
            build(request(top, tmp_path / name))


def test_an_output_that_cannot_be_replaced_is_refused(base: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.tar.gz")
    for name, message in (
        ("fifo.tar.gz", "is no regular file"),
        ("nowhere/out.tar.gz", "is no folder"),
        ("out.tgz", r"name it out\.tar\.gz"),
    ):
        with pytest.raises(DiskError, match=message):
            build(request(base, tmp_path / name))


def test_two_results_of_one_name_are_refused(base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.spdx.json"
    with pytest.raises(DiskError, match="is named for two results"):
        build(request(base, output, form="raw", sbom=output), describe=documents)


def test_a_base_that_changes_while_it_is_read_is_refused(base: Path, tmp_path: Path) -> None:
    made = tmp_path / "base"
    made.write_bytes(base.read_bytes())

    class Touching(Progress):
        def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
            if stage == "writing":
                os.utime(made)

    with pytest.raises(DiskError, match="was changed while it was read"):
        build(request(made, tmp_path / "out.tar.gz"), Touching(), documents)
    assert list(tmp_path.iterdir()) == [made]


def test_an_image_that_does_not_hold_is_written_by_force_alone(tmp_path: Path) -> None:
    made = bases.gpt_disk(tmp_path, without=["/usr/bin/gcloud"])
    output = tmp_path / "out.tar.gz"
    result = build(request(made, output), describe=documents)
    assert not result.holds
    assert result.archive is None
    assert not output.exists()
    assert not build(request(made, output, force=True), describe=documents).holds
    assert json.loads((tmp_path / "out.tar.gz.json").read_text())["ok"] is False
    assert_clean(unpacked(output), bases.offsets(made)[1])


def test_an_earlier_image_stays_until_the_new_one_is_whole(base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.tar.gz"
    output.write_text("earlier")
    seen: list[str] = []

    class Looking(Progress):
        def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
            seen.append(output.read_text())

    build(request(base, output), Looking())
    assert set(seen) == {"earlier"}
    subprocess.run(["gzip", "--test", output], check=True)
    assert list(tmp_path.iterdir()) == [output]
