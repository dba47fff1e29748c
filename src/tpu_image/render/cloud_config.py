"""A plan as cloud-config, the user-data of cloud-init, for a machine that starts from an unprepared image.

cloud-init writes the files early in the first boot and runs the commands at its end. Once per instance is
enough: what has to run at every boot is in units that are among the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from tpu_image.plan.change import Change
from tpu_image.render.steps import Steps, adds_lines, is_plain_text, packed
from tpu_image.trees.memory import Directory, File, Symlink

USER_DATA_LIMIT = 256 * 1024
"""Bytes that one metadata value, so user-data, may have on Compute Engine."""

_ADD_LINES = (
    'file=$1; shift; touch "$file"; [ -z "$(tail -c 1 "$file")" ] || echo >> "$file"; '
    'for line; do grep -qxF -e "$line" "$file" || printf "%s\\n" "$line" >> "$file"; done'
)


def render(steps: Steps) -> str:
    """Write the cloud-config."""
    files = [(c.path, c.after) for c in steps.changes if isinstance(c.after, File) and not adds_lines(c)]
    commands = [*_commands(steps), *(list(command.arguments) for command in steps.commands)]
    lines = ["#cloud-config", "# What Cloud TPU asks of a machine.", f"# {steps.heading}"]
    if files:
        lines += ["write_files:", *(line for path, file in files for line in _file(path, file))]
    if commands:
        lines += ["runcmd:", *(f"  - {_quoted(command)}" for command in commands)]
    if any(note.reboot for note in steps.notes):
        lines += _reboot()
    return "\n".join(lines) + "\n"


def _file(path: str, file: File) -> Iterator[str]:
    yield f"  - path: {_quoted(path)}"
    yield "    owner: root:root"
    yield f'    permissions: "{file.mode:04o}"'
    if _is_block(file.content):
        yield "    content: |"
        yield from (f"      {line}" if line else "" for line in _lines(file))
    else:
        yield "    encoding: gz+b64"
        yield f"    content: {packed(file.content)}"


def _quoted(value: str | list[str]) -> str:
    """Write text, or a list of texts, as JSON: YAML reads it as the same."""
    return json.dumps(value, ensure_ascii=False)


def _lines(file: File) -> list[str]:
    return file.content.decode("utf-8").removesuffix("\n").split("\n")


def _is_block(content: bytes) -> bool:
    """Whether YAML's literal block gives the content back: it neither begins nor ends in blank lines."""
    return is_plain_text(content) and content[:1] not in (b" ", b"\t", b"\n") and content[-2:] != b"\n\n"


def _commands(steps: Steps) -> Iterator[list[str]]:
    """Give the commands for what write_files cannot do: links, lines, owners, bare directories, removals."""
    folders = [change.path for change in steps.changes if _is_bare_directory(change, steps.changes)]
    if folders:
        yield ["mkdir", "-p", *folders]
    for change in steps.changes:
        after = change.after
        if after is None:
            yield ["rm", "-f", change.path]
        elif isinstance(after, Symlink):
            yield ["ln", "-sfn", after.target, change.path]
        elif adds_lines(change) and isinstance(after, File):
            yield ["sh", "-c", _ADD_LINES, "sh", change.path, *_lines(after)]
        if isinstance(after, Directory) and after.mode != Directory().mode:
            yield ["chmod", f"{after.mode:04o}", change.path]
        if after is not None and (after.uid, after.gid) != (0, 0):
            yield ["chown", "-h", f"{after.uid}:{after.gid}", change.path]


def _is_bare_directory(change: Change, changes: Sequence[Change]) -> bool:
    """Whether write_files will not make the directory: no file is written below it."""
    if not isinstance(change.after, Directory) or change.before is not None:
        return False
    return not any(isinstance(c.after, File) and c.path.startswith(f"{change.path}/") for c in changes)


def _reboot() -> list[str]:
    return [
        "# The kernel parameters take effect at the next boot, which follows the first one at once.",
        "power_state:",
        "  mode: reboot",
        "  message: rebooting with the kernel parameters of Cloud TPU",
        "  condition: true",
    ]
