"""Which kernel a package brought, and which one boots."""

from __future__ import annotations

import pytest

from tpu_image.customise.kernel import choose, kernel_of, packages_of
from tpu_image.customise.session import CustomisationError
from tpu_image.trees.memory import File, MemoryTree

STATUS = """\
Package: linux-image-cloud-amd64
Status: install ok installed
Version: 6.1.9
Architecture: amd64
Depends: linux-image-6.1.0-9-cloud-amd64 (= 6.1.9)

Package: linux-image-6.1.0-9-cloud-amd64
Status: install ok installed
Version: 6.1.9
Architecture: amd64
Depends: kmod, linux-base (>= 4.3)

Package: linux-base
Status: install ok installed
Version: 4.9
Architecture: all

Package: gone
Status: deinstall ok config-files
Version: 1
"""

MENU = """\
set default="{default}"
menuentry 'Debian' $menuentry_id_option 'simple' {{
  linux /boot/vmlinuz-6.1.0-10-amd64 root=UUID=x ro
}}
submenu 'More' $menuentry_id_option 'more' {{
  menuentry 'Debian, 10' $menuentry_id_option 'ten' {{
    linux /boot/vmlinuz-6.1.0-10-amd64 root=UUID=x ro
  }}
  menuentry 'Debian, 9' $menuentry_id_option 'nine' {{
    linux /boot/vmlinuz-6.1.0-9-cloud-amd64 root=UUID=x ro
  }}
  menuentry 'Debian, 9 (recovery mode)' $menuentry_id_option 'nine-recovery' {{
    linux /boot/vmlinuz-6.1.0-9-cloud-amd64 root=UUID=x ro single
  }}
}}
"""


def tree(default: str = "0", files: dict[str, str] | None = None) -> MemoryTree:
    texts = {
        "/var/lib/dpkg/status": STATUS,
        "/var/lib/dpkg/info/linux-image-cloud-amd64.list": "/.\n/usr/share/doc\n",
        "/var/lib/dpkg/info/linux-image-6.1.0-9-cloud-amd64.list": "/boot\n/boot/vmlinuz-6.1.0-9-cloud-amd64\n",
        "/boot/grub/grub.cfg": MENU.format(default=default),
        "/bin/sh": "",
        **(files or {}),
    }
    return MemoryTree({path: File(text.encode()) for path, text in texts.items()})


@pytest.mark.parametrize("suffix", ["", "=6.1.9", "/bookworm-security", ":amd64", ":amd64=6.1.9"])
def test_a_kernel_is_found_behind_the_package_that_names_it(suffix: str) -> None:
    assert kernel_of(tree(), f"linux-image-cloud-amd64{suffix}") == "vmlinuz-6.1.0-9-cloud-amd64"
    assert kernel_of(tree(), "linux-image-6.1.0-9-cloud-amd64") == "vmlinuz-6.1.0-9-cloud-amd64"


def test_a_package_without_a_kernel_is_named() -> None:
    with pytest.raises(CustomisationError, match="kernel: linux-base brings no kernel to /boot"):
        kernel_of(tree(), "linux-base")


@pytest.mark.parametrize(
    ("default", "boots"), [("0", "vmlinuz-6.1.0-10-amd64"), ("more>nine", "vmlinuz-6.1.0-9-cloud-amd64")]
)
def test_the_entry_of_the_wanted_kernel_is_found_whatever_boots(default: str, boots: str) -> None:
    choice = choose(tree(default), "linux-image-cloud-amd64")
    assert choice == ("vmlinuz-6.1.0-9-cloud-amd64", boots, "more>nine")


def test_a_kernel_without_an_entry_is_named() -> None:
    with pytest.raises(CustomisationError, match=r"no entry of GRUB's menu starts vmlinuz-6\.1\.0-9"):
        choose(tree(files={"/boot/grub/grub.cfg": ""}), "linux-image-cloud-amd64")


def test_packages_are_those_that_are_installed() -> None:
    assert packages_of(tree()) == {
        "linux-image-cloud-amd64": "6.1.9",
        "linux-image-6.1.0-9-cloud-amd64": "6.1.9",
        "linux-base": "4.9",
    }
