"""The agents in an image: each state is the files that differ from a base that has Docker."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tpu_image.catalogue.requirement import Platform, Profile, Requirement, Status, Verdict
from tpu_image.catalogue.telemetry import COLLECTOR
from tpu_image.catalogue.telemetry import REQUIREMENTS as TELEMETRY
from tpu_image.catalogue.vbar_agent import REQUIREMENTS as VBAR_AGENT
from tpu_image.catalogue.vbar_agent import VBAR
from tpu_image.formats import FormatError
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

REQUIREMENT: dict[str, Requirement] = {r.id: r for r in (*VBAR_AGENT, *TELEMETRY)}
COMPUTE_ENGINE = Profile(telemetry=True)
GKE = Profile(platform=Platform.GKE)

ETC = "/etc/systemd/system"
LIB = "/usr/lib/systemd/system"
WANTS = f"{ETC}/multi-user.target.wants"
ARGUMENTS = " ".join(VBAR.arguments)
PROGRAM = "\x7fELF"
ARCHIVE = "/usr/lib/tpu-image/agents/vbar_control_agent.tar"
SNAP = "/var/lib/snapd/snaps/vbarcontrolagent_12.snap"
SNAP_UNIT = "snap.vbarcontrolagent.agent.service"
SEEDED = "/var/lib/snapd/seed/snaps/vbarcontrolagent_12.snap"
CONFIGURATION = "/etc/telemetry/config.yaml"

Files = dict[str, str | Node | None]

BASE: Files = {
    "/lib": Symlink("usr/lib"),
    f"{LIB}/default.target": Symlink("multi-user.target"),
    f"{LIB}/multi-user.target": "[Unit]\nRequires=basic.target\n",
    f"{LIB}/basic.target": "[Unit]\n",
    "/usr/bin/docker": PROGRAM,
    f"{LIB}/docker.service": "[Service]\nExecStart=/usr/bin/dockerd\n",
    f"{WANTS}/docker.service": Symlink("/lib/systemd/system/docker.service"),
    "/usr/lib/snapd/snapd": PROGRAM,
}


def stored(*references: str, entrypoint: tuple[str, ...] = (), arguments: tuple[str, ...] = ()) -> Files:
    """Docker's store with one image of these names."""
    names: dict[str, dict[str, str]] = {}
    for reference in references:
        names.setdefault(reference.rpartition(":")[0], {})[reference] = "sha256:12ab"
    own = {"config": {"Entrypoint": list(entrypoint), "Cmd": list(arguments) or None}}
    return {
        "/var/lib/docker/image/overlay2/repositories.json": json.dumps({"Repositories": names}),
        "/var/lib/docker/image/overlay2/imagedb/content/sha256/12ab": json.dumps(own),
    }


def service(*lines: str, enabled: bool = True, name: str = "vbar.service") -> Files:
    """A unit of the administrator with these lines in its service section."""
    text = "[Unit]\n[Service]\n" + "".join(f"{line}\n" for line in lines)
    files: Files = {f"{ETC}/{name}": text}
    if enabled:
        files[f"{WANTS}/{name}"] = Symlink(f"{ETC}/{name}")
    return files


def docker(
    options: str = "--rm --privileged --net=host", image: str = VBAR.image, arguments: str = ARGUMENTS
) -> str:
    return f"ExecStart=/usr/bin/docker run {options} {image} {arguments}"


def container(**host: object) -> Files:
    folder = "/var/lib/docker/containers/12ab"
    config = {"Name": "/vbar", "Path": "/vbar", "Args": list(VBAR.arguments), "Config": {"Image": VBAR.image}}
    return {
        f"{folder}/config.v2.json": json.dumps(config),
        f"{folder}/hostconfig.json": json.dumps({"Privileged": True, "NetworkMode": "host", **host}),
    }


def script(*lines: str) -> Files:
    return {"/opt/start.sh": File("".join(f"{line}\n" for line in lines).encode(), 0o755)}


