"""systemd reads units, command lines and limits as we do."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import systemd_shared
from tpu_image.catalogue.systemd import Units, manager_configuration
from tpu_image.formats import FormatError
from tpu_image.formats.systemd_command import split_words
from tpu_image.formats.systemd_unit import UnitFile
from tpu_image.trees.directory import DirectoryTree

pytestmark = pytest.mark.real

PIECES = ["[A]\n", "[B c]\n", "k=v\n", "k = a b \n", "=x\n", "k=a\\\n", "  b\\\\\n", "# c\\\n", ";c\n", "\n"]
PIECES += ["\t", "x", "=", "\\", "\r\n", "\r", "[", "]", " ", "é", "k=v ; w\n", "[A] x\n", "\0", '["]\n']
shared_folder = [HealthCheck.function_scoped_fixture]


def split_or_refuse(text: str) -> list[str | None] | None:
    try:
        return split_words(text)
    except FormatError:
        return None


@hypothesis_settings(max_examples=2000)
@given(st.text(alphabet="ab \t\"'\\xuU0149fs;n@é", max_size=12))
def test_systemd_splits_command_lines_the_same_way(text: str) -> None:
    assert split_or_refuse(text) == systemd_shared.split(text)


@hypothesis_settings(max_examples=1000, suppress_health_check=shared_folder)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_systemd_reads_the_same_settings(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.conf"
    path.write_bytes(text.encode())
    ours = [(s.section, s.key, s.value) for s in UnitFile(text).settings if s.section in ("A", "B c")]
    assert ours == systemd_shared.settings(path, ["A", "B c"])


def scatter_units(root: Path, choose: random.Random) -> list[str]:
    """Units, aliases, masks and drop-ins strewn over the unit directories of a root."""
    names = ["a.service", "b.service", "a-b.service", "a@.service", "b@.service", "a@x.service", "c.socket"]
    folders = [root / path for path in ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system")]
    contents = ["file"] * 4 + ["alias"] * 4 + ["", "mask", "/opt/a.service"]
    (root / "opt").mkdir()
    (root / "opt/a.service").write_text("[Unit]\n")
    for folder in folders:
        folder.mkdir(parents=True)
        for name in choose.sample(names, choose.randint(0, 4)):
            content = choose.choice(contents)
            if content == "alias":
                (folder / name).symlink_to(
                    choose.choice(["", "/usr/lib/systemd/system/"]) + choose.choice(names)
                )
            elif content in ("mask", "/opt/a.service"):
                (folder / name).symlink_to("/dev/null" if content == "mask" else content)
            else:
                (folder / name).write_text("[Unit]\n" if content else "")
        for number, name in enumerate(["service", "a-.service", "a-b.service", *choose.choices(names, k=3)]):
            if choose.random() < 0.4:
                (folder / f"{name}.d").mkdir(exist_ok=True)
                (folder / f"{name}.d/{number}-{name}.conf").write_text("[Unit]\n")
    return [name for name in names if "@." not in name] + ["a@y.service", "b@y.service"]


@pytest.mark.parametrize("seed", range(60))
def test_systemd_finds_the_same_files_for_a_unit(tmp_path: Path, seed: int) -> None:
    names = scatter_units(tmp_path, random.Random(seed))
    units = Units(DirectoryTree(str(tmp_path)))
    for name, (path, drop_ins) in systemd_shared.unit_files(tmp_path, names).items():
        unit = units.unit(name)
        assert (unit.path if unit else "") == path, name
        if unit is not None and unit.loadable:
            assert [path for path, _ in unit.configuration.files][1:] == drop_ins, name


def test_the_managers_configuration_is_assembled_from_the_same_files(debian_root: Path) -> None:
    for number, folder in enumerate(("etc", "run", "usr/lib", "usr/local/lib")):
        drop_ins = debian_root / folder / "systemd/system.conf.d"
        drop_ins.mkdir(parents=True)
        (drop_ins / "50-same.conf").write_text(f"[Manager]\nDefaultLimitNOFILE={number}\n")
        (drop_ins / f"{9 - number}0-own.conf").write_text("[Manager]\n")
    (debian_root / "etc/systemd/system.conf.d/70-own.conf").symlink_to("/dev/null")
    command = ["systemd-analyze", f"--root={debian_root}", "cat-config", "systemd/system.conf"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    headers = [line[2:] for line in shown.splitlines() if line.startswith(f"# {debian_root}/")]
    paths = [path for path, _ in manager_configuration(DirectoryTree(str(debian_root))).files]
    assert [header.removeprefix(str(debian_root)) for header in headers] == paths


def test_what_systemctl_enables_starts_at_boot_and_what_it_masks_does_not(debian_root: Path) -> None:
    assert shutil.which("systemctl"), "systemctl is missing: apt-get install systemd"

    def systemctl(*arguments: str) -> str:
        command = ["systemctl", f"--root={debian_root}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    def starts() -> bool:
        return Units(DirectoryTree(str(debian_root))).starts_at_boot("systemd-networkd.service")

    assert systemctl("is-enabled", "systemd-networkd.service") == "disabled"
    assert not starts()
    systemctl("enable", "systemd-networkd.service")
    assert systemctl("is-enabled", "systemd-networkd.service") == "enabled"
    assert starts()
    systemctl("disable", "systemd-networkd.service")
    systemctl("add-wants", "timers.target", "systemd-networkd.service")
    assert starts()
    systemctl("mask", "systemd-networkd.service")
    assert systemctl("is-enabled", "systemd-networkd.service") == "masked"
    assert not starts()


def test_every_unit_of_a_real_root_loads(debian_root: Path) -> None:
    units = Units(DirectoryTree(str(debian_root)))
    assert len(units.names()) > 100
    assert [unit.name for name in units.names() if (unit := units.unit(name)) and unit.problem] == []
    assert units.starts_at_boot("ssh.service")
    assert units.starts_at_boot("cloud-init.service")
    assert not units.starts_at_boot("debug-shell.service")
