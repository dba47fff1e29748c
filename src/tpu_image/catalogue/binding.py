"""Which programs the udev rules of a tree start for a TPU function, and whether those bind it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tpu_image.catalogue.bind_script import ELF, binds, read, takes_bare_address, unusable
from tpu_image.catalogue.device_events import ADDRESS, function, load_rules, vfio_generations
from tpu_image.catalogue.hardware import Generation
from tpu_image.catalogue.requirement import Profile
from tpu_image.catalogue.systemd import units_of
from tpu_image.formats.udev_model import Command, Outcome, command_words
from tpu_image.trees.base import Tree

_HELPERS = "/usr/lib/udev"
"""Where udev looks for a program named without a path."""

_WRAPPERS: Mapping[str, tuple[str, ...]] = {
    "env": ("-u", "-C", "-S"),
    "timeout": ("-k", "-s", "--kill-after", "--signal"),
    "nice": ("-n",),
    "ionice": ("-c", "-n"),
    "nohup": (),
    "setsid": (),
}
"""Programs that run the one behind them, with their options that are followed by a value."""

_INTERPRETERS = ("sh", "bash", "dash", "python3", "perl")


class Program(NamedTuple):
    """What one command of ``RUN`` starts: a file and its arguments.

    Attributes:
        interpreter: what the command names before the file; empty where the kernel is to find it by ``#!``.
        inline: the shell commands given instead of a file (``sh -c``); ``path`` is empty then.
    """

    command: Command
    path: str
    arguments: tuple[str, ...]
    interpreter: str = ""
    inline: str = ""

    @property
    def names_the_function(self) -> bool:
        """Whether the address of the function, or its path, is among the arguments."""
        return any(ADDRESS in argument for argument in self.arguments)


def programs(commands: Iterable[Command]) -> Iterator[Program]:
    """Give the programs that commands start, seen through ``sh -c`` and an interpreter before a script."""
    for command in commands:
        words = [] if command.builtin else command_words(command.value)
        if words:
            yield _program(command, words)


def _program(command: Command, words: list[str]) -> Program:
    words = _without_wrappers(words)
    path = words[0] if words[0].startswith("/") else f"{_HELPERS}/{words[0]}"
    arguments = words[1:]
    if posixpath.basename(path) not in _INTERPRETERS or not arguments:
        return Program(command, path, tuple(arguments))
    while len(arguments) > 1 and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if "c" in option:
            return _inline_program(command, arguments[0])
    return Program(command, arguments[0], tuple(arguments[1:]), interpreter=path)


def _without_wrappers(words: list[str]) -> list[str]:
    """Take away programs that run another one: ``env A=b``, ``timeout -k 5 30``, ``nice -n 5``."""
    while (name := posixpath.basename(words[0])) in _WRAPPERS:
        rest = words[1:]
        while rest and (rest[0].startswith("-") or (name == "env" and "=" in rest[0])):
            rest = rest[2 if rest[0] in _WRAPPERS[name] else 1 :]
        rest = rest[name == "timeout" :]
        if not rest:
            return words
        words = rest
    return words


def _inline_program(command: Command, text: str) -> Program:
    words = command_words(text)
    if not words or not words[0].startswith("/") or set(text) & set(";&|<>$`()"):
        return Program(command, "", (), inline=text)
    return Program(command, words[0], tuple(words[1:]))


class Binding:
    """What the rules do for an added function of one generation that has no driver.

    Attributes:
        dropped: programs that would bind it and that another rule keeps from running.
        already: whether a script also runs for one that is on vfio-pci.
    """

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.bound: list[Program] = []
        self.faults: list[tuple[Program, str]] = []
        self.undecided: list[tuple[Program, str]] = []
        self.dropped: list[Command] = []
        self.already = False


def _binding(tree: Tree, generation: Generation, architecture: str) -> Binding:
    rules = load_rules(tree, architecture)
    binding = Binding(generation)
    outcome = rules.outcome(function(generation), "add")
    dropped = programs(outcome.dropped)
    binding.dropped = [program.command for program in dropped if _is_about_binding(tree, program)]
    for program in programs(outcome.run):
        if not _is_about_binding(tree, program):
            continue
        doubt, fault = _doubt(tree, program), _fault(tree, program)
        if doubt:
            binding.undecided.append((program, doubt))
        elif fault:
            binding.faults.append((program, fault))
        else:
            binding.bound.append(program)
    binding.undecided += _started_by_systemd(tree, outcome)
    paths = {program.path for program in binding.bound}
    if paths:
        on_vfio = programs(rules.outcome(function(generation, "vfio-pci"), "add").run)
        binding.already = any(program.path in paths and not program.command.doubt for program in on_vfio)
    return binding


def _started_by_systemd(tree: Tree, outcome: Outcome) -> Iterator[tuple[Program, str]]:
    """Find services that rules have systemd start for the device, and that are about binding (systemd.device(5))."""
    for name in (outcome.properties.get("SYSTEMD_WANTS") or "").split():
        unit = units_of(tree).unit(name)
        for command, located in unit.commands() if unit is not None and unit.loadable else ():
            program = _program(Command(located.value, located.path, located.line), list(command.words))
            if _is_about_binding(tree, program):
                yield program, f"systemd runs it as {name}, when and with which outcome is not udev's to say"


def _is_about_binding(tree: Tree, program: Program) -> bool:
    """Whether a program has to do with binding, rather than with anything else that PCI devices cause."""
    if program.inline:
        return binds(program.inline)
    text = read(tree, program.path)
    if not text or text == ELF:
        name = posixpath.basename(program.path)
        return program.names_the_function and (
            "vfio" in name or "bind" in name or not tree.exists(program.path)
        )
    return binds(text)


def _doubt(tree: Tree, program: Program) -> str:
    if program.command.doubt:
        return f"it depends on {program.command.doubt}"
    if program.inline:
        return "it is shell commands without a script"
    if read(tree, program.path) == ELF:
        return f"{program.path} is a compiled program"
    return ""


def _fault(tree: Tree, program: Program) -> str:
    reason = unusable(tree, program.path, interpreted=bool(program.interpreter))
    if reason:
        return reason
    text = read(tree, program.path)
    if takes_bare_address(text):
        return "" if program.arguments[:1] == (ADDRESS,) else "is not run with the address of the function"
    takes_argument = "$1" in text or "${1" in text or "$@" in text
    return (
        "is run without the address of the function"
        if takes_argument and not program.names_the_function
        else ""
    )


def bindings(tree: Tree, profile: Profile) -> list[Binding]:
    """Judge the `add` event of a function of each VFIO generation of a profile."""
    return [tree.derive(_binding, g, profile.architecture) for g in vfio_generations(profile)]


def running_scripts(tree: Tree, profile: Profile) -> list[str]:
    """Give the paths of the scripts that bind an added function of every VFIO generation of a profile."""
    found = [{program.path for program in binding.bound} for binding in bindings(tree, profile)]
    return sorted(set.intersection(*found)) if found else []