IMAGE = stored(VBAR.image)
DIRECT = f"ExecStart=/usr/bin/vbar_control_agent {ARGUMENTS}"
PROGRAM_FILES: Files = {"/usr/bin/vbar_control_agent": PROGRAM}
UNPACKED = "/usr/lib/tpu-image/agents/vbar_control_agent"
INSTALLED: Files = {SNAP: "hsqs", **service(f"ExecStart=/usr/bin/snap run {VBAR.snap}.agent", name=SNAP_UNIT)}
TELEMETRY_RUN = (
    f"ExecStart=docker run --rm --privileged --net=host -v {CONFIGURATION}:/c.yaml {COLLECTOR.image}"
)
ALWAYS = {"RestartPolicy": {"Name": "always"}}


@dataclass(frozen=True)
class State:
    about: str
    files: Files
    status: Status
    mentions: tuple[str, ...] = ()
    requirement: str = "vbar.agent"
    profile: Profile = COMPUTE_ENGINE


def good(about: str, files: Files, *mentions: str) -> State:
    return State(about, files, Status.PASS, mentions)


def bad(about: str, files: Files, *mentions: str) -> State:
    return State(about, files, Status.FAIL, mentions)


def doubtful(about: str, files: Files, *mentions: str) -> State:
    return State(about, files, Status.WARN, mentions)


def undecided(about: str, files: Files, *mentions: str) -> State:
    return State(about, files, Status.UNKNOWN, mentions)


def collector(about: str, files: Files, status: Status, *mentions: str) -> State:
    return State(about, files, status, mentions, "telemetry.collector")


def on_gke(about: str, files: Files, *mentions: str) -> State:
    return State(about, files, Status.FAIL if mentions else Status.PASS, mentions, profile=GKE)


