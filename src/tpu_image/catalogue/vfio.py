"""Binding TPU functions to vfio-pci: the udev rules, and the script that they run.

Source: section "Associa i dispositivi TPU a VFIO" of the document (R2, R3).
"""

from __future__ import annotations

from tpu_image.catalogue import vfio_live, vfio_modules
from tpu_image.catalogue.bind_script import (
    INTERRUPTS_STEP,
    LOAD_STEP,
    NODE_STEP,
    SCRIPT,
    known_faults,
    missing_steps,
    read,
    render,
    unusable,
)
from tpu_image.catalogue.binding import Binding, bindings
from tpu_image.catalogue.device_events import Rules, identifier, load_rules, vfio_generations
from tpu_image.catalogue.device_nodes import opens_group_nodes
from tpu_image.catalogue.hardware import GENERATIONS, GOOGLE_VENDOR, Generation, NodeKind
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.catalogue.rules_file import put, put_rules
from tpu_image.catalogue.systemd import units_of
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

RULES_FILE = "/etc/udev/rules.d/99-tpu-vfiopci.rules"
UDEV_UNITS = ("systemd-udevd.service", "systemd-udev-trigger.service")
"""Without the one no rule is applied, without the other none to what was there before udev started."""


def render_rules() -> str:
    """Give the rules that bind every generation that is used through vfio-pci.

    They match what :func:`~tpu_image.catalogue.hardware.identify` calls a TPU, whatever driver it has: the
    script also opens the nodes of a function that is on vfio-pci already.
    """
    lines = ["# Bind every Cloud TPU function that appears to vfio-pci. Written by tpu-image."]
    for generation in GENERATIONS:
        if generation.node is NodeKind.VFIO:
            lines += ["", f"# {generation.name}", _bind_rule(generation)]
    return "\n".join(lines) + "\n"


def _bind_rule(generation: Generation) -> str:
    return (
        f'ACTION=="add", SUBSYSTEM=="pci", ATTR{{vendor}}=="0x{GOOGLE_VENDOR:04x}", '
        f'ATTR{{device}}=="0x{generation.device:04x}", RUN+="{SCRIPT} $kernel"'
    )


class BindRules(Requirement):
    """udev runs a bind script for every TPU function that appears."""

    id = "vfio.bind-rules"
    title = "udev runs a bind script for every TPU function that is added"
    why = "A TPU function that is not on vfio-pci cannot be opened by any program."
    source = "document, section “Associa i dispositivi TPU a VFIO” (R2)"
    changes = f"{RULES_FILE} runs {SCRIPT} for every TPU function"

    def applies(self, profile: Profile) -> str:
        """Say where no generation of the profile is used through vfio-pci."""
        return "" if vfio_generations(profile) else "no generation of the profile uses vfio-pci"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Evaluate the `add` event of a function of each generation, with no driver and on vfio-pci."""
        for name in UDEV_UNITS:
            unit = units_of(tree).unit(name)
            if unit is not None and unit.masked:
                masked = Evidence(unit.path, found="masked", expected="the unit")
                remedy = f"run: systemctl unmask {name}"
                return self.failed(f"{name} is masked, so no rule is applied at boot", masked, remedy=remedy)
        return self._judge(tree, profile)

    def _judge(self, tree: Tree, profile: Profile) -> Verdict:
        rules = load_rules(tree, profile.architecture)
        judged = bindings(tree, profile)
        unbound = [binding for binding in judged if not binding.bound]
        if unbound:
            return self._unbound(rules, unbound)
        evidence = [
            Evidence(p.command.path, p.command.line, f"{b.generation.name}: {p.command.value}")
            for b in judged
            for p in b.bound
        ]
        late = [b.generation.name for b in judged if not b.already]
        if late and not opens_group_nodes(tree, profile, marked=False):
            message = (
                f"a {', '.join(late)} function that is on vfio-pci already is not handed to the bind script"
            )
            return self.warned(f"{message}, so its device node stays closed", *evidence)
        complaints = rules.complaints(evidence)
        if complaints:
            first = complaints[0]
            return self.warned(
                f"it works, but {first.path}:{first.line}: {first.found}", *complaints, *evidence
            )
        names = ", ".join(binding.generation.name for binding in judged)
        return self.passed(f"an added {names} function is bound by {judged[0].bound[0].path}", *evidence)

    def _unbound(self, rules: Rules, unbound: list[Binding]) -> Verdict:
        first = unbound[0]
        names = ", ".join(f"{b.generation.name} ({identifier(b.generation)})" for b in unbound)
        if first.undecided:
            program, reason = first.undecided[0]
            where = Evidence(program.command.path, program.command.line, program.command.value)
            return self.unknown(
                f"whether a {names} function is bound is open: {reason}", where, remedy=self.remedy
            )
        faults = [
            Evidence(p.command.path, p.command.line, f"{p.command.value}: {p.path} {reason}")
            for binding in unbound
            for p, reason in binding.faults
        ]
        if faults:
            program, reason = next(fault for binding in unbound for fault in binding.faults)
            return self.failed(f"the rules run {program.path}, but it {reason}", *faults)
        dropped = [Evidence(c.path, c.line, f"{c.value}: {c.doubt}") for b in unbound for c in b.dropped]
        if dropped:
            return self.failed(f"no udev rule binds a {names} function: {dropped[0].found}", *dropped)
        missing = Evidence(RULES_FILE, expected=f"a rule that runs a bind script for {names}")
        ignored = rules.ignored_lines((f"0x{GOOGLE_VENDOR:04x}", "vfio"))
        return self.failed(f"no udev rule binds a {names} function", missing, *ignored)

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Write the rules, and the script without which they bind nothing."""
        BindScript().plan(overlay, profile)
        if self._judge(overlay, profile).status is not Status.PASS:
            put_rules(overlay, RULES_FILE, render_rules(), _document_rules())


