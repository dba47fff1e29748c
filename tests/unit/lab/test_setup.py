"""``tpu-image lab setup``: a private root appears whole or not at all, and nothing of it is run to make it."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tpu_image.cache_folder import CacheError
from tpu_image.lab import qemu
from tpu_image.lab.errors import LabError
from tpu_image.lab.setup import command, setup
from tpu_image.progress import BYTES, Progress

MMDEBSTRAP = r"""#!/bin/sh
for word; do case $word in */qemu-new-*) root=$word ;; esac; done
mkdir -p "$root/usr/bin" "$root/usr/lib64"
echo called >> "$CALLS"
echo "I: downloading packages with apt..."
[ "$STATUS" = 0 ] || echo "E: no such suite" >&2
touch "$root/usr/bin/qemu-system-x86_64"
cat > "$root/usr/lib64/ld-linux-x86-64.so.2" << END
#!/bin/sh
case "\$*" in *--version*) echo "QEMU emulator version $VERSION" ;; *) echo "vfio-user-pci options:" ;; esac
END
chmod +x "$root/usr/lib64/ld-linux-x86-64.so.2"
exit "$STATUS"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a stand-in for mmdebstrap notes that it was called."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "mmdebstrap").write_text(MMDEBSTRAP)
    (tools / "mmdebstrap").chmod(0o755)
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "XDG_CACHE_HOME": tmp_path / "cache",
        "VERSION": "11.1.3",
    }
    for name, value in {**environment, "CALLS": tmp_path / "calls", "STATUS": "0"}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "calls"


class Told(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.lines: list[str] = []
        self.logged: list[str] = []

    def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
        self.stages.append(stage)

    def step(self, stage: str, step: str, line: str = "") -> None:
        self.lines.append(line)

    def log(self, line: str) -> None:
        self.logged.append(line)


def left(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache/tpu-image").iterdir()}


def test_it_is_made_once(calls: Path, tmp_path: Path) -> None:
    assert setup().version == "11.1.3"
    assert setup().root == qemu.private_root()
    assert calls.read_text() == "called\n"
    assert left(tmp_path) == {"qemu", "qemu.lock"}


def test_it_tells_what_it_does_and_what_mmdebstrap_says(calls: Path) -> None:
    told, verbose = Told(), Told()
    setup(told)
    assert told.stages == ["looking for QEMU", "unpacking QEMU", "trying it"]
    assert told.lines == ["I: downloading packages with apt..."]
    (announced,) = told.logged
    assert f"trixie-backports into {qemu.private_root()}, about a minute" in announced
    (qemu.private_root() / "usr/lib64/ld-linux-x86-64.so.2").unlink()
    setup(verbose, verbose=True)
    assert verbose.logged[1:] == told.lines
    setup(told)
    assert told.stages[3:] == ["looking for QEMU"]


def test_one_setup_waits_for_another_and_says_so(calls: Path) -> None:
    root = qemu.private_root()
    root.parent.mkdir(parents=True)

    class Waiting(Told):
        def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
            super().at(stage)
            fcntl.flock(other, fcntl.LOCK_UN)

    with (root.parent / "qemu.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        told = Waiting()
        setup(told)
    assert told.stages[:2] == ["waiting for another setup", "looking for QEMU"]


def test_one_that_no_longer_works_is_made_anew(calls: Path) -> None:
    setup()
    (qemu.private_root() / "usr/lib64/ld-linux-x86-64.so.2").unlink()
    assert setup().version == "11.1.3"
    assert calls.read_text() == "called\n" * 2


def test_what_a_killed_setup_left_is_removed(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "cache/tpu-image/qemu-new-killed").mkdir(parents=True)
    setup()
    assert left(tmp_path) == {"qemu", "qemu.lock"}


def test_where_mmdebstrap_fails_nothing_is_left(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS", "9")
    with pytest.raises(LabError, match="mmdebstrap failed with status 9: no such suite; read its messages"):
        setup()
    assert left(tmp_path) == {"qemu.lock"}


def test_a_qemu_that_is_too_old_is_not_kept(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERSION", "10.0.2")
    with pytest.raises(LabError, match=r"older than 10\.1"):
        setup()
    assert left(tmp_path) == {"qemu.lock"}


def test_without_mmdebstrap_the_message_names_the_packages(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin/mmdebstrap").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(LabError, match="install the packages mmdebstrap and debian-archive-keyring"):
        setup()


def test_packages_are_unpacked_without_being_run() -> None:
    words = command(Path("/new"), Path("/preferences"))
    assert "--variant=extract" in words
    assert "deb http://deb.debian.org/debian trixie-backports main" in words


def test_a_path_with_a_quote_is_no_command_of_the_hook() -> None:
    (hook,) = (word for word in command(Path("/new"), Path("/o'b; x/y")) if word.startswith("--setup-hook="))
    assert "cp '/o'\"'\"'b; x/y' " in hook


def test_a_folder_that_somebody_else_can_write_to_is_not_touched(calls: Path, tmp_path: Path) -> None:
    precious, folder = tmp_path / "precious", tmp_path / "cache/tpu-image"
    precious.write_text("precious")
    folder.mkdir(parents=True)
    (folder / "qemu.lock").symlink_to(precious)
    folder.chmod(0o777)
    with pytest.raises(CacheError, match="somebody else can write to it"):
        setup()
    assert precious.read_text() == "precious"
    assert not calls.exists()


@pytest.mark.parametrize("there", ["file", "link", "dead link"])
def test_what_is_no_folder_of_ours_makes_room_and_what_a_link_leads_to_stays(
    calls: Path, tmp_path: Path, there: str
) -> None:
    kept, root = tmp_path / "kept", qemu.private_root()
    root.parent.mkdir(parents=True)
    if there == "file":
        root.touch()
    else:
        root.symlink_to(kept)
    if there == "link":
        kept.mkdir()
        (kept / "file").touch()
    assert setup().version == "11.1.3"
    assert not root.is_symlink()
    assert kept.exists() == (there == "link")
    assert there != "link" or list(kept.iterdir())


def test_without_room_the_message_says_where(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(LabError, match=rf"{tmp_path}/cache/tpu-image: No space left on device; make room"):
        setup()
