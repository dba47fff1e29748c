"""Access to the device nodes of TPUs: by rule, so that every later event repairs it.

Source: section "Associa i dispositivi TPU a VFIO" of the document (R3: ``/dev/vfio/GROUP`` is 0666, R4:
``accel*`` is 0666).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tpu_image.catalogue import boot_writes, hardware
from tpu_image.catalogue.accounts import group_id
from tpu_image.catalogue.bind_script import marks_groups, read, valid_group
from tpu_image.catalogue.binding import running_scripts
from tpu_image.catalogue.device_events import (
    MARKS,
    Rules,
    accel_node,
    function_node,
    group_node,
    load_rules,
    vfio_generations,
)
from tpu_image.catalogue.groups import SYSTEM_IDS, ensure_group, is_declared
from tpu_image.catalogue.hardware import GENERATIONS, GOOGLE_VENDOR, NodeKind
from tpu_image.catalogue.node_commands import last_change
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.catalogue.rules_file import own_file, put, put_rules
from tpu_image.catalogue.vfio_modules import kernels
from tpu_image.formats.udev_lint import with_missing_commas
from tpu_image.formats.udev_model import Device, Slot
from tpu_image.formats.udev_rules import parse
from tpu_image.formats.udev_tokens import parse_mode
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

RULES_FILE = "/etc/udev/rules.d/99-tpu.rules"

FUNCTION_NODES_SINCE = (6, 6)
"""First Linux that can make ``/dev/vfio/devices/vfioN`` (``CONFIG_VFIO_DEVICE_CDEV``)."""

_GROUP_NUMBERS = (0, 7, 12)
"""IOMMU groups to try: a machine has one for each device, so two digits are usual."""


def render_rules(profile: Profile, operator: str = "=") -> str:
    """Give the rules that open the nodes of TPUs; the operator ``:=`` keeps later rules from closing them.

    Raises:
        FormatError: the profile's group is no name that groupadd(8) takes.
    """
    group = valid_group(profile)
    mode = f'MODE{operator}"{profile.device_mode:04o}"'
    access = f'GROUP{operator}"{group}", {mode}' if group else mode
    devices = "|".join(f"0x{g.device:04x}" for g in GENERATIONS if g.node is NodeKind.VFIO)
    whom = f"the group {group}" if group else "every user"
    return f"""\
# The device nodes of Cloud TPUs are open to {whom}. Written by tpu-image.
KERNEL=="accel*", {access}

# /dev/vfio/GROUP: the node does not say which device is in its group. The bind script marks those of TPUs.
SUBSYSTEM=="vfio", KERNEL=="[0-9]*", TEST=="{MARKS}/%k", {access}

# /dev/vfio/devices/vfioN, on kernels that make it, and what it is of no use without. By itself that gives access to
# nothing, like /dev/vfio/vfio, which the kernel opens to everybody.
SUBSYSTEM=="misc", KERNEL=="iommu", {access}
SUBSYSTEM=="vfio-dev", SUBSYSTEMS=="pci", ATTRS{{vendor}}=="0x{GOOGLE_VENDOR:04x}", \\
  ATTRS{{device}}=="{devices}", {access}
