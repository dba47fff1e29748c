"""Putting a kernel parameter into the GRUB defaults, so that the next update-grub keeps it.

What the user's own files say of the parameter is put right in place; what they do not say is added by a
drop-in of our own, which sorts behind every file that sets the variable.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from tpu_image.catalogue.boot_loader import DEFAULTS, DROP_INS, BootLoader, read_boot_loader
from tpu_image.catalogue.kernel_parameters import (
    PARAMETERS,
    ROUNDS,
    KernelParameter,
    read_as_grub_passes,
    readings,
    torn_edits,
)
from tpu_image.formats.edits import Edit
from tpu_image.formats.grub_defaults import LINUX, LINUX_DEFAULT, GrubDefaults, words_on_line
from tpu_image.formats.kernel_cmdline import KernelCommandLine
from tpu_image.formats.shell_assignments import UNKNOWN, Known, ShellFile, Value
from tpu_image.formats.shell_syntax import Assignment
from tpu_image.formats.shell_words import shape, width
from tpu_image.trees.memory import File
from tpu_image.trees.overlay import Overlay

DROP_IN = posixpath.join(DROP_INS, "99-tpu-image.cfg")
_SUFFIX = ".tpu-image.cfg"
_HEADER = """\
# Written by tpu-image: kernel parameters that Cloud TPU needs. Files that sort
# behind this one can still change them; tpu-image check tells.
"""

_ValueEdits = dict[Assignment, list[Edit]]


def put_into_defaults(overlay: Overlay, loader: BootLoader, parameter: KernelParameter) -> None:
    """Write what makes update-grub put the parameter on every entry; nothing where nothing can."""
    trial = Overlay(overlay)
    _edit(trial, loader, parameter)
    if all(reading.in_effect for reading in readings(read_boot_loader(trial).defaults, parameter)):
        for path, node in trial.written.items():
            if isinstance(node, File):
                overlay.write(path, node.content)


def _edit(overlay: Overlay, loader: BootLoader, parameter: KernelParameter) -> None:
    if not loader.shell_appends:
        _spell_out_appending(overlay, loader.defaults)
    for _ in range(ROUNDS):
        defaults = read_boot_loader(overlay).defaults
        if all(reading.is_clean for reading in readings(defaults, parameter)):
            return
        if not _put_right(overlay, defaults, parameter):
            break
    for variable in (LINUX, LINUX_DEFAULT):
        # Recovery entries have the first variable alone; the second stands behind it on the others.
        defaults = read_boot_loader(overlay).defaults
        text = defaults.normal if variable == LINUX_DEFAULT else defaults.value(LINUX).text
        if not read_as_grub_passes(text, parameter).in_effect:
            _add(overlay, variable, parameter.token)


def _spell_out_appending(overlay: Overlay, defaults: GrubDefaults) -> None:
    """Write ``A+=x`` as ``A="${A}"x``: dash takes the first for the name of a command."""
    for file in defaults.files:
        edits = []
        for assignment in file.assignments:
            if assignment.appends:
                plus = assignment.start + len(assignment.name)
                edits += [Edit(plus, plus + 2, f'="${{{assignment.name}}}"')]
        if edits:
            overlay.write(file.path, file.edited(edits).text)


def _put_right(overlay: Overlay, defaults: GrubDefaults, parameter: KernelParameter) -> bool:
    """Edit what the files say of the parameter; False where nothing can be."""
    lines = {name: KernelCommandLine.parse(defaults.value(name).text) for name in (LINUX, LINUX_DEFAULT)}
    elsewhere = defaults.makes_recovery or lines[LINUX].last(parameter.name) is not None
    edits = _torn_before_references(defaults) if parameter.put_in_by_recipe else {}
    for variable, line in () if edits else lines.items():
        complete = variable == LINUX or not elsewhere
        for group in parameter.edits(line, complete=complete):
            _collect(edits, defaults.value(variable), group)
    return _write_value_edits(overlay, defaults, edits)


def _torn_before_references(defaults: GrubDefaults) -> _ValueEdits:
    """Take back what the recipe put in front of ``${...}``: the token that it tore is not in one assignment."""
    edits: _ValueEdits = {}
    for variable in (LINUX, LINUX_DEFAULT):
        for piece in defaults.value(variable).pieces:
            assignment = piece.origin if isinstance(piece, Known) else None
            if assignment is not None and assignment not in edits:
                groups = torn_edits(KernelCommandLine.parse(shape(assignment.value.parts)), before=UNKNOWN)
                edits[assignment] = [edit for group in groups for edit in group]
    return {assignment: changes for assignment, changes in edits.items() if changes}


def _collect(edits: _ValueEdits, value: Value, group: list[Edit]) -> None:
    """Add the edits of a value to those of the assignments behind it, all of them or none."""
    placed = []
    for edit in group:
        place = value.locate(edit.start, edit.end)
        if place is None:
            return
        assignment, start = place
        placed.append((assignment, Edit(start, start + edit.end - edit.start, edit.text)))
    # A text that two values share comes by twice; the next round sees to what is left.
    if not any(_meets(edit, other) for assignment, edit in placed for other in edits.get(assignment, ())):
        for assignment, edit in placed:
            edits.setdefault(assignment, []).append(edit)


def _meets(one: Edit, other: Edit) -> bool:
    return one.start <= other.end and other.start <= one.end


def _write_value_edits(overlay: Overlay, defaults: GrubDefaults, edits: _ValueEdits) -> bool:
    changed = False
    for file in defaults.files:
        own = {assignment: changes for assignment, changes in edits.items() if assignment.path == file.path}
        text = file.with_value_edits(own).text
        if text != file.text:
            overlay.write(file.path, text)
            changed = True
    return changed


def _add(overlay: Overlay, variable: str, token: str) -> None:
    """Add a token to what a variable holds in the end."""
    loader = read_boot_loader(overlay)
    value = loader.defaults.value(variable)
    line = KernelCommandLine.parse(value.text)
    barred = _before_barrier(line, token)
    if barred is not None:
        edits: _ValueEdits = {}
        _collect(edits, value, [barred])
        _write_value_edits(overlay, loader.defaults, edits)
    elif loader.reads_drop_ins:
        _add_to_drop_in(overlay, loader.defaults, variable, token)
    else:
        _add_to_file(overlay, DEFAULTS, variable, token)


def _before_barrier(line: KernelCommandLine, token: str) -> Edit | None:
    """Give the edit that adds a token in front of ``--``, or of what ends the command in grub.cfg.

    What a drop-in appends would stand behind, where the kernel never looks. None where nothing ends the line.
    """
    words = words_on_line(line.text)
    end = words[-1].end if words else 0
    torn = [other.start for other in line.tokens if other.text == "--" or other.start < end < other.end]
    if torn:
        return Edit(torn[0], torn[0], f"{token} ")
    if line.text[end:].strip(" \t"):
        return Edit(end, end, f" {token}" if end else f"{token} ")
    return None


def _add_to_file(overlay: Overlay, path: str, variable: str, token: str) -> None:
    """Add a token to the last assignment of a variable in a file, or behind all of it."""
    file = ShellFile.parse(path, overlay.read_text_if_present(path) or "")
    last = file.last_touching(variable)
    if isinstance(last, Assignment) and not last.uncertain:
        size = sum(width(part) for part in last.value.parts)
        edit = Edit(size, size, f" {token}" if size else token)
        overlay.write(path, file.with_value_edits({last: [edit]}).text)
        return
    newline = "" if not file.text or file.text.endswith("\n") else "\n"
    overlay.write(path, f"{file.text}{newline}{_assignment(variable, [token])}")


def _add_to_drop_in(overlay: Overlay, defaults: GrubDefaults, variable: str, token: str) -> None:
    path = _drop_in_path(overlay, defaults, variable)
    text = overlay.read_text_if_present(path) or _HEADER
    tokens = _tokens_of_drop_in(text)
    if tokens is None:
        _add_to_file(overlay, path, variable, token)
        return
    order = {parameter.token: number for number, parameter in enumerate(PARAMETERS)}
    own = sorted({*tokens.get(variable, ()), token}, key=lambda t: (order.get(t, -1), t))
    overlay.write(path, _drop_in({**tokens, variable: own}))


def _drop_in_path(overlay: Overlay, defaults: GrubDefaults, variable: str) -> str:
    """The path of our drop-in: behind every other one that sets the variable."""
    files = [file for file in defaults.files if posixpath.dirname(file.path) == DROP_INS]
    own = [file.path for file in files if file.text.startswith(_HEADER.partition("\n")[0])]
    setting = [file.path for file in files if file.path not in own and file.touches(variable)]
    last = setting[-1] if setting else ""
    if own and own[-1] > last:
        return own[-1]
    path = DROP_IN if last < DROP_IN else last.removesuffix(".cfg") + _SUFFIX
    while overlay.lstat(path) is not None:
        path = path.removesuffix(".cfg") + _SUFFIX
    return path


def _assignment(variable: str, tokens: list[str]) -> str:
    return f'{variable}="${{{variable}}} {" ".join(tokens)}"\n'


def _drop_in(tokens: Mapping[str, list[str]]) -> str:
    return _HEADER + "".join(
        _assignment(name, tokens[name]) for name in (LINUX, LINUX_DEFAULT) if name in tokens
    )


def _tokens_of_drop_in(text: str) -> dict[str, list[str]] | None:
    """The tokens that a drop-in adds, by variable; None where somebody edited it into another form."""
    tokens = {match.group(1): match.group(2).split(" ") for match in _assignments_in(text)}
    return tokens if _drop_in(tokens) == text else None


def _assignments_in(text: str) -> Iterator[re.Match[str]]:
    return re.finditer(r'^([A-Z_]+)="\$\{\1\} ([^"\\$`\n]+)"$', text, re.MULTILINE)