STATES = [
    bad("nothing", {}, "has no vBar agent", "--no-agent", VBAR.image),
    bad("image that nothing starts", IMAGE, f"container image {VBAR.image}", "nothing starts it"),
    bad("program that nothing starts", PROGRAM_FILES, "nothing starts it"),
    bad("archive that nothing loads", {ARCHIVE: "tar"}, ARCHIVE, "nothing starts it"),
    good("container", {**IMAGE, **service(docker())}, "vbar.service starts the vBar agent"),
    good("other spelling", {**IMAGE, **service(docker("--rm --network host --privileged=true"))}),
    good("through a shell", {**IMAGE, **service(f"ExecStart=/bin/sh -c 'exec {docker()[10:]}'")}),
    good("through env", {**IMAGE, **service(f"ExecStart=/usr/bin/env A=1 {docker()[10:]}")}),
    good(
        "through a script found by env",
        {**IMAGE, **service("ExecStart=/opt/start.sh"), **script("#!/usr/bin/env bash", docker()[10:])},
    ),
    good(
        "through a script",
        {
            **IMAGE,
            **service("ExecStart=/opt/start.sh"),
            **script("#!/bin/sh -e", f"I={VBAR.image}", docker(image="$I")[10:]),
        },
    ),
    good(
        "image from Environment=", {**IMAGE, **service(f"Environment=I={VBAR.image}", docker(image="${I}"))}
    ),
    good(
        "agent named behind the image",
        {**IMAGE, **service(docker(arguments=f"vbar_control_agent {ARGUMENTS}"))},
    ),
    good(
        "arguments of the image itself",
        {**stored(VBAR.image, entrypoint=("/vbar", *VBAR.arguments)), **service(docker(arguments=""))},
    ),
    good(
        "tagged as the document runs it",
        {**stored("vbar_control_agent:0.0.1"), **service(docker(image="vbar_control_agent:0.0.1"))},
    ),
    good(
        "image in podman's store",
        {
            "/var/lib/containers/storage/overlay-images/images.json": json.dumps([{"names": [VBAR.image]}]),
            "/usr/bin/podman": PROGRAM,
            **service(docker().replace("/usr/bin/docker", "podman")),
        },
    ),
    good(
        "image in containerd's store",
        {
            "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db": f"\0{VBAR.image}\0",
            **service(docker()),
        },
    ),
    good(
        "archive loaded before",
        {ARCHIVE: "tar", **service(f"ExecStartPre=docker load -i {ARCHIVE}", docker())},
    ),
    good(
        "archive loaded by another unit",
        {
            ARCHIVE: "tar",
            **service(docker()),
            **service(f"ExecStart=sh -c 'docker load < {ARCHIVE}'", name="load.service"),
        },
    ),
    good(
        "container that is kept and removed",
        {
            **IMAGE,
            **service("ExecStartPre=-docker rm -f vbar", docker("--name vbar --privileged --net=host")),
        },
    ),
    good(
        "container that is kept and started",
        {**IMAGE, **container(), **service("ExecStart=docker start -a vbar")},
    ),
    good(
        "instance of a template",
        {
            **IMAGE,
            **service(docker(), name="vbar@.service", enabled=False),
            f"{WANTS}/vbar@1.service": Symlink(f"{ETC}/vbar@.service"),
        },
        "vbar@1.service",
    ),
    good(
        "arguments from Environment=",
        {**IMAGE, **service(f'Environment="ARGS={ARGUMENTS}"', docker(arguments="$ARGS"))},
    ),
    good(
        "arguments of the image behind its entry point",
        {
            **stored(VBAR.image, entrypoint=("/vbar",), arguments=VBAR.arguments),
            **service(docker(arguments="")),
        },
    ),
    good(
        "no tag means latest",
        {
            **stored("vbar_control_agent:latest"),
            **service(docker(image="docker.io/library/vbar_control_agent")),
        },
    ),
    good(
        "shell in the image",
        {
            **stored(VBAR.image, entrypoint=("/bin/sh", "-c", f"/vbar {ARGUMENTS}")),
            **service(docker(arguments="")),
        },
    ),
    good("restarted by Docker", {**IMAGE, **container(**ALWAYS)}, "container vbar starts"),
    good("program", {**PROGRAM_FILES, **service(DIRECT)}),
    good(
        "unpacked root",
        {f"{UNPACKED}/usr/bin/vbar_control_agent": PROGRAM, **service(f"RootDirectory={UNPACKED}", DIRECT)},
    ),
    good("snap", INSTALLED, "snap vbarcontrolagent"),
    good(
        "seeded snap", {SEEDED: "hsqs", "/var/lib/snapd/seed/seed.yaml": f"snaps:\n  - name: {VBAR.snap}\n"}
    ),
    good("unit left over beside the snap", {**INSTALLED, **IMAGE, **service(docker(), enabled=False)}),
    bad(
        "unit that is not enabled",
        {**IMAGE, **service(docker(), enabled=False)},
        "vbar.service is not enabled",
    ),
    bad(
        "the document's own command",
        {**IMAGE, **service("ExecStart=docker run --privileged --net=host vbar_control_agent:0.0.1")},
        "vbar_control_agent:0.0.1, which is not kept in the base",
        f"there is {VBAR.image}",
        "without --logtostderr --gid=",
    ),
    bad(
        "image that is absent",
        service(docker()),
        f"runs the image {VBAR.image}, which is not kept in the base",
    ),
    bad(
        "archive that is absent",
        service(f"ExecStartPre=docker load -i {ARCHIVE}", docker()),
        f"needs the archive {ARCHIVE}",
    ),
    bad("no Docker", {**IMAGE, **service(docker()), "/usr/bin/docker": None}, "needs /usr/bin/docker"),
    bad("no daemon", {**IMAGE, **service(docker()), f"{LIB}/docker.service": None}, "no docker.service"),
    bad(
        "daemon not enabled",
        {**IMAGE, **service(docker()), f"{WANTS}/docker.service": None},
        "does not start at boot",
    ),
    bad("not privileged", {**IMAGE, **service(docker("--rm --net=host"))}, "without --privileged"),
    bad("network of its own", {**IMAGE, **service(docker("--rm --privileged"))}, "without --net=host"),
    bad(
        "every piece is named",
        {**IMAGE, **service(docker("", arguments=""))},
        "without --privileged; ",
        "without --net=host; ",
        "without --logtostderr",
    ),
    bad(
        "blank filled",
        {**IMAGE, **service(docker(arguments=ARGUMENTS.replace("--gid=", "--gid=0")))},
        "without --gid=",
        "--gid=0",
    ),
    bad(
        "blank as a word of its own",
        {**IMAGE, **service(docker(arguments=ARGUMENTS.replace("--gid=", "--gid ''")))},
        "without --gid=",
    ),
    bad(
        "name kept for the second boot",
        {**IMAGE, **service(docker("--name vbar --privileged --net=host"))},
        "second boot",
    ),
    bad("terminal", {**IMAGE, **service(docker("--rm -it --privileged --net=host"))}, "asks for a terminal"),
    bad("container that is not restarted", {**IMAGE, **container()}, "nothing starts it"),
    bad(
        "restarted without privileges",
        {**IMAGE, **container(**ALWAYS, Privileged=False)},
        "without --privileged",
    ),
    bad("program that is absent", service(DIRECT), "/usr/bin/vbar_control_agent, which does not exist"),
    bad(
        "program that is not executable",
        {"/usr/bin/vbar_control_agent": File(b"x", 0o644), **service(DIRECT)},
        "not executable",
    ),
    bad(
        "program outside its root",
        {**PROGRAM_FILES, **service("RootDirectory=/srv", DIRECT)},
        "/srv/usr/bin/vbar_control_agent",
    ),
    bad("other user", {**PROGRAM_FILES, **service("User=tpu", DIRECT)}, "User=tpu"),
    bad("private network", {**PROGRAM_FILES, **service("PrivateNetwork=yes", DIRECT)}, "PrivateNetwork=yes"),
    bad("snap without snapd", {**INSTALLED, "/usr/lib/snapd/snapd": None}, "needs snapd"),
    bad("snap that is disabled", {**INSTALLED, f"{WANTS}/{SNAP_UNIT}": None}, f"{SNAP_UNIT} is not enabled"),
    bad(
        "snap that is not in the seed",
        {SEEDED: "hsqs", "/var/lib/snapd/seed/seed.yaml": "snaps: []\n"},
        "not listed",
    ),
    doubtful(
        "unit and snap", {**INSTALLED, **IMAGE, **service(docker())}, "vbar.service and snap vbarcontrolagent"
    ),
    doubtful(
        "pulled at boot",
        service(f"ExecStartPre=docker pull {VBAR.image}", docker()),
        "pulls gcr.io/",
        "at boot",
    ),
    doubtful(
        "always pulled", {**IMAGE, **service(docker("--rm --pull=always --privileged --net=host"))}, "pulls"
    ),
    doubtful("more arguments", {**IMAGE, **service(docker(arguments=f"{ARGUMENTS} --v=2"))}, "--v=2"),
    doubtful(
        "one more at every boot",
        {**IMAGE, **service(docker("-d --restart=always --privileged --net=host"))},
        "one more container",
    ),
    undecided(
        "arguments from a file",
        {**IMAGE, **service("EnvironmentFile=/etc/x", docker(arguments="$ARGS"))},
        "unless $ARGS holds it",
    ),
    undecided(
        "tag from a file",
        {**IMAGE, **service(docker(image="gcr.io/x/vbar_control_agent:${TAG}"))},
        "variable",
    ),
    collector("nothing", {}, Status.FAIL, "has no AI Telemetry Collector", "leave telemetry off"),
    collector(
        "container",
        {**stored(COLLECTOR.image), **service(TELEMETRY_RUN), CONFIGURATION: "a: 1\n"},
        Status.PASS,
    ),
    collector(
        "configuration absent",
        {**stored(COLLECTOR.image), **service(TELEMETRY_RUN)},
        Status.FAIL,
        f"mounts {CONFIGURATION}, which is not there",
    ),
    collector(
        "configuration that is no YAML",
        {**stored(COLLECTOR.image), **service(TELEMETRY_RUN), CONFIGURATION: "a:\n\tb: 1\n"},
        Status.FAIL,
        f"mounts {CONFIGURATION}, which does not parse: line 2",
    ),
    on_gke("nothing", {}),
    on_gke("unit", service(docker(), enabled=False), "unit vbar.service", "systemctl disable vbar.service"),
    on_gke("program", PROGRAM_FILES, "program /usr/bin/vbar_control_agent", "rm /usr/bin/vbar_control_agent"),
    on_gke("image", IMAGE, f"container image {VBAR.image}", f"docker rmi {VBAR.image}"),
    on_gke(
        "image in containerd's store",
        {"/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db": VBAR.image},
        f"container image {VBAR.image}",
    ),
    on_gke("container", container(), "container vbar", "docker rm -f vbar"),
    on_gke("archive", {ARCHIVE: "tar"}, f"container archive {ARCHIVE}"),
    on_gke("unpacked root", {f"{UNPACKED}/x": "x"}, f"unpacked image {UNPACKED}"),
    on_gke(
        "snap and seed", {SNAP: "hsqs", SEEDED: "hsqs"}, SNAP, SEEDED, "snap remove --purge vbarcontrolagent"
    ),
    State(
        "collector",
        stored(COLLECTOR.image),
        Status.FAIL,
        ("AI Telemetry Collector",),
        "telemetry.collector",
        GKE,
    ),
    State("no collector", IMAGE, Status.PASS, (), "telemetry.collector", GKE),
]


