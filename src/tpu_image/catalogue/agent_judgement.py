"""Whether what starts an agent brings it up at every boot: its image or program, privileges and arguments."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence

from tpu_image.catalogue import container_store, snaps
from tpu_image.catalogue.agent_starters import Problem, Services, Starter, Step
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.container_store import Container, Image
from tpu_image.catalogue.programs import why_not_found
from tpu_image.catalogue.requirement import Evidence, Status
from tpu_image.catalogue.systemd import Unit
from tpu_image.formats.container_command import ContainerCommand
from tpu_image.trees.base import Tree
from tpu_image.trees.below import Below

DOCKER_SERVICES = ("docker.service", "snap.docker.dockerd.service")
"""Units that are Docker's daemon, by whom it is packaged."""

TRUE = ("1", "yes", "y", "true", "t", "on")
"""Spellings of a true boolean (systemd.syntax(7))."""

CONFINING = ("DynamicUser", "PrivateNetwork", "PrivateDevices", "PrivateUsers")
"""Settings of a service that, where true, take away what ``--privileged --net=host`` gives."""

CONFIGURATION_SUFFIXES = (".yaml", ".yml")


def starters(services: Services, agent: Agent) -> list[Starter]:
    """Find everything that starts an agent, or would if it were enabled, and judge it."""
    found = [_service(services, agent, *found) for found in services.of(agent)]
    return [*found, *_containers(services, agent), *_snaps(services, agent)]


def _service(services: Services, agent: Agent, unit: Unit, steps: list[Step], step: Step) -> Starter:
    starter = Starter(unit.name, Evidence(step.path, step.line, found=" ".join(step.words)))
    if not services.units.starts_at_boot(unit.name):
        starter.starts = False
        starter.problem("is not enabled", expected=f"systemctl enable {unit.name}")
    if step.container is None:
        _judge_program(starter, services, agent, unit, step)
    elif step.container.action == "start":
        judge_engine(starter, services, step.container.engine)
        for container in container_store.containers(services.tree):
            if container.name in step.container.operands:
                _judge_container(starter, agent, container)
    else:
        _ContainerRun(starter, services, agent, unit, steps, step.container).judge()
    return starter


def _judge_program(starter: Starter, services: Services, agent: Agent, unit: Unit, step: Step) -> None:
    settings = unit.configuration
    root = settings.last("Service", "RootDirectory")
    program = step.words[0]
    path = program if root is None else posixpath.join(root.value, program.lstrip("/"))
    tree = services.tree if root is None else Below(services.tree, root.value)
    problem = why_not_found(tree, program)
    if problem:
        starter.problem(f"runs {path}, which {problem}", expected="an executable program")
    user = settings.last("Service", "User")
    other = agent.needs_root and user is not None and user.value not in ("root", "0")
    confined = [f"User={user.value}"] if other and user is not None else []
    for key in CONFINING:
        setting = settings.last("Service", key)
        if setting is not None and setting.value.lower() in TRUE:
            confined.append(f"{key}={setting.value}")
    for setting_text in confined:
        expected = "all privileges and the machine's own network"
        starter.problem(f"confines the agent by {setting_text}", found=setting_text, expected=expected)
    judge_arguments(starter, agent, step.words[1:])


def judge_arguments(starter: Starter, agent: Agent, words: Sequence[str]) -> None:
    """Compare the arguments of a command with those of the document, word for word."""
    # A container may run a shell that is given the whole command as one word.
    words = [part for word in words for part in (word.split() or [word])]
    missing = [argument for argument in agent.arguments if argument not in words]
    expected = " ".join(agent.arguments)
    if missing:
        variable = next((word for word in words if "$" in word), "")
        status = Status.UNKNOWN if variable else Status.FAIL
        source = f", unless {variable} holds it" if variable else ""
        starter.problem(
            f"runs the {agent.name} without {' '.join(missing)}{source}", expected=expected, status=status
        )
        return
    extra = [word for word in words if word.startswith("--") and word not in agent.arguments]
    if agent.arguments and extra:
        message = f"gives it more than the document does: {' '.join(extra)}"
        starter.problem(message, expected=expected, status=Status.WARN)


