"""The limits that processes of a running machine have: the login that checks, and system services."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.catalogue.limits_in_effect import MEMLOCK, NOFILE, RUNTIMES, Item
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.catalogue.systemd import units_of
from tpu_image.formats.resource_limits import Limit, parse_process_limits
from tpu_image.trees.base import Tree, TreeError

ITEMS = (MEMLOCK, NOFILE)
LOGIN_LIMITS = "/proc/self/limits"
PROCESS_LIMIT = 4096
"""Processes looked at: a machine may have any number."""
EVIDENCE_LIMIT = 8
"""Services named in one verdict."""


class ServiceProcess(NamedTuple):
    """One process of a system service."""

    service: str
    path: str
    limits: dict[str, Limit]


class MachineLimits(Requirement):
    """The limits of this login and of the services that run now."""

    id = "machine.limits"
    title = "this login and the system services have the limits that a TPU needs"
    why = "Limits are fixed when a session or a service starts, so a right file may not be in effect yet."
    source = (
        "document, sections “Limiti di memoria” and “Limiti dei file” (R5, R6); proc(5), /proc/PID/limits"
    )
    remedy = "run: tpu-image apply; then log in again, and restart services or reboot"
    live = True

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge ``/proc/self/limits`` and one process of each service in system.slice."""
        del profile
        limits = parse_process_limits(tree.read_text_if_present(LOGIN_LIMITS) or "")
        missing = [item.name for item in ITEMS if item.name not in limits]
        if missing:
            return self.unknown(
                f"{LOGIN_LIMITS} does not show {' and '.join(missing)}",
                remedy="check on the running machine with /proc mounted",
            )
        low = [item for item in ITEMS if not item.suffices(limits[item.name])]
        if low:
            told = "; ".join(f"{item.name} is {item.show(limits[item.name])}" for item in low)
            return self.failed(f"this login: {told}", *(_evidence(LOGIN_LIMITS, i, limits) for i in low))
        return self._services(tree, limits)

    def _services(self, tree: Tree, login: dict[str, Limit]) -> Verdict:
        processes = list(service_processes(tree))
        low = [(p, item) for p in processes for item in ITEMS if not item.suffices(p.limits[item.name])]
        told = [(p, item) for p, item in low if not _is_meant(tree, p, item, processes)]
        if told:
            process, item = told[0]
            others = len({p.service for p, _ in told}) - 1
            text = f"{item.name} of {process.service} is {item.show(process.limits[item.name])}"
            text += f", and {others} more services have less than they should" if others else ""
            return self.warned(text, *(_evidence(p.path, i, p.limits) for p, i in told[:EVIDENCE_LIMIT]))
        services = f"{len(processes)} services have enough" if processes else "no service was seen"
        evidence = (_evidence(LOGIN_LIMITS, item, login) for item in ITEMS)
        return self.passed(f"this login has the limits that a TPU needs; {services}", *evidence)


def _evidence(path: str, item: Item, limits: dict[str, Limit]) -> Evidence:
    return Evidence(path, 0, f"{item.name} {item.show(limits[item.name])}", item.expectation)


def _is_meant(tree: Tree, process: ServiceProcess, item: Item, processes: list[ServiceProcess]) -> bool:
    """Whether a low limit is the service's own choice rather than the default of services.

    Its unit says so. Where no unit is to be seen, as in a recording of /proc alone, it is taken for a choice
    as soon as another service shows a default that is high enough.
    """
    if process.service in RUNTIMES:
        return False
    unit = units_of(tree).unit(process.service)
    if unit is not None:
        return bool(unit.configuration.all("Service", f"Limit{item.setting}"))
    return any(item.suffices(other.limits[item.name]) for other in processes)


def service_processes(tree: Tree) -> Iterator[ServiceProcess]:
    """Yield one process of each service of the system manager, the oldest first."""
    seen = set()
    numbers = sorted(int(name) for name in tree.names("/proc", "[1-9]*") if name.isdecimal())
    for number in numbers[:PROCESS_LIMIT]:
        path = f"/proc/{number}/limits"
        try:
            service = _service_of(tree.read_text_if_present(f"/proc/{number}/cgroup") or "")
            if not service or service in seen:
                continue
            limits = parse_process_limits(tree.read_text_if_present(path) or "")
        except TreeError:  # it ended meanwhile, or belongs to somebody else
            continue
        if all(item.name in limits for item in ITEMS):
            seen.add(service)
            yield ServiceProcess(service, path, limits)


def _service_of(cgroup: str) -> str:
    """Name the service of a process from ``/proc/PID/cgroup`` (cgroups(7)); empty where it is none."""
    for line in cgroup.splitlines():
        parts = line.partition(":")[2].partition(":")[2].split("/")
        if parts[1:2] == ["system.slice"]:
            return next((part for part in parts[2:] if part.endswith(".service")), "")
    return ""