def tree_of(files: Files) -> MemoryTree:
    nodes: dict[str, Node] = {}
    for path, node in {**BASE, **files}.items():
        if isinstance(node, str):
            nodes[path] = File(node.encode(), 0o755 if node == PROGRAM else 0o644)
        elif node is not None:
            nodes[path] = node
    return MemoryTree(nodes)


def text_of(verdict: Verdict) -> str:
    shown = [f"{e.path}:{e.line} {e.found} {e.expected}" for e in verdict.evidence]
    return "\n".join([verdict.message, *shown, verdict.remedy])


@pytest.mark.parametrize(
    "state", STATES, ids=lambda state: f"{state.requirement} {state.profile.platform.value} {state.about}"
)
def test_the_state_gets_its_verdict(state: State) -> None:
    verdict = REQUIREMENT[state.requirement].inspect(tree_of(state.files), state.profile)
    assert verdict.status is state.status, text_of(verdict)
    assert "\n" not in verdict.message
    for mention in state.mentions:
        assert mention in text_of(verdict)


def test_what_is_not_asked_for_is_not_looked_at() -> None:
    assert "--no-agent" in REQUIREMENT["vbar.agent"].applies(Profile(agent_elsewhere=True))
    assert "optional" in REQUIREMENT["telemetry.collector"].applies(Profile())
    for requirement in ("vbar.agent", "telemetry.collector"):
        assert REQUIREMENT[requirement].applies(Profile(platform=Platform.GKE, agent_elsewhere=True)) == ""


