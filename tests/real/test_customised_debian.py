"""A real Debian disk, customised: packages from a real mirror, a kernel, Python packages, scripts, and a clean end."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import build_bases as bases
import customise_lab as lab
from disk_tools import run
from tpu_image.catalogue.boot_loader import read_boot_loader
from tpu_image.customise.customisation import Customisation, Placement, PythonEnvironment, Script
from tpu_image.customise.execution import Executed, executed
from tpu_image.customise.leftovers import clear_leftovers
from tpu_image.customise.namespace import NamespaceExecutor
from tpu_image.customise.placing import place
from tpu_image.customise.session import CustomisationError
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree

pytestmark = pytest.mark.real

MIB = 1 << 20
ROOT_START = 9 * MIB
SIZE = 3 << 30
RESOLV_CONF = b"# the image's own\nnameserver 192.0.2.1\n"
TIME = 1_700_000_000


@pytest.fixture(scope="module")
def base(unpack_root: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk with an EFI partition and a Debian root; tests only read it."""
    folder = tmp_path_factory.mktemp("debian")
    root = unpack_root(folder / "root")
    for name in ("boot/efi", "boot/grub"):
        (root / name).mkdir(parents=True, exist_ok=True)
    mounts = [f"UUID={bases.ROOT_UUID} / ext4 defaults 0 1", "UUID=7A2B-11CC /boot/efi vfat umask=0077 0 1"]
    (root / "etc/fstab").write_text("\n".join(mounts) + "\n")
    (root / "etc/resolv.conf").write_bytes(RESOLV_CONF)
    disk = folder / "base.raw"
    with disk.open("wb") as file:
        file.truncate(SIZE)
        table = f"label: gpt\nsize=8M, type={bases.EFI}\ntype={bases.ROOT}\n"
        run("sfdisk", "-q", disk, text=table)
        file.seek(MIB)
        file.write(bases.efi_partition(folder / "efi").read_bytes())
    options = ("-q", "-F", "-U", bases.ROOT_UUID, "-d", root, "-E", f"offset={ROOT_START}")
    run("mkfs.ext4", *options, disk, f"{(SIZE - ROOT_START) // 1024 - 1024}k")
    subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)
    yield disk
    disk.unlink()


@pytest.fixture(scope="module")
def sources() -> bytes:
    """This machine's own package sources that are Debian's."""
    return lab.debian_sources()


