"""A real update-grub agrees with our edit of grub.cfg, and GRUB's own programs with what we write."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boot_trees import ALL, GRUB_CFG, applied, statuses, written
from tpu_image.catalogue.boot_loader import DEFAULTS, DROP_INS
from tpu_image.formats.grub_config import GrubConfig
from tpu_image.formats.grub_environment import SIGNATURE, EnvironmentBlock
from tpu_image.trees.memory import File, MemoryTree, Symlink

pytestmark = pytest.mark.real

# The root has no disk: this answers for one. It is asked for the device, its UUID and how GRUB reaches it.
GRUB_PROBE = """\
#!/bin/sh
for argument; do case $argument in --target=*) target=${argument#--target=} ;; esac; done
case $target in
  device) echo /dev/sda1 ;;
  fs_uuid) echo 0b2a5f2c-5f0c-4c9e-9b8a-3f0f3a5d2c11 ;;
  fs) echo ext2 ;;
  partmap) echo gpt ;;
esac
"""

RECIPE = r"""
kernel_cmdline="idle=poll"
kernel_cmdline="${kernel_cmdline} intel_iommu=on,sm_on";
sed -i "s/GRUB_CMDLINE_LINUX=\"\"/GRUB_CMDLINE_LINUX=\"${kernel_cmdline}\"/" /etc/default/grub
update-grub
sed -i -r 's/GRUB_CMDLINE_LINUX="[a-zA-Z0-9_= ]*/& transparent_hugepage=always/' /etc/default/grub
update-grub
"""


@pytest.fixture(scope="module")
def grub_root(
    unpack_root: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A Debian root with two kernels whose update-grub finds a disk."""
    root = unpack_root(tmp_path_factory.mktemp("grub") / "root")
    (root / "usr/sbin/grub-probe").write_text(GRUB_PROBE)
    kernel = next((root / "boot").glob("vmlinuz-*"))
    for name in ("vmlinuz", "initrd.img"):
        source = kernel.with_name(kernel.name.replace("vmlinuz", name))
        source.with_name(f"{name}-7.0.0-test").write_bytes(source.read_bytes())
    yield root
    subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)


def run_in(root: Path, script: str, *, expect: int = 0) -> str:
    """Run a script in the root, in a mount namespace of its own."""
    mounts = "".join(f"mount --rbind /{name} {root}/{name} && " for name in ("dev", "proc", "sys"))
    command = f'{mounts} exec chroot {root} /bin/sh -ec "$0"'
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", command, script],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def tree_of(root: Path) -> MemoryTree:
    """The boot files of a root."""
    paths = [DEFAULTS, GRUB_CFG, "/usr/sbin/grub-mkconfig"]
    paths += sorted(f"{DROP_INS}/{path.name}" for path in (root / DROP_INS.strip("/")).glob("*"))
    nodes = {path: File((root / path.strip("/")).read_bytes()) for path in paths}
    shell = Symlink(str((root / "usr/bin/sh").readlink()))
    return MemoryTree(nodes | {"/bin": Symlink("usr/bin"), "/usr/bin/sh": shell})


def lines_in(root: Path) -> list[tuple[str, str, list[str]]]:
    """Title, kernel and words of every kernel line."""
    config = GrubConfig.parse((root / GRUB_CFG.strip("/")).read_text())
    return [
        (line.entry.path if line.entry else "", line.kernel, [word.raw for word in line.arguments])
        for line in config.linux_lines
    ]


def set_up(root: Path, linux: str, default: str, drop_ins: Mapping[str, str]) -> None:
    """Give the root these defaults and nothing of an earlier test."""
    for path in (root / DROP_INS.strip("/")).glob("*.cfg"):
        path.unlink()
    defaults = root / DEFAULTS.strip("/")
    text = defaults.read_text()
    text = re.sub(r"(?m)^GRUB_CMDLINE_LINUX=.*", lambda _: f'GRUB_CMDLINE_LINUX="{linux}"', text)
    text = re.sub(
        r"(?m)^GRUB_CMDLINE_LINUX_DEFAULT=.*", lambda _: f'GRUB_CMDLINE_LINUX_DEFAULT="{default}"', text
    )
    defaults.write_text(text)
    for name, content in drop_ins.items():
        (root / DROP_INS.strip("/") / name).write_text(content)


