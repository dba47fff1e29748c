"""Programs of a tree: where they are found, and whether a machine could run them."""

from __future__ import annotations

import posixpath
import struct
from typing import NamedTuple

from tpu_image.trees.base import Kind, NotAFileError, NotFoundError, Tree

SEARCH_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin")
"""Where a login and a service look for programs; /snap/bin as /etc/profile.d of snapd adds it."""

ELF_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64", 21: "ppc64", 22: "s390x"}
"""``e_machine`` of an ELF header (elf(5)), as uname(1) names the processor."""

HEADER = 20
SHEBANG_LIMIT = 256
"""Bytes of a ``#!`` line that the kernel reads (BINPRM_BUF_SIZE)."""

INTERPRETER_LIMIT = 4
"""Scripts that may run one another through ``#!`` (the kernel's own limit, fs/exec.c)."""


class Program(NamedTuple):
    """A program as found: ``path`` as it is called; ``problem``, words to put behind it, empty where it can run."""

    path: str
    problem: str = ""


def architecture_of(tree: Tree, path: str) -> str:
    """Name the processor that a program is made for; empty where it is no ELF program or not there."""
    head = _head(tree, path)
    if len(head) < HEADER or head[:4] != b"\x7fELF":
        return ""
    order = ">" if head[5] == 2 else "<"
    machine: int = struct.unpack_from(order + "H", head, 18)[0]
    return ELF_MACHINES.get(machine, f"ELF machine {machine}")


def find_program(
    tree: Tree, name: str, architecture: str, *, scripts: int = INTERPRETER_LIMIT
) -> Program | None:
    """Find a program on the search path; a name that is there and cannot run is given only when no other can.

    Args:
        tree: where to look.
        name: as it would be called.
        architecture: of the machine that is to run it, as uname(1) names it.
        scripts: how many scripts may run one another.
    """
    broken: Program | None = None
    for directory in SEARCH_PATH:
        path = posixpath.join(directory, name)
        if tree.lstat(path) is None:
            continue
        problem = why_not_runnable(tree, path, architecture, scripts=scripts)
        if not problem:
            return Program(path)
        broken = broken or Program(path, problem)
    return broken


def why_not_found(tree: Tree, name: str) -> str:
    """Say why a service would not get a program by its path or name, in the words behind it; empty where it would."""
    if name.startswith("/"):
        return why_not_runnable(tree, name)
    found = find_program(tree, name, "")
    return "the image does not have" if found is None else found.problem


def why_not_runnable(
    tree: Tree, path: str, architecture: str = "", *, scripts: int = INTERPRETER_LIMIT
) -> str:
    """Say why the kernel would not run what is at a path, as the words behind it; empty where it would.

    Args:
        tree: where it is, and where the interpreter of a script must be too.
        path: absolute.
        architecture: of the machine that is to run it; empty for whichever it is made for.
        scripts: how many scripts may run one another.
    """
    target = tree.stat(path)
    if target is None:
        entry = tree.lstat(path)
        return "does not exist" if entry is None else f"is a link to {entry.target}, which leads to nothing"
    if target.kind is not Kind.FILE:
        return f"is a {target.kind.value}"
    if not target.mode & 0o111:
        return f"is not executable (mode {target.mode:04o})"
    head = _head(tree, path)
    if head.startswith(b"\x7fELF"):
        made_for = architecture_of(tree, path)
        return "" if architecture in ("", made_for) else f"is made for {made_for}"
    if not head.startswith(b"#!"):
        return "is neither a program nor a script: it has no #! line"
    return _why_not_interpreted(tree, head[2:].split(b"\n")[0], architecture, scripts)


def _why_not_interpreted(tree: Tree, line: bytes, architecture: str, scripts: int) -> str:
    """Judge what stands behind ``#!``; env(1) looks the interpreter up by its name."""
    if line.endswith(b"\r"):
        return "has CR LF line ends: the kernel looks for an interpreter whose name ends in CR"
    words = line.decode("utf-8", "surrogateescape").split()
    if not words:
        return "names no interpreter after #!"
    if not scripts:
        return "is run by too many scripts in a row"
    problem = why_not_runnable(tree, words[0], architecture, scripts=scripts - 1)
    if problem:
        return f"needs the interpreter {words[0]}, which {problem}"
    if posixpath.basename(words[0]) != "env":
        return ""
    names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    found = find_program(tree, names[0], architecture, scripts=scripts - 1) if names else Program("")
    problem = "is not on the PATH" if found is None else found.problem
    return f"needs the interpreter {names[0]}, which {problem}" if problem else ""


def _head(tree: Tree, path: str) -> bytes:
    try:
        return tree.read_head(path, SHEBANG_LIMIT)
    except (NotFoundError, NotAFileError):
        return b""
