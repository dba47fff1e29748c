"""Running machines: every function that cannot be used is named, with what is wrong."""

from __future__ import annotations

import pytest

from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.catalogue.vfio_live import MachineDevices, MachineInterrupts, functions
from tpu_image.catalogue.vfio_modules import PARAMETER
from tpu_image.trees.memory import Directory, File, Symlink
from vfio_trees import Changes, machine

V6E, TPU7X, V4 = 0x006F, 0x0076, 0x005E
GVNIC = 0x0042
ONE = {"0000:00:04.0": (V6E, "vfio-pci", "3")}
TWO = {**ONE, "0000:00:05.0": (V6E, "vfio-pci", "4")}
FUNCTION = "/sys/devices/pci0000:00/0000:00:04.0"


def observe(
    found: dict[str, tuple[int, str, str]], *changes: Changes, profile: Profile | None = None
) -> Verdict:
    return MachineDevices().observe(machine(found, *changes), profile or Profile())


def closed(mode: int = 0o600, gid: int = 0) -> File:
    return File(b"", mode, 0, gid)


def test_bound_functions_with_open_nodes_pass() -> None:
    verdict = observe(TWO)
    assert (verdict.status, verdict.message) == (Status.PASS, "2 v6e chips, bound, with open device nodes")


def test_chips_are_counted_by_what_a_chip_shows_never_by_groups() -> None:
    found = {f"0000:00:0{slot}.{f}": (TPU7X, "vfio-pci", f"{slot}{f}") for slot in (4, 5) for f in (0, 1)}
    assert observe(found).message.startswith("2 TPU7x chips (4 functions)")


def test_half_a_chip_is_warned_about() -> None:
    verdict = observe({"0000:00:04.0": (TPU7X, "vfio-pci", "0")})
    assert verdict.status is Status.WARN


@pytest.mark.parametrize("found", [{}, {"0000:00:03.0": (GVNIC, "gve", "1")}])
def test_no_tpu_is_skipped_and_never_passes(found: dict[str, tuple[int, str, str]]) -> None:
    assert observe(found).status is Status.SKIP


@pytest.mark.parametrize(
    ("found", "change", "path", "said"),
    [
        ({"0000:00:04.0": (V6E, "", "3")}, {}, "/sys/bus/pci/devices/0000:00:04.0", "no driver"),
        ({"0000:00:04.0": (V6E, "gasket", "3")}, {}, "/sys/bus/pci/devices/0000:00:04.0", "driver gasket"),
        (ONE, {"/dev/vfio/3": closed()}, "/dev/vfio/3", "mode 0600 (0000:00:04.0)"),
        (ONE, {"/dev/vfio/3": Directory()}, "/dev/vfio/3", "missing (0000:00:04.0)"),
        (
            ONE,
            {f"{FUNCTION}/vfio-dev/vfio0/dev": "240:0\n", "/dev/vfio/devices/vfio0": closed()},
            "/dev/vfio/devices/vfio0",
            "mode 0600 (0000:00:04.0)",
        ),
        (
            ONE,
            {f"{FUNCTION}/vfio-dev/vfio0/dev": "240:0\n"},
            "/dev/vfio/devices/vfio0",
            "missing (0000:00:04.0)",
        ),
    ],
)
def test_a_function_that_cannot_be_used_is_named(
    found: dict[str, tuple[int, str, str]], change: Changes, path: str, said: str
) -> None:
    verdict = observe(found, change)
    assert verdict.status is Status.FAIL
    assert [(e.path, e.found) for e in verdict.evidence] == [(path, said)]


def test_each_failing_function_has_its_own_line_and_the_others_none() -> None:
    found = {**TWO, "0000:00:06.0": (V6E, "", "5"), "0000:00:07.0": (V6E, "gasket", "6")}
    verdict = observe(found)
    assert [e.path.rpartition("/")[2] for e in verdict.evidence] == ["0000:00:06.0", "0000:00:07.0"]
    assert "and 1 more" in verdict.message


@pytest.mark.parametrize(
    ("found", "change"),
    [
        ({"0000:00:04.0": (V6E, "", "")}, {}),
        (ONE, {"/sys/kernel/iommu_groups/3/name": "vfio-noiommu\n"}),
        (ONE, {"/dev/vfio/noiommu-3": closed()}),
    ],
)
def test_a_machine_without_an_iommu_is_said_to_have_none(
    found: dict[str, tuple[int, str, str]], change: Changes
) -> None:
    verdict = observe(found, change)
    assert verdict.status is Status.FAIL
    assert "no IOMMU in effect" in verdict.message
    assert "intel_iommu=on" in verdict.remedy


