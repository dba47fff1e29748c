"""The TPU devices of a running machine: bound, with open nodes, in groups that VFIO accepts.

Sources: section "Associa i dispositivi TPU a VFIO" of the document; the kernel's
``Documentation/driver-api/vfio.rst`` for groups; ``drivers/vfio/group.c`` for ``noiommu-N`` nodes and groups
named ``vfio-noiommu``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.catalogue.accounts import group_id
from tpu_image.catalogue.hardware import Generation, NodeKind, identify
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict, counted
from tpu_image.catalogue.vfio_modules import PARAMETER
from tpu_image.formats.modprobe import is_true
from tpu_image.trees.base import Kind, Tree, TreeError

DEVICES = "/sys/bus/pci/devices"
_GROUPS = "/sys/kernel/iommu_groups"
_ACCEL_CLASS = "/sys/class/accel"
_BRIDGE_CLASS = "0x0604"
_IOMMU = "an IOMMU group"
_ATTRIBUTE_LIMIT = 4096


class Function(NamedTuple):
    """One PCI function of a TPU.

    Attributes:
        address: as in ``/sys/bus/pci/devices``.
        path: its directory in sysfs, without links: what ``udevadm trigger --action=add`` takes.
        driver: empty where it has none; ``group``: number of its IOMMU group, empty where it is in none.
    """

    address: str
    path: str
    generation: Generation
    driver: str
    group: str


def functions(tree: Tree) -> list[Function]:
    """Find the TPU functions of a running machine, by address."""
    found = []
    for address in tree.names(DEVICES):
        directory = f"{DEVICES}/{address}"
        vendor, device = (_number(tree, f"{directory}/{name}") for name in ("vendor", "device"))
        if vendor is None or device is None:
            continue
        generation = identify(vendor, device, _number(tree, f"{directory}/subsystem_device"))
        if generation is not None:
            driver, group = (_link_name(tree, f"{directory}/{name}") for name in ("driver", "iommu_group"))
            found.append(Function(address, tree.resolve(directory), generation, driver, group))
    return found


def _text(tree: Tree, path: str) -> str:
    """Read an attribute; empty where there is none, or the kernel does not give it."""
    try:
        return (tree.read_text_if_present(path, _ATTRIBUTE_LIMIT) or "").strip()
    except TreeError:
        return ""


def _number(tree: Tree, path: str) -> int | None:
    text = _text(tree, path)
    try:
        return int(text, 16)
    except ValueError:
        return None


def _link_name(tree: Tree, path: str) -> str:
    entry = tree.lstat(path)
    return posixpath.basename(entry.target) if entry is not None and entry.kind is Kind.SYMLINK else ""


class MachineDevices(Requirement):
    """Every TPU function of the machine can be used by whom it is meant for."""

    id = "machine.devices"
    title = "every TPU function is bound and its device nodes are open"
    why = "Frameworks count chips in sysfs, whether or not they can be opened: only the nodes tell."
    source = "document, section “Associa i dispositivi TPU a VFIO”"
    remedy = "run: tpu-image apply"
    live = True

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Look at every TPU function, its group, and its nodes."""
        found = functions(tree)
        if not found:
            return self.skipped("no TPU is attached to this machine")
        access = _Access(tree, profile)
        faults = [fault for function in found for fault in _faults(access, function)]
        faults += _accel_node_faults(access, found)
        if faults:
            return self._failed(found, list(dict.fromkeys(faults)))
        split = [g for g, count in _counts(found).items() if count % g.functions_per_chip]
        if split:
            message = (
                f"{_summary(found)}: a {_title(split[0])} chip has {split[0].functions_per_chip} functions"
            )
            return self.warned(
                message, remedy="stop and start the VM; if it stays so, tell Google Cloud support"
            )
        return self.passed(f"{_summary(found)}, bound, with open device nodes")

    def _failed(self, found: list[Function], faults: list[Evidence]) -> Verdict:
        if any(fault.expected == _IOMMU for fault in faults):
            remedy = "boot with the kernel parameter intel_iommu=on,sm_on (tpu-image apply sets it)"
            return self.failed(f"no IOMMU in effect; {_summary(found)}", *faults, remedy=remedy)
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        message = f"{first.path}: {first.found}, expected {first.expected}{more}; {_summary(found)}"
        return self.failed(message, *faults)


def _counts(found: list[Function]) -> dict[Generation, int]:
    """Count the functions of each generation."""
    return {g: sum(f.generation == g for f in found) for g in dict.fromkeys(f.generation for f in found)}


def _summary(found: list[Function]) -> str:
    """Say how many chips there are: by what a chip of the generation shows, never by IOMMU groups."""
    parts = []
    for generation, count in _counts(found).items():
        chips, per_chip = count // generation.functions_per_chip, generation.functions_per_chip
        functions_too = f" ({count} functions)" if per_chip > 1 else ""
        parts.append(f"{counted(chips, f'{_title(generation)} chip')}{functions_too}")
    return ", ".join(parts)


def _title(generation: Generation) -> str:
    return generation.name.replace("tpu", "TPU")


