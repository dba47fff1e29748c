"""An agent as it gets into an image: its files, the service that starts it, and the record of what it is.

with installed(agent, source, spool, tree, ...) as installation:
    installation.write(overlay)                          # unit, link, record, configuration: part of the plan
    nodes = installation.nodes(overlay.written)          # build: with the files of the agent, for the disk
    installation.unpack("/mnt/root")                     # apply: the files of the agent, into a directory
"""

from __future__ import annotations

import contextlib
import enum
import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_image.agents import docker_archive, running, sources, units
from tpu_image.agents.directory_writer import remove_below, write_below
from tpu_image.agents.errors import AgentError
from tpu_image.agents.filesystem import Directory, File, RootFileSystem
from tpu_image.agents.image import ContainerImage, OnProgress
from tpu_image.agents.manifest import Configuration
from tpu_image.agents.nodes import LazyNodes
from tpu_image.agents.references import parse_reference
from tpu_image.agents.registry import Options
from tpu_image.agents.sources import UnpackedDirectory
from tpu_image.agents.spool import Spool
from tpu_image.agents.units import Docker, Mount
from tpu_image.catalogue.agent_judgement import DOCKER_SERVICES
from tpu_image.catalogue.agent_record import AGENTS, SCHEMA, record_path
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.boot_tasks import ENABLED_DIRECTORY, UNIT_DIRECTORY
from tpu_image.catalogue.programs import find_program
from tpu_image.catalogue.systemd import units_of
from tpu_image.trees import memory
from tpu_image.trees.base import Kind, Tree
from tpu_image.trees.overlay import Overlay

CONFIGURATIONS = "/etc/tpu-image"
"""Where configurations of agents are kept, one file each."""

FOLDER_MODE = 0o700

_MOUNT_POINTS = ("/dev", "/proc", "/run", "/sys", "/tmp")  # noqa: S108 - of the image


class Runtime(enum.Enum):
    """What runs an agent."""

    SYSTEMD = "systemd"
    DOCKER = "docker"


def find_docker(tree: Tree) -> Docker | None:
    """Find the Docker that a tree starts at boot, be it by its socket; None where there is none."""
    units_there, program = units_of(tree), find_program(tree, "docker", "")
    if program is None or program.problem:
        return None
    for service in DOCKER_SERVICES:
        unit = units_there.unit(service)
        starters = (service, "docker.socket") if service == "docker.service" else (service,)
        if unit is not None and unit.loadable and any(units_there.starts_at_boot(name) for name in starters):
            return Docker(program.path, service)
    return None


def choose_runtime(docker: Docker | None, wanted: str = "") -> Runtime:
    """Choose what runs agents: what is wanted, or Docker where the base starts it at boot, or systemd.

    Raises:
        AgentError: Docker is wanted and the base does not start it; another word is no runtime.
    """
    if not wanted:
        return Runtime.SYSTEMD if docker is None else Runtime.DOCKER
    try:
        runtime = Runtime(wanted)
    except ValueError:
        names = " or ".join(r.value for r in Runtime)
        raise AgentError("is no runtime of agents", wanted, f"give {names}") from None
    if runtime is Runtime.DOCKER and docker is None:
        raise AgentError(
            "the base has no Docker that starts at boot",
            "agent runtime docker",
            "install docker.io in the base, or choose the runtime systemd",
        )
    return runtime


def systemd_version(tree: Tree) -> int:
    """Version of a tree's systemd by its shared library; 0 where that is not found."""
    for directory in ("/usr/lib/x86_64-linux-gnu/systemd", "/usr/lib/systemd", "/lib/systemd"):
        for name in tree.names(directory, "libsystemd-shared-*.so"):
            digits = name.removeprefix("libsystemd-shared-").partition(".")[0].partition("-")[0]
            if digits.isdecimal():
                return int(digits)
    return 0


@dataclass
class AgentInstallation:
    """An agent that is ready to be put into one image.

    Attributes:
        agent: which one.
        runtime: what runs it.
        reference: name of its image, or of the file or directory that it is from.
        digest: of its image; empty for a directory.
        unit: text of its service.
        configuration: its own one; None where it has none.
        left_out: what its image has and is not written, a line each.
    """

    agent: Agent
    runtime: Runtime
    reference: str
    digest: str
    unit: str
    configuration: bytes | None
    left_out: list[str]
    _payload: Directory
    _spool: Spool

    def write(self, overlay: Overlay) -> None:
        """Add to a plan all but the agent's own files, and take away what a former installation had instead."""
        agent = self.agent
        override = f"/etc/systemd/system/{agent.unit}"
        if (entry := overlay.lstat(override)) is not None and entry.kind is Kind.SYMLINK:
            overlay.remove(override)  # a mask
        path = f"{UNIT_DIRECTORY}/{agent.unit}"
        overlay.write(path, self.unit, mode=0o644, owner=(0, 0))
        overlay.symlink(f"{ENABLED_DIRECTORY}/{agent.unit}", path)
        overlay.write(record_path(agent.program), self._record(), mode=0o644, owner=(0, 0))
        if self.configuration is not None:
            overlay.write(configuration_path(agent), self.configuration, mode=0o644, owner=(0, 0))
        if self.runtime is Runtime.SYSTEMD:
            overlay.remove(f"{AGENTS}/{agent.program}.tar")

    def _record(self) -> str:
        fields = {
            "schema": SCHEMA,
            "agent": self.agent.program,
            "reference": self.reference,
            "digest": self.digest,
            "runtime": self.runtime.value,
        }
        return json.dumps(fields, indent=2) + "\n"

    def nodes(self, beside: Mapping[str, memory.Node | None], folder: str = AGENTS) -> LazyNodes:
        """Give the agent's own files as nodes for a disk, with those of a plan.

        Args:
            beside: what a plan writes.
            folder: canonical path of :data:`AGENTS` in the image.
        """
        return LazyNodes(self._spool, folder, self._payload, beside)

    def unpack(self, root: str, folder: str = AGENTS, progress: OnProgress | None = None) -> None:
        """Write the agent's own files below a directory: whole, or not at all.

        Args:
            root: directory of this machine.
            folder: canonical path of :data:`AGENTS` in the tree of that directory.
            progress: is told how far it is.

        Raises:
            AgentError: it cannot be written to.
        """
        write_below(root, folder, FOLDER_MODE, self._payload.children, self._spool, progress)
        other = self.agent.program + (".tar" if self.runtime is Runtime.SYSTEMD else "")
        remove_below(root, folder, [other])