def test_each_argument_of_the_document_is_needed() -> None:
    for argument in VBAR.arguments:
        rest = " ".join(a for a in VBAR.arguments if a != argument)
        verdict = REQUIREMENT["vbar.agent"].inspect(
            tree_of({**IMAGE, **service(docker(arguments=rest))}), COMPUTE_ENGINE
        )
        assert verdict.status is Status.FAIL
        assert f"without {argument}" in verdict.message


@pytest.mark.parametrize(
    "lines", [["/opt/start.sh"] * 5000, ["#" * 200_000, *["/opt/start.sh"] * 20]], ids=["commands", "text"]
)
def test_a_script_that_calls_itself_is_not_followed_without_end(lines: list[str]) -> None:
    files: Files = {**service("ExecStart=/opt/start.sh"), **script("#!/bin/sh", *lines)}
    with pytest.raises(FormatError, match="more commands than are followed"):
        REQUIREMENT["vbar.agent"].inspect(tree_of(files), COMPUTE_ENGINE)


def test_damaged_stores_hold_nothing() -> None:
    for damage in ("", "[", "[1]", '{"Repositories": [1]}', '{"Repositories": {"a": "b"}}', "[" * 100_000):
        files: Files = {
            "/var/lib/docker/image/overlay2/repositories.json": damage,
            "/var/lib/docker/containers/1/config.v2.json": damage,
            "/var/lib/containers/storage/overlay-images/images.json": damage,
        }
        assert REQUIREMENT["vbar.agent"].inspect(tree_of(files), GKE).status is Status.PASS


def test_nothing_is_planned() -> None:
    overlay = Overlay(tree_of({"/opt": Directory()}))
    for requirement in REQUIREMENT.values():
        requirement.plan(overlay, COMPUTE_ENGINE)
    assert overlay.written == {}
