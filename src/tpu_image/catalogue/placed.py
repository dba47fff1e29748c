"""The files that the document has placed, whoever placed them, and whose own work is replaced there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tpu_image.catalogue import bind_script, device_nodes, environment, metadata, storage_timeouts, vfio
from tpu_image.trees.memory import File

if TYPE_CHECKING:
    from tpu_image.plan.change import Change

SCRIPTS = (bind_script.SCRIPT, environment.SCRIPT, storage_timeouts.SCRIPT, metadata.SCRIPT)
PLACED = (vfio.RULES_FILE, device_nodes.RULES_FILE, *SCRIPTS)

_OURS = b"tpu-image"
"""Stands in every version of our scripts."""


def replaced_scripts(changes: Iterable[Change]) -> Iterator[str]:
    """Give the paths of scripts that a plan replaces and that no version of tpu-image wrote."""
    paths = {path.removeprefix("/usr") for path in SCRIPTS}
    for change in changes:
        before, after = change.before, change.after
        if change.path.removeprefix("/usr") not in paths or not isinstance(before, File):
            continue
        if isinstance(after, File) and before.content != after.content and _OURS not in before.content:
            yield change.path
