"""Module options and loading: modprobe.d, modules-load.d, and the lists of a kernel's modules.

Sources: modprobe.d(5), modules-load.d(5), depmod(8) for ``modules.dep`` and ``modules.builtin``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Directive(NamedTuple):
    """One command of a modprobe.d file, such as ``options vfio_pci ids=…``; ``line`` counts from 1."""

    line: int
    command: str
    module: str
    """Name of the module with ``_`` for ``-``, which the kernel takes for the same."""
    rest: str = ""


def canonical(module: str) -> str:
    """Give the one spelling of a module's name: ``vfio-pci`` is ``vfio_pci``."""
    return module.replace("-", "_")


def directives(text: str) -> Iterator[Directive]:
    """Read a modprobe.d file; lines that are no command with an argument are left out."""
    pending, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        start = start or number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        words = (pending + line).split(None, 2)
        if len(words) > 1 and not words[0].startswith("#"):
            yield Directive(start, words[0], canonical(words[1]), words[2] if len(words) > 2 else "")
        pending, start = "", 0


def loaded_modules(text: str) -> Iterator[tuple[int, str]]:
    """Give line and name of each module that a modules-load.d file loads."""
    for number, line in enumerate(text.splitlines(), 1):
        name = line.strip()
        if name and name[0] not in "#;":
            yield number, canonical(name)


def is_true(value: str) -> bool:
    """Whether the kernel takes a parameter's value for true (``kstrtobool``)."""
    return value[:1] in ("y", "Y", "t", "T", "1") or value[:2] in ("on", "On", "oN", "ON")


def last_parameter(options: str, name: str) -> str | None:
    """Give the last value of a parameter among options, ``y`` for the bare name; None where there is none."""
    found = None
    for word in options.split():
        key, equals, value = word.partition("=")
        if canonical(key) == canonical(name):
            found = value.strip("\"'") if equals else "y"
    return found


def module_path(modules_list: bytes, module: str) -> str | None:
    """Find a module in ``modules.dep`` or ``modules.builtin`` and give its path there; None where it is not.

    The lists have many thousand lines: they are searched, not parsed.
    """
    for stem in {module.replace("_", "-").encode(), module.replace("-", "_").encode()}:
        at = modules_list.find(b"/" + stem + b".ko")
        while at >= 0:
            start = modules_list.rfind(b"\n", 0, at) + 1
            end = at + 1 + len(stem) + len(b".ko")
            rest = modules_list[end : end + 8]
            # A path before the colon is the module's own line; after it, one that another depends on.
            if b":" not in modules_list[start:at] and rest.split(b":")[0].split(b"\n")[0] in _SUFFIXES:
                stop = end + len(rest.split(b":")[0].split(b"\n")[0])
                return modules_list[start:stop].decode("utf-8", "surrogateescape")
            at = modules_list.find(b"/" + stem + b".ko", end)
    return None


_SUFFIXES = (b"", b".gz", b".xz", b".zst")
