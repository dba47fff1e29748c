"""Agents on ``tpu-image apply``: put into a plan and unpacked below the root, or taken out of both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpu_image import catalogue
from tpu_image.agents.planning import installations, unpack_all
from tpu_image.agents.removal import plan_removal
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.container_agent import ContainerAgent
from tpu_image.cli.wanted import agents_of
from tpu_image.progress import SILENT
from tpu_image.report.printable import printable

if TYPE_CHECKING:
    from tpu_image.catalogue.requirement import Profile
    from tpu_image.cli.agent_options import AgentChoice
    from tpu_image.trees.base import Tree
    from tpu_image.trees.overlay import Overlay

Finish = Callable[[str], list[str]]
"""Does below a root what no plan does; gives what was done, a line each."""


@contextlib.contextmanager
def installing(choice: AgentChoice, profile: Profile, tree: Tree, overlay: Overlay) -> Iterator[Finish]:
    """Add agents to a plan; their own files are unpacked once the plan is written.

    Raises:
        AgentError: one cannot be got, or not be run there.
    """
    with installations(agents_of(choice, None, SILENT), profile, tree) as made:
        for installation in made:
            installation.write(overlay)

        def finish(root: str) -> list[str]:
            unpack_all(made, tree, root)
            return [f"install {it.agent.program} of {printable(it.reference)} {it.digest}" for it in made]

        yield finish


def removing(overlay: Overlay) -> tuple[Finish, list[str]]:
    """Take the agents out of a plan; give what removes their files afterwards, and commands left to the user."""
    found = [one for one in catalogue.requirements() if isinstance(one, ContainerAgent)]
    removal = plan_removal(overlay, found)

    def finish(root: str) -> list[str]:
        return [f"remove {path}" for path in removal.remove_directories(root, overlay.resolve(AGENTS))]

    return finish, removal.commands
