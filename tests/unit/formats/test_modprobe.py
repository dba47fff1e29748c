"""Module options and lists, as kmod and the kernel read them."""

from __future__ import annotations

import pytest

from tpu_image.formats.modprobe import (
    Directive,
    directives,
    is_true,
    last_parameter,
    loaded_modules,
    module_path,
)


def test_directives_are_read_with_their_lines() -> None:
    text = "# options a b=1\n\noptions vfio-pci ids=1:2 \\\n  x=y\nblacklist a\ninstall b /bin/false\nalone\n"
    assert list(directives(text)) == [
        Directive(3, "options", "vfio_pci", "ids=1:2   x=y"),
        Directive(5, "blacklist", "a"),
        Directive(6, "install", "b", "/bin/false"),
    ]


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("allow=1", "1"),
        ("allow=1 allow=0", "0"),
        ("other=1", None),
        ("allow", "y"),
        ('allow="Y"', "Y"),
        ("al-low=1", None),
        ("", None),
    ],
)
def test_the_last_value_of_a_parameter_counts(options: str, value: str | None) -> None:
    assert last_parameter(options, "allow") == value
    assert last_parameter("a-b=1", "a_b") == "1"


@pytest.mark.parametrize(
    ("value", "true"),
    [("1", True), ("Y", True), ("on", True), ("true", True), ("0", False), ("off", False), ("", False)],
)
def test_truth_is_the_kernels(value: str, true: bool) -> None:
    assert is_true(value) is true


def test_modules_to_load_are_read() -> None:
    assert list(loaded_modules("# x\n; y\n\nvfio-pci\n  vfio \n")) == [(4, "vfio_pci"), (5, "vfio")]


@pytest.mark.parametrize("suffix", ["", ".xz", ".zst", ".gz"])
@pytest.mark.parametrize("name", ["vfio-pci", "vfio_pci"])
def test_a_module_is_found_however_it_is_packed(suffix: str, name: str) -> None:
    path = f"kernel/drivers/vfio/pci/vfio-pci.ko{suffix}"
    assert module_path(f"a/b.ko:\n{path}: kernel/vfio.ko{suffix}\n".encode(), name) == path
    assert module_path(f"{path}\n".encode(), name) == path


@pytest.mark.parametrize(
    "listed",
    [
        "",
        "kernel/drivers/vfio/pci/vfio-pci-core.ko:\n",
        "kernel/drivers/vfio/pci/my-vfio-pci.ko:\n",
        "kernel/x.ko: kernel/drivers/vfio/pci/vfio-pci.ko\n",
        "kernel/drivers/vfio/pci/vfio-pci.ko.sig:\n",
        "vfio-pci\n",
    ],
)
def test_what_only_looks_like_a_module_is_not_found(listed: str) -> None:
    assert module_path(listed.encode(), "vfio-pci") is None
