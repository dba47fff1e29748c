"""What a virtual machine is given means to its shell what was meant."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_image.customise.guest_machine import command_line
from tpu_image.customise.guest_session import size_of, write_session
from tpu_image.customise.mounting import MountedVolume
from tpu_image.customise.session import CustomisationError, Session, Step
from tpu_image.customise.stand_ins import StandIn, put, take_away

SHELLS = ("dash", "bash")
ROOT = MountedVolume("/", "ext4", 1, 0, 0, [])

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


def unpacked(session: Session, *volumes: MountedVolume) -> dict[str, bytes]:
    """The files that a machine gets, by name."""
    file = io.BytesIO()
    file.fileno = lambda: -1  # type: ignore[method-assign]
    write_session(file, session, [ROOT, *volumes], "TOKEN-OF-THE-TEST")
    assert len(file.getvalue()) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(file.getvalue())) as archive:
        found = {}
        for entry in archive:
            assert (entry.uid, entry.gid) == (0, 0)
            content = archive.extractfile(entry)
            found[entry.name] = content.read() if content else b""
    return found


def run(shell: str, script: bytes) -> bytes:
    """What a shell writes that runs this."""
    return subprocess.run([shell], input=script, capture_output=True, check=True).stdout


@pytest.mark.slow
@settings(max_examples=60)
@given(arguments=st.lists(WORDS, max_size=4), shell=st.sampled_from(SHELLS))
def test_arguments_of_steps_are_what_they_were(arguments: list[str], shell: str) -> None:
    text = unpacked(Session((Step("x", ("/bin/true", *arguments)),)))[".session/settings.sh"]
    told = run(shell, text + b"step() { printf '%s\\0' \"$@\"; }\nrun_steps\n")
    assert told.split(b"\0")[:-1] == [word.encode() for word in ("0", "/bin/true", *arguments)]


@pytest.mark.slow
@settings(max_examples=60)
@given(value=WORDS, shell=st.sampled_from(SHELLS))
def test_variables_are_what_they_were_and_no_others(value: str, shell: str) -> None:
    session = Session((), environment={"GIVEN": value})
    text = unpacked(session)[".session/settings.sh"]
    told = run(shell, b"export STRAY=1\n" + text + b"(execute /usr/bin/env -0)\n")
    found = dict(each.split(b"=", 1) for each in told.split(b"\0")[:-1])
    assert found[b"GIVEN"] == value.encode()
    assert found[b"SYSTEMD_OFFLINE"] == b"1"
    assert b"STRAY" not in found


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_whose_path_looks_like_a_variable_is_run(shell: str, tmp_path: Path) -> None:
    program = tmp_path / "a=b"
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    text = unpacked(Session(()))[".session/settings.sh"]
    assert run(shell, text + f"execute {program}\n".encode()) == b"ran\n"


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ("http://127.0.0.1:3128", "http://10.0.2.2:3128"),
        ("http://user:pass@localhost:3128/", "http://user:pass@10.0.2.2:3128/"),
        ("localhost:3128", "10.0.2.2:3128"),
        ("127.1.2.3:80", "10.0.2.2:80"),
        ("http://proxy.example:3128", "http://proxy.example:3128"),
        ("http://localhost.example:3128", "http://localhost.example:3128"),
        ("http://[::1", "http://[::1"),
        ("http://a\u2100b:80", "http://a\u2100b:80"),
    ],
)
def test_a_proxy_of_this_machine_is_named_as_the_guest_reaches_it(
    monkeypatch: pytest.MonkeyPatch, given: str, reached: str
) -> None:
    monkeypatch.setenv("http_proxy", given)
    monkeypatch.setenv("no_proxy", "localhost")
    text = unpacked(Session(()))[".session/settings.sh"]
    found = run("dash", text + b"execute /usr/bin/env\n").decode().splitlines()
    assert f"http_proxy={reached}" in found
    assert "no_proxy=localhost" in found


def test_volumes_are_named_by_the_only_disk() -> None:
    volumes = [
        MountedVolume("/boot", "ext4", 16, 0, 0, ["/dev/disk/by-label/a b"]),
        MountedVolume("/run/x", "ext4", 2, 0, 0, []),
        MountedVolume("/boot/efi", "vfat", 15, 0, 0, []),
    ]
    text = unpacked(Session(()), *volumes)[".session/settings.sh"]
    names = ("link", "mount_volume", "leave_out", "unmount_volume")
    stubs = "".join(f'{name}() {{ echo "{name}|$@"; }}\n' for name in names)
    silent = "put() { :; }; take_away() { :; }; start_network() { :; }\n"
    told = run("dash", text + f"{stubs}{silent}prepare; give_back; echo $ROOT\n".encode())
    assert told.decode().splitlines() == [
        "link|/dev/disk/by-label/a b /dev/sda16",
        "mount_volume|/boot /dev/sda16 ext4 0",
        "leave_out|/run/x",
        "mount_volume|/boot/efi /dev/sda15 vfat 2",
        "unmount_volume|/boot/efi 2",
        "unmount_volume|/run/x 1",
        "unmount_volume|/boot 0",
        "/dev/sda1",
    ]


def test_files_and_folders_come_as_roots_and_nothing_but_files(tmp_path: Path) -> None:
    (tmp_path / "wheels/deep").mkdir(parents=True)
    (tmp_path / "wheels/deep/a.whl").write_bytes(b"wheel")
    (tmp_path / "wheels/link").symlink_to("deep/a.whl")
    os.mkfifo(tmp_path / "wheels/fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.fspath(tmp_path / "wheels/socket"))
    session = Session(
        (), {"script-1": b"#!/bin/sh\n", "sources/a.list": b"deb\n"}, {"wheels-0": tmp_path / "wheels"}
    )
    files = unpacked(session)
    assert {name: content for name, content in files.items() if not name.startswith(".session/")} == {
        "script-1": b"#!/bin/sh\n",
        "sources/a.list": b"deb\n",
        "wheels-0": b"",
        "wheels-0/deep": b"",
        "wheels-0/deep/a.whl": b"wheel",
        "wheels-0/link": b"wheel",
    }
    assert size_of(session) >= 3 * 4096, "each file takes a page"


def test_a_folder_too_deep_to_be_packed_is_named(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(sys.getrecursionlimit()):
        os.mkdir("d", dir_fd=descriptor)
        deeper = os.open("d", os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = deeper
    os.close(descriptor)
    try:
        with pytest.raises(CustomisationError, match=f"{tmp_path}: its folders are too deep"):
            unpacked(Session((), folders={"wheels-0": tmp_path}))
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_machine_is_heard_before_anything_is_written(tmp_path: Path, shell: str) -> None:
    assert "ro" in command_line("/dev/sda1").split()
    (tmp_path / "guest.sh").write_text("echo $1\n")
    stubs = "".join(
        f'{name}() {{ echo "{name}"; }}\n' for name in ("tell", "mount_system", "prepare", "run_steps")
    )
    told = run(
        shell, f"{FUNCTIONS}\n{stubs}stty() {{ :; }}\nOWN={tmp_path}; exec 3</dev/null; begin".encode()
    )
    assert told.split() == [b"tell", b"mount_system", b"prepare", b"run_steps", b"finish"]


CONTENT = b"stands in\n"
GUEST = (resources.files("tpu_image.customise") / "files/guest.sh").read_text()
FUNCTIONS = GUEST.partition("# shellcheck source=")[0]
"""The guest's script up to where it begins to do something."""


