"""`udevadm verify` (systemd 254 and newer) accepts what we write and refuses what our lint names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import udev_lab
import vfio_recipe
from tpu_image.catalogue import device_nodes, vfio
from tpu_image.catalogue.requirement import Profile
from tpu_image.formats.udev_lint import lint, with_missing_commas
from tpu_image.formats.udev_rules import parse

pytestmark = pytest.mark.real

Verify = Callable[[str], str]

NAMES = {"root"}


@pytest.fixture(scope="session")
def verify() -> Verify:
    """A function that gives what verify says of a file; empty where it accepts it."""
    udev_lab.require("udevadm")
    root = os.environ.get("TPU_IMAGE_TEST_UDEV_ROOT", "")
    command = ["chroot", root] if root else []
    known = subprocess.run([*command, "udevadm", "verify", "--help"], capture_output=True, check=False)
    if known.returncode:
        pytest.fail("no udevadm here has verify: run these tests through `make test`, which fetches one")

    def run(text: str) -> str:
        folder = Path(root or "/") / "tmp" / f"tpu-image-verify-{os.getpid()}"
        folder.mkdir(exist_ok=True)
        (folder / "a.rules").write_text(text)
        name = f"/tmp/{folder.name}/a.rules"
        done = subprocess.run(
            [*command, "udevadm", "verify", "--resolve-names=early", "--no-summary", name],
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(folder)
        return done.stderr if done.returncode else ""

    return run


@pytest.mark.parametrize("operator", ["=", ":="])
@pytest.mark.parametrize("group", ["", "root"])
def test_our_rules_are_accepted(verify: Verify, operator: str, group: str) -> None:
    assert verify(vfio.render_rules()) == ""
    assert verify(device_nodes.render_rules(Profile(device_group=group), operator)) == ""


def test_the_documents_accel_rule_is_refused_until_it_has_its_comma(verify: Verify) -> None:
    assert "comma" in verify(vfio_recipe.ACCEL_RULES)
    assert verify(with_missing_commas(parse(vfio_recipe.ACCEL_RULES))) == ""


@pytest.mark.parametrize(
    "line",
    [
        'KERNEL=="a", MODE="0600"',
        'KERNEL=="a" MODE="0600"',
        'KERNEL=="a"MODE="0600"',
        'KERNEL=="a",MODE="0600"',
        'KERNEL=="a" , MODE="0600"',
        'KERNEL=="a",, MODE="0600"',
        ', KERNEL=="a", MODE="0600"',
        'KERNEL=="a", MODE="0600",',
        'KERNEL=="a"',
        'KERNEL="a", MODE="0600"',
        'MODE=="0600"',
        "MODE=0600",
        'MODE="0600" # x',
        'MODE{a}="0600"',
        'MODE+="0600"',
        'MODE="%"',
        'ATTR="x"',
        'ATTR{a}+="x"',
        'ATTR{%}="x"',
        'ATTRS{a}="x"',
        'ENV{a}:="x"',
        'ENV{ACTION}="x"',
        'TAG=""',
        'TAG:="x"',
        'SUBSYSTEM=="bus", MODE="0600"',
        'TEST{a}=="x", MODE="0600"',
        'TEST=="%", MODE="0600"',
        'IMPORT{x}="x"',
        'IMPORT{builtin}="x"',
        'IMPORT{builtin}="path_id"',
        'IMPORT{program}="path_id"',
        'RUN{builtin}+="x"',
        'RUN{builtin}+="kmod load"',
        'RUN+=""',
        'RUN+="/bin/x %k $$ %%"',
        'RUN=="x"',
        'OPTIONS="x", MODE="0600"',
        'OPTIONS+="link_priority=x"',
        'OPTIONS+="link_priority=-1"',
        'OPTIONS+="static_node=x", MODE="0600"',
        'OWNER="no-such-user"',
        'GROUP="no-such-group"',
        'GROUP="root"',
        'GOTO="x"',
        'LABEL="x"',
        'NAME="%k"',
        'CONST{x}=="y", MODE="0600"',
        'CONST{arch}=="x86-64", MODE="0600"',
        'RUN=e"\\x41"',
        'RUN=e"\\q"',
        "a",
        'A="x"',
        'GOTO="x"\nMODE="0600"\nLABEL="x"',
        'KERNEL=="a", \\\n  MODE="0600"',
        'KERNEL=="a",\n  MODE="0600"',
        'MODE="0600", \\',
    ],
)
def test_lint_complains_where_verify_does(verify: Verify, line: str) -> None:
    said = verify(line + "\n")
    found = lint(parse(line + "\n"), NAMES, NAMES)
    assert bool(found) == bool(said), f"verify: {said}\nlint: {found}"
