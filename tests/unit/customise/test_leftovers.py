"""What installing leaves behind is cleared; what its owners need stays."""

from __future__ import annotations

from pathlib import Path

import build_bases as bases
import customise_lab as lab
from tpu_image.customise.leftovers import clear_leftovers
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree

GONE = (
    "var/lib/apt/lists/deb.debian.org_dists_bookworm_InRelease",
    "var/lib/apt/lists/auxfiles/x",
    "var/cache/apt/archives/hello_2.10_amd64.deb",
    "var/cache/apt/pkgcache.bin",
    "var/log/journal/0123/system.journal",
)
EMPTIED = ("var/log/dpkg.log", "var/log/apt/history.log", "var/log/btmp")
KEPT = ("var/lib/apt/lists/lock", "var/lib/apt/extended_states", "var/log.txt")


def test_lists_archives_and_logs_are_cleared(tmp_path: Path) -> None:
    root = bases.root_folder(tmp_path / "root", efi=False)
    for name in (*GONE, *EMPTIED, *KEPT):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"content\n" * 1000)
    (root / "var/log/btmp").chmod(0o660)
    base = bases.disk(tmp_path / "base.raw", (bases.ROOT, bases.file_system(tmp_path / "root.ext4", root)))
    with open_image(base) as source:
        disk = EditedDisk(source)
        lines = clear_leftovers(disk, time=0)
        with (tmp_path / "out.raw").open("wb") as file:
            write_raw(disk, file)
        assert clear_leftovers(disk, time=0) == ()
    assert lines == (
        "remove package lists (2 files)",
        "remove package archives (1 files)",
        "remove package caches (1 files)",
        "empty the logs (4 files)",
    )
    lab.clean(tmp_path / "out.raw")
    tree = open_tree(open_image(tmp_path / "out.raw"))
    assert not any(tree.exists(f"/{name}") for name in GONE)
    assert all(tree.read_bytes(f"/{name}") == b"" for name in EMPTIED)
    assert all(tree.read_bytes(f"/{name}") for name in KEPT)
    entry = tree.lstat("/var/log/btmp")
    assert entry is not None
    assert entry.mode == 0o660
