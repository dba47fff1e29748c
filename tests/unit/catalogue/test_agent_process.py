from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tpu_image.catalogue.requirement import Platform, Profile, Status
from tpu_image.catalogue.telemetry import TelemetryCollectorRuns
from tpu_image.catalogue.vbar_agent import VBAR, VbarAgentRuns
from tpu_image.trees.memory import File, MemoryTree

REQUIREMENT = VbarAgentRuns()
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue\n"
LISTENING = {"/proc/net/tcp": f"{HEADER}   0: 00000000:20A1 00000000:0000 0A 0:0\n"}
LISTENING_6 = {"/proc/net/tcp6": f"{HEADER}   0: {'0' * 32}:20A1 {'0' * 32}:0000 0A 0:0\n"}
CONNECTED = {"/proc/net/tcp": f"{HEADER}   0: 0100007F:20A1 0100007F:9C40 01 0:0\n"}
NODES = {"/dev/vfio/0": "", "/dev/vfio/1": "", "/dev/vfio/vfio": ""}


def process(pid: int, *words: str, comm: str = "vbar_control_ag", parent: int = 1) -> dict[str, str]:
    return {
        f"/proc/{pid}/comm": f"{comm}\n",
        f"/proc/{pid}/cmdline": "".join(f"{word}\0" for word in words),
        f"/proc/{pid}/status": f"Name:\t{comm}\nPPid:\t{parent}\n",
    }


EXITS = "/run/tpu-image/vbar_control_agent.exits"
GROUP_PATH = "/sys/fs/cgroup/system.slice/tpu-image-telemetry-collector.service/cgroup.procs"
GROUP = {GROUP_PATH: "7\n"}
AGENT = process(812, "/usr/bin/vbar_control_agent", *VBAR.arguments)


@dataclass(frozen=True)
class Machine:
    about: str
    files: dict[str, str]
    status: Status
    mentions: tuple[str, ...] = ()
    profile: Profile = field(default_factory=Profile)


MACHINES = [
    Machine("runs and listens", {**AGENT, **LISTENING, **NODES}, Status.PASS, ("process 812", "8353")),
    Machine("listens on IPv6", {**AGENT, **LISTENING_6}, Status.PASS),
    Machine(
        "named by its words alone",
        {**process(9, "vbar_control_agent", *VBAR.arguments, comm="x"), **LISTENING},
        Status.PASS,
    ),
    Machine(
        "its children do not count",
        {**AGENT, **process(813, "vbar_control_agent", parent=812), **LISTENING},
        Status.PASS,
    ),
    Machine("no TPU", {**process(1, "/sbin/init", comm="systemd")}, Status.SKIP, ("no TPU device node",)),
    Machine("no group, container node alone", {"/dev/vfio/vfio": ""}, Status.SKIP),
    Machine(
        "dead", NODES, Status.FAIL, ("device nodes are there, but the vBar agent does not run", "/dev/vfio/0")
    ),
    Machine("dead on a v4", {"/dev/accel0": ""}, Status.FAIL, ("/dev/accel0",)),
    Machine("zombie", {**process(812), **NODES}, Status.FAIL, ("does not run",)),
    Machine("dead elsewhere", NODES, Status.WARN, ("--no-agent",), Profile(agent_elsewhere=True)),
    Machine("not listening", {**AGENT, **NODES}, Status.FAIL, ("does not listen on port 8353",)),
    Machine(
        "not listening yet, between one end and the next",
        {**AGENT, **NODES, EXITS: "success killed TERM\n" + "exit-code exited 5\n" * 3},
        Status.FAIL,
        ("does not listen on port 8353; it ended 3 times since boot, at last by exit status 5",),
    ),
    Machine("connected is not listening", {**AGENT, **CONNECTED}, Status.FAIL, ("does not listen",)),
    Machine(
        "twice",
        {**AGENT, **process(900, "vbar_control_agent"), **LISTENING},
        Status.WARN,
        ("2 times", "812, 900"),
    ),
    Machine(
        "other arguments",
        {**process(812, "vbar_control_agent", "--gid="), **LISTENING},
        Status.WARN,
        ("without --logtostderr --uid=",),
    ),
    Machine(
        "dead, and how it ended is known",
        {**NODES, EXITS: "exit-code exited 3\n"},
        Status.FAIL,
        (
            "does not run: the chips are not ready; it ended once since boot, at last by exit status 3",
            EXITS,
            "journalctl",
        ),
    ),
    Machine(
        "ends again and again",
        {**NODES, EXITS: "exit-code exited 3\ncore-dump dumped SEGV\nsignal killed KILL\n"},
        Status.FAIL,
        (
            "it ended 3 times since boot, at last by signal KILL",
            "systemctl restart tpu-image-vbar-agent.service",
        ),
    ),
    Machine(
        "runs after failures",
        {**AGENT, **LISTENING, **NODES, EXITS: "core-dump dumped SEGV\n" * 3},
        Status.WARN,
        ("failed 3 times since boot", "signal SEGV with a core dump"),
    ),
    Machine("was restarted by hand", {**AGENT, **LISTENING, EXITS: "success killed TERM\n" * 5}, Status.PASS),
    Machine("notes that are none", {**AGENT, **LISTENING, EXITS: "x\n\xff a b c d\n" * 5}, Status.PASS),
    Machine("another listener", {**LISTENING, **NODES}, Status.WARN, ("something listens on port 8353",)),
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.about)
def test_the_machine_gets_its_verdict(machine: Machine) -> None:
    tree = MemoryTree({path: File(text.encode()) for path, text in machine.files.items()})
    verdict = REQUIREMENT.observe(tree, machine.profile)
    shown = "\n".join([verdict.message, *(f"{e.path} {e.found}" for e in verdict.evidence), verdict.remedy])
    assert verdict.status is machine.status, shown
    for mention in machine.mentions:
        assert mention in shown


