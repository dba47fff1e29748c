"""File systems filled with every kind of file, made without root."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from disk_tools import sparse

LONG_NAME = "n" * 255


@pytest.fixture(scope="session")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small, large, sparse and scattered files, links, and directories of every size."""
    top = tmp_path_factory.mktemp("content")
    noise = random.Random(1)
    for name in ("etc/deep/er/and/deeper", "empty", "many", "few", "usr/bin"):
        (top / name).mkdir(parents=True)
    (top / "etc/os-release").write_text("ID=test\n")
    (top / "etc/empty").touch()
    (top / "etc/tiny").write_text("in the inode")
    (top / "etc/deep/er/and/deeper/file").write_bytes(noise.randbytes(5000))
    (top / "usr/bin/tool").write_bytes(noise.randbytes(300_000))
    (top / "usr/bin/tool").chmod(0o4755)
    (top / f"etc/{LONG_NAME}").write_text("long name")
    (top / "etc/gr\u00fc\u00dfe").write_text("umlaut")
    (top / os.fsdecode(b"etc/\xff\xfe")).write_text("no UTF-8")
    os.link(top / "etc/os-release", top / "etc/hard-link")
    for length in (1, 59, 60, 61, 900):
        (top / f"few/link-{length}").symlink_to("x" * length)
    (top / "bin").symlink_to("usr/bin")
    for index in range(700):
        (top / f"many/a file with a longer name to fill blocks {index}").write_text(str(index))
    for index in range(3):
        (top / f"few/{index}").write_text(str(index))
    sparse(top / "holes", 400_000, {0: b"first" * 100, 200_000: b"middle" * 100, 399_990: b"last......"})
    sparse(top / "all-hole", 3_000_000)
    scattered = {index * 16384: bytes([index % 251 + 1]) * 8192 for index in range(900)}
    # They end in data: mkfs.ext4 1.47.0 with inline_data drops a hole at the end.
    sparse(top / "scattered", 899 * 16384 + 8192, scattered)
    sparse(top / "far", 70_000_000, {5_000: b"single", 400_000: b"double", 69_999_994: b"triple"})
    return top
