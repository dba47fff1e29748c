"""The disk that boots holds what the session needs, over an artefact that stays as it is."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from build_bases import gpt_disk
from disk_tools import run
from tpu_image.build import Request, build
from tpu_image.catalogue.requirement import Profile
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree
from tpu_image.lab import payload
from tpu_image.lab.errors import LabError
from tpu_image.lab.payload import Payload
from tpu_image.lab.throwaway import Disk, throwaway_disk

SETTINGS = "/etc/tpu-image-lab/settings.json"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt_disk(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def archive(raw: Path) -> Path:
    output = raw.with_name("tpu.tar.gz")
    build(Request(raw, output, Profile(agent_elsewhere=True), force=True))
    return output


@contextmanager
def booting(image: Path) -> Iterator[Disk]:
    with throwaway_disk(image, lambda overlay: payload.write(Payload(Profile()), overlay)) as disk:
        yield disk


def flattened(disk: Disk, output: Path) -> ImageTree:
    """What QEMU would see on the disk, read by QEMU's own tool."""
    source = {
        "driver": "qcow2",
        "file": {"driver": "file", "filename": f"/proc/self/fd/{disk.overlay.fileno()}"},
        "backing": {
            "driver": disk.form,
            "file": {"driver": "file", "filename": f"/proc/self/fd/{disk.base.fileno()}"},
            **({"backing": None} if disk.form == "qcow2" else {}),
        },
    }
    command = ["qemu-img", "convert", "-U", "-O", "raw", f"json:{json.dumps(source)}", str(output)]
    subprocess.run(command, check=True, pass_fds=[disk.base.fileno(), disk.overlay.fileno()])
    return open_tree(open_image(output))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def images(raw: Path, archive: Path, folder: Path) -> dict[str, Path]:
    run("qemu-img", "convert", "-O", "qcow2", raw, folder / "base.qcow2")
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "base.qcow2", folder / "top.qcow2")
    return {"raw": raw, "qcow2": folder / "base.qcow2", "chain": folder / "top.qcow2", "gce": archive}


@pytest.mark.parametrize(
    ("kind", "form", "decoded"),
    [("raw", "raw", False), ("qcow2", "qcow2", False), ("chain", "raw", True), ("gce", "raw", True)],
)
def test_every_form_of_image_gets_what_the_session_needs_and_is_not_touched(
    raw: Path, archive: Path, tmp_path: Path, kind: str, form: str, decoded: bool
) -> None:
    image = images(raw, archive, tmp_path)[kind]
    before = digest(image)
    with booting(image) as disk:
        assert disk.form == form
        assert os.path.samestat(os.fstat(disk.base.fileno()), image.stat()) is not decoded
        tree = flattened(disk, tmp_path / "flat.raw")
        assert json.loads(tree.read_text(SETTINGS))["run"] == []
        assert tree.is_file("/etc/os-release")
        offset = getattr(tree.root.volume.source, "offset", 0)
    run("e2fsck", "-fn", f"{tmp_path / 'flat.raw'}?offset={offset}")
    assert digest(image) == before


def test_the_base_cannot_be_written_to(raw: Path, archive: Path) -> None:
    for image in (raw, archive):
        with booting(image) as disk, pytest.raises(OSError, match="Bad file descriptor"):
            os.write(disk.base.fileno(), b"x")


def test_nothing_has_a_name(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with booting(archive):
        assert list(tmp_path.iterdir()) == []


def test_an_image_that_has_no_name_yet_can_be_booted(archive: Path, tmp_path: Path) -> None:
    with (tmp_path / "nameless").open("w+b") as file:
        file.write(archive.read_bytes())
        file.flush()
        (tmp_path / "nameless").unlink()
        with booting(Path(f"/proc/self/fd/{file.fileno()}")) as disk:
            assert flattened(disk, tmp_path / "flat.raw").is_file(SETTINGS)


def test_an_image_without_systemd_is_refused(tmp_path: Path) -> None:
    image = gpt_disk(tmp_path, without=("/usr/lib/systemd/systemd",))
    with pytest.raises(DiskError, match="does not start with systemd"), booting(image):
        pass


def test_without_room_the_message_says_where_and_what_to_do(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tpu_image.lab.throwaway.write_overlay", full)
    with pytest.raises(LabError, match=f"^{tmp_path}: No space left on device; set TMPDIR"), booting(raw):
        pass
