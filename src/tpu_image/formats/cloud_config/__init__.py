"""cloud-config as cloud-init acts on it: the files it writes, the commands it runs, and what goes wrong.

What is judged is ``write_files``, ``runcmd`` and ``bootcmd``, by what the modules of cloud-init do with a
value (cloudinit/config and cloudinit/util.py as of 22.4), not by its schema alone: the schema refuses things
that work, and takes things that do not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tpu_image.formats import yaml_text
from tpu_image.formats.cloud_config.findings import Finding, Findings, nearest
from tpu_image.formats.cloud_config.write_files import Accounts, WrittenFile, read_entries
from tpu_image.formats.yaml_text import Mapping, Scalar, Sequence, YamlError

__all__ = [
    "Accounts",
    "CloudConfig",
    "Command",
    "Finding",
    "WrittenFile",
    "is_cloud_config",
    "is_user_data",
    "read",
]

KEYS = ("write_files", "runcmd", "bootcmd")

HEADER = "#cloud-config"
TEMPLATE_HEADER = "## template: jinja"
OTHER_HEADERS = (
    "#cloud-config-archive",
    "#cloud-config-jsonp",
    "#include",
    "#!",
    "#part-handler",
    "#cloud-boothook",
    TEMPLATE_HEADER,
)
"""How user-data of other kinds begins (cloudinit/handlers/__init__.py)."""

GZIP_START = "\x1f\udc8b"
"""The first two bytes of gzip'd user-data in a text read with surrogate escapes."""

MIME_VERSION = "mime-version:"
MIME_HEAD = 4096
"""What makes user-data a MIME message, and the characters in which it is looked for (user_data.py)."""


class Command(NamedTuple):
    """An item of ``runcmd`` or ``bootcmd``; ``program`` is its first word."""

    text: str
    program: str
    line: int


@dataclass(frozen=True)
class CloudConfig:
    """What a text makes cloud-init do."""

    root: Mapping = field(repr=False)
    files: tuple[WrittenFile, ...]
    runcmd: tuple[Command, ...]
    """Commands of the first boot of an instance alone."""
    bootcmd: tuple[Command, ...]
    """Commands of every boot."""
    findings: tuple[Finding, ...]
    """What is wrong, by line."""


def is_user_data(text: str) -> bool:
    """Whether cloud-init knows what kind of user-data this is; it ignores what it does not know."""
    return not text.strip() or is_cloud_config(text) or _is_other_kind(text)


def is_cloud_config(text: str) -> bool:
    """Whether user-data is a cloud-config by its first line, and of no other kind."""
    return text.lstrip().lower().startswith(HEADER) and not _is_other_kind(text)


def _is_other_kind(text: str) -> bool:
    if text.startswith(GZIP_START) or MIME_VERSION in text[:MIME_HEAD].lower():
        return True
    return text.lstrip().lower().startswith(OTHER_HEADERS)


def read(text: str, accounts: Accounts | None = None) -> CloudConfig:
    """Read one cloud-config; without ``accounts`` the owners of files are not judged.

    Raises:
        PyYamlMissingError: PyYAML is not installed.
        YamlError: cloud-init ignores the whole text, since it is not YAML or no mapping.
    """
    document = yaml_text.parse(text)
    root = Mapping((), 1, 1) if document.root is None else document.root
    if not isinstance(root, Mapping):
        raise YamlError("is not a mapping", root.line, root.column)
    findings = Findings()
    for duplicate in document.duplicates:
        message = (
            f"{duplicate.key[:40]!r} stands again: cloud-init drops the one on line {duplicate.first_line}"
        )
        findings.add(message, duplicate, "each key once")
    _judge_keys(root, findings)
    files = read_entries(root.get("write_files"), accounts, findings)
    runcmd = _commands(root, "runcmd", findings)
    bootcmd = _commands(root, "bootcmd", findings)
    _judge_execution(files, runcmd, findings)
    ordered = sorted(findings.found, key=lambda finding: (finding.line, finding.column))
    return CloudConfig(root, tuple(files), tuple(runcmd), tuple(bootcmd), tuple(ordered))


def _judge_keys(root: Mapping, findings: Findings) -> None:
    for key, _ in root:
        meant = "" if key.text in KEYS else nearest(key.text, KEYS, 0.75)
        if meant:
            findings.add(f"unknown key {key.text!r} is ignored", key, meant)


def _commands(root: Mapping, key: str, findings: Findings) -> list[Command]:
    """Give the commands of a list as ``shellify`` of cloudinit/util.py takes them."""
    node = root.get(key)
    if node is None:
        return []
    if not isinstance(node, Sequence):
        findings.add(f"{key} is not a list: cloud-init runs none of it", node, "a list")
        return []
    commands = []
    for item in node.items:
        if isinstance(item, Sequence):
            commands.append(_words(key, item, findings))
        elif isinstance(item, Scalar) and isinstance(item.value, str):
            words = item.value.split(None, 1)
            commands.append(Command(item.value, words[0] if words else "", item.line))
        elif isinstance(item, Mapping):
            message = f"an item of {key} is a mapping, since it holds ': ': cloud-init runs none of the list"
            findings.add(message, item, "the command in quotes")
        elif item.value is not None:
            findings.add(f"an item of {key} is not text: cloud-init runs none of the list", item, "quotes")
    return commands


def _words(key: str, item: Sequence, findings: Findings) -> Command:
    words = [word for word in item.items if isinstance(word, Scalar)]
    if len(words) < len(item.items) or not all(isinstance(word.value, str) for word in words):
        message = f"a word of a command in {key} is not text: cloud-init's schema wants strings"
        findings.add(message, item, "quotes", breaks=False)
    texts = [word.text for word in words]
    return Command(" ".join(texts), texts[0] if texts else "", item.line)


def _judge_execution(files: list[WrittenFile], commands: list[Command], findings: Findings) -> None:
    """Find commands that are files just written without an execute bit."""
    modes = {file.path: file.mode for file in files}
    for number, command in enumerate(commands):
        mode = modes.get(command.program, 0o111)
        earlier = commands[:number]
        if mode & 0o111 or any("chmod" in one.text and command.program in one.text for one in earlier):
            continue
        message = f"{command.program} is written with mode {mode:04o} and run as a program: permission denied"
        findings.add(message, Scalar(None, f"{mode:04o}", command.line, 0), "'0755'")
