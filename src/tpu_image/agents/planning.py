"""Which agents an image gets: those that its profile needs and it does not bring, and those that a user names.

with installations(request, profile, tree, folder) as made:
    for installation in made:
        installation.write(overlay)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_image import catalogue
from tpu_image.agents import configuration
from tpu_image.agents.errors import AgentError
from tpu_image.agents.installation import AgentInstallation, installed
from tpu_image.agents.registry import Options
from tpu_image.agents.spool import Spool
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.container_agent import ContainerAgent
from tpu_image.catalogue.readings import why_not
from tpu_image.catalogue.requirement import Platform, Profile, Status
from tpu_image.catalogue.telemetry import COLLECTOR
from tpu_image.catalogue.vbar_agent import VBAR
from tpu_image.trees import memory
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay


@dataclass(frozen=True)
class AgentRequest:
    """What a user asks for.

    Attributes:
        source: of the vBar agent, as :func:`tpu_image.agents.sources.opened` takes it; empty for the documented image.
        telemetry_source: of the collector, in the same words.
        telemetry_configuration: the collector's own configuration; None for its default.
        runtime: ``systemd`` or ``docker``; empty to have it chosen by the base.
        options: how registries are asked.
    """

    source: str = ""
    telemetry_source: str = ""
    telemetry_configuration: Path | None = None
    runtime: str = ""
    options: Options | None = None


@contextlib.contextmanager
def installations(
    request: AgentRequest, profile: Profile, tree: Tree, scratch: Path | None = None
) -> Iterator[list[AgentInstallation]]:
    """Get the agents that an image is to have, ready to be written.

    An agent that is not named is got where the profile needs it and the image does not start one already.

    Args:
        request: what a user asks for.
        profile: what the image is made for.
        tree: the image, as its other requirements will leave it or as it is.
        scratch: folder for a file without a name that takes the agents' contents.

    Raises:
        AgentError: an agent is named and not wanted, or cannot be got or run.
        TreeError, FormatError: what the image has cannot be read.
    """
    sources = {VBAR.program: request.source, COLLECTOR.program: request.telemetry_source}
    wanted = [
        (requirement, sources[requirement.agent.program])
        for requirement in catalogue.requirements()
        if isinstance(requirement, ContainerAgent)
        and _is_wanted(requirement, sources[requirement.agent.program], profile, tree)
    ]
    text = None
    if request.telemetry_configuration is not None:
        _refuse_configuration(request.telemetry_configuration, profile)
        text = configuration.read(request.telemetry_configuration)
    with contextlib.ExitStack() as stack:
        spool = stack.enter_context(Spool(scratch))
        yield [
            stack.enter_context(
                installed(
                    requirement.agent,
                    source,
                    spool,
                    tree,
                    runtime=request.runtime,
                    configuration=text if requirement.agent.configuration else None,
                    options=request.options,
                )
            )
            for requirement, source in wanted
        ]


def _is_wanted(requirement: ContainerAgent, source: str, profile: Profile, tree: Tree) -> bool:
    """Whether an agent is to be got; one that is named and must not be there is an error."""
    if profile.platform is Platform.GKE:
        if source:
            raise AgentError(
                f"GKE brings the {requirement.agent.name} itself",
                source,
                "leave it out, or choose compute-engine",
            )
        return False
    reason = why_not(requirement, profile)
    if source and reason:
        raise AgentError(f"is named, and not wanted: {reason}", source, "leave one of the two out")
    if reason:
        return False
    return bool(source) or requirement.inspect(tree, profile).status is Status.FAIL


def _refuse_configuration(path: Path, profile: Profile) -> None:
    if not profile.telemetry or profile.platform is Platform.GKE:
        raise AgentError("is a configuration of telemetry, which is off", str(path), "turn telemetry on")


def nodes_of(
    made: list[AgentInstallation], changes: Mapping[str, memory.Node | None], overlay: Overlay
) -> Mapping[str, memory.Node | None]:
    """Give a plan's changes with the agents' own files, for :func:`tpu_image.disks.tree_writer.write_nodes`.

    Args:
        made: what is installed.
        changes: by canonical path.
        overlay: the plan, by which the agents' folder is found.
    """
    folder = overlay.resolve(AGENTS)
    nodes = changes
    for installation in made:
        nodes = installation.nodes(nodes, folder)
    return nodes


def unpack_all(made: list[AgentInstallation], tree: Tree, root: str) -> None:
    """Write the agents' own files below a directory of this machine, which ``tree`` shows.

    Raises:
        AgentError: it cannot be written to.
    """
    folder = tree.resolve(AGENTS)
    for installation in made:
        installation.unpack(root, folder)
