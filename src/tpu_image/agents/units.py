"""The services that bring agents up at every boot, under systemd alone or through Docker.

``docker run --privileged --net=host`` means: all capabilities, all devices, no seccomp, the machine's own network, the
image's files as the root. A service has all of that but the root, so little more than ``RootDirectory=`` is to be
said. Settings: systemd.exec(5), systemd.service(5), those of version 249 (Ubuntu 22.04) and newer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tpu_image.agents import quoting
from tpu_image.catalogue.agent_record import exits_path
from tpu_image.catalogue.agents import Agent

READY = "tpu-image-ready.target"
"""What workloads order themselves after."""

LISTEN_SECONDS = 30
"""Seconds that others wait for an agent's port; they start all the same behind that."""

EXITS_KEPT = 100
"""Ends of an agent that are remembered."""

MACHINE_FILES = ("/etc/hosts", "/etc/resolv.conf")
"""Files of the machine that Docker gives a container on the host's network."""

STOPPED = (137, 143)
"""Statuses with which ``docker run`` ends when its container is stopped: killed, or ended by SIGTERM."""

STEPS_SINCE = 254
"""The systemd that knows ``RestartSteps=``; an older one warns of it."""


class Mount(NamedTuple):
    """A file of the machine that the agent sees, and does not write to, at a path of its own."""

    source: str
    target: str


class Program(NamedTuple):
    """What is run: command, environment and working directory, as the image's configuration has them."""

    command: tuple[str, ...]
    environment: tuple[str, ...] = ()
    working_directory: str = "/"
    user: str = ""
    """``UID`` or ``UID:GID`` in numbers; empty for root."""


class Docker(NamedTuple):
    """A base's Docker: path of its client, name of its daemon's unit."""

    program: str
    service: str


def systemd_unit(
    agent: Agent, program: Program, root: str, described: str, mounts: Sequence[Mount] = (), systemd: int = 0
) -> str:
    """Write a service that runs an unpacked agent.

    Args:
        agent: which one.
        program: what is run.
        root: directory that is the agent's ``/``.
        described: the image, in a sentence.
        mounts: files of the machine.
        systemd: version of the one that reads it; 0 where it is not known.
    """
    uid, _, gid = program.user.partition(":")
    lines = [
        *_head(agent, described),
        "",
        *_service(agent, systemd),
        f"RootDirectory={quoting.path(root)}",
        "# What follows ExecStart= is the machine's.",
        "RootDirectoryStartOnly=yes",
        "# /proc, /sys, /dev and an empty /run, the machine's devices as they come and go.",
        "MountAPIVFS=yes",
        "TemporaryFileSystem=/tmp:mode=1777",
        *(f"BindReadOnlyPaths=-{path}" for path in MACHINE_FILES),
        *(f"BindReadOnlyPaths={quoting.path(m.source)}:{quoting.path(m.target)}" for m in mounts),
        *([f"User={uid}"] if uid else []),
        *([f"Group={gid}"] if gid else []),
        *(f"Environment={quoting.setting(e)}" for e in program.environment),
        f"WorkingDirectory={quoting.path(program.working_directory)}",
        f"ExecStart={' '.join(quoting.word(w) for w in program.command)}",
        *_foot(agent),
    ]
    return "\n".join(lines) + "\n"


