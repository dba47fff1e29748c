"""The shell script of a plan: what it holds, and that shells and shellcheck take it."""

from __future__ import annotations

import base64
import gzip
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies

from tpu_image.catalogue.requirement import Profile
from tpu_image.plan.change import Change
from tpu_image.render import shell
from tpu_image.render.steps import RenderError, adds_lines, steps_of
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay


def overlay_with(**nodes: Node) -> Overlay:
    overlay = Overlay(MemoryTree({"/etc/old": File(b"old\n"), "/etc/gone": File(b"")}))
    overlay.written.update({f"/etc/{name}": node for name, node in nodes.items()})
    return overlay


def script_of(overlay: Overlay) -> str:
    return shell.render(steps_of(overlay, Profile()))


def everything() -> Overlay:
    overlay = overlay_with(
        old=File(b"new\n"),
        new=File(b"it's $HOME `id` \\n\n", 0o600, 3, 4),
        END=File(b"END\nEND1\n"),
        binary=File(bytes(range(256))),
        folder=Directory(0o700),
        link=Symlink("../a b"),
        gone=File(b""),
    )
    overlay.write("/etc/environment", "A=1\n")
    overlay.write("/etc/udev/rules.d/x.rules", "x\n")
    overlay.write("/etc/default/grub.d/x.cfg", "x\n")
    overlay.written["/etc/gone"] = None
    return overlay


def calls(script: str) -> list[str]:
    verbs = ("file ", "lines ", "link ", "directory ", "absent ", "permissions ")
    return [line for line in script.splitlines() if line.startswith(verbs)]


def test_every_kind_of_change_has_its_call() -> None:
    assert calls(script_of(everything())) == [
        "file /etc/END 644 0:0 text no <<'END2'",
        "file /etc/binary 644 0:0 packed no <<'END'",
        "directory /etc/default 755 0:0",
        "directory /etc/default/grub.d 755 0:0",
        "file /etc/default/grub.d/x.cfg 644 0:0 text no <<'END'",
        "lines /etc/environment 644 0:0 <<'END'",
        "directory /etc/folder 700 0:0",
        "absent /etc/gone",
        "link /etc/link '../a b' 0:0",
        "file /etc/new 600 3:4 text no <<'END'",
        "file /etc/old 644 0:0 text yes <<'END'",
        "directory /etc/udev 755 0:0",
        "directory /etc/udev/rules.d 755 0:0",
        "file /etc/udev/rules.d/x.rules 644 0:0 text no <<'END'",
    ]


def test_what_is_known_of_a_file_is_expected_of_it() -> None:
    old, new = (
        subprocess.run(["sha256sum"], input=t, capture_output=True).stdout[:64].decode()
        for t in (b"old\n", b"new\n")
    )
    assert f"\nexpect /etc/old {old} {new}\n" in script_of(everything())


def test_what_did_not_change_is_not_in_it() -> None:
    assert calls(script_of(overlay_with(old=File(b"old\n")))) == []


def test_a_plan_of_a_root_with_lines_of_its_own_replaces_the_file() -> None:
    overlay = Overlay(MemoryTree({"/etc/environment": File(b"A=1\n")}))
    overlay.write("/etc/environment", "A=2\n")
    assert calls(script_of(overlay)) == ["file /etc/environment 644 0:0 text yes <<'END'"]


def test_commands_follow_and_boot_entries_are_made_in_a_chroot_too() -> None:
    script = script_of(everything())
    chroot, _, running = script.partition("if running; then")
    assert "\nactivate 300 'put the kernel parameters into the boot entries' update-grub\n" in chroot
    assert "activate 60 'load the new udev rules' udevadm control --reload" in running


def test_shells_and_shellcheck_take_it(tmp_path: Path) -> None:
    path = tmp_path / "script.sh"
    path.write_text(script_of(everything()))
    for command in (["dash", "-n"], ["bash", "--posix", "-n"], ["shellcheck", "--shell=sh"]):
        if not shutil.which(command[0]):
            pytest.fail(f"{command[0]} is missing: install the package {command[0]}")
        done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2J", "a\udcff"])
def test_a_name_that_does_not_print_is_refused(name: str) -> None:
    for overlay in (overlay_with(**{name: File(b"")}), overlay_with(link=Symlink(name))):
        with pytest.raises(RenderError, match="do not print"):
            script_of(overlay)


contents = strategies.binary(max_size=80) | strategies.text("END1\n\t' \\$`é\r", max_size=40).map(str.encode)


@settings(max_examples=40)
@given(contents)
@example("E¡\n".encode())
def test_any_content_comes_out_of_the_script_as_it_went_in(content: bytes) -> None:
    script = script_of(overlay_with(new=File(content)))
    start = script.index("file /etc/new ")
    call, _, rest = script[start:].partition("\n")
    delimiter = call.rpartition("<<'")[2].rstrip("'")
    text = rest[: rest.index(f"{delimiter}\n\nif [")]
    body = f"cat <<'{delimiter}'\n{text}{delimiter}\n"
    out = subprocess.run(["dash", "-c", body], capture_output=True, check=True).stdout
    assert (gzip.decompress(base64.b64decode(out)) if " packed " in call else out) == content


def test_a_shared_file_is_added_to_on_an_unknown_machine_alone() -> None:
    new = File(b"A=1\n")
    assert adds_lines(Change("/etc/environment", None, new))
    assert not adds_lines(Change("/etc/environment", File(b""), new))
    assert not adds_lines(Change("/etc/other", None, new))
