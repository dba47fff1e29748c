"""Options that several commands have, and the profile that they describe."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tpu_image import catalogue
from tpu_image.catalogue import choices, hardware
from tpu_image.catalogue.hardware import Generation, MachineType
from tpu_image.catalogue.requirement import Platform, Profile
from tpu_image.catalogue.sections import section
from tpu_image.cli.failures import UnusableError
from tpu_image.cli.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from tpu_image.spec import Specification

Function = TypeVar("Function", bound=Callable[..., Any])


class HostPath(click.Path):
    """A path of this machine; what it becomes is loaded where one is given, since few runs have any."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """Make a path of what the user wrote."""
        from pathlib import Path

        return Path(os.fsdecode(super().convert(value, param, ctx)))


class ResultPath(HostPath):
    """A file to write a result to, refused before the work where it could not be written after it."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """Refuse a folder that is not there, or closed to this user."""
        path = super().convert(value, param, ctx)
        folder = path.parent
        if not folder.is_dir():
            self.fail(f"there is no folder {str(folder)!r}; make it first", param, ctx)
        if not path.exists() and not os.access(folder, os.W_OK | os.X_OK):
            self.fail(f"the folder {str(folder)!r} may not be written to; name another", param, ctx)
        return path


def examples(*lines: str) -> str:
    """Give the end of a command's help: its examples, kept as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _set_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    if value:
        context.ensure_object(Settings).debug = True


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_set_debug,
    help="Show errors with their traceback.",
)


def complete_requirement(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the id of a requirement in the shell."""
    from click.shell_completion import CompletionItem

    del context, parameter
    return [
        CompletionItem(requirement.id, help=requirement.title)
        for requirement in catalogue.requirements()
        if requirement.id.startswith(incomplete)
    ]


def complete_selection(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the name of a section, or the id of a requirement."""
    from click.shell_completion import CompletionItem

    sections = dict.fromkeys(section(requirement.id) for requirement in catalogue.requirements())
    return [
        *(CompletionItem(name) for name in sections if name.startswith(incomplete)),
        *complete_requirement(context, parameter, incomplete),
    ]


def complete_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Have the shell complete a path."""
    from click.shell_completion import CompletionItem

    del context, parameter
    return [CompletionItem(incomplete, type="file")]


def completing(names: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Make a completion of the last of names that commas separate."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        del context, parameter
        before, comma, word = incomplete.rpartition(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(word)]

    return complete


def reading(read: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Make a callback that reads the value, or each value, of an option and names the option in a refusal."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(map(read, value))
            return None if value is None else read(value)
        except (choices.ChoiceError, catalogue.UnknownRequirementError) as error:
            raise click.BadParameter(str(error.args[0]), context, parameter) from error

    return callback


only_option = click.option(
    "--only",
    metavar="ID",
    multiple=True,
    callback=reading(choices.selection),
    shell_complete=complete_selection,
    help="Only this requirement, or section such as 'kernel'. May be repeated.",
)

output_option = click.option(
    "-o",
    "--output",
    type=ResultPath(),
    metavar="FILE",
    help="Write the result to FILE, which appears whole or not at all.",
)

quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Show only what needs attention, and no progress."
)

color_option = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Colours in text; auto: on a terminal, unless NO_COLOR is set.",
)

_PROFILE_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "platform": click.option(
        "--platform",
        type=click.Choice([platform.value for platform in Platform]),
        callback=reading(choices.platform),
        help="Who starts the machines.  [default: compute-engine]",
    ),
    "tpu": click.option(
        "--tpu",
        metavar="LIST",
        callback=reading(choices.generations),
        shell_complete=completing([generation.name for generation in hardware.GENERATIONS]),
        help="TPU generations, separated by commas.  [default: v5p,v6e,tpu7x]",
    ),
    "machine": click.option(
        "--machine",
        metavar="TYPE",
        callback=reading(choices.machine_type),
        shell_complete=completing([machine.name for machine in hardware.MACHINE_TYPES]),
        help="A machine type, such as ct6e-standard-4t, in place of --tpu.",
    ),
    "telemetry": click.option(
        "--telemetry/--no-telemetry", default=None, help="Also require the telemetry collector."
    ),
    "device_group": click.option(
        "--device-group",
        metavar="NAME",
        callback=reading(choices.device_group),
        help="Group that owns the device nodes, with mode 0660.  [default: everyone, 0666]",
    ),
    "no_agent": click.option("--no-agent", is_flag=True, help="The vBar agent comes from elsewhere."),
    "waive": click.option(
        "--waive",
        metavar="ID=REASON",
        multiple=True,
        callback=reading(choices.waiver),
        shell_complete=complete_requirement,
        help="A requirement that need not hold, and why. May be repeated.",
    ),
    "spec": click.option(
        "--spec",
        type=HostPath(),
        metavar="FILE",
        help="Specification file (tpu-image.yaml); the other options go before what it says.",
    ),
}


def profile_options(function: Function) -> Function:
    """Give a command the options that describe a profile; it gets them as one argument, ``profile``."""
    return _with_profile(function, _PROFILE_OPTIONS)


def profile_options_but_hardware(function: Function) -> Function:
    """Give a command those options less ``--tpu`` and ``--machine``, which it has in a form of its own."""
    kept = {name: option for name, option in _PROFILE_OPTIONS.items() if name not in ("tpu", "machine")}
    return _with_profile(function, kept)


def specification_options(function: Function) -> Function:
    """Give a command all of them; it gets the whole file too, as ``specification``, None where none is given."""
    return _with_profile(function, _PROFILE_OPTIONS, whole=True)


def _with_profile(
    function: Function, offered: Mapping[str, Callable[[Any], Any]], *, whole: bool = False
) -> Function:
    @functools.wraps(function)
    def with_profile(**arguments: Any) -> Any:
        chosen = {name: arguments.pop(name) if name in offered else None for name in _PROFILE_OPTIONS}
        given = _specified(chosen["spec"], files=whole) if chosen["spec"] else None
        if whole:
            arguments["specification"] = given
        return function(profile=make_profile(chosen, given), **arguments)

    decorated: Any = with_profile
    for option in reversed([*offered.values()]):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def make_profile(chosen: Mapping[str, Any], specification: Specification | None = None) -> Profile:
    """Make a profile of the values of the profile options, over what the specification file says.

    Raises:
        UnusableError: two options contradict each other.
    """
    profile = specification.to_profile() if specification else Profile()
    changes: dict[str, Any] = {"waivers": {**profile.waivers, **dict(chosen["waive"])}}
    for field in ("platform", "telemetry", "device_group"):
        if chosen[field] is not None:
            changes[field] = chosen[field]
    if chosen["tpu"] or chosen["machine"]:
        changes["generations"] = _generations(chosen["tpu"], chosen["machine"])
    if chosen["no_agent"]:
        changes["agent_elsewhere"] = True
    return replace(profile, **changes)


def _generations(
    listed: tuple[Generation, ...] | None, machine: MachineType | None
) -> tuple[Generation, ...]:
    if machine is None:
        return listed or ()
    of_machine = choices.generations(machine.generation)
    if listed and listed != of_machine:
        raise UnusableError(
            f"--machine {machine.name} has {machine.generation}: leave --tpu out, or give that"
        )
    return of_machine


def _specified(path: Path, *, files: bool) -> Specification:
    """Read the specification file; ``files``: those that it names have to be there.

    Raises:
        UnusableError: something in it is wrong.
    """
    from tpu_image import spec

    try:
        return spec.load(path, files=files)
    except spec.SpecificationError as error:
        raise UnusableError(*error.problems) from error