class _ContainerRun:
    """A service that runs the agent's image, being judged."""

    def __init__(
        self,
        starter: Starter,
        services: Services,
        agent: Agent,
        unit: Unit,
        steps: list[Step],
        command: ContainerCommand,
    ) -> None:
        self._starter = starter
        self._services = services
        self._tree = services.tree
        self._agent = agent
        self._unit = unit
        self._steps = steps
        self._command = command

    def judge(self) -> None:
        judge_engine(self._starter, self._services, self._command.engine)
        image = self._judge_image()
        judge_privileges(
            self._starter,
            privileged=self._command.flag("privileged"),
            host_network=self._command.last("network") == "host",
        )
        judge_arguments(self._starter, self._agent, self._arguments(image))
        for source in self._configurations():
            judge_configuration(self._starter, self._tree, source)
        self._judge_second_boot()
        self._judge_terminal()

    def _judge_image(self) -> Image | None:
        reference = self._command.image
        if "$" in reference:
            message = f"takes its image from a variable: {reference}"
            self._starter.problem(message, expected=self._agent.image, status=Status.UNKNOWN)
            return None
        image = container_store.find_image(self._tree, reference)
        pulled = self._is_pulled(reference)
        if pulled:
            message = f"pulls {reference} from the network at boot"
            self._starter.problem(message, expected="an image kept in the base", status=Status.WARN)
        elif image is None:
            self._judge_archives(reference)
        return image

    def _is_pulled(self, reference: str) -> bool:
        if self._command.last("pull") == "always":
            return True
        return any(
            step.container is not None
            and step.container.action == "pull"
            and container_store.familiar(step.container.image) == container_store.familiar(reference)
            for step in self._steps
        )

    def _judge_archives(self, reference: str) -> None:
        """Accept an image that a service loads from an archive; what is in the archive is not looked at."""
        archives = [archive for step in self._loads() if (archive := step.container_input)]
        if any(self._tree.is_file(archive) for archive in archives):
            return
        if archives:
            self._starter.problem(
                f"needs the archive {archives[0]}, which is not there", expected=archives[0]
            )
            return
        others = [
            image.reference
            for image in container_store.images(self._tree)
            if self._agent.is_image(image.reference)
        ]
        known = f" (there is {others[0]})" if others else ""
        self._starter.problem(
            f"runs the image {reference}, which is not kept in the base{known}", expected=self._agent.image
        )

    def _loads(self) -> Iterator[Step]:
        yield from (step for step in self._steps if step.container and step.container.action == "load")
        yield from self._services.loading()

    def _arguments(self, image: Image | None) -> tuple[str, ...]:
        """What the agent gets: the words behind the image, or the image's own."""
        given = self._command.operands[1:]
        entrypoint = self._command.last("entrypoint")
        if image is None or entrypoint:
            return (entrypoint, *given)
        return (*image.entrypoint, *(given or image.arguments))

    def _configurations(self) -> Iterator[str]:
        """Files of the machine that are mounted as the agent's configuration."""
        options = self._command.options
        for value in options.get("volume", ()):
            yield value.partition(":")[0]
        for value in options.get("mount", ()):
            fields = dict(part.partition("=")[::2] for part in value.split(","))
            yield fields.get("source", fields.get("src", ""))

    def _judge_second_boot(self) -> None:
        name = self._command.last("name")
        if self._command.flag("rm") or self._command.flag("replace"):
            return
        if self._command.last("restart").partition(":")[0] in container_store.RESTARTED:
            if not name:
                message = "makes one more container at every boot, beside those that Docker restarts"
                self._starter.problem(message, expected="--rm, or no --restart", status=Status.WARN)
            return
        actions = [step.container for step in self._steps if step.container is not None]
        removed = any(c.action in ("rm", "start") and name in c.operands for c in actions)
        if name and not removed:
            message = f"cannot make its container {name} again at the second boot: the first one is kept"
            self._starter.problem(message, expected="--rm")

    def _judge_terminal(self) -> None:
        flag = self._command.flag
        standard_input = self._unit.configuration.last("Service", "StandardInput")
        on_terminal = standard_input is not None and standard_input.value.startswith("tty")
        if flag("tty") and flag("interactive") and not flag("detach") and not on_terminal:
            self._starter.problem("asks for a terminal, which a service does not have", expected="no -it")