def _link(path: Path) -> None:
    path.symlink_to("nowhere")


def _folder(path: Path) -> None:
    path.mkdir()


def _other(path: Path) -> None:
    path.write_bytes(b"of a package\n")


def _remove(path: Path) -> None:
    path.unlink()


def _replace_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


def _nothing(path: Path) -> None:
    pass


ORIGINALS: Mapping[str, Callable[[Path], None]] = {
    "none": _nothing,
    "file": _other,
    "link": _link,
    "folder": _folder,
}
MEANWHILE: Mapping[str, Callable[[Path], None]] = {
    "nothing": _nothing,
    "another": _other,
    "removed": _remove,
    "link": _replace_by_link,
}


def state(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """What a folder holds: mode, and content or target."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in folder.iterdir():
        content: bytes | str = ""
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found[path.name] = path.lstat().st_mode, content
    return found


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("original", "meanwhile"),
    [
        *((original, meanwhile) for original in ORIGINALS for meanwhile in MEANWHILE if original != "folder"),
        *(("folder", meanwhile) for meanwhile in ("nothing", "removed")),
    ],
)
def test_a_stand_in_comes_and_goes_as_in_a_namespace(
    tmp_path: Path, original: str, meanwhile: str, shell: str
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/stand-in-0").write_bytes(CONTENT)
    start = f"{FUNCTIONS}\nOWN={tmp_path}/own ASIDE=.tpu-image-aside\n"
    for name in ("python", "shell"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "it"
        ORIGINALS[original](path)
        if name == "python":
            assert put(StandIn(str(path), CONTENT, 0o750))
        else:
            run(shell, f"{start} put {path} 0750 0".encode())
        assert path.read_bytes() == CONTENT
        assert path.stat().st_mode & 0o777 == 0o750
        MEANWHILE[meanwhile](path)
        if name == "python":
            take_away(StandIn(str(path), CONTENT, 0o750))
        else:
            run(shell, f"{start} take_away {path} 0".encode())
    assert state(tmp_path / "shell") == state(tmp_path / "python")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("rm() { return 1; }; put it 0644 0; take_away it 0", "it cannot be taken away"),
        ("put it 0644 0; mv() { return 1; }; take_away it 0", "it cannot be put back"),
        ("mkdir it.aside; put it 0644 0", "it cannot be put aside"),
    ],
)
def test_a_stand_in_that_cannot_come_or_go_ends_the_session(
    tmp_path: Path, broken: str, reason: str, shell: str
) -> None:
    (tmp_path / "stand-in-0").write_bytes(CONTENT)
    (tmp_path / "it").write_text("the image's own\n")
    stop = 'stop() { echo "$*"; exit 0; }'
    here = broken.replace("it", f"{tmp_path}/it")
    told = run(shell, f"{FUNCTIONS}\n{stop}\nOWN={tmp_path} ASIDE=.aside\n{here}".encode())
    assert told.decode() == f"{tmp_path}/{reason}\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_where_there_is_no_folder_nothing_stands_in(tmp_path: Path, shell: str) -> None:
    path = tmp_path / "absent/it"
    run(shell, f"{FUNCTIONS}\nOWN={tmp_path} ASIDE=.aside\nput {path} 0644 0; take_away {path} 0".encode())
    assert not list(tmp_path.iterdir())