COLLECTORS = [
    Machine(
        "under another name", {**GROUP, **process(7, "/otelcol", comm="otelcol")}, Status.PASS, ("process 7",)
    ),
    Machine("under its name", process(7, "/ai-telemetry-collector"), Status.PASS, ("process 7",)),
    Machine("none", NODES, Status.FAIL, ("no metrics of them are collected",)),
    Machine("its group holds what is none", {**NODES, GROUP_PATH: "1/../7 " + "9" * 5000}, Status.FAIL),
    Machine("its group is empty", {**NODES, GROUP_PATH: ""}, Status.FAIL),
    Machine("its group holds the dead", {**NODES, **GROUP}, Status.FAIL),
]


@pytest.mark.parametrize("machine", COLLECTORS, ids=lambda machine: machine.about)
def test_the_collector_gets_its_verdict(machine: Machine) -> None:
    tree = MemoryTree({path: File(text.encode()) for path, text in machine.files.items()})
    verdict = TelemetryCollectorRuns().observe(tree, Profile(telemetry=True))
    assert verdict.status is machine.status
    assert all(mention in verdict.message for mention in machine.mentions)


def test_the_collector_is_looked_for_where_it_is_asked_for() -> None:
    applies = TelemetryCollectorRuns().applies
    assert "not asked for" in applies(Profile())
    assert applies(Profile(telemetry=True)) == ""
    assert "GKE" in applies(Profile(telemetry=True, platform=Platform.GKE))


def test_a_running_agent_is_told_with_its_image() -> None:
    record = '{"schema": "tpu-image/agent/1", "reference": "r", "digest": "sha256:12", "runtime": "systemd"}'
    files = {**AGENT, **LISTENING, "/usr/lib/tpu-image/vbar_control_agent.json": record}
    verdict = REQUIREMENT.observe(MemoryTree({p: File(t.encode()) for p, t in files.items()}), Profile())
    assert verdict.evidence[-1].found == "r sha256:12"


def test_gke_runs_the_agent_itself() -> None:
    assert "GKE" in REQUIREMENT.applies(Profile(platform=Platform.GKE))
    assert REQUIREMENT.applies(Profile(agent_elsewhere=True)) == ""
