"""What a build is asked for: the command line, over what the specification file says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tpu_image.agents.planning import AgentRequest
from tpu_image.agents.registry import Options
from tpu_image.bases.releases import DEFAULT, REFERENCES
from tpu_image.cli.agent_options import AgentChoice
from tpu_image.cli.base import fetch
from tpu_image.cli.failures import UnusableError
from tpu_image.customise.customisation import Customisation
from tpu_image.disks.seal import whole_gib
from tpu_image.progress import Progress

if TYPE_CHECKING:
    from tpu_image.spec import Specification


@dataclass(frozen=True)
class Wanted:
    """A base by path, URL or reference and its SHA-256, and the image: where, in which format, of how many bytes."""

    base: str
    sha256: str
    output: Path
    form: str
    size: int

    @classmethod
    def of(
        cls, base: str | None, output: Path | None, form: str | None, size: int, given: Specification | None
    ) -> Wanted:
        """Take what the command line gives, else what the file says, else what is usual.

        Raises:
            UnusableError: nobody says where the image goes, or the base is one that cannot be made.
        """
        of_file = given.base if given and base is None else None
        written = given.output if given else None
        to = output or (written.path if written else None)
        if to is None:
            raise UnusableError(
                "nothing says where the image goes; give -o OUT, or output: in the specification"
            )
        name = base or (of_file.image if of_file else DEFAULT)
        if of_file and of_file.kind == "reference" and name not in REFERENCES:
            raise UnusableError(f"{name} is no base that can be made; give one of {', '.join(REFERENCES)}")
        return cls(
            name,
            of_file.sha256 if of_file else "",
            to,
            form or (written.format if written and output is None else None) or _form_of(to),
            size or (whole_gib(given.size) if given and given.size else 0),
        )


def _form_of(output: Path) -> str:
    """Take the format from the name, as it is usual; what Compute Engine imports where it says none."""
    return {".qcow2": "qcow2", ".raw": "raw", ".img": "raw"}.get(output.suffix, "gce")


def customisation_of(given: Specification | None, progress: Progress) -> Customisation:
    """Give what the file wants besides, a Cloud CLI that is a URL fetched."""
    if given is None:
        return Customisation()
    return given.to_customisation(lambda url, sha256: fetch(url, sha256, progress))


def agents_of(choice: AgentChoice, given: Specification | None, progress: Progress) -> AgentRequest:
    """Take what the command line says of agents, else what the file does; progress is told of pulls."""
    options = Options(authfile=choice.authfile, progress=progress.at)
    request = AgentRequest(
        choice.agent, choice.telemetry_agent, choice.telemetry_config, choice.agent_runtime or "", options
    )
    if given is None:
        return request
    section = given.agents
    return AgentRequest(
        request.source or section.vbar,
        request.telemetry_source or section.telemetry,
        request.telemetry_configuration or given.profile.telemetry.config,
        request.runtime or section.runtime or "",
        replace(options, authfile=options.authfile or section.authfile),
    )