def judge_privileges(starter: Starter, *, privileged: bool, host_network: bool) -> None:
    """Note what a container lacks that the document gives it."""
    if not privileged:
        starter.problem("runs its container without --privileged", expected="--privileged")
    if not host_network:
        starter.problem("runs its container without --net=host", expected="--net=host")


def judge_configuration(starter: Starter, tree: Tree, path: str) -> None:
    """Note that a mounted YAML file is not there, from which Docker makes a directory, or does not parse."""
    if not path.startswith("/") or not path.endswith(CONFIGURATION_SUFFIXES):
        return
    text = tree.read_text_if_present(path)
    if text is None:
        starter.problem(f"mounts {path}, which is not there", expected=path)
        return
    from tpu_image.formats import yaml_text

    try:
        yaml_text.parse(text)
    except yaml_text.PyYamlMissingError as error:
        starter.problem(f"mounts {path}: {error}", status=Status.UNKNOWN)
    except yaml_text.YamlError as error:
        evidence = Evidence(path, error.line, found=error.reason, expected="YAML")
        starter.problems.append(
            Problem(Status.FAIL, f"mounts {path}, which does not parse: {error}", evidence)
        )


def judge_engine(starter: Starter, services: Services, engine: str) -> None:
    """Note that the program that runs a container, or the daemon behind it, is not there."""
    problem = why_not_found(services.tree, engine)
    if problem:
        starter.problem(f"needs {engine}, which {problem}", expected=f"the program {engine}")
    elif posixpath.basename(engine) == "docker":
        judge_daemon(starter, services, "docker.socket")


def judge_daemon(starter: Starter, services: Services, *sockets: str) -> None:
    """Note that Docker's daemon is not there or not started; a client also starts it by its socket."""
    units = services.units
    present = [name for name in DOCKER_SERVICES if (unit := units.unit(name)) is not None and unit.loadable]
    if not present:
        starter.problem(
            "needs Docker's daemon, and the image has no docker.service", expected="docker.service"
        )
    elif not any(units.starts_at_boot(name) for name in (*present, *sockets)):
        starter.problem(
            "needs Docker's daemon, which does not start at boot", expected=f"{present[0]} enabled"
        )


def _containers(services: Services, agent: Agent) -> Iterator[Starter]:
    """Containers that Docker's daemon starts at boot by itself."""
    for container in container_store.containers(services.tree):
        if agent.is_image(container.image) and container.restarted:
            command = " ".join(container.command)
            starter = Starter(f"container {container.name}", Evidence(container.path, found=command))
            judge_daemon(starter, services)
            _judge_container(starter, agent, container)
            yield starter


def _judge_container(starter: Starter, agent: Agent, container: Container) -> None:
    judge_privileges(starter, privileged=container.privileged, host_network=container.host_network)
    judge_arguments(starter, agent, container.command[1:])


def _snaps(services: Services, agent: Agent) -> Iterator[Starter]:
    """The agent's classic snap, installed or to be installed from the seed at the first boot."""
    tree, units = services.tree, services.units
    installed, seeded = snaps.installed(tree, agent.snap), snaps.seeded(tree, agent.snap)
    if not installed and not seeded:
        return
    starter = Starter(f"snap {agent.snap}", Evidence(installed or seeded))
    if not snaps.has_snapd(tree):
        starter.problem("needs snapd, which the image does not have", expected=snaps.SNAPD[0])
    names = [n for n in units.names() if n.startswith(f"snap.{agent.snap}.") and n.endswith(".service")]
    if installed and not any(units.starts_at_boot(name) for name in names):
        starter.starts = False
        what = f"service {names[0]} is" if names else "service is absent, so"
        starter.problem(
            f"does not start: its {what} not enabled", expected=f"snap start --enable {agent.snap}"
        )
    elif not installed and not snaps.is_listed(tree, agent.snap):
        starter.problem("is not listed in the seed", expected=f"an entry in {snaps.SEED_LIST}")
    yield starter