STATES = {
    "plain": ("", "quiet", {}, "update-grub"),
    "the document's recipe": ("", "quiet", {}, RECIPE),
    "the recipe with a console": ("console=ttyS0,38400n8 a=b", "quiet", {}, RECIPE),
    "the recipe with quotes": (r"dyndbg=\"file x +p\" a", "quiet splash", {}, RECIPE),
    "a cloud drop-in with conflicts": (
        "net.ifnames=0",
        "quiet",
        {
            "50-cloud.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="console=tty1 idle=halt intel_iommu=off console=ttyS0"\n'
        },
        "update-grub",
    ),
    "a later file that sets the variable": (
        "lost",
        "quiet",
        {"zz.cfg": "GRUB_CMDLINE_LINUX='a  transparent_hugepage=never'\nGRUB_DISABLE_SUBMENU=y\n"},
        "update-grub",
    ),
    "no recovery entries": (
        "a",
        "idle=poll intel_iommu=on",
        {"x.cfg": "GRUB_DISABLE_RECOVERY=true\n"},
        "update-grub",
    ),
    "in ordinary entries alone": ("", ALL, {}, "update-grub"),
    "a value of several files": (
        "a",
        "b",
        {"1.cfg": 'X="c $GRUB_CMDLINE_LINUX"\n', "2.cfg": 'GRUB_CMDLINE_LINUX="${X} idle=poll,y d"\n'},
        "update-grub",
    ),
}


@pytest.mark.parametrize(("linux", "default", "drop_ins", "script"), STATES.values(), ids=STATES)
def test_update_grub_makes_the_lines_that_we_wrote(
    grub_root: Path, linux: str, default: str, drop_ins: dict[str, str], script: str
) -> None:
    set_up(grub_root, linux, default, drop_ins)
    run_in(grub_root, script)
    before = lines_in(grub_root)
    tree = tree_of(grub_root)
    assert statuses(tree) != ["pass", "pass", "pass"]

    overlay = applied(tree)
    assert statuses(overlay) == ["pass", "pass", "pass"]
    for path, text in written(overlay).items():
        (grub_root / path.strip("/")).write_text(text)
    ours = lines_in(grub_root)
    assert ours != before
    run_in(grub_root, f"grub-script-check {GRUB_CFG} && update-grub")

    assert ours == lines_in(grub_root)
    assert not written(applied(tree_of(grub_root)))
    kinds = " ".join(title for title, *_ in ours)
    assert "7.0.0-test" in kinds
    assert ("recovery mode" in kinds) == ("GRUB_DISABLE_RECOVERY" not in str(drop_ins))


def test_update_grub_stops_at_an_appending_that_dash_does_not_know_until_it_is_spelt_out(
    grub_root: Path,
) -> None:
    set_up(grub_root, "a", "quiet", {})
    run_in(grub_root, "update-grub")
    (grub_root / DROP_INS.strip("/") / "5.cfg").write_text('GRUB_CMDLINE_LINUX+=" b"\n')
    run_in(grub_root, "update-grub", expect=127)
    overlay = applied(tree_of(grub_root))
    for path, text in written(overlay).items():
        (grub_root / path.strip("/")).write_text(text)
    run_in(grub_root, "update-grub")
    assert all(f"a b {ALL}" in " ".join(words) for _, _, words in lines_in(grub_root))


values = st.text(alphabet="ab=# \\é", max_size=20)


@settings(deadline=None, max_examples=25)
@given(items=st.dictionaries(st.sampled_from(["kernelopts", "saved_entry", "x"]), values, min_size=1))
def test_grub_editenv_reads_the_block_that_we_wrote(grub_root: Path, items: dict[str, str]) -> None:
    block = EnvironmentBlock.parse(SIGNATURE + "#" * (1024 - len(SIGNATURE)))
    for name, value in items.items():
        block = block.with_value(name, value)
    (grub_root / "tmp/grubenv").write_text(block.text)
    listed = run_in(grub_root, "grub-editenv /tmp/grubenv list")
    assert listed == "".join(f"{name}={value}\n" for name, value in items.items())


def test_we_read_the_block_that_grub_editenv_wrote(grub_root: Path) -> None:
    run_in(grub_root, r"""grub-editenv /tmp/e create; grub-editenv /tmp/e set 'a=b\c' 'saved_entry=x>y'""")
    block = EnvironmentBlock.parse((grub_root / "tmp/e").read_text())
    assert dict(block.variables) == {"a": r"b\c", "saved_entry": "x>y"}
    assert block.with_value("a", r"b\c") == block