class _Access:
    """Compares device nodes with what the profile asks for."""

    def __init__(self, tree: Tree, profile: Profile) -> None:
        self.tree = tree
        self.mode = profile.device_mode
        self.group = profile.device_group
        self.gid = group_id(tree, profile.device_group) if profile.device_group else None

    def faults(self, path: str, address: str) -> Iterator[Evidence]:
        """Say what is wrong with the node of a function."""
        entry = self.tree.stat(path)
        of = f" ({address})" if address else ""
        # In a recorded machine a regular file stands for a device node.
        if entry is None or entry.kind is Kind.DIRECTORY:
            yield Evidence(path, found=f"missing{of}", expected=f"a device node of mode {self.mode:04o}")
        elif entry.mode & 0o777 != self.mode:
            yield Evidence(path, found=f"mode {entry.mode:04o}{of}", expected=f"mode {self.mode:04o}")
        elif self.group and entry.gid != self.gid:
            number = "which does not exist" if self.gid is None else f"{self.gid}"
            yield Evidence(path, found=f"group {entry.gid}{of}", expected=f"group {self.group}, {number}")


def _faults(access: _Access, function: Function) -> Iterator[Evidence]:
    """Say what keeps one function from being used through VFIO."""
    if function.generation.node is not NodeKind.VFIO:
        return
    tree, address, group = access.tree, function.address, function.group
    if not group:
        yield Evidence(f"{DEVICES}/{address}/iommu_group", found="missing", expected=_IOMMU)
        return
    if _text(tree, f"{_GROUPS}/{group}/name") == "vfio-noiommu" or tree.exists(f"/dev/vfio/noiommu-{group}"):
        yield Evidence(f"/dev/vfio/noiommu-{group}", found=f"no-IOMMU mode ({address})", expected=_IOMMU)
        return
    yield from _companions(tree, function)
    if function.driver != "vfio-pci":
        found = f"driver {function.driver}" if function.driver else "no driver"
        yield Evidence(f"{DEVICES}/{address}", found=found, expected="driver vfio-pci")
        return
    yield from access.faults(f"/dev/vfio/{group}", address)
    for name in tree.names(f"{function.path}/vfio-dev"):
        if tree.exists(f"{function.path}/vfio-dev/{name}/dev"):
            yield from access.faults(f"/dev/vfio/devices/{name}", address)


def _companions(tree: Tree, function: Function) -> Iterator[Evidence]:
    """Find devices of the group that keep VFIO from handing it out: those that another driver works with.

    Bridges and devices without a driver do not, nor does pci-stub.
    """
    for address in tree.names(f"{_GROUPS}/{function.group}/devices"):
        path = f"{_GROUPS}/{function.group}/devices/{address}"
        driver = _link_name(tree, f"{path}/driver")
        if address == function.address or not driver or driver == "pci-stub" or driver.endswith("vfio-pci"):
            continue
        if not _text(tree, f"{path}/class").startswith(_BRIDGE_CLASS):
            yield Evidence(path, found=f"driver {driver}", expected="vfio-pci, as all of its IOMMU group")


def _accel_node_faults(access: _Access, found: list[Function]) -> Iterator[Evidence]:
    """Say what is wrong with ``/dev/accelN``: one for each function of the first generations."""
    tree = access.tree
    accel = [function for function in found if function.generation.node is NodeKind.ACCEL]
    if not accel:
        return
    owners = {tree.resolve(f"{_ACCEL_CLASS}/{name}/device"): name for name in tree.names(_ACCEL_CLASS)}
    addresses = {owners[f.path]: f.address for f in accel if f.path in owners}
    nodes = tree.names("/dev", "accel[0-9]*")
    if owners:
        for function in accel:
            if function.path not in owners:
                yield Evidence(
                    f"{DEVICES}/{function.address}", found="no accel device", expected="/dev/accelN"
                )
    elif len(nodes) < len(accel):
        yield Evidence("/dev", found=f"{len(nodes)} accel nodes", expected=f"{len(accel)}, one a function")
    for name in sorted({*nodes, *addresses}):
        yield from access.faults(f"/dev/{name}", addresses.get(name, ""))


class MachineInterrupts(Requirement):
    """The running kernel allows unsafe interrupts."""

    id = "machine.interrupts"
    title = "vfio_iommu_type1 allows unsafe interrupts now"
    why = "On x86-64 VMs without interrupt remapping, VFIO otherwise refuses the TPU's IOMMU group."
    source = "document, section “Associa i dispositivi TPU a VFIO” (R3)"
    remedy = "run: tpu-image apply"
    live = True

    def applies(self, profile: Profile) -> str:
        """Say that other architectures have no such parameter."""
        return "" if profile.architecture == "x86_64" else f"not needed on {profile.architecture}"

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Read the parameter of the loaded module."""
        del profile
        if not any(f.generation.node is NodeKind.VFIO for f in functions(tree)):
            return self.skipped("no TPU that uses VFIO is attached to this machine")
        path = f"/sys/module/vfio_iommu_type1/parameters/{PARAMETER}"
        value = _text(tree, path)
        if not value:
            return self.failed(
                "vfio_iommu_type1 is not loaded", Evidence(path, found="missing", expected="Y")
            )
        if not is_true(value):
            return self.failed(f"{PARAMETER} is {value}", Evidence(path, found=value, expected="Y"))
        return self.passed(f"{PARAMETER} is {value}", Evidence(path, found=value))