def _document_rules() -> str:
    """Give the rules of the document, which ours take the place of."""
    lines = [
        f'SUBSYSTEM=="pci", ACTION=="add", ATTRS{{vendor}}=="0x1ae0", ATTRS{{device}}=="0x{g.device:04x}", '
        f'ATTRS{{subsystem_vendor}}=="0x1ae0", ATTRS{{subsystem_device}}=="0x{g.subsystem:04x}", '
        'DRIVER!="vfio-pci", TAG+="bind_to_vfio_pci"'
        for g in GENERATIONS
        if g.subsystem is not None
    ]
    return "\n".join([*lines, f'TAG=="bind_to_vfio_pci", RUN+="{SCRIPT} $kernel"']) + "\n"


class BindScript(Requirement):
    """The script that the rules run can be started and does what the document asks."""

    id = "vfio.bind-script"
    title = "the script that the rules run can be started and binds a function"
    why = "udev says nothing when a program of its rules is missing or fails."
    source = "document, section “Associa i dispositivi TPU a VFIO” (R3)"
    changes = f"{SCRIPT}, executable"

    def applies(self, profile: Profile) -> str:
        """Say where no generation of the profile is used through vfio-pci."""
        return "" if vfio_generations(profile) else "no generation of the profile uses vfio-pci"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the scripts that are run; without rules, the one where the document puts it."""
        judged = bindings(tree, profile)
        running = {program.path for binding in judged for program in binding.bound}
        broken = [(program.path, fault) for binding in judged for program, fault in binding.faults]
        if not running and broken:
            path, fault = broken[0]
            return self.failed(f"{path} {fault}", Evidence(path, found=fault, expected="a script that binds"))
        if not running:
            fault = unusable(tree, SCRIPT)
            if fault:
                found = fault if tree.lstat(SCRIPT) else ""
                return self.failed(
                    f"{SCRIPT} {fault}", Evidence(SCRIPT, found=found, expected="a bind script")
                )
            running = {SCRIPT}
        verdicts = [self._judge(tree, profile, path) for path in sorted(running)]
        return min(verdicts, key=lambda verdict: _PREFERENCE.index(verdict.status))

    def _judge(self, tree: Tree, profile: Profile, path: str) -> Verdict:
        """Judge a script that can be started by its text."""
        text = read(tree, path)
        if text == render(profile):
            return self.passed(f"{path} is the one of this version", Evidence(path))
        missing = [step for step in missing_steps(text, profile) if not _done_elsewhere(tree, profile, step)]
        if missing:
            steps = [Evidence(path, found="not in the script", expected=step) for step in missing]
            return self.failed(f"{path} does not {'; does not '.join(missing)}", *steps)
        faults = known_faults(text)
        if faults:
            places = [Evidence(path, line, reason) for line, reason in faults]
            return self.warned(f"{path} is not ours and has known faults: {faults[0][1]}", *places)
        message = f"{path} is not ours: its steps are there, that they work is for a boot to prove"
        return self.warned(
            message, Evidence(path), remedy="on a TPU VM: tpu-image check --only machine.devices"
        )

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Put our script where the document has it."""
        if self.inspect(overlay, profile).status is not Status.PASS:
            put(overlay, SCRIPT, render(profile), mode=0o755)


_PREFERENCE = (Status.PASS, Status.WARN, Status.FAIL)


def _done_elsewhere(tree: Tree, profile: Profile, step: str) -> bool:
    """Whether another part of the system takes a step of the script."""
    if step == LOAD_STEP:
        return vfio_modules.MODULES[0] in vfio_modules.loaded_at_boot(tree)
    if step == INTERRUPTS_STEP:
        return vfio_modules.option_in_effect(tree)
    return step == NODE_STEP and opens_group_nodes(tree, profile, marked=False)


REQUIREMENTS: tuple[Requirement, ...] = (
    vfio_modules.VfioModules(),
    vfio_modules.UnsafeInterrupts(),
    BindRules(),
    BindScript(),
    vfio_live.MachineDevices(),
    vfio_live.MachineInterrupts(),
)
