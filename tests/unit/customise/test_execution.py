"""A customisation's way from a base to a changed disk, with an executor that stands in for a kernel."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

import build_bases as bases
from customise_lab import Heard
from tpu_image.customise.customisation import Customisation, Placement, Script
from tpu_image.customise.execution import Executed, PackageChange, executed
from tpu_image.customise.session import CustomisationError, Listener, Session
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.raw import open_raw
from tpu_image.disks.tree_writer import write_nodes
from tpu_image.progress import BYTES, Progress
from tpu_image.trees.memory import File

STATUS = "/var/lib/dpkg/status"
NEW = b"".join(
    b"Package: %s\nStatus: install ok installed\nVersion: %s\n\n" % package
    for package in ((b"bash", b"6"), (b"hello", b"2"))
)


class Stub:
    """Writes a file where a kernel would run programs."""

    method = "stub"

    def __init__(self, *, able: bool = True) -> None:
        self.able = able
        self.sessions: list[Session] = []

    def require(self) -> None:
        if not self.able:
            raise CustomisationError("not here")

    def execute(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        self.sessions.append(session)
        with open_raw(f"/proc/self/fd/{disk.fileno()}") as source:
            edited = EditedDisk(source)
            write_nodes(edited, open_tree(edited), {STATUS: File(NEW)}, time=0)
            for extent in edited.extents():
                disk.seek(extent.offset)
                disk.write(edited.read_at(extent.offset, extent.length))
            disk.flush()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The usual base; tests only read it."""
    return bases.gpt_disk(tmp_path_factory.mktemp("base"))


@pytest.fixture
def disk(base: Path) -> Iterator[EditedDisk]:
    with open_image(base) as source:
        yield EditedDisk(source)


class Wrecking(Stub):
    """Leaves no partition table, as a program that runs in the image can."""

    def execute(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        disk.truncate(0)
        disk.truncate(1 << 20)


def test_what_programs_did_to_the_disk_is_not_laid_to_the_base(disk: EditedDisk, tmp_path: Path) -> None:
    with (
        pytest.raises(DiskError, match=re.escape(f"{disk.name} (after what ran in it): ")),
        executed(disk, SCRIPT, Wrecking, Heard(), folder=tmp_path),
    ):
        pass


SCRIPT = Customisation(scripts=(Script("secret", b"password=1\n"),))


def test_the_rest_of_a_build_sees_what_was_executed(base: Path, disk: EditedDisk, tmp_path: Path) -> None:
    digest = hashlib.sha256(base.read_bytes()).digest()
    stub = Stub()
    with executed(disk, SCRIPT, lambda: stub, Heard(), folder=tmp_path) as (changed, done):
        assert open_tree(changed).read_bytes(STATUS) == NEW
        assert not list(tmp_path.iterdir()), "the copy has no name"
    assert done == Executed(
        "stub",
        (
            PackageChange("bash", "5.2.15-2+b8", "6"),
            PackageChange("hello", "", "2"),
            PackageChange("udev", "252.39-1", ""),
        ),
        (type(done.scripts[0])("secret", hashlib.sha256(b"password=1\n").hexdigest()),),
    )
    assert [step.name for step in stub.sessions[0].steps] == ["run secret"]
    assert hashlib.sha256(base.read_bytes()).digest() == digest


def test_a_secret_of_a_script_is_on_no_disk(disk: EditedDisk, tmp_path: Path) -> None:
    with executed(disk, SCRIPT, Stub, Heard(), folder=tmp_path) as (changed, done):
        assert "password" not in repr(done)
        assert b"password=1" not in changed.read_at(0, changed.size)


def test_files_alone_need_no_copy_and_no_executor(disk: EditedDisk, tmp_path: Path) -> None:
    wanted = Customisation(files=(Placement("/etc/motd", content=b""),))
    with executed(disk, wanted, pytest.fail, Heard(), folder=tmp_path) as (changed, done):
        assert changed is disk
        assert done == Executed()


def test_what_cannot_be_executed_is_said_before_the_disk_is_copied(disk: EditedDisk, tmp_path: Path) -> None:
    copied: list[str] = []

    class Told(Progress):
        def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
            copied.append(stage)

    with (
        pytest.raises(CustomisationError, match="not here"),
        executed(
            disk,
            SCRIPT,
            lambda: Stub(able=False),
            Heard(),
            folder=tmp_path,
            progress=Told(),
        ),
    ):
        pytest.fail("it was executed")
    assert not copied


def test_an_image_without_apt_is_told_so(disk: EditedDisk, tmp_path: Path) -> None:
    with (
        pytest.raises(CustomisationError, match="need apt-get, which the image does not have"),
        executed(disk, Customisation(packages=("x",)), Stub, Heard(), folder=tmp_path),
    ):
        pytest.fail("it was executed")
