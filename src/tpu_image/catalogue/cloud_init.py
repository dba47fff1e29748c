"""Configuration of cloud-init that is baked into an image: whether it does what it says.

Sources: cloudinit/settings.py, helpers.py (ConfigMerger) and util.py (read_conf_with_confd) for what is read
and how it is merged; ds-identify for what makes a seed count.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.trees.base import Tree

if TYPE_CHECKING:
    from tpu_image.catalogue.cloud_init_problems import Problem

MAIN = "/etc/cloud/cloud.cfg"
DROP_INS = "/etc/cloud/cloud.cfg.d"
DISABLED = "/etc/cloud/cloud-init.disabled"
PROGRAMS = ("/usr/bin/cloud-init", "/usr/local/bin/cloud-init", MAIN)
SEEDS = ("/var/lib/cloud/seed/nocloud", "/var/lib/cloud/seed/nocloud-net")
SEED_FILES = ("user-data", "vendor-data")

PACKAGED = (MAIN, f"{DROP_INS}/05_logging.cfg", f"{DROP_INS}/90_dpkg.cfg")
"""Files that cloud-init's packages bring; they are read only where somebody changed them."""

DPKG_STATUS = "/var/lib/dpkg/status"
"""Holds the MD5 of each configuration file as packaged, on a line of its own below Conffiles."""


class BakedCloudConfig(Requirement):
    """Whatever cloud-config the image brings is taken as it is meant."""

    id = "image.cloud-config"
    title = "baked cloud-config does what it says"
    why = (
        "cloud-init ignores a file that does not parse and keys that it does not know, and says so in a log "
        "alone: scripts are then missing on every machine made from the image."
    )
    source = "document, section on changes at boot time; cloud-init, cc_write_files and cc_runcmd"
    remedy = "correct the file as told, then run: cloud-init schema --config-file FILE"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the system's configuration and NoCloud seeds."""
        del profile
        if not any(tree.is_file(path) for path in PROGRAMS):
            return self.skipped("the image has no cloud-init")
        if tree.exists(DISABLED):
            return self.skipped(f"cloud-init is disabled by {DISABLED}")
        texts = {path: tree.read_text(path) for path in _files(tree)}
        changed = _changed(tree, texts)
        if not changed:
            return self.passed("only cloud-init's own configuration is baked in")
        return self._judge(tree, texts, changed[0])

    def _judge(self, tree: Tree, texts: dict[str, str], changed: str) -> Verdict:
        from tpu_image.catalogue import cloud_init_problems
        from tpu_image.formats.yaml_text import PyYamlMissingError

        try:
            problems = cloud_init_problems.find(tree, texts)
        except PyYamlMissingError as error:
            return self.unknown(
                f"{error}: {changed}",
                Evidence(changed),
                remedy="install python3-yaml where tpu-image runs, then check again",
            )
        except cloud_init_problems.NotReadError as error:
            return self.unknown(f"{error.path} is not read: {error.reason}", Evidence(error.path, error.line))
        return self._verdict(problems, texts)

    def _verdict(self, problems: list[Problem], read: Iterable[str]) -> Verdict:
        if not problems:
            return self.passed(f"valid: {', '.join(read)}", *(Evidence(path) for path in read))
        ordered = sorted(problems, key=lambda problem: not problem.breaks)
        first = ordered[0]
        place = f"{first.path} line {first.line}" if first.line else first.path
        more = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
        evidence = [Evidence(p.path, p.line, found=p.message, expected=p.expected) for p in ordered]
        give = self.failed if first.breaks else self.warned
        return give(f"{place}: {first.message}{more}", *evidence)


def _files(tree: Tree) -> Iterator[str]:
    """Paths of what is baked in, in the order in which later ones win."""
    if tree.is_file(MAIN):
        yield MAIN
    yield from tree.files(DROP_INS, "*.cfg")
    for seed in SEEDS:
        yield from (path for name in SEED_FILES if tree.is_file(path := posixpath.join(seed, name)))


def _changed(tree: Tree, texts: Mapping[str, str]) -> list[str]:
    """Paths of the files that somebody wrote or edited; the others are as the package brought them."""
    packaged = [path for path in texts if path in PACKAGED and not _has_keys(texts[path])]
    edited = set(texts) - set(packaged)
    status = tree.read_bytes(DPKG_STATUS) if packaged and tree.is_file(DPKG_STATUS) else b""
    for path in packaged:
        _, _, rest = status.partition(f"\n {path} ".encode())
        if rest and not rest.startswith(_digest(texts[path])):
            edited.add(path)
    return [path for path in texts if path in edited]


def _has_keys(text: str) -> bool:
    return any(line.startswith(("write_files:", "runcmd:", "bootcmd:")) for line in text.splitlines())


def _digest(text: str) -> bytes:
    import hashlib

    data = text.encode("utf-8", "surrogateescape")
    return hashlib.md5(data, usedforsecurity=False).hexdigest().encode()
