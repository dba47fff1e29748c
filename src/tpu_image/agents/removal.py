"""Taking agents out of an image for GKE, which brings its own: files by plan, directories at once, the rest by command.

What Docker, podman and snapd keep in stores of their own is theirs to remove: the command is told.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from tpu_image.agents.directory_writer import remove_below
from tpu_image.catalogue import snaps
from tpu_image.catalogue.agent_record import AGENTS, record_path
from tpu_image.catalogue.container_agent import ContainerAgent, Presence
from tpu_image.formats.systemd_unit import UNIT_DIRECTORIES
from tpu_image.trees.overlay import Overlay

LINK_SUFFIXES = (".wants", ".requires", ".upholds")


@dataclass
class Removal:
    """What a plan does not do: ``directories`` of unpacked agents to be removed, ``commands`` to be run by somebody."""

    directories: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def remove_directories(self, root: str, folder: str = AGENTS) -> list[str]:
        """Remove the unpacked agents below a directory of this machine; give what was there.

        Args:
            root: directory of this machine.
            folder: canonical path of :data:`AGENTS` in its tree.

        Raises:
            AgentError: one cannot be removed.
        """
        removed = remove_below(root, folder, [posixpath.basename(path) for path in self.directories])
        return [f"{AGENTS}/{name}" for name in removed]


def plan_removal(overlay: Overlay, requirements: Iterable[ContainerAgent]) -> Removal:
    """Write into a plan what takes agents out, and give what it does not do.

    Args:
        overlay: the plan.
        requirements: those whose agents are to go.

    Raises:
        TreeError: something in the way cannot be read or removed.
    """
    removal = Removal()
    for requirement in requirements:
        for presence in requirement.presences(overlay):
            _remove(overlay, requirement, presence, removal)
        overlay.remove(record_path(requirement.agent.program))
    return removal


def _remove(overlay: Overlay, requirement: ContainerAgent, presence: Presence, removal: Removal) -> None:
    if presence.kind == "unit":
        overlay.remove(presence.path)
        _remove_links(overlay, presence.name)
    elif presence.kind in ("program", "container archive"):
        overlay.remove(presence.path)
    elif presence.kind == "unpacked image":
        removal.directories.append(presence.path)
    elif presence.kind == "snap" and presence.path.startswith(snaps.SEED):
        overlay.remove(presence.path)
        text = overlay.read_text_if_present(snaps.SEED_LIST)
        if text is not None:
            overlay.write(snaps.SEED_LIST, without_snap(text, requirement.agent.snap))
    else:
        removal.commands.append(presence.removal)


def _remove_links(overlay: Overlay, unit: str) -> None:
    """Take away every link by which a unit is started."""
    for directory in UNIT_DIRECTORIES:
        for suffix in LINK_SUFFIXES:
            for entry in overlay.names(directory, f"*{suffix}"):
                overlay.remove(f"{directory}/{entry}/{unit}")


def without_snap(text: str, name: str) -> str:
    """Take the entry of a snap out of a seed's list, and leave all else as it is written.

    An entry is an item of the list ``snaps``: from its dash to the next one of the same depth.
    """
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if re.match(r"[ \t]*-([ \t]|$)", line)]
    kept: list[str] = lines[: starts[0]] if starts else lines
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        item = lines[start:end]
        named = rf"[ \t-]*name:[ \t]*(['\"]?){re.escape(name)}\1[ \t]*(#.*)?$"
        if not any(re.match(named, line) for line in item):
            kept += item
    return "".join(kept)
