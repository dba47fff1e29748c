"""Configuration of cloud-init that is baked into an image: whether it does what it says.

Sources: cloudinit/settings.py, helpers.py (ConfigMerger) and util.py (read_conf_with_confd) for what is read
and how it is merged; ds-identify for what makes a seed count.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.formats import cloud_config
from tpu_image.formats.cloud_config import CloudConfig
from tpu_image.formats.yaml_text import Node, PyYamlMissingError, Scalar, Sequence, YamlError, YamlLimitError
from tpu_image.trees.base import Tree

MAIN = "/etc/cloud/cloud.cfg"
DROP_INS = "/etc/cloud/cloud.cfg.d"
DISABLED = "/etc/cloud/cloud-init.disabled"
PROGRAMS = ("/usr/bin/cloud-init", "/usr/local/bin/cloud-init", MAIN)
SEEDS = ("/var/lib/cloud/seed/nocloud", "/var/lib/cloud/seed/nocloud-net")
SEED_FILES = ("user-data", "vendor-data")
SEED_MAKES = ("meta-data", "user-data")
"""The files that make cloud-init take a seed."""

PACKAGED = (MAIN, f"{DROP_INS}/05_logging.cfg", f"{DROP_INS}/90_dpkg.cfg")
"""Files that cloud-init's packages bring; they are read only where somebody changed them."""

DPKG_STATUS = "/var/lib/dpkg/status"
"""Holds the MD5 of each configuration file as packaged, on a line of its own below Conffiles."""

EVERY_BOOT_PARTS = ("/var/scripts/", "/home/tpu-runtime", "vbar_control_agent", "bind_to_vfio_pci")
"""What a command that must run at every boot mentions (document, section on changes at boot time)."""


@dataclass(frozen=True)
class Problem:
    """One thing to tell of one file."""

    path: str
    line: int
    message: str
    expected: str = ""
    breaks: bool = True


class BakedCloudConfig(Requirement):
    """Whatever cloud-config the image brings is taken as it is meant."""

    id = "image.cloud-config"
    title = "Baked cloud-config does what it says"
    why = (
        "cloud-init ignores a file that does not parse and keys that it does not know, and says so in a log "
        "alone: scripts are then missing on every machine made from the image."
    )
    source = "document, section on changes at boot time; cloud-init, cc_write_files and cc_runcmd"
    remedy = "correct the file, then run: cloud-init schema --config-file FILE"

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the system's configuration and NoCloud seeds."""
        del profile
        if not any(tree.is_file(path) for path in PROGRAMS):
            return self.skipped("the image has no cloud-init")
        if tree.exists(DISABLED):
            return self.skipped(f"cloud-init is disabled by {DISABLED}")
        texts = {path: tree.read_text(path) for path in _files(tree)}
        changed = [path for path in texts if _is_changed(tree, path, texts[path])]
        if not changed:
            return self.passed("only cloud-init's own configuration is baked in")
        try:
            return self._judge(tree, texts)
        except PyYamlMissingError as error:
            return self.unknown(
                f"{error}: {changed[0]}",
                Evidence(changed[0]),
                remedy="install python3-yaml where tpu-image runs, then check again",
            )

    def _judge(self, tree: Tree, texts: dict[str, str]) -> Verdict:
        accounts = _accounts(tree)
        configs: dict[str, CloudConfig] = {}
        problems: list[Problem] = []
        for path, text in texts.items():
            if not _is_read(path, text):
                problems += _ignored(path, text)
                continue
            try:
                configs[path] = cloud_config.read(text, accounts)
            except YamlLimitError as error:
                return self.unknown(f"{path} is not read: {error}", Evidence(path, error.line))
            except YamlError as error:
                message = f"{error.reason}: cloud-init ignores the whole file"
                problems.append(Problem(path, error.line, message, expected="a mapping in YAML"))
        problems += [problem for path in configs for problem in _problems(path, configs[path])]
        problems += _once_per_instance(configs)
        problems += _seed_problems(tree, configs)
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