def docker_unit(
    agent: Agent,
    docker: Docker,
    arguments: Sequence[str],
    reference: str,
    kept_as: str,
    archive: str,
    described: str,
    mounts: Sequence[Mount] = (),
    systemd: int = 0,
) -> str:
    """Write a service that runs an agent's image through Docker, which loads it from an archive at the first boot.

    Args:
        agent: which one.
        docker: what runs it.
        arguments: of the agent, behind the image.
        reference: name of the image as the document has it.
        kept_as: a second name, which says by the image's ID that it is loaded.
        archive: path of the archive in the image.
        described: the image, in a sentence.
        mounts: files of the machine.
        systemd: version of the one that reads it; 0 where it is not known.
    """
    name = agent.unit.removesuffix(".service")
    program = docker.program
    # Through the shell's input: Docker as a snap does not see the archive.
    load = f"{program} image inspect {kept_as} >/dev/null 2>&1 || exec {program} load --quiet <{archive}"
    # There is one after a power failure alone; else Docker calls it an error that there is none.
    remove = f"exec {program} rm --force {name} 2>/dev/null"
    # A container's first process is not ended by SIGTERM unless it handles it, so an orderly stop is a kill. What was
    # asked for is known by a mark; systemd runs this too where the container has ended as one that is stopped does.
    mark = f"{exits_path(agent.program)}.stopping"
    stop = (
        f'[ -z "$MAINPID" ] || {{ mkdir -p {mark.rpartition("/")[0]} && : >{mark};'
        f" exec {program} stop -t 10 {name} >/dev/null; }}"
    )
    judge = (
        f"if [ -e {mark} ]; then SERVICE_RESULT=success; rm {mark};"
        ' elif [ "$SERVICE_RESULT" = success ]; then SERVICE_RESULT=exit-code; fi'
    )
    volumes = [f"--volume={m.source}:{m.target}:ro" for m in mounts]
    run = [program, "run", "--rm", "--pull=never", f"--name={name}", "--privileged", "--net=host"]
    command = " ".join(quoting.word(w) for w in (*run, *volumes, reference, *arguments))
    lines = [
        *_head(agent, described, docker.service),
        "",
        *_service(agent, systemd),
        f"SuccessExitStatus={' '.join(map(str, STOPPED))}",
        f"ExecStartPre=/bin/sh -c {quoting.word(load)}",
        f"ExecStartPre=-/bin/sh -c {quoting.word(remove)}",
        f"ExecStart={command}",
        f"ExecStop=-/bin/sh -c {quoting.word(stop)}",
        *_foot(agent, f"{judge}; "),
    ]
    return "\n".join(lines) + "\n"


def _head(agent: Agent, described: str, *needed: str) -> list[str]:
    after = " ".join(("network-online.target", *needed))
    return [
        f"# Written by tpu-image: {described}.",
        "[Unit]",
        f"Description={agent.name} of this TPU VM",
        "Documentation=https://cloud.google.com/tpu/docs",
        f"Wants={after} {READY}",
        f"After={after}",
        f"Before={READY}",
        "# An agent that ends again and again fails for good, and is seen to: systemctl --failed, tpu-image check.",
        "StartLimitIntervalSec=10min",
        "StartLimitBurst=60",
    ]


def _service(agent: Agent, systemd: int) -> list[str]:
    steps = ["RestartSteps=4", "RestartMaxDelaySec=40s"] if systemd >= STEPS_SINCE else []
    return [
        "[Service]",
        "Type=exec",
        "Restart=always",
        "RestartSec=5s",
        *steps,
        "TimeoutStartSec=5min",
        "LimitMEMLOCK=infinity",
        "LimitNOFILE=1048576",
        "StandardOutput=journal",
        "StandardError=journal",
        f"SyslogIdentifier={agent.program}",
    ]


def _foot(agent: Agent, judge: str = "") -> list[str]:
    """Wait for the port, note every end, start at boot; ``judge`` sets before that how it is to be noted."""
    exits = exits_path(agent.program)
    folder = exits.rpartition("/")[0]
    note = (
        f"{judge}mkdir -p {folder} && {{ tail -n {EXITS_KEPT - 1} {exits} 2>/dev/null;"
        f' echo "$SERVICE_RESULT ${{EXIT_CODE:--}} ${{EXIT_STATUS:--}}"; }} >{exits}.new'
        f" && mv {exits}.new {exits}"
    )
    # systemd waits for this command even where the agent has ended, so it looks whether it has.
    wait = (
        f"for _ in $(seq {LISTEN_SECONDS * 5}); do"
        f" grep -q ' [0-9A-F]*:{agent.port:04X} [0-9A-F]*:0000 0A ' /proc/net/tcp /proc/net/tcp6"
        ' || ! kill -0 "$MAINPID" && exit; sleep 0.2; done'
    )
    return [
        *([f"ExecStartPost=-/bin/sh -c {quoting.word(wait)}"] if agent.port else []),
        f"ExecStopPost=-+/bin/sh -c {quoting.word(note)}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
