from __future__ import annotations

import io
import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from disk_tools import run
from tpu_image.bases import disk, make, releases, root
from tpu_image.bases.contents import configuration, write_configuration
from tpu_image.bases.errors import BaseError
from tpu_image.bases.layout import MIB, make_layout, sfdisk_script
from tpu_image.bases.root import failure
from tpu_image.bases.sources import Sources
from tpu_image.catalogue.boot import EfiStub
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.downloads import cache

BOOKWORM = releases.find("debian:bookworm")
SOURCES = Sources("http://deb.debian.org/debian", "http://deb.debian.org/debian-security", ())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(make, "sources_for", lambda release: SOURCES)
    monkeypatch.setattr(make, "require_keyring", lambda release: None)
    monkeypatch.setattr(make, "as_root", list)
    return tmp_path / "cache" / "tpu-image" / "bases"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every root that was made; the tools are replaced by stand-ins."""
    calls: list[str] = []

    def make_root(
        release: releases.Release, layout: Any, packages: Any, sources: Any, work: Path, *rest: Any
    ) -> Path:
        calls.append(release.suite)
        (work / "esp").mkdir()
        return work

    monkeypatch.setattr(root, "make_root", make_root)
    monkeypatch.setattr(disk, "make_disk", lambda root, esp, layout, path, powers: path.write_bytes(b"disk"))
    monkeypatch.setattr(disk, "compress", lambda source, target: target.write_bytes(b"base"))
    return calls


def test_a_base_is_made_once(made: list[str], own_cache: Path) -> None:
    first = make.resolve("debian:bookworm")
    assert make.resolve("debian:12") == first
    assert made == ["bookworm"]
    assert first.read_bytes() == b"base"
    assert sorted(path.name for path in own_cache.iterdir()) == [first.name, f"{first.name}.json"]


def test_other_packages_make_another_base(made: list[str]) -> None:
    assert make.resolve("debian:bookworm") != make.resolve("debian:bookworm", packages=("docker.io",))
    assert len(made) == 2


def test_a_base_that_is_out_of_date_is_made_anew(made: list[str]) -> None:
    path = make.resolve("debian:bookworm")
    cache.describe(path, cache.About("debian:bookworm", made=int(time.time()) - make.FRESH - 1))
    make.resolve("debian:bookworm")
    assert len(made) == 2


def test_where_none_can_be_made_the_old_one_is_used_and_that_is_said(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*ignored: object) -> Path:
        raise BaseError("debian:bookworm: its archive cannot be used from here")

    path = make.resolve("debian:bookworm")
    cache.describe(path, cache.About("debian:bookworm"))
    monkeypatch.setattr(root, "make_root", fail)
    notes: list[str] = []
    assert make.resolve("debian:bookworm", note=notes.append) == path
    assert "the one of the cache is used" in notes[0]


@pytest.mark.parametrize(
    "error", [BaseError("no"), OSError(28, "No space left on device"), KeyboardInterrupt()]
)
def test_a_failure_leaves_nothing(
    made: list[str], own_cache: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*ignored: object) -> None:
        raise error

    monkeypatch.setattr(disk, "compress", fail)
    with pytest.raises((BaseError, KeyboardInterrupt)):
        make.resolve("debian:bookworm")
    assert list(own_cache.iterdir()) == []


def test_what_a_killed_run_left_is_taken_away_by_the_next(made: list[str], own_cache: Path) -> None:
    (own_cache / "new-abc" / "root").mkdir(parents=True)
    (own_cache / "debian-bookworm-0.qcow2.json").write_text("{}")
    path = make.resolve("debian:bookworm")
    assert sorted(entry.name for entry in own_cache.iterdir()) == [path.name, f"{path.name}.json"]


def test_everything_that_a_base_is_made_of_is_in_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    keys = [
        make.key(BOOKWORM, ["a"], SOURCES),
        make.key(BOOKWORM, ["a", "b"], SOURCES),
        make.key(replace(BOOKWORM, suite="trixie"), ["a"], SOURCES),
        make.key(BOOKWORM, ["a"], replace(SOURCES, archive="http://mirror/debian")),
    ]
    for module, name in ((root, "FINISH"), (disk, "MKE2FS_CONFIGURATION"), (make, "RECIPE")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, other if name != "RECIPE" else 0)
            keys.append(make.key(BOOKWORM, ["a"], SOURCES))
    assert len(set(keys)) == len(keys)
    assert make.key(BOOKWORM, ["a"], replace(SOURCES, options=("x",))) == keys[0]


def test_what_cannot_be_made_is_refused_with_what_can() -> None:
    with pytest.raises(
        BaseError, match=r"fedora:40: is no base that can be made; there are debian:bookworm, "
    ):
        make.resolve("fedora:40")


FAILURES = {
    "no archive": (
        "reading package lists",
        "Err:1 http://archive noble InRelease\n  Could not resolve\n"
        "W: Failed to fetch http://archive/dists/InRelease  Could not resolve 'archive'\nE: apt-get update failed",
        r"ubuntu:24\.04: its archive cannot be used from here: .*Could not resolve 'archive'; name a mirror of it in "
        "TPU_IMAGE_UBUNTU_MIRROR, or give another BASE",
    ),
    "a package that is not there": (
        "installing packages",
        "E: Unable to locate package nosuch\nE: mmdebstrap failed to run",
        r"ubuntu:24\.04: installing packages failed: Unable to locate package nosuch",
    ),
    "a conflict": (
        "installing packages",
        " chrony : Conflicts: time-daemon\n a : Depends: b but it is not installable\nE: Unable to correct problems",
        "a : Depends: b but it is not installable",
    ),
    "nothing said": ("starting", "", r"ubuntu:24\.04: starting failed: mmdebstrap failed"),
}


@pytest.mark.parametrize(("stage", "log", "expected"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line(stage: str, log: str, expected: str) -> None:
    line = failure("ubuntu:24.04", stage, log)
    assert re.search(expected, line), line
    assert "\n" not in line


def test_the_partition_table_is_one_that_sfdisk_makes_and_verifies(tmp_path: Path) -> None:
    layout = make_layout("seed")
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(layout.size)
    run("sfdisk", "-q", image, text=sfdisk_script(layout))
    assert "No errors detected" in run("sfdisk", "--verify", image)
    table = json.loads(run("sfdisk", "-J", image))["partitiontable"]
    found = {
        part["node"].removeprefix(str(image)): (part["start"], part["size"]) for part in table["partitions"]
    }
    assert found == {
        str(part.number): (part.offset // 512, part.length // 512)
        for part in (layout.root, layout.bios_boot, layout.esp)
    }
    assert table["id"].lower() == layout.disk_id
    assert layout.root.end <= (table["lastlba"] + 1) * 512


def test_identifiers_follow_from_the_seed_alone() -> None:
    assert make_layout("a") == make_layout("a")
    assert make_layout("a").root_uuid != make_layout("b").root_uuid


def test_the_configuration_names_the_file_systems_and_keeps_no_mirror(tmp_path: Path) -> None:
    layout = make_layout("seed")
    files = configuration(BOOKWORM, layout)
    assert files["etc/fstab"].startswith(f"UUID={layout.root_uuid} / ext4 ")
    assert f"UUID={layout.esp_uuid} /boot/efi vfat" in files["etc/fstab"]
    assert (
        "deb http://deb.debian.org/debian bookworm main non-free-firmware\n" in files["etc/apt/sources.list"]
    )
    old = os.umask(0o077)
    try:
        write_configuration(tmp_path / "files", files)
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "files").rglob("*")} == {0o644, 0o755}


def test_a_disk_is_made_without_root_and_read_by_our_own_check(tmp_path: Path) -> None:
    layout = make_layout("seed", 512 * MIB)
    top, esp, image = tmp_path / "root", tmp_path / "esp", tmp_path / "disk.raw"
    write_configuration(top, configuration(BOOKWORM, layout))
    (top / "boot/grub/i386-pc").mkdir(parents=True)
    (top / "boot/efi").mkdir()
    (top / "etc/os-release").write_text("ID=debian\n")
    (top / "usr/sbin").mkdir(parents=True)
    (top / "usr/sbin/init").write_text("")
    (top / "sbin").symlink_to("usr/sbin")
    (top / "boot/grub/i386-pc/boot.img").write_bytes(b"b" * 510 + b"\x55\xaa")
    (top / "boot/grub/i386-pc/core.img").write_bytes(bytes(512) + b"core" * 1000)
    (esp / "EFI/debian").mkdir(parents=True)
    (esp / "EFI/debian/grub.cfg").write_text(
        f"search.fs_uuid {layout.root_uuid} root\nset prefix=($root)'/boot/grub'\nconfigfile $prefix/grub.cfg\n"
    )
    disk.make_disk(top, esp, layout, image, [])
    run("e2fsck", "-fn", f"{image}?offset={layout.root.offset}")
    assert b"core" in image.read_bytes()[layout.bios_boot.offset : layout.bios_boot.end]
    with open_image(image) as source:
        tree = open_tree(source)
        assert tree.read_text("/etc/hostname") == "debian\n"
        assert EfiStub().inspect(tree, None).status.value == "pass"  # type: ignore[arg-type]


def test_the_grub_defaults_put_the_console_on_the_first_serial_port() -> None:
    text = configuration(BOOKWORM, make_layout(""))["etc/default/grub.d/40-serial-console.cfg"]
    assert "console=ttyS0,115200" in text


def test_progress_counts_the_packages_of_the_root_that_is_made(tmp_path: Path) -> None:
    archives = tmp_path / "var/cache/apt/archives"
    archives.mkdir(parents=True)
    (tmp_path / "var/log").mkdir()
    said = io.StringIO()
    progress = root._Progress(tmp_path, said)

    def look(line: str) -> tuple[str, int, int]:
        position = said.tell()
        said.write(line)
        said.seek(position)
        return progress.look()

    (archives / "a_1_amd64.deb").write_text("")
    assert look("I: downloading packages with apt...\n") == ("downloading packages", 1, 0)
    (archives / "a_1_amd64.deb").unlink()
    (archives / "b_1_amd64.deb").write_text("")
    (tmp_path / "var/log/dpkg.log").write_text("x status installed a:amd64 1\nx status installed a:amd64 1\n")
    assert look("I: installing remaining packages inside the chroot...\n") == ("installing packages", 1, 2)
    assert look("I: running --customize-hook in shell: sh\n") == ("installing packages", 1, 2)
    assert look("I: finishing: boot menu\n") == ("boot menu", 0, 0)