@pytest.mark.parametrize(
    ("driver", "pci_class", "status"),
    [
        ("nvme", "0x010802", Status.FAIL),
        ("pcieport", "0x060400", Status.PASS),
        ("", "0x010802", Status.PASS),
        ("pci-stub", "0x010802", Status.PASS),
        ("mlx5-vfio-pci", "0x020000", Status.PASS),
    ],
)
def test_what_else_is_in_the_group(driver: str, pci_class: str, status: Status) -> None:
    other = "/sys/devices/pci0000:00/0000:00:08.0"
    changes: Changes = {
        f"{other}/class": pci_class + "\n",
        "/sys/kernel/iommu_groups/3/devices/0000:00:08.0": Symlink(
            f"../../../..{other.removeprefix('/sys')}"
        ),
        **({f"{other}/driver": Symlink(f"../../../bus/pci/drivers/{driver}")} if driver else {}),
    }
    verdict = observe(ONE, changes)
    assert verdict.status is status
    assert status is Status.PASS or "0000:00:08.0" in verdict.message


@pytest.mark.parametrize(
    ("node", "status"),
    [(closed(0o660, 990), Status.PASS), (closed(0o660), Status.FAIL), (closed(0o666, 990), Status.FAIL)],
)
def test_nodes_for_a_group(node: File, status: Status) -> None:
    verdict = observe(ONE, {"/dev/vfio/3": node}, profile=Profile(device_group="tpu"))
    assert verdict.status is status


ACCEL = {"0000:00:04.0": (V4, "accel", "1"), "0000:00:05.0": (V4, "accel", "2")}
ACCEL_CLASS: Changes = {
    f"/sys/class/accel/accel{n}/device": Symlink(f"/sys/devices/pci0000:00/0000:00:0{4 + n}.0")
    for n in (0, 1)
}


@pytest.mark.parametrize("classes", [{}, ACCEL_CLASS], ids=["no class", "class"])
@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"/dev/accel0": closed(0o666), "/dev/accel1": closed(0o666)}, ""),
        ({"/dev/accel0": closed(0o666), "/dev/accel1": closed()}, "/dev/accel1: mode 0600"),
        ({"/dev/accel0": closed(0o666)}, "accel"),
    ],
)
def test_the_first_generations_are_used_through_accel_nodes(
    classes: Changes, nodes: Changes, said: str
) -> None:
    verdict = observe(ACCEL, classes, nodes)
    assert verdict.status is (Status.FAIL if said else Status.PASS)
    assert said in verdict.message


def test_an_accel_node_of_another_device_does_not_count() -> None:
    foreign: Changes = {"/sys/class/accel/accel1/device": Symlink("/sys/devices/pci0000:00/0000:00:09.0")}
    nodes: Changes = {"/dev/accel0": closed(0o666), "/dev/accel1": closed(0o666)}
    verdict = observe(ACCEL, ACCEL_CLASS, foreign, nodes)
    assert verdict.status is Status.FAIL
    assert "0000:00:05.0: no accel device" in verdict.message


def test_functions_are_given_with_the_path_that_udevadm_triggers() -> None:
    (found,) = functions(machine({**ONE, "0000:00:03.0": (GVNIC, "gve", "1")}))
    assert (found.address, found.path, found.driver, found.group) == (
        "0000:00:04.0",
        FUNCTION,
        "vfio-pci",
        "3",
    )


def test_an_attribute_that_is_no_number_is_no_tpu() -> None:
    assert functions(machine(ONE, {f"{FUNCTION}/device": "?\n"})) == []


@pytest.mark.parametrize(
    ("found", "value", "status"),
    [
        (ONE, "Y\n", Status.PASS),
        (ONE, "N\n", Status.FAIL),
        (ONE, "", Status.FAIL),
        ({}, "N\n", Status.SKIP),
        (ACCEL, "N\n", Status.SKIP),
    ],
)
def test_unsafe_interrupts_of_the_running_kernel(
    found: dict[str, tuple[int, str, str]], value: str, status: Status
) -> None:
    tree = machine(found, {f"/sys/module/vfio_iommu_type1/parameters/{PARAMETER}": value})
    assert MachineInterrupts().observe(tree, Profile()).status is status
