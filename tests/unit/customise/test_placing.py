"""The user's own files, placed in an image: where links lead, with whose mode and owner, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import build_bases as bases
import customise_lab as lab
from tpu_image.customise.customisation import Placement
from tpu_image.customise.placing import place
from tpu_image.customise.session import CustomisationError
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree

TIME = 1_700_000_000


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk whose system has users and a link; tests only read it."""
    folder = tmp_path_factory.mktemp("base")
    root = bases.root_folder(folder / "root", efi=False)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:1001:1002::/home/app:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nstaff:x:70000:\n")
    (root / "srv").mkdir()
    (root / "data").symlink_to("srv")
    (root / "etc/private").write_text("old\n")
    (root / "etc/private").chmod(0o600)
    return bases.disk(folder / "base.raw", (bases.ROOT, bases.file_system(folder / "root.ext4", root)))


def placed(base: Path, placements: Sequence[Placement], output: Path) -> tuple[ImageTree, tuple[str, ...]]:
    """The files of the disk afterwards, which e2fsck finds clean."""
    with open_image(base) as source:
        disk = EditedDisk(source)
        lines = place(disk, placements, time=TIME)
        with output.open("wb") as file:
            write_raw(disk, file)
    lab.clean(output)
    return open_tree(open_image(output)), lines


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a file, a program, a link and an empty folder."""
    folder = tmp_path / "app"
    (folder / "bin").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "large").write_bytes(bytes(range(256)) * 12_345)
    (folder / "bin/run").write_text("#!/bin/sh\n")
    (folder / "bin/run").chmod(0o700)
    (folder / "link").symlink_to("bin/run")
    return folder


CASES = {
    "a new file": (Placement("/etc/motd.d/x", content=b"hi\n"), "/etc/motd.d/x", (0o644, 0, 0)),
    "a mode": (Placement("/etc/x", content=b"hi\n", mode=0o4750), "/etc/x", (0o4750, 0, 0)),
    "names": (
        Placement("/etc/x", content=b"hi\n", owner="app", group="staff"),
        "/etc/x",
        (0o644, 1001, 70000),
    ),
    "numbers": (Placement("/etc/x", content=b"hi\n", owner="7", group="8"), "/etc/x", (0o644, 7, 8)),
    "what is there keeps its mode": (
        Placement("/etc/private", content=b"hi\n"),
        "/etc/private",
        (0o600, 0, 0),
    ),
    "through a link": (Placement("/data/x", content=b"hi\n"), "/srv/x", (0o644, 0, 0)),
}


@pytest.mark.parametrize(("placement", "path", "expected"), CASES.values(), ids=CASES.keys())
def test_a_file_gets_its_content_mode_and_owner(
    base: Path, tmp_path: Path, placement: Placement, path: str, expected: tuple[int, int, int]
) -> None:
    tree, lines = placed(base, [placement], tmp_path / "out.raw")
    entry = tree.lstat_canonical(path)
    assert entry is not None
    assert (entry.mode, entry.uid, entry.gid) == expected
    assert tree.read_bytes(path) == b"hi\n"
    assert lines == (f"place {placement.path}",)


def test_a_folder_is_copied_whole(base: Path, tmp_path: Path, source: Path) -> None:
    tree, lines = placed(base, [Placement("/opt/app", source=source, owner="app")], tmp_path / "out.raw")
    assert lines == ("place /opt/app and 5 below it",)
    assert tree.read_bytes("/opt/app/large") == (source / "large").read_bytes()
    found = {path: tree.lstat(f"/opt/app{path}") for path in ("", "/bin/run", "/large", "/empty", "/link")}
    assert {path: (entry.mode, entry.uid) for path, entry in found.items() if entry and not entry.target} == {
        "": (0o755, 1001),
        "/bin/run": (0o755, 1001),
        "/large": (0o644, 1001),
        "/empty": (0o755, 1001),
    }
    assert found["/link"] is not None
    assert found["/link"].target == "bin/run"


def test_directories_come_before_what_is_in_them(base: Path, tmp_path: Path) -> None:
    wanted = [Placement("/var/lib/app/x", content=b"1"), Placement("/var/lib/app", mode=0o700, owner="app")]
    tree, _ = placed(base, wanted, tmp_path / "out.raw")
    entry = tree.lstat("/var/lib/app")
    assert entry is not None
    assert (entry.mode, entry.uid) == (0o700, 1001)
    assert tree.read_bytes("/var/lib/app/x") == b"1"


REFUSED = {
    "an owner that the image lacks": (
        Placement("/etc/x", content=b"", owner="nobodys"),
        "files: /etc/x: the image has no owner nobodys; give one of its own, or a number",
    ),
    "a file where a directory is": (
        Placement("/etc", content=b""),
        "files: /etc: is a directory, not a regular file; choose another path",
    ),
    "a directory where a file is": (
        Placement("/etc/private"),
        "files: /etc/private: is a regular file, not a directory; choose another path",
    ),
    "below a file": (Placement("/etc/private/x", content=b""), "files: /etc/private/x: "),
}


@pytest.mark.parametrize(("placement", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_placed_is_named(base: Path, placement: Placement, message: str) -> None:
    with open_image(base) as source, pytest.raises(CustomisationError) as caught:
        place(EditedDisk(source), [placement], time=TIME)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("named", ["", "pipe"])
def test_what_is_no_file_is_not_copied(base: Path, source: Path, named: str) -> None:
    os.mkfifo(source / "pipe")
    with (
        open_image(base) as image,
        pytest.raises(CustomisationError, match="pipe is neither file, folder nor link"),
    ):
        place(EditedDisk(image), [Placement("/opt/app", source=source / named)], time=TIME)
