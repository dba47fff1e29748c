"""Programs of a tree: where they are found, and whether a machine could run them."""

from __future__ import annotations

import posixpath
import struct
from typing import NamedTuple

from tpu_image.trees.base import Entry, Kind, NotAFileError, NotFoundError, Tree

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
    """A program as found: ``path`` as it is called, ``problem`` empty where it can run."""

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


def find_program(tree: Tree, name: str, architecture: str) -> Program | None:
    """Find a program on the search path; a name that is there and cannot run is given only when no other can.

    Args:
        tree: where to look.
        name: as it would be called.
        architecture: of the machine that is to run it, as uname(1) names it.
    """
    broken: Program | None = None
    for directory in SEARCH_PATH:
        path = posixpath.join(directory, name)
        entry = tree.lstat(path)
        if entry is None:
            continue
        problem = why_not_runnable(tree, path, entry, architecture)
        if not problem:
            return Program(path)
        broken = broken or Program(path, problem)
    return broken


def why_not_runnable(tree: Tree, path: str, entry: Entry, architecture: str) -> str:
    """Say why the kernel would not run what is at a path; empty where it would.

    The interpreter of a script must exist in the tree too.
    """
    for _ in range(INTERPRETER_LIMIT):
        target = tree.stat(path)
        if target is None:
            link = f", a link to {entry.target}," if entry.kind is Kind.SYMLINK else ""
            return f"{path}{link} leads to nothing"
        if target.kind is not Kind.FILE:
            return f"{path} is a {target.kind.value}"
        if not target.mode & 0o111:
            return f"{path} is not executable (mode {target.mode:04o})"
        head = _head(tree, path)
        if head.startswith(b"\x7fELF"):
            made_for = architecture_of(tree, path)
            return "" if made_for == architecture else f"{path} is made for {made_for}"
        if not head.startswith(b"#!"):
            return f"{path} is neither a program nor a script"
        words = head[2:SHEBANG_LIMIT].split(b"\n")[0].split()
        if not words:
            return f"{path} names no interpreter"
        path, entry = words[0].decode("utf-8", "surrogateescape"), target
        if not tree.exists(path):
            return f"the interpreter {path} does not exist"
    return f"{path} is run by too many scripts in a row"


def _head(tree: Tree, path: str) -> bytes:
    try:
        return tree.read_head(path, SHEBANG_LIMIT)
    except (NotFoundError, NotAFileError):
        return b""
