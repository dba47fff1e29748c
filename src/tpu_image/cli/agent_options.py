"""Options on agents: where each comes from, what runs it, with which configuration and credentials."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from tpu_image.cli import options

Function = TypeVar("Function", bound=Callable[..., Any])


class AgentChoice(NamedTuple):
    """What the command line says of agents; empty or None where it says nothing."""

    agent: str = ""
    telemetry_agent: str = ""
    telemetry_config: Path | None = None
    agent_runtime: str | None = None
    authfile: Path | None = None

    @property
    def names_one(self) -> bool:
        """Whether it says where an agent comes from."""
        return bool(self.agent or self.telemetry_agent)

    @property
    def details(self) -> list[str]:
        """The options given that say more about an agent."""
        given = (self.telemetry_config, self.agent_runtime, self.authfile)
        names = ("--telemetry-config", "--agent-runtime", "--authfile")
        return [name for name, value in zip(names, given, strict=True) if value]


def agent_options(otherwise: tuple[str, str]) -> Callable[[Function], Function]:
    """Give a command the options; it gets them as one argument, ``agents``.

    Args:
        otherwise: what happens where no vBar agent is named, and what runs agents where nobody says.
    """
    default, runtime = (f"  [default: {text}]" if text else "" for text in otherwise)
    offered = (
        click.option(
            "--agent",
            metavar="SOURCE",
            default="",
            shell_complete=options.complete_file,
            help=f"The vBar agent: REGISTRY/PATH:TAG, an archive, an OCI layout or a folder.{default}",
        ),
        click.option(
            "--telemetry-agent",
            metavar="SOURCE",
            default="",
            shell_complete=options.complete_file,
            help="The telemetry collector, in the same words.",
        ),
        click.option(
            "--telemetry-config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="The collector's own configuration, a YAML file.",
        ),
        click.option(
            "--agent-runtime", type=click.Choice(["systemd", "docker"]), help=f"What runs agents.{runtime}"
        ),
        click.option(
            "--authfile",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Credentials of registries, as Docker and podman keep them.",
        ),
    )

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def with_agents(**arguments: Any) -> Any:
            chosen = AgentChoice(*(arguments.pop(name) for name in AgentChoice._fields))
            return function(agents=chosen, **arguments)

        decorated: Any = with_agents
        for option in reversed(offered):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate
