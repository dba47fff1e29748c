"""What Google stands behind: the distribution and the architecture (R15).

Source: the document, its note "Importante" and the list of certified images (hardware.py); processors of TPU machine
types are x86-64 (Compute Engine, accelerator-optimised machine types).
"""

from __future__ import annotations

from tpu_image.catalogue.distribution import distribution_of
from tpu_image.catalogue.programs import architecture_of
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.trees.base import Tree

PROGRAMS_OF_EVERY_SYSTEM = ("/usr/lib/systemd/systemd", "/sbin/init", "/bin/sh", "/bin/bash", "/usr/bin/env")


class SupportedDistribution(Requirement):
    """The release is the one that Google certifies for the generations."""

    id = "support.distribution"
    title = "the distribution is an Ubuntu release that Google certifies for these TPUs"
    why = "On any other the changes may work, and making sure of it is up to you."
    source = "document, note “Importante” (R15); image families of ubuntu-os-accelerator-images"
    remedy = "before you rely on it, on a TPU VM made from the image: tpu-image check"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Compare os-release with what is certified; it never fails."""
        found = distribution_of(tree)
        name = found.name or "a distribution without os-release"
        uncertified = [
            generation
            for generation in profile.generations
            if (found.id, found.version) != ("ubuntu", generation.certified_ubuntu)
        ]
        if not uncertified:
            names = ", ".join(generation.name for generation in profile.generations)
            return self.passed(f"{name} is certified for {names}", Evidence(found.path, found=name))
        wanted: dict[str, list[str]] = {}
        for generation in uncertified:
            release = f"Ubuntu {generation.certified_ubuntu}" if generation.certified_ubuntu else "no release"
            wanted.setdefault(release, []).append(generation.name)
        expected = "; ".join(f"{release} for {', '.join(names)}" for release, names in wanted.items())
        return self.warned(
            f"{name} is not what Google certifies ({expected}): making it work is up to you",
            Evidence(found.path or "/etc/os-release", found=name, expected=expected),
        )


class SupportedArchitecture(Requirement):
    """The programs of the image run on the processors of TPU machines."""

    id = "support.architecture"
    title = "the image is made for x86-64 processors"
    why = "Machine types with TPUs have x86-64 processors."
    source = "Compute Engine machine types with TPUs"
    remedy = "start from the amd64 edition of the base image"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge by the ELF header of a program that every system has."""
        for path in PROGRAMS_OF_EVERY_SYSTEM:
            found = architecture_of(tree, path)
            if not found:
                continue
            evidence = Evidence(path, found=found, expected=profile.architecture)
            if found == profile.architecture == "x86_64":
                return self.passed(f"programs are made for {found}", evidence)
            return self.failed(f"{path} is made for {found}, TPU machines have x86_64 processors", evidence)
        looked = ", ".join(PROGRAMS_OF_EVERY_SYSTEM)
        return self.unknown(
            f"none of {looked} is a program: is this the root of a system?",
            remedy="name the directory that holds etc, usr and the like",
        )


REQUIREMENTS: tuple[Requirement, ...] = (SupportedDistribution(), SupportedArchitecture())