def wheel(folder: Path) -> Path:
    """A folder with a wheel that pip can install without a network."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_package-1.0-py3-none-any.whl", "w") as file:
        info = "tiny_package-1.0.dist-info"
        file.writestr("tiny_package.py", "WORD = 'tiny'\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(
            f"{info}/RECORD", f"tiny_package.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return folder


SCRIPT = b"""\
hello > /etc/greeting
/opt/tiny/bin/python -c 'import tiny_package; print(tiny_package.WORD)' > /etc/tiny
systemctl enable cron && systemctl restart cron
ls /proc/[0-9]*/exe | wc -l
"""


class Customised:
    """The base after a customisation, what was said meanwhile, and how it compares."""

    def __init__(self, base: Path, sources: bytes, folder: Path) -> None:
        self.digest = sha256(base)
        self.heard = lab.Heard()
        self.path = folder / "customised.raw"
        wanted = Customisation(
            packages=("hello", "cron", "python3-venv"),
            remove=("gdisk",),
            kernel="linux-image-cloud-amd64",
            environments=(
                PythonEnvironment("/opt/tiny", ("tiny-package",), wheels=wheel(folder / "wheels")),
            ),
            scripts=(Script("greet", SCRIPT),),
            sources=sources,
        )
        with open_image(base) as source:
            disk = EditedDisk(source)
            with executed(disk, wanted, NamespaceExecutor, self.heard, folder=folder) as (changed, done):
                self.done: Executed = done
                place(changed, [Placement("/etc/motd", content=b"mine\n", owner="root")], time=TIME)
                self.cleared = clear_leftovers(changed, time=TIME)
                with self.path.open("wb") as file:
                    write_raw(changed, file)
        assert sha256(base) == self.digest
        assert not lab.loop_devices(folder)

    @property
    def tree(self) -> ImageTree:
        return open_tree(open_image(self.path))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return (
            hashlib.file_digest(file, "sha256").hexdigest()
            if hasattr(hashlib, "file_digest")
            else _digest(path)
        )


def _digest(path: Path) -> str:
    return run("sha256sum", path).split()[0]


@pytest.fixture(scope="module")
def customised(base: Path, sources: bytes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Customised]:
    """The one customisation that most tests look at; it takes about a minute."""
    made = Customised(base, sources, tmp_path_factory.mktemp("customised"))
    yield made
    made.path.unlink()


def test_packages_are_installed_and_removed_and_said_with_their_versions(customised: Customised) -> None:
    changes = {change.name: (bool(change.before), bool(change.after)) for change in customised.done.packages}
    assert changes["hello"] == changes["cron"] == changes["linux-image-cloud-amd64"] == (False, True)
    assert changes["gdisk"] == (True, False)
    assert "bash" not in changes
    assert customised.tree.is_file("/usr/bin/hello")
    assert not customised.tree.exists("/usr/sbin/gdisk")
    assert customised.done.method == "namespace"


def test_scripts_run_last_and_see_everything(customised: Customised) -> None:
    assert customised.tree.read_text("/etc/greeting") == "Hello, world!\n"
    assert customised.tree.read_text("/etc/tiny") == "tiny\n"
    assert customised.heard.steps[-1] == "run greet"
    assert customised.done.scripts[0].sha256 == hashlib.sha256(SCRIPT).hexdigest()


def test_the_wanted_kernel_boots_by_uuid(customised: Customised) -> None:
    loader = read_boot_loader(customised.tree)
    config = loader.configs["/boot/grub/grub.cfg"]
    default = config.default_entry(loader.variables)
    kernels = [linux.kernel for linux in config.linux_lines if linux.entry is default]
    assert [Path(kernel).name for kernel in kernels] == [customised.done.kernel]
    assert customised.done.kernel.endswith("-cloud-amd64")
    assert customised.tree.is_file(f"/boot/{customised.done.kernel.replace('vmlinuz', 'initrd.img')}")
    assert "/dev/loop" not in config.text
    assert f"root=UUID={bases.ROOT_UUID}" in config.text
    assert "insmod part_gpt" in config.text


def test_no_service_was_started(customised: Customised) -> None:
    said = "\n".join(customised.heard.lines)
    assert "policy-rc.d denied execution of" in said
    assert "Running in chroot, ignoring command 'restart'" in said
    assert customised.tree.lstat("/etc/systemd/system/multi-user.target.wants/cron.service") is not None
    assert not customised.tree.names("/run", "*.pid")


def test_what_stood_in_for_the_images_files_is_gone(customised: Customised) -> None:
    tree = customised.tree
    assert tree.read_bytes("/etc/resolv.conf") == RESOLV_CONF
    assert not tree.exists("/usr/sbin/policy-rc.d")
    assert tree.read_head("/usr/sbin/start-stop-daemon", 4) == b"\x7fELF"
    assert not tree.names("/etc/initramfs-tools/conf.d")
    assert not [name for name in (*tree.names("/etc"), *tree.names("/usr/sbin")) if "aside" in name]
    assert tree.names("/tmp") == []


def test_nothing_that_installing_leaves_is_kept(customised: Customised) -> None:
    tree = customised.tree
    assert set(tree.names("/var/lib/apt/lists")) <= {"lock", "partial", "auxfiles"}
    assert not tree.names("/var/cache/apt/archives", "*.deb")
    assert tree.read_bytes("/var/log/dpkg.log") == b""
    assert [line.split(" (")[0] for line in customised.cleared] == [
        "remove package lists",
        "remove package archives",
        "remove package caches",
        "empty the logs",
    ]


def test_the_file_systems_are_clean(customised: Customised) -> None:
    lab.clean(customised.path, ROOT_START)
    assert customised.tree.read_text("/etc/motd") == "mine\n"


def test_a_kernel_that_is_not_the_newest_is_pinned(
    customised: Customised, sources: bytes, tmp_path: Path
) -> None:
    wanted = Customisation(kernel="linux-image-amd64", sources=sources)
    heard = lab.Heard()
    with (
        open_image(customised.path) as source,
        executed(EditedDisk(source), wanted, NamespaceExecutor, heard, folder=tmp_path) as (disk, done),
    ):
        tree = open_tree(disk)
        assert "GRUB_DEFAULT='gnulinux-advanced-" in tree.read_text(
            "/etc/default/grub.d/zz-tpu-image-kernel.cfg"
        )
        assert "cloud" not in done.kernel
        assert tree.is_file(f"/boot/{done.kernel}")
    assert heard.steps[-2:] == ["make the kernel the default", "update-grub"]


def test_a_package_that_there_is_none_of_is_named_with_what_apt_says(
    base: Path, sources: bytes, tmp_path: Path
) -> None:
    wanted = Customisation(packages=("no-such-package-at-all",), sources=sources)
    with (
        open_image(base) as source,
        pytest.raises(CustomisationError) as caught,
        executed(EditedDisk(source), wanted, NamespaceExecutor, lab.Heard(), folder=tmp_path),
    ):
        pytest.fail("it was installed")
    assert caught.value.message == "install no-such-package-at-all: ended with status 100"
    assert caught.value.output[-1] == "E: Unable to locate package no-such-package-at-all"
    assert not list(tmp_path.iterdir())