def configuration_path(agent: Agent) -> str:
    """Where an agent's own configuration is kept in an image."""
    return f"{CONFIGURATIONS}/{agent.program}.yaml"


@contextlib.contextmanager
def installed(
    agent: Agent,
    source: str,
    spool: Spool,
    tree: Tree,
    *,
    runtime: str = "",
    configuration: bytes | None = None,
    options: Options | None = None,
) -> Iterator[AgentInstallation]:
    """Get an agent and make it ready for an image.

    Args:
        agent: which one.
        source: as :func:`tpu_image.agents.sources.opened` takes it; empty for the image that the document names.
        spool: takes the agent's files, until the block ends.
        tree: the image.
        runtime: ``systemd`` or ``docker``; empty to have it chosen by the image.
        configuration: what is mounted, read-only, as the agent's own configuration.
        options: how registries are asked.

    Raises:
        AgentError: the agent cannot be got, or not be run in this image.
        ImageError: what was got cannot be used.
    """
    docker = find_docker(tree)
    chosen = choose_runtime(docker, runtime)
    with sources.opened(source or agent.image, spool, options, default=agent.image) as image:
        mounts = []
        if configuration is not None:
            settings = image.configuration if isinstance(image, ContainerImage) else Configuration()
            target = running.configuration_target(agent, settings)
            mounts.append(Mount(configuration_path(agent), target))
        version = systemd_version(tree)
        if docker is not None and chosen is Runtime.DOCKER:
            yield _for_docker(agent, docker, image, spool, mounts, configuration, version)
        else:
            progress = options.progress if options is not None else None
            yield _for_systemd(agent, image, image.unpack(spool, progress), mounts, configuration, version)


def _for_systemd(
    agent: Agent,
    image: ContainerImage | UnpackedDirectory,
    filesystem: RootFileSystem,
    mounts: list[Mount],
    configuration: bytes | None,
    version: int,
) -> AgentInstallation:
    settings = image.configuration if isinstance(image, ContainerImage) else Configuration()
    program = running.program(agent, settings, filesystem, image.where)
    _provide(filesystem, program.working_directory, mounts)
    reference = (image.reference if isinstance(image, ContainerImage) else "") or Path(image.where).name
    digest = image.digest if isinstance(image, ContainerImage) else ""
    described = f"{_printable(reference)} {digest}".rstrip()
    unit = units.systemd_unit(agent, program, f"{AGENTS}/{agent.program}", described, mounts, version)
    payload = Directory(FOLDER_MODE, children={agent.program: filesystem.root})
    return AgentInstallation(
        agent,
        Runtime.SYSTEMD,
        reference,
        digest,
        unit,
        configuration,
        filesystem.left_out,
        payload,
        filesystem.spool,
    )


def _provide(filesystem: RootFileSystem, working_directory: str, mounts: list[Mount]) -> None:
    """Have what is mounted upon, as Docker makes it when it creates a container."""
    for path in (*_MOUNT_POINTS, working_directory):
        filesystem.provide_directory(path)
    for path in (*units.MACHINE_FILES, *(mount.target for mount in mounts)):
        filesystem.provide_file(path)


def _for_docker(
    agent: Agent,
    docker: Docker,
    image: ContainerImage | UnpackedDirectory,
    spool: Spool,
    mounts: list[Mount],
    configuration: bytes | None,
    version: int,
) -> AgentInstallation:
    if not isinstance(image, ContainerImage):
        raise AgentError(
            "is a directory, which Docker does not load",
            image.where,
            "give an archive, or the runtime systemd",
        )
    reference = _tagged(agent, image)
    kept_as = f"tpu-image/{agent.program}:{image.identity.replace(':', '-')}"
    offset, size = docker_archive.write(image, [reference, kept_as], spool)
    entrypoint, arguments = running.command(agent, image.configuration)
    words = arguments if image.configuration.entrypoint else (*entrypoint, *arguments)
    name = f"{agent.program}.tar"
    described = f"{_printable(reference)} {image.digest}"
    unit = units.docker_unit(
        agent, docker, words, reference, kept_as, posixpath.join(AGENTS, name), described, mounts, version
    )
    payload = Directory(FOLDER_MODE, children={name: File(0o600, 0, 0, 0, offset, size)})
    return AgentInstallation(
        agent, Runtime.DOCKER, reference, image.digest, unit, configuration, [], payload, spool
    )


def _tagged(agent: Agent, image: ContainerImage) -> str:
    """The name that the image gets in Docker's store: its own, with a tag, if it is one of the agent."""
    name = image.reference.partition("@")[0]
    try:
        parse_reference(name)
    except AgentError:  # a name from outside, which Docker might even take for an option
        return agent.image
    if not agent.is_image(name):
        return agent.image
    return name if ":" in name.rpartition("/")[2] else f"{name}:{image.identity[7:19]}"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
