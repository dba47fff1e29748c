"""What is wrong in the cloud-config of an image: in each file, and in how cloud-init uses them together.

Imported where there is something to read, since most images bring nothing but cloud-init's own files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tpu_image.catalogue import accounts
from tpu_image.catalogue.cloud_init import SEEDS
from tpu_image.formats import cloud_config
from tpu_image.formats.cloud_config import CloudConfig
from tpu_image.formats.yaml_text import Node, Scalar, Sequence, YamlError, YamlLimitError
from tpu_image.trees.base import Tree

SEED_MAKES = ("meta-data", "user-data")
"""The files that make cloud-init take a seed (ds-identify, ``dscheck_NoCloud``)."""

EVERY_BOOT_PARTS = ("/var/scripts/", "/home/tpu-runtime", "vbar_control_agent", "bind_to_vfio_pci")
"""What a command that must run at every boot mentions (document, section on changes at boot time)."""


class NotReadError(Exception):
    """A file exceeds what is read here, so nothing can be said of it."""

    def __init__(self, path: str, reason: str, line: int) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.line = line


class Problem(NamedTuple):
    """One thing to tell of one file."""

    path: str
    line: int
    message: str
    expected: str = ""
    breaks: bool = True


def find(tree: Tree, texts: Mapping[str, str]) -> list[Problem]:
    """Find the problems of files given by path, in the order in which later ones win.

    Raises:
        NotReadError: a file exceeds what is read here.
        PyYamlMissingError: PyYAML is not installed.
    """
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
            raise NotReadError(path, str(error), error.line) from None
        except YamlError as error:
            message = f"{error.reason}: cloud-init ignores the whole file"
            problems.append(Problem(path, error.line, message, expected="a mapping in YAML"))
    problems += [problem for path in configs for problem in _problems(path, configs[path])]
    problems += _once_per_instance(configs)
    problems += _seed_problems(tree, configs)
    return problems


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
    users = set(accounts.names(accounts.users(tree)))
    groups = set(accounts.names(accounts.groups(tree)))
    for directory in ("/usr/lib/sysusers.d", "/etc/sysusers.d"):
        for path in tree.files(directory, "*.conf"):
            for line in tree.read_text(path).splitlines():
                words = line.split(None, 2)
                if len(words) > 1 and words[0][0] in "ug":
                    groups.add(words[1])
                    if words[0][0] == "u":
                        users.add(words[1])
    return cloud_config.Accounts(users, groups)


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
