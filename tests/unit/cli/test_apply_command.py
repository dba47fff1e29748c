"""`tpu-image apply`: directories, and the running machine with its commands recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_types import Run
from tpu_image import inspection, machine
from tpu_image.catalogue.activation import Command
from tpu_image.cli import apply

RULES = "etc/udev/rules.d/99-tpu.rules"


def test_apply_makes_a_root_hold_everything(run: Run, root: Path) -> None:
    done = run("apply", root)
    assert done.status == 0
    assert "create /etc/greeting (regular file, mode 0644, 6 bytes)\n" in done.out
    assert done.out.endswith("ok: 2 pass, 3 skip\n")
    assert (root / "etc/greeting").read_text() == "hello\n"
    assert run("check", root).status == 0


def test_a_second_apply_changes_nothing_and_says_so(run: Run, root: Path) -> None:
    run("apply", root)
    assert run("apply", root).out.startswith("nothing to change\n")


@pytest.mark.parametrize("option", ["--dry-run", "--quiet"])
def test_a_path_that_cannot_be_changed_is_named_with_its_root(run: Run, root: Path, option: str) -> None:
    (root / "etc").mkdir()
    (root / "etc/greeting").symlink_to("greeting")
    done = run("apply", root, option)
    assert (done.status, done.err) == (
        2,
        f"tpu-image: {root}: /etc/greeting: too many levels of symbolic links\n",
    )


def test_a_dry_run_shows_the_change_and_makes_none(run: Run, root: Path) -> None:
    done = run("apply", root, "--dry-run")
    assert done.status == 0
    assert "new file mode 100644\n--- /dev/null\n+++ b/etc/greeting\n" in done.out
    assert list(root.iterdir()) == []


def test_a_dry_run_of_nothing_is_an_empty_diff(run: Run, good_root: Path) -> None:
    done = run("apply", good_root, "--dry-run")
    assert (done.status, done.out, done.err) == (0, "", "tpu-image: nothing to change\n")


def test_undo_takes_it_back(run: Run, root: Path) -> None:
    (root / "etc").mkdir()
    (root / "etc/greeting").write_text("mine")
    run("apply", root)
    done = run("apply", root, "--undo")
    assert done.status == 0
    assert "restore /etc/greeting\n" in done.out
    assert (root / "etc/greeting").read_text() == "mine"
    assert run("apply", root, "--undo").out == "nothing to undo\n"


def test_undo_says_what_it_removes_and_what_it_restores(run: Run, root: Path) -> None:
    (root / "etc").mkdir()
    (root / "etc/greeting").write_text("mine\n")
    run("apply", root)
    lines = run("apply", root, "--undo").out.splitlines()
    assert "restore /etc/greeting" in lines
    assert "remove /etc/udev/rules.d/99-tpu.rules" in lines


def test_a_disk_image_is_not_applied_to_and_the_way_is_named(run: Run, tmp_path: Path) -> None:
    image = tmp_path / "base.qcow2"
    image.write_bytes(b"QFI")
    done = run("apply", image)
    assert (done.status, done.out) == (2, "")
    assert f"tpu-image build {image} -o OUT" in done.err


def test_undo_keeps_what_others_changed_unless_forced(run: Run, root: Path) -> None:
    run("apply", root)
    (root / "etc/greeting").write_text("changed since")
    done = run("apply", root, "--undo")
    assert done.status == 1
    assert "/etc/greeting: left as it is" in done.err
    assert run("apply", root, "--undo", "--force").status == 0
    assert not (root / "etc/greeting").exists()


def test_what_still_fails_after_apply_fails_the_command(run: Run, root: Path) -> None:
    done = run("apply", root, "--only", "vfio", "--only", "gke", "--platform", "gke")
    assert done.status == 0, "a warning is no failure"
    (root / RULES).unlink()
    (root / RULES).mkdir()
    assert run("apply", root, "--only", "vfio").status == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--undo", "--dry-run"], "do not go together"),
        (["--force"], "--force goes with --undo alone"),
        (["--waive", "nope=x"], "no requirement 'nope'"),
    ],
)
def test_contradictions_are_refused(run: Run, root: Path, options: list[str], reason: str) -> None:
    done = run("apply", root, *options)
    assert done.status == 2
    assert reason in done.err
    assert list(root.iterdir()) == []


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Have the root pass for this machine; gives the commands that are run on it."""
    ran: list[str] = []
    monkeypatch.setattr(inspection, "is_running_machine", lambda name: name == str(root))
    monkeypatch.setattr(apply, "is_running_machine", lambda name: name == str(root))
    monkeypatch.setattr(machine, "managed_by_systemd", lambda: True)
    monkeypatch.setattr(machine, "run", lambda command: ran.append(" ".join(command.arguments)))
    (root / "proc").mkdir()
    (root / "proc/version").write_text("Linux")
    return ran


def test_on_this_machine_udev_takes_up_the_rules_for_tpus_alone(
    run: Run, root: Path, commands: list[str]
) -> None:
    assert run("apply", root, "--tpu", "v6e").status == 0
    assert commands[0] == "udevadm control --reload"
    assert (
        "udevadm trigger --action=add --subsystem-match=pci --attr-match=vendor=0x1ae0 --attr-match=device=0x006f"
        in commands
    )
    assert commands[-1] == "udevadm settle --timeout=60"


def test_where_nothing_changed_nothing_is_run(run: Run, root: Path, commands: list[str]) -> None:
    run("apply", root)
    commands.clear()
    assert run("apply", root).status == 0
    assert commands == []


def test_undo_is_taken_up_too(run: Run, root: Path, commands: list[str]) -> None:
    run("apply", root)
    commands.clear()
    run("apply", root, "--undo")
    assert "udevadm control --reload" in commands


def test_a_command_that_fails_fails_apply(
    run: Run, root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: Command) -> None:
        raise machine.ActivationError(f"{command.arguments[0]}: exit status 1")

    monkeypatch.setattr(machine, "run", fail)
    done = run("apply", root)
    assert done.status == 1
    assert "tpu-image: udevadm: exit status 1" in done.err


def test_where_systemd_does_not_run_nothing_is_reloaded(
    run: Run, root: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "managed_by_systemd", lambda: False)
    done = run("apply", root)
    assert commands == []
    assert "nothing is reloaded" in done.err
