"""Locked memory and open files: sections "Limiti di memoria" and "Limiti dei file" of the document.

limits.conf works through PAM alone, so it is judged for sessions; services get the system manager's
defaults, and containers those of their runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.catalogue import limits_plan
from tpu_image.catalogue.limits_docker import container_defaults
from tpu_image.catalogue.limits_in_effect import (
    HALVES,
    LIMITS_CONF,
    MEMLOCK,
    NOFILE,
    ORDINARY,
    ROOT,
    Granted,
    Item,
    ServiceLimit,
    Services,
    Sessions,
)
from tpu_image.catalogue.limits_live import MachineLimits
from tpu_image.catalogue.login_sessions import LOGIN_SERVICES, LoginService, login_services, sshd_without_pam
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.formats.resource_limits import UNLIMITED, describe
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

PAM_LINE = "session required pam_limits.so"
PAM_REMEDY = f"add to its file in /etc/pam.d: {PAM_LINE}"


class Finding(NamedTuple):
    """Something that is not as it should be; ``fails`` tells a failure from a warning."""

    text: str
    evidence: tuple[Evidence, ...]
    fails: bool = False
    remedy: str = ""


def _pam_evidence(service: LoginService) -> Evidence:
    """Say why sessions of a service do not, or may not, get to pam_limits."""
    if service.skipped_by is None:
        return Evidence(service.path, 0, "no pam_limits.so", PAM_LINE)
    path, rule, _ = service.skipped_by
    return Evidence(path, rule.line, f"session {rule.control} {rule.module} passes over pam_limits", PAM_LINE)


class ResourceLimit(Requirement):
    """A limit that must be high for users, and should be for root, services and containers."""

    item: Item
    changes = (
        "adds the lines that are missing to /etc/security/limits.d/99-tpu-image.conf, the default of services"
        " to /etc/systemd/system.conf.d/99-tpu-image.conf, and a drop-in for docker.service or"
        " containerd.service where that sets less"
    )

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the sessions of users and root, services, and containers."""
        del profile
        sessions, services = tree.derive(Sessions), tree.derive(Services)
        findings = [*self._pam(tree), *self._sessions(sessions), *self._services(tree, services)]
        failures = [finding for finding in findings if finding.fails]
        told = failures or findings
        if not told:
            message = f"{self.item.name} is {self.item.expectation} for users, root and services"
            return self.passed(message, *self._decided_by(sessions, services))
        evidence = dict.fromkeys(e for finding in [*failures, *findings] for e in finding.evidence)
        remedy = next((finding.remedy for finding in told if finding.remedy), "")
        judge = self.failed if failures else self.warned
        return judge("; ".join(finding.text for finding in told), *evidence, remedy=remedy)

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Write drop-ins that hold what is missing, and nothing else."""
        del profile
        limits_plan.plan_sessions(overlay, self.item)
        limits_plan.plan_services(overlay, self.item)
        limits_plan.plan_runtimes(overlay, self.item)

    def _pam(self, tree: Tree) -> Iterator[Finding]:
        """Judge whether limits.conf reaches sessions at all."""
        services = tree.derive(login_services)
        without = [s for s in services if s.limits_rule is None or s.always_skipped]
        names = ", ".join(s.name for s in without or services) or ", ".join(LOGIN_SERVICES)
        evidence = tuple(_pam_evidence(service) for service in without)
        if len(without) == len(services):
            text = f"no login service calls pam_limits ({names}), so limits.conf is never read"
            yield Finding(text, evidence, fails=True, remedy=PAM_REMEDY)
        elif without:
            yield Finding(f"sessions of {names} do not call pam_limits", evidence, remedy=PAM_REMEDY)
        for service in services:
            yield from self._own_file(tree, service)
            if service.skipped_by is not None and not service.always_skipped:
                where = _pam_evidence(service)
                text = f"{where.path}:{where.line} may have sessions of {service.name} pass over pam_limits"
                yield Finding(
                    text, (where,), remedy=f"put the line of pam_limits before {where.path}:{where.line}"
                )
        sshd = sshd_without_pam(tree)
        if sshd is not None:
            text = "sshd does not use PAM, so limits.conf does not reach its sessions"
            yield Finding(text, (sshd,), remedy=f"set UsePAM yes in {sshd.path}")

    def _own_file(self, tree: Tree, service: LoginService) -> Iterator[Finding]:
        """Judge a service whose pam_limits is told to read one other file (``conf=``)."""
        own_file, rule = service.limits_file, service.limits_rule
        if not own_file or rule is None:
            return
        if not self.item.suffices(Sessions(tree, own_file).granted(ORDINARY, self.item).limit):
            evidence = Evidence(service.limits_path, rule.line, f"conf={own_file}", "no conf=")
            text = f"sessions of {service.name} read {own_file} alone, which does not raise {self.item.name}"
            yield Finding(text, (evidence,), remedy=f"take conf= away in {service.limits_path}")

    def _sessions(self, sessions: Sessions) -> Iterator[Finding]:
        for who, login, fails in (("ordinary users", ORDINARY, True), ("root", ROOT, False)):
            granted = sessions.granted(login, self.item)
            yield from self._session(who, granted, fails=fails)
            yield from self._refused(who, granted, sessions.most_open_files, fails=fails)
        for domain, granted in sessions.singled_out(self.item):
            remedy = f"keep it if it is meant; otherwise remove the line for {domain}"
            yield from self._session(domain, granted, remedy=remedy)

    def _session(
        self, who: str, granted: Granted, *, fails: bool = False, remedy: str = ""
    ) -> Iterator[Finding]:
        item = self.item
        if item.suffices(granted.limit):
            return
        if granted.freed_by:
            path, entry = granted.freed_by
            text = f"{item.name} of {who} is left as it is, because {path}:{entry.line} frees them of limits"
            freeing = Evidence(path, entry.line, f"{entry.domain} -", f"{item.name} {item.expectation}")
            yield Finding(text, (freeing,), fails, f"remove line {entry.line} of {path}")
            return
        low = [half for half in HALVES if granted.half(half)[0] < item.needed]
        decided = [d for half in low if (d := granted.half(half)[1])]
        where = f" ({decided[0].path}:{decided[0].entry.line})" if decided else ""
        text = f"{item.name} of {who} is {item.show(granted.limit)}{where}, needs to be {item.expectation}"
        evidence = tuple(dict.fromkeys(self._half_evidence(granted, half) for half in low))
        yield Finding(text, evidence, fails, remedy)

    def _refused(self, who: str, granted: Granted, most: int | None, *, fails: bool) -> Iterator[Finding]:
        """Judge whether the kernel refuses the limit: it lets nobody have more than ``fs.nr_open`` open files.

        ``unlimited`` is no such value: pam_limits asks for ``fs.nr_open`` then.
        """
        if self.item is not NOFILE or most is None:
            return
        for half in HALVES:
            value, decided_by = granted.half(half)
            if decided_by is not None and most < value < UNLIMITED:
                place = f"{decided_by.path}:{decided_by.entry.line}"
                text = f"{place} gives {who} {value} open files, more than fs.nr_open ({most}): it is refused"
                evidence = Evidence(decided_by.path, decided_by.entry.line, str(value), f"at most {most}")
                remedy = f"lower it to {most} in {place}"
                yield Finding(text, (evidence,), fails, remedy)
                return

    def _half_evidence(self, granted: Granted, half: str) -> Evidence:
        value, decided_by = granted.half(half)
        expected = f"{half} {self.item.name} {self.item.expectation}"
        if decided_by is None:
            return Evidence(LIMITS_CONF, 0, f"no line gives {half} {self.item.name}", expected)
        entry = decided_by.entry
        found = f"{entry.domain} {entry.kind} {self.item.name} {describe(self.item.name, value)}"
        return Evidence(decided_by.path, entry.line, found, expected)

    def _services(self, tree: Tree, services: Services) -> Iterator[Finding]:
        default = services.default(self.item)
        if not self.item.suffices(default.limit):
            yield self._service_finding("systemd services", default)
        for name, own, _ in services.runtimes(self.item):
            if not self.item.suffices(own.limit):
                yield self._service_finding(f"{name}, so of its containers,", own)
        docker = services.unit("docker.service")
        for limit, evidence in container_defaults(tree, docker, self.item) if docker else ():
            if not self.item.suffices(limit):
                text = f"Docker's default {self.item.name} of containers is {self.item.show(limit)}"
                yield Finding(text, (evidence,), remedy=f"raise it in {evidence.path}")

    def _service_finding(self, who: str, found: ServiceLimit) -> Finding:
        item, place = self.item, found.decided_by
        where = f" ({place.path}:{place.line})" if place else " by default"
        text = f"{item.name} of {who} is {item.show(found.limit)}{where}, needs to be {item.expectation}"
        return Finding(text, (self._service_evidence(found),))

    def _service_evidence(self, found: ServiceLimit) -> Evidence:
        item, place = self.item, found.decided_by
        if place is None:
            return Evidence("/etc/systemd/system.conf", 0, f"no DefaultLimit{item.setting}", item.expectation)
        return Evidence(place.path, place.line, item.show(found.limit), item.expectation)

    def _decided_by(self, sessions: Sessions, services: Services) -> list[Evidence]:
        """Name the lines on which a pass rests."""
        halves = [
            self._half_evidence(granted, half)
            for granted in (sessions.granted(login, self.item) for login in (ORDINARY, ROOT))
            for half in HALVES
            if granted.half(half)[1]
        ]
        return list(dict.fromkeys([*halves, self._service_evidence(services.default(self.item))]))


class LockedMemory(ResourceLimit):
    """R5: a process may lock memory without bound."""

    id = "limits.memlock"
    title = "locked memory is unlimited for users, root and services"
    why = "The TPU runtime pins the host memory that it transfers; at the usual 8 MiB it fails to start."
    source = "document, section “Limiti di memoria” (R5); limits.conf(5), systemd-system.conf(5)"
    item = MEMLOCK


class OpenFiles(ResourceLimit):
    """R6: a process may have 100000 files open."""

    id = "limits.nofile"
    title = "at least 100000 files may be open for users, root and services"
    why = "Input pipelines and collective operations over many hosts open more than the usual 1024 files."
    source = "document, section “Limiti dei file” (R6); limits.conf(5), systemd-system.conf(5)"
    item = NOFILE


REQUIREMENTS: tuple[Requirement, ...] = (LockedMemory(), OpenFiles(), MachineLimits())