def _is_changed(tree: Tree, path: str, text: str) -> bool:
    """Whether somebody wrote or edited the file, rather than cloud-init's package."""
    if path not in PACKAGED:
        return True
    if any(line.startswith(tuple(f"{key}:" for key in cloud_config.KEYS)) for line in text.splitlines()):
        return True
    status = tree.read_text_if_present(DPKG_STATUS) or ""
    _, found, rest = status.partition(f"\n {path} ")
    if not found:
        return False
    import hashlib

    digest = hashlib.md5(text.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
    return not rest.startswith(digest)


def _is_seed(path: str) -> bool:
    return path.startswith(SEEDS)


def _is_read(path: str, text: str) -> bool:
    """Whether the file is a cloud-config as it stands: not a template, not user-data of another kind."""
    if _is_seed(path):
        return cloud_config.is_cloud_config(text)
    return not text.startswith(cloud_config.TEMPLATE_HEADER)


def _ignored(path: str, text: str) -> list[Problem]:
    if cloud_config.is_user_data(text):
        return []
    return [Problem(path, 1, "does not begin with #cloud-config: cloud-init ignores it", "#cloud-config")]


def _problems(path: str, config: CloudConfig) -> list[Problem]:
    return [Problem(path, f.line, f.message, f.expected, f.breaks) for f in config.findings]


def _accounts(tree: Tree) -> cloud_config.Accounts:
    """The users and groups that exist when cloud-init writes files, those of sysusers.d(5) among them."""
    users = _first_fields(tree.read_text_if_present("/etc/passwd") or "")
    groups = _first_fields(tree.read_text_if_present("/etc/group") or "")
    for directory in ("/usr/lib/sysusers.d", "/etc/sysusers.d"):
        for path in tree.files(directory, "*.conf"):
            for line in tree.read_text(path).splitlines():
                words = line.split(None, 2)
                if len(words) > 1 and words[0][0] in "ug":
                    groups.add(words[1])
                    if words[0][0] == "u":
                        users.add(words[1])
    return cloud_config.Accounts(users, groups)


def _first_fields(text: str) -> set[str]:
    return {line.partition(":")[0] for line in text.splitlines()}


def _once_per_instance(configs: Mapping[str, CloudConfig]) -> Iterator[Problem]:
    """Find what a TPU image needs at every boot and cloud-init does at the first one alone."""
    runs_always = _module_runs_always(configs, "cloud_final_modules", "scripts_user")
    for path, config in configs.items():
        replaced = "" if _is_seed(path) else ", and a user's own {} replaces it"
        for command in config.runcmd:
            if not runs_always and any(part in command.text for part in EVERY_BOOT_PARTS):
                message = "runs at the first boot alone" + replaced.format("runcmd")
                yield Problem(path, command.line, message, "a systemd unit, or bootcmd", breaks=False)
        for file in config.files:
            if replaced and any(file.path.startswith(part) for part in EVERY_BOOT_PARTS):
                message = f"{file.path} is written at the first boot alone" + replaced.format("write_files")
                yield Problem(path, file.line, message, "the file itself in the image", breaks=False)


def _effective(configs: Mapping[str, CloudConfig], key: str) -> Node | None:
    """The value of a key of the system's configuration: lists are not merged, the last file decides."""
    values = [config.root.get(key) for path, config in configs.items() if not _is_seed(path)]
    return next((value for value in reversed(values) if value is not None), None)


def _module_runs_always(configs: Mapping[str, CloudConfig], stage: str, module: str) -> bool:
    modules = _effective(configs, stage)
    for item in modules.items if isinstance(modules, Sequence) else ():
        words = (
            [word.text for word in item.items if isinstance(word, Scalar)]
            if isinstance(item, Sequence)
            else []
        )
        if len(words) > 1 and words[0].replace("-", "_") == module and words[1] == "always":
            return True
    return False


def _seed_problems(tree: Tree, configs: Mapping[str, CloudConfig]) -> Iterator[Problem]:
    sources = _effective(configs, "datasource_list")
    names = (
        [item.text for item in sources.items if isinstance(item, Scalar)]
        if isinstance(sources, Sequence)
        else []
    )
    if names and "NoCloud" not in names:
        return
    for seed in SEEDS:
        if all(tree.is_file(posixpath.join(seed, name)) for name in SEED_MAKES):
            message = "a baked seed: cloud-init takes it and does not ask Compute Engine for user-data"
            yield Problem(seed, 0, message, "no seed, or a datasource_list without NoCloud", breaks=False)
