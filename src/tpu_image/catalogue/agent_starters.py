"""What starts an agent at boot: systemd services, snaps, containers that Docker restarts; and what is wrong.

A service may run the agent's program, ask a container engine to run its image, or do either through a shell.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from tpu_image.catalogue import container_store
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.requirement import Evidence, Status
from tpu_image.catalogue.systemd import Unit, units_of
from tpu_image.formats import FormatError, container_command
from tpu_image.formats.container_command import ContainerCommand
from tpu_image.formats.shell_commands import split_commands
from tpu_image.formats.systemd_command import split_words
from tpu_image.formats.systemd_unit import UNIT_DIRECTORIES, split_name, template_of
from tpu_image.trees.base import NotAFileError, NotFoundError, TooLargeError, Tree

LOCAL_UNITS = ("/etc/systemd/system", "/usr/local/lib/systemd/system")
"""Where units that a person wrote are: only of these are scripts looked into for the agent."""
SHELLS = ("sh", "bash", "dash")
SCRIPT_LIMIT = 256 * 1024
NESTING_LIMIT = 3
"""Shells that call one another, at most."""
TEXT_LIMIT = 2 * 1024 * 1024
"""Characters of scripts that are followed in one tree, at most."""
STEP_LIMIT = 20_000
"""Commands that are followed in one tree, at most."""
EXPANDED_LIMIT = 64 * 1024
"""Characters of a word that variables are filled into, at most."""
COMMAND_KEYS = ("ExecStartPre", "ExecStart", "ExecStartPost", "ExecStop", "ExecStopPost")


class Problem(NamedTuple):
    """One reason for which a starter fails, or is to be looked at; its name goes before the message."""

    status: Status
    message: str
    evidence: Evidence


class Starter:
    """Something that runs an agent, be it at every boot or not.

    Attributes:
        starts: whether anything starts it at boot, well or not.
    """

    def __init__(self, name: str, evidence: Evidence) -> None:
        self.name = name
        self.evidence = evidence
        self.problems: list[Problem] = []
        self.starts = True

    def problem(
        self, message: str, *, found: str = "", expected: str = "", status: Status = Status.FAIL
    ) -> None:
        """Note what is wrong, at the place where the starter stands."""
        evidence = Evidence(self.evidence.path, self.evidence.line, found or self.evidence.found, expected)
        self.problems.append(Problem(status, message, evidence))

    def told(self, problems: Sequence[Problem]) -> str:
        """Give problems of it in one line."""
        return f"{self.name} {'; '.join(problem.message for problem in problems)}"

    @property
    def fails(self) -> bool:
        """Whether it does not bring the agent up."""
        return any(problem.status is Status.FAIL for problem in self.problems)


class Step(NamedTuple):
    """One command that a service runs, shells taken away; ``source`` is the file that is its input."""

    words: tuple[str, ...]
    source: str
    path: str
    line: int
    container: ContainerCommand | None

    @property
    def container_input(self) -> str:
        """The archive that a ``load`` reads."""
        return (self.container.last("input") if self.container else "") or self.source


class Services:
    """The services of a tree, and the commands they run."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.units = units_of(tree)
        self._characters = 0
        self._steps = 0

    def of(self, agent: Agent) -> Iterator[tuple[Unit, list[Step], Step]]:
        """Services that run an agent: the unit, all its steps, and the one that runs the agent."""
        containers = {one.name for one in container_store.containers(self.tree) if agent.is_image(one.image)}
        for unit in self._candidates(agent):
            steps = self.steps(unit)
            running = next((step for step in steps if runs(step, agent, containers)), None)
            running = running or _unpacked(unit, agent, steps)
            if running is not None:
                yield unit, steps, running

    def _candidates(self, agent: Agent) -> Iterator[Unit]:
        names = [*self._mentioning(agent.program)]
        for directory in LOCAL_UNITS:
            names += self.tree.names(directory, "*.service")
        yield from self._loadable(names)

    def loading(self) -> Iterator[Step]:
        """Steps of services at boot that load an image from an archive."""
        for unit in self._loadable(self._mentioning(" load")):
            for step in self.steps(unit):
                loads = step.container is not None and step.container.action == "load"
                if loads and self.units.starts_at_boot(unit.name):
                    yield step

    def _loadable(self, names: Iterable[str]) -> Iterator[Unit]:
        seen: set[str] = set()
        for name in (instance for given in names for instance in self._instances(given)):
            unit = self.units.unit(name)
            if unit is not None and unit.loadable and unit.name not in seen:
                seen.add(unit.name)
                yield unit

    def _instances(self, name: str) -> list[str]:
        """Give the instances of a template that something names, or the unit itself."""
        if split_name(name)[1] != "":
            return [name]
        return [instance for instance in self.units.names() if template_of(instance) == name] or [name]

    def _mentioning(self, text: str) -> Iterator[str]:
        """Names of services with a file or drop-in that holds a text; units that do not are never parsed."""
        for directory in dict.fromkeys(self.tree.resolve(directory) for directory in UNIT_DIRECTORIES):
            for entry in self.tree.names(directory, "*.service*"):
                path = f"{directory}/{entry}"
                is_extension = entry.endswith(".service.d")
                paths = self.tree.files(path, "*.conf") if is_extension else [path]
                if any(text in self._text(path) for path in paths):
                    yield entry.removesuffix(".d")

    def _text(self, path: str) -> str:
        try:
            return self.tree.read_text(path)
        except (NotFoundError, NotAFileError):
            return ""

    def steps(self, unit: Unit) -> list[Step]:
        """Everything that a service runs, in order."""
        variables = _variables(unit)
        found: list[Step] = []
        for key in COMMAND_KEYS:
            for command, located in unit.commands(key):
                words = _expanded(command.words, variables)
                found += self._unwrap(words, located.path, located.line, variables, NESTING_LIMIT)
        return found

    def _unwrap(
        self, words: Sequence[str], path: str, line: int, variables: dict[str, str], depth: int
    ) -> Iterator[Step]:
        """Give the commands behind a command: those of its script or shell text, or itself."""
        self._steps += 1
        if self._steps > STEP_LIMIT or self._characters > TEXT_LIMIT:
            raise FormatError(f"{path}: services run more commands than are followed", line)
        words = _without_env(words)
        script = self._script(words) if depth else None
        if not words or script is None:
            container = container_command.parse(words)
            yield Step(tuple(words), "", path, line, container)
            return
        text, place = script
        self._characters += len(text)
        for command in split_commands(text, variables):
            at = (place, command.line) if place else (path, line)
            for step in self._unwrap(command.words, *at, variables, depth - 1):
                yield Step(step.words, step.source or command.source, step.path, step.line, step.container)

    def _script(self, words: Sequence[str]) -> tuple[str, str] | None:
        """Give the shell text that a command runs and the path it is from (empty: from the command line)."""
        if not words:
            return None
        program = posixpath.basename(words[0])
        if program in SHELLS:
            for place, word in enumerate(words[1:], 1):
                if word.startswith("-") and "c" in word and not word.startswith("--"):
                    return (words[place + 1], "") if place + 1 < len(words) else None
                if not word.startswith("-"):
                    text = self._read(word)
                    return None if text is None else (text, word)
            return None
        text = self._read(words[0])
        return (text, words[0]) if text is not None and _is_shell_script(text) else None

    def _read(self, path: str) -> str | None:
        if not path.startswith("/") or not self.tree.is_file(path):
            return None
        try:
            return self.tree.read_text(path, SCRIPT_LIMIT)
        except (NotFoundError, TooLargeError):
            return None