"""


class Access(NamedTuple):
    """What the rules make of one node: as the profile asks (True), not so (False), or undecided (None)."""

    is_open: bool | None
    evidence: Evidence


def _access(rules: Rules, device: Device, action: str, profile: Profile, gid: int | None) -> Access:
    """Judge the mode and, where the profile names one, the group that an event gives a node."""
    outcome = rules.outcome(device, action)
    mode, group = outcome.mode, outcome.group
    if not mode.candidates() and group.sure and group.sure.value not in ("root", "0"):
        mode = Slot(group.sure._replace(value="0660"))  # what udev makes of a group without a mode
    wanted = f"{profile.device_mode:04o}"
    access = _judged(device, mode, lambda v: _permissions(v) == profile.device_mode, wanted)
    changed = last_change(outcome, device.node, wanted)
    if access.is_open and changed is not None and changed.mode != profile.device_mode:
        return Access(None if changed.mode is None else False, changed.evidence)
    if access.is_open and profile.device_group:
        name = profile.device_group
        return _judged(device, group, lambda v: v in (name, str(gid)), f"{wanted}, group {name}")
    return access


def _closed_by_boot(tree: Tree, device: Device, profile: Profile) -> Iterator[Evidence]:
    """Find what tmpfiles.d does against a node once udev has opened it."""
    changed = boot_writes.changed_mode(tree, device.node)
    if changed is not None and changed[0] != profile.device_mode:
        yield changed[1]._replace(expected=f"{profile.device_mode:04o}")
    closed = boot_writes.closed_directory(tree, device.node, 0o011 if profile.device_group else 0o001)
    if closed is not None:
        yield closed._replace(expected="a directory that others may enter")


def _judged(device: Device, slot: Slot, accepts: Callable[[str], bool], wanted: str) -> Access:
    candidates = slot.candidates()
    deciding = next((c for c in candidates if not accepts(c.value)), candidates[0] if candidates else None)
    if deciding is None:
        return Access(False, Evidence(RULES_FILE, 0, f"{device.node}: no rule sets it", wanted))
    found = f"{device.node}: {deciding.value}" + (f", if {deciding.doubt}" if deciding.doubt else "")
    return Access(slot.settles(accepts), Evidence(deciding.path, deciding.line, found, wanted))


def _permissions(value: str) -> int:
    mode = parse_mode(value)
    return -1 if mode is None else mode & 0o777


def opens_group_nodes(tree: Tree, profile: Profile, *, marked: bool) -> bool:
    """Whether the rules open ``/dev/vfio/GROUP`` of a TPU; ``marked``: once the bind script marked it."""
    rules = load_rules(tree, profile.architecture, marked=marked)
    gid = group_id(tree, profile.device_group)
    return all(_access(rules, group_node(n), "add", profile, gid).is_open for n in _GROUP_NUMBERS)


def _makes_function_nodes(tree: Tree) -> bool | None:
    """Whether an installed kernel may make a node for every function; None where there is no kernel."""
    versions = [re.match(r"(\d{1,4})\.(\d{1,4})", release) for release in kernels(tree)]
    known = [(int(v[1]), int(v[2])) for v in versions if v]
    return max(known) >= FUNCTION_NODES_SINCE if known else None


class _NodeAccess(Requirement):
    """What the requirements on device nodes share: how they judge them, and the file that opens them."""

    def _devices(self, tree: Tree, profile: Profile) -> Iterable[Device]:
        raise NotImplementedError

    def _judge(self, tree: Tree, profile: Profile, rules: Rules) -> Verdict:
        gid = group_id(tree, profile.device_group)
        if profile.device_group and gid is None and not is_declared(tree, profile.device_group):
            where = Evidence("/etc/group", expected=profile.device_group)
            return self.failed(f"the group {profile.device_group} does not exist", where)
        devices = list(self._devices(tree, profile))
        added = [_access(rules, device, "add", profile, gid) for device in devices]
        closed = [access.evidence for access in added if access.is_open is False]
        if closed:
            return self._closed(closed)
        open_to_doubt = [access.evidence for access in added if access.is_open is None]
        if open_to_doubt:
            message = (
                f"whether {open_to_doubt[0].found.partition(':')[0]} is opened cannot be told from the rules"
            )
            return self.unknown(message, *open_to_doubt, remedy=self.remedy)
        taken_back = [evidence for device in devices for evidence in _closed_by_boot(tree, device, profile)]
        if taken_back:
            first = taken_back[0]
            message = f"{first.path}:{first.line} closes {devices[0].node} again at boot"
            return self.failed(message, *taken_back, remedy=f"take line {first.line} out of {first.path}")
        changed = [_access(rules, device, "change", profile, gid) for device in devices]
        unrepaired = [access.evidence for access in changed if not access.is_open]
        if unrepaired:
            return self.warned("opened when added, but udevadm trigger repairs nothing", *unrepaired)
        return self._open(rules, [access.evidence for access in added], gid)

    def _open(self, rules: Rules, evidence: list[Evidence], gid: int | None) -> Verdict:
        complaints = rules.complaints(evidence)
        if complaints:
            first = complaints[0]
            return self.warned(
                f"it works, but {first.path}:{first.line}: {first.found}", *complaints, *evidence
            )
        if gid is not None and gid > SYSTEM_IDS[0]:
            message = f"group {gid} is no system group: udev of systemd 258 and newer ignores it"
            return self.warned(message, Evidence("/etc/group", found=str(gid), expected="an id below 1000"))
        return self.passed(f"{evidence[0].found.replace(': ', ' is ')}", *evidence)

    def _closed(self, closed: list[Evidence]) -> Verdict:
        first = closed[0]
        node, _, found = first.found.partition(": ")
        if not first.line:
            return self.failed(f"{node} is not opened: {found}", *closed)
        remedy = f"{self.remedy}; a MODE:= that stands before ours has to be taken out by hand"
        return self.failed(
            f"{node} is not opened: {first.path}:{first.line} sets {found}", *closed, remedy=remedy
        )

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Write the rules; make them final where a later rule would close the nodes again."""
        if profile.device_group:
            valid_group(profile)
            ensure_group(overlay, profile.device_group)
        verdict = self.inspect(overlay, profile)
        if verdict.status is Status.WARN:
            _add_commas(overlay, verdict)
            verdict = self.inspect(overlay, profile)
        contents = [render_rules(profile), render_rules(profile, ":=")]
        if verdict.status is Status.PASS or (verdict.status is Status.WARN and _stands(overlay, contents)):
            return
        for content in contents:
            put_rules(overlay, RULES_FILE, content, "")
            if self.inspect(overlay, profile).status in (Status.PASS, Status.WARN):
                return
        # Final rules help no more than plain ones: leave the last word to others.
        put_rules(overlay, RULES_FILE, contents[0], "")


