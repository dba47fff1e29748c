"""``tpu-image apply``: make a directory or this machine meet every requirement."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from tpu_image import machine
from tpu_image.catalogue import activation, readings
from tpu_image.catalogue.activation import Command
from tpu_image.catalogue.placed import replaced_scripts
from tpu_image.catalogue.requirement import Profile
from tpu_image.cli import NOT_OK, OK, options, reports
from tpu_image.cli.agent_options import AgentChoice, agent_options
from tpu_image.cli.failures import UnusableError, inside
from tpu_image.cli.failures import report as tell
from tpu_image.inspection import inspect, is_running_machine, opened
from tpu_image.output import emit, wants_color
from tpu_image.plan import Plan
from tpu_image.plan import apply as write
from tpu_image.plan import undo as take_back
from tpu_image.report.printable import printable
from tpu_image.trees.base import Tree
from tpu_image.trees.memory import Symlink
from tpu_image.trees.overlay import Overlay


@click.command(
    "apply",
    short_help="Change ROOT so that it meets every requirement, then check it.",
    epilog=options.examples(
        "tpu-image apply /mnt/root --dry-run    what would change, as a diff",
        "tpu-image apply /mnt/root --no-agent   the root of an image",
        "sudo tpu-image apply                   this machine",
        "tpu-image apply /mnt/root --undo       as it was before the first apply",
    ),
)
@click.argument("root", default="/", metavar="[ROOT]", shell_complete=options.complete_file)
@click.option("--dry-run", is_flag=True, help="Only show what would change: a diff with modes and owners.")
@click.option("--undo", is_flag=True, help="Put back what was there before the first apply.")
@click.option("--force", is_flag=True, help="With --undo: also what was changed by others since.")
@click.option(
    "--remove-agents", is_flag=True, help="Take agents out, as GKE wants it; --undo leaves them out."
)
@agent_options(("none is put in", "Docker where the root starts it, else systemd"))
@options.profile_options
@options.only_option
@options.quiet_option
@options.color_option
@options.debug_option
def command(
    root: str,
    dry_run: bool,
    undo: bool,
    force: bool,
    remove_agents: bool,
    agents: AgentChoice,
    profile: Profile,
    only: Sequence[str],
    quiet: bool,
    color: str,
) -> int:
    """Change ROOT so that it meets every requirement of a TPU image, then check it.

    ROOT is a directory that holds the root of an image, or / (the default): this machine, where udev and
    systemd then take the changes up. A second run changes nothing.
    """
    if undo and dry_run:
        raise click.UsageError("--undo and --dry-run do not go together")
    if force and not undo:
        raise click.UsageError("--force goes with --undo alone")
    if undo + remove_agents + agents.names_one > 1:
        raise click.UsageError("--undo, --agent and --remove-agents do not go together")
    if agents.details and not agents.names_one:
        raise click.UsageError(f"{agents.details[0]} goes with --agent or --telemetry-agent")
    with inside(_directory(root)):
        if undo:
            return _undo(root, profile, force, quiet)
        wanted = Agents(agents, remove_agents)
        return _plan_and_apply(root, dry_run, profile, only, wanted, quiet, wants_color(color))


def _directory(root: str) -> str:
    if Path(root).is_file():
        raise UnusableError(
            f"{root}: is no directory; of a disk image a new one is made: tpu-image build {shlex.quote(root)} -o OUT"
        )
    return root


class Agents(NamedTuple):
    """What is to happen to agents: those that are named installed, or all taken out."""

    choice: AgentChoice
    remove: bool


def _plan_and_apply(
    root: str,
    dry_run: bool,
    profile: Profile,
    only: Sequence[str],
    agents: Agents,
    quiet: bool,
    color: bool,
) -> int:
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(opened(root))
        overlay = readings.plan(target.tree, profile, only=only)
        finish = _plan_agents(stack, agents, profile, target.tree, overlay)
        plan = Plan.from_overlay(overlay)
        for path in replaced_scripts(plan.changes):
            tell(f"{path} is somebody else's work and is replaced; with --undo it comes back")
        if dry_run:
            if not plan.changes:
                tell("nothing to change")
            emit(plan.diff())
            return OK
        return _apply(root, plan, finish, profile, only, quiet, color)


def _plan_agents(
    stack: contextlib.ExitStack, agents: Agents, profile: Profile, tree: Tree, overlay: Overlay
) -> Callable[[str], list[str]]:
    """Plan what is to happen to agents; give what is to be called with the root once the plan is written."""
    if not agents.choice.names_one and not agents.remove:
        return lambda _: []
    from tpu_image.cli.apply_agents import installing, removing

    if agents.choice.names_one:
        return stack.enter_context(installing(agents.choice, profile, tree, overlay))
    finish, commands = removing(overlay)
    for command in commands:
        tell(f"this is left to you: {command}")
    return finish


def _apply(
    root: str,
    plan: Plan,
    finish: Callable[[str], list[str]],
    profile: Profile,
    only: Sequence[str],
    quiet: bool,
    color: bool,
) -> int:
    changed = write(plan, root).changed
    done = [*map(str, changed), *finish(root)]
    if not quiet:
        emit("".join(f"{line}\n" for line in done) or "nothing to change\n")
    paths = [change.path for change in changed]
    links = [change.path for change in changed if isinstance(change.after, Symlink)]
    activated = _activate(root, activation.commands(paths, profile, links=links), quiet)
    with opened(root) as target:
        report = inspect(target, profile, only)
    emit(("" if quiet else "\n") + reports.render(report, "text", color=color, quiet=quiet))
    _tell_what_remains(root, paths)
    return OK if report.ok and activated else NOT_OK


def _undo(root: str, profile: Profile, force: bool, quiet: bool) -> int:
    undone = take_back(root, force=force)
    if not quiet:
        lines = [
            f"{'remove' if path in undone.removed else 'restore'} {printable(path)}\n"
            for path in undone.restored
        ]
        emit("".join(lines) or "nothing to undo\n")
    for kept in undone.kept:
        tell(f"{kept.path}: left as it is: {kept.reason}")
    activated = _activate(root, activation.commands(undone.restored, profile), quiet)
    _tell_what_remains(root, undone.restored)
    return OK if activated and not undone.kept else NOT_OK


def _activate(root: str, commands: Sequence[Command], quiet: bool) -> bool:
    """Make changes take effect if they were made on the running machine; say whether that succeeded."""
    if not commands or not is_running_machine(root):
        return True
    if not machine.managed_by_systemd():
        tell(
            "systemd does not run this machine, so nothing is reloaded; the changes take effect at its next boot"
        )
        return True
    succeeded = True
    for each in commands:
        if not quiet:
            tell(f"to {each.why}: {' '.join(each.arguments)}")
        try:
            machine.run(each)
        except machine.ActivationError as error:
            tell(str(error))
            succeeded = False
    return succeeded


def _tell_what_remains(root: str, paths: Sequence[str]) -> None:
    if is_running_machine(root):
        for note in activation.notes(paths):
            tell(note.text)
