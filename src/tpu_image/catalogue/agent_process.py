"""Whether an agent runs on a machine, read from ``/proc`` (proc(5)) and the device nodes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpu_image.catalogue import agent_record
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.requirement import Evidence, Platform, Profile, Requirement, Verdict, counted
from tpu_image.trees.base import NotFoundError, Tree

PID_DIGITS = 10
"""A process id has fewer digits (``PID_MAX_LIMIT`` is 4 194 304)."""

COMM_LENGTH = 15
"""Characters of a program's name that ``/proc/PID/comm`` shows (TASK_COMM_LEN)."""

CRASHES = 3
"""Failures since boot from which on a running agent is worth a word."""

SOCKETS = ("/proc/net/tcp", "/proc/net/tcp6")
LISTEN = "0A"
"""TCP_LISTEN in the column ``st``."""


class Process(NamedTuple):
    """A process that is alive, with its words."""

    pid: int
    parent: int
    words: tuple[str, ...]


class AgentRuns(Requirement):
    """An agent's process is there once and listens on its port."""

    agent: Agent
    consequence: str
    """What it means that the agent does not run, as the end of a sentence."""
    remedy = "start it: systemctl status and journalctl -b say why it does not run"
    live = True

    def applies(self, profile: Profile) -> str:
        """On GKE a DaemonSet runs it, if and when a TPU workload is there."""
        return "GKE's device plugin runs the agent" if profile.platform is Platform.GKE else ""

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge by the process, its arguments and its port."""
        agent = self.agent
        running = list(processes(tree, agent.program)) or list(members(tree, agent.unit))
        first_ones = [one for one in running if one.parent not in {other.pid for other in running}]
        if not running:
            return self._dead(tree, profile)
        ended = [end for end in agent_record.exits(tree, agent.program) if end.failed]
        pids = ", ".join(str(process.pid) for process in first_ones)
        evidence = [Evidence(f"/proc/{one.pid}/cmdline", found=" ".join(one.words)) for one in first_ones]
        record = agent_record.record(tree, agent.program)
        if record is not None:
            path = agent_record.record_path(agent.program)
            evidence.append(Evidence(path, found=f"{record.reference} {record.digest}".strip()))
        if agent.port and not listens(tree, agent.port):
            return self.failed(
                f"{agent.program} runs (process {pids}), and does not listen on port {agent.port}{_history(ended)}",
                *evidence,
                Evidence(SOCKETS[0], found="no listener", expected=f"a listener on port {agent.port}"),
                remedy="look at its log: journalctl -b, docker logs or snap logs",
            )
        if len(ended) >= CRASHES:
            return self.warned(
                f"{agent.program} runs, after it failed {len(ended)} times since boot; the last time: {ended[-1]}",
                *evidence,
                Evidence(agent_record.exits_path(agent.program), found=str(ended[-1])),
                remedy=f"look at its log: journalctl -b -t {agent.program}",
            )
        if len(first_ones) > 1:
            return self.warned(
                f"{agent.program} runs {len(first_ones)} times (processes {pids})",
                *evidence,
                remedy="stop all but one, and disable what starts them",
            )
        missing = [argument for argument in agent.arguments if argument not in first_ones[0].words]
        if missing:
            return self.warned(
                f"{agent.program} runs without {' '.join(missing)}",
                Evidence(evidence[0].path, found=evidence[0].found, expected=" ".join(agent.arguments)),
                remedy="give it the documented arguments and restart it",
            )
        does = f"listens on port {agent.port}" if agent.port else "runs"
        return self.passed(f"{agent.program} (process {pids}) {does}", *evidence)

    def _dead(self, tree: Tree, profile: Profile) -> Verdict:
        agent = self.agent
        if agent.port and listens(tree, agent.port):
            return self.warned(
                f"something listens on port {agent.port}, and no process is named {agent.program}",
                Evidence(SOCKETS[0], found=f"a listener on port {agent.port}", expected=agent.program),
                remedy=f"find out what it is: ss -ltnp 'sport = :{agent.port}'",
            )
        nodes = device_nodes(tree)
        if not nodes:
            return self.skipped("no TPU device node is there for an agent to serve")
        message = f"TPU device nodes are there, but the {agent.name} does not run: {self.consequence}"
        evidence: tuple[Evidence, ...] = (
            Evidence(nodes[0], found=counted(len(nodes), "device node")),
            Evidence("/proc", found="no process", expected=agent.program),
        )
        ends = agent_record.exits(tree, agent.program)
        if ends:
            message += _history(ends)
            evidence += (Evidence(agent_record.exits_path(agent.program), found=str(ends[-1])),)
            remedy = (
                f"look at its log: journalctl -b -t {agent.program}; then: systemctl restart {agent.unit}"
            )
            return self.failed(message, *evidence, remedy=remedy)
        if profile.agent_elsewhere:
            return self.warned(message, *evidence, remedy="see what was to bring it (--no-agent)")
        return self.failed(message, *evidence)


def members(tree: Tree, unit: str) -> Iterator[Process]:
    """Living processes of a service by its control group, whatever they are called (cgroups(7))."""
    for hierarchy in ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd"):
        for pid in (tree.read_text_if_present(f"{hierarchy}/system.slice/{unit}/cgroup.procs") or "").split():
            words = (
                (tree.read_text_if_present(f"/proc/{pid}/cmdline") or "")
                if pid.isdecimal() and len(pid) < PID_DIGITS
                else ""
            )
            if words:
                yield Process(int(pid), _parent(tree, pid), tuple(words.split("\0")[:-1]))


def processes(tree: Tree, program: str) -> Iterator[Process]:
    """Living processes of a program; one without a command line is a zombie or a kernel thread."""
    for name in tree.names("/proc", "[1-9]*"):
        try:
            words = tuple(tree.read_text(f"/proc/{name}/cmdline").split("\0")[:-1])
            comm = tree.read_text(f"/proc/{name}/comm").strip()
            named = comm == program[:COMM_LENGTH] or (words and posixpath.basename(words[0]) == program)
            if name.isdecimal() and words and named:
                yield Process(int(name), _parent(tree, name), words)
        except NotFoundError:
            continue


def _history(ends: Sequence[agent_record.Exit]) -> str:
    """Say how an agent ended before, as the end of a sentence; empty where it never did."""
    if not ends:
        return ""
    times = "once" if len(ends) == 1 else f"{len(ends)} times"
    return f"; it ended {times} since boot, at last by {ends[-1]}"


def _parent(tree: Tree, pid: str) -> int:
    for line in (tree.read_text_if_present(f"/proc/{pid}/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == "PPid" and value.strip().isdecimal():
            return int(value)
    return 0


def listens(tree: Tree, port: int) -> bool:
    """Whether any socket of this network namespace listens on a TCP port."""
    suffix = f":{port:04X}"
    for path in SOCKETS:
        for line in (tree.read_text_if_present(path) or "").splitlines():
            columns = line.split(None, 4)
            if len(columns) > 3 and columns[1].endswith(suffix) and columns[3] == LISTEN:
                return True
    return False


def device_nodes(tree: Tree) -> list[str]:
    """Paths of the device nodes that TPUs are used through: ``/dev/vfio/GROUP`` and ``/dev/accelN``."""
    groups = [f"/dev/vfio/{name}" for name in tree.names("/dev/vfio", "[0-9]*")]
    return groups + [f"/dev/{name}" for name in tree.names("/dev", "accel[0-9]*")]