def runs(step: Step, agent: Agent, containers: Collection[str]) -> bool:
    """Whether a step runs the agent: its program, its image, or one of the given containers of it."""
    command = step.container
    if command is None:
        return bool(step.words) and posixpath.basename(step.words[0]) == agent.program
    if command.action == "start":
        return any(name in containers for name in command.operands)
    return command.action == "run" and agent.is_image(command.image)


def _unpacked(unit: Unit, agent: Agent, steps: Iterable[Step]) -> Step | None:
    """Give the step that runs the agent in its unpacked image, where the image starts it by another name."""
    root = unit.configuration.last("Service", "RootDirectory")
    if root is None or root.value != f"{AGENTS}/{agent.program}":
        return None
    starts = [(located.path, located.line) for _, located in unit.commands()]
    return next((step for step in steps if (step.path, step.line) in starts), None)


def _is_shell_script(text: str) -> bool:
    """Whether the first line names a shell, be it through env."""
    first = text.partition("\n")[0]
    interpreter = _without_env(first[2:].split()) if first.startswith("#!") else []
    return bool(interpreter) and posixpath.basename(interpreter[0]) in SHELLS


def _without_env(words: Sequence[str]) -> Sequence[str]:
    """Take ``env NAME=value`` away from the front of a command."""
    if not words or posixpath.basename(words[0]) != "env":
        return words
    rest = list(words[1:])
    while rest and ("=" in rest[0] or rest[0].startswith("-")):
        rest.pop(0)
    return rest


def _variables(unit: Unit) -> dict[str, str]:
    """What ``Environment=`` of a service sets."""
    variables: dict[str, str] = {}
    for located in unit.configuration.values("Service", "Environment"):
        try:
            words = split_words(located.value)
        except FormatError:
            continue
        variables.update(word.partition("=")[::2] for word in words if word)
    return variables


def _expanded(words: Sequence[str], variables: dict[str, str]) -> list[str]:
    """Fill in as systemd does: a word that is ``$NAME`` becomes words, ``${NAME}`` a part of one."""
    expanded: list[str] = []
    for word in words:
        if word.startswith("$") and word[1:] in variables:
            expanded += variables[word[1:]].split()
            continue
        for name, value in variables.items():
            written = f"${{{name}}}"
            if len(word) + word.count(written) * len(value) <= EXPANDED_LIMIT:
                word = word.replace(written, value)
        expanded.append(word)
    return expanded