def _add_commas(overlay: Overlay, verdict: Verdict) -> None:
    """Put missing commas into the administrator's files that open the nodes."""
    for path in {item.path for item in verdict.evidence if item.path.startswith("/etc/udev/")}:
        put(overlay, path, with_missing_commas(parse(overlay.read_text(path))))


def _stands(overlay: Overlay, contents: list[str]) -> bool:
    return any(overlay.read_text_if_present(path) in contents for path in (RULES_FILE, own_file(RULES_FILE)))


class DeviceAccess(_NodeAccess):
    """Every user, or the profile's group, can open the VFIO nodes of a TPU."""

    id = "vfio.device-access"
    title = "udev opens /dev/vfio/GROUP and /dev/vfio/devices/vfioN of every TPU"
    why = "Frameworks run as ordinary users; what a script opens once, nothing repairs later."
    source = "document, section “Associa i dispositivi TPU a VFIO” (R3)"
    changes = f"{RULES_FILE} sets mode (and group) of the nodes"

    def applies(self, profile: Profile) -> str:
        """Say where no generation of the profile is used through vfio-pci."""
        return "" if vfio_generations(profile) else "no generation of the profile uses vfio-pci"

    def _devices(self, tree: Tree, profile: Profile) -> Iterator[Device]:
        yield from map(group_node, _GROUP_NUMBERS)
        if _makes_function_nodes(tree) is not False:
            yield from map(function_node, vfio_generations(profile))

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Evaluate the events of the nodes, with the groups marked if the bind script marks them."""
        marked = any(marks_groups(read(tree, path)) for path in running_scripts(tree, profile))
        waits = opens_group_nodes(tree, profile, marked=True) and not opens_group_nodes(
            tree, profile, marked=False
        )
        if waits and not marked:
            where = Evidence(f"{MARKS}/GROUP", expected="made by the bind script")
            return self.failed(
                "the rule for /dev/vfio/GROUP waits for a mark that no bind script makes", where
            )
        return self._judge(tree, profile, load_rules(tree, profile.architecture, marked=marked))


class AccelAccess(_NodeAccess):
    """Every user, or the profile's group, can open the nodes of the first generations."""

    id = "accel.device-access"
    title = "udev opens /dev/accelN"
    why = "Frameworks run as ordinary users, who cannot open a node of mode 0600."
    source = "document, section “Associa i dispositivi TPU a VFIO” (R4)"
    changes = f"{RULES_FILE} sets mode (and group) of the nodes"

    def _devices(self, tree: Tree, profile: Profile) -> Iterator[Device]:
        del tree
        chosen = [g for g in profile.generations if g.node is NodeKind.ACCEL]
        yield from map(accel_node, chosen or [hardware.generation("v4")])

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Evaluate the events of a node."""
        return self._judge(tree, profile, load_rules(tree, profile.architecture))


REQUIREMENTS: tuple[Requirement, ...] = (DeviceAccess(), AccelAccess())
