"""Agents that Google publishes as containers and snaps: Compute Engine needs them in the image, GKE does not.

One class for all of them: what differs is an :class:`~tpu_image.catalogue.agents.Agent`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tpu_image.catalogue import agent_record
from tpu_image.catalogue.agent_record import AGENTS, Record
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.requirement import Evidence, Platform, Profile, Requirement, Status, Verdict
from tpu_image.trees.base import Tree

if TYPE_CHECKING:
    from tpu_image.catalogue.agent_starters import Services, Starter

PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/opt")
ARCHIVE_DIRECTORIES = (AGENTS, "/usr/lib/tpu-image", "/var/lib/tpu-image", "/opt", "/srv", "/root")
"""Where people leave the archive of a container image."""


class Presence(NamedTuple):
    """A form in which an agent is in an image, and the command that takes it out."""

    kind: str
    name: str
    path: str
    removal: str

    @property
    def title(self) -> str:
        """What it is, in a sentence."""
        return f"{self.kind} {self.name}"


class ContainerAgent(Requirement):
    """An agent is in the image and started at every boot; for GKE, which brings its own, it is not there."""

    agent: Agent
    otherwise: str
    """What else a user may do, as the end of a sentence."""

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge by what a boot would start, not by what is merely there."""
        from tpu_image.catalogue.agent_judgement import starters
        from tpu_image.catalogue.agent_starters import Services

        services = Services(tree)
        if profile.platform is Platform.GKE:
            return self._absent(services)
        found = starters(services, self.agent)
        if not found:
            return self._never_started(services)
        good = [starter for starter in found if not starter.fails]
        if not good:
            return self._failing(found)
        known = agent_record.record(tree, self.agent.program)
        return self._started(good[0], [starter for starter in found if starter.starts], known)

    def _started(self, starter: Starter, starting: list[Starter], record: Record | None) -> Verdict:
        evidence = [starter.evidence]
        if starter.name != self.agent.unit:
            record = None
        if record is not None:
            path = agent_record.record_path(self.agent.program)
            evidence.append(Evidence(path, found=f"{record.reference} {record.digest}".strip()))
        if len(starting) > 1:
            return self.warned(
                f"the {self.agent.name} is started more than once: {' and '.join(s.name for s in starting)}",
                *(one.evidence for one in starting),
                remedy="keep one of them, and disable the other",
            )
        if not starter.problems:
            return self.passed(
                f"{starter.name} starts the {self.agent.name} at every boot{_image(record)}", *evidence
            )
        undecided = [problem for problem in starter.problems if problem.status is Status.UNKNOWN]
        give = self.unknown if undecided else self.warned
        shown = undecided or starter.problems
        return give(
            starter.told(shown),
            *(problem.evidence for problem in shown),
            remedy=f"write it in {starter.name} as the document has it",
        )

    def _failing(self, found: list[Starter]) -> Verdict:
        """Name every missing piece of what comes nearest: what is enabled before what is not."""
        nearest = min(found, key=lambda starter: (not starter.starts, len(starter.problems)))
        failing = [problem for problem in nearest.problems if problem.status is Status.FAIL]
        return self.failed(
            nearest.told(failing),
            *(problem.evidence for problem in failing),
            remedy=f"correct {nearest.name}, or {self.otherwise}",
        )

    def _never_started(self, services: Services) -> Verdict:
        there = list(self._presences(services))
        if there:
            return self.failed(
                f"the image has the {self.agent.name} ({there[0].title}), and nothing starts it at boot",
                *(Evidence(presence.path, found=presence.title) for presence in there),
            )
        return self.failed(f"the image has no {self.agent.name}: no unit, container image, program or snap")

    def presences(self, tree: Tree) -> list[Presence]:
        """Every form in which the agent is in an image: what starts it, and what it is itself."""
        from tpu_image.catalogue.agent_starters import Services

        services = Services(tree)
        return [*self._units(services), *self._presences(services)]

    def _absent(self, services: Services) -> Verdict:
        there = self.presences(services.tree)
        if not there:
            return self.passed(f"the {self.agent.name} is left to GKE, which brings its own")
        return self.failed(
            f"GKE brings the {self.agent.name} itself, and the image has it too: "
            + ", ".join(presence.title for presence in there),
            *(Evidence(presence.path, found=presence.title, expected="absent") for presence in there),
            remedy="; ".join(dict.fromkeys(presence.removal for presence in there)),
        )

    def _units(self, services: Services) -> Iterator[Presence]:
        for unit, _, _ in services.of(self.agent):
            yield Presence("unit", unit.name, unit.path, f"systemctl disable {unit.name} && rm {unit.path}")

    def _presences(self, services: Services) -> Iterator[Presence]:
        """Every form in which the agent itself is there, started or not."""
        from tpu_image.catalogue import snaps

        tree, agent = services.tree, self.agent
        for path in (snaps.installed(tree, agent.snap), snaps.seeded(tree, agent.snap)):
            if path:
                yield Presence("snap", agent.snap, path, f"snap remove --purge {agent.snap}; rm -f {path}")
        for directory in PROGRAM_DIRECTORIES:
            if tree.is_file(path := f"{directory}/{agent.program}"):
                yield Presence("program", path, path, f"rm {path}")
        if tree.is_directory(path := f"{AGENTS}/{agent.program}"):
            yield Presence("unpacked image", path, path, f"rm -r {path}")
        for directory in ARCHIVE_DIRECTORIES:
            for name in tree.names(directory, f"*{agent.program}*.tar*"):
                path = posixpath.join(directory, name)
                yield Presence("container archive", path, path, f"rm {path}")
        yield from self._in_stores(tree)

    def _in_stores(self, tree: Tree) -> Iterator[Presence]:
        from tpu_image.catalogue import container_store

        for container in container_store.containers(tree):
            if self.agent.is_image(container.image):
                yield Presence("container", container.name, container.path, f"docker rm -f {container.name}")
        for image in container_store.images(tree):
            if self.agent.is_image(image.reference):
                engine = "podman" if image.path == container_store.PODMAN_IMAGES else "docker"
                yield Presence(
                    "container image", image.reference, image.path, f"{engine} rmi {image.reference}"
                )
        if container_store.is_in_containerd(tree, self.agent.image):
            yield Presence(
                "container image",
                self.agent.image,
                container_store.CONTAINERD_NAMES,
                f"ctr --namespace moby images rm {self.agent.image}",
            )


def _image(record: Record | None) -> str:
    """Say which image an agent is of, in the middle of a sentence."""
    return f" (image {record.digest})" if record is not None and record.digest else ""
