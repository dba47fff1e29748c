"""Programs of a tree: whether the kernel would run them, scripts and their interpreters included."""

from __future__ import annotations

import pytest

import case_trees
from tpu_image.catalogue.programs import find_program, why_not_runnable
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink

ELF = File(case_trees.program("x86_64"), 0o755)
TOOL = "/usr/bin/tool"


def script(first_line: str) -> File:
    return File(f"{first_line}\nexit\n".encode(), 0o755)


def tree(tool: Node) -> MemoryTree:
    present: dict[str, Node] = {TOOL: tool, "/bin/sh": ELF, "/usr/bin/env": ELF, "/usr/bin/python3": ELF}
    return MemoryTree(present)


@pytest.mark.parametrize(
    "tool",
    [
        ELF,
        Symlink("python3"),
        script("#!/bin/sh -e"),
        script("#! /usr/bin/env python3"),
        script("#!/usr/bin/env -S A=1 python3 -u"),
    ],
)
def test_what_the_kernel_runs_can_run(tool: Node) -> None:
    assert why_not_runnable(tree(tool), TOOL, "x86_64") == ""


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (Symlink("gone"), "is a link to gone, which leads to nothing"),
        (Directory(), "is a directory"),
        (File(b"#!/bin/sh\n", 0o644), "is not executable (mode 0644)"),
        (File(case_trees.program("aarch64"), 0o755), "is made for aarch64"),
        (script("echo"), "is neither a program nor a script: it has no #! line"),
        (script("#!"), "names no interpreter after #!"),
        (
            script("#!/bin/sh\r"),
            "has CR LF line ends: the kernel looks for an interpreter whose name ends in CR",
        ),
        (script("#!/bin/zsh"), "needs the interpreter /bin/zsh, which does not exist"),
        (script("#!/usr/bin/env perl"), "needs the interpreter perl, which is not on the PATH"),
    ],
)
def test_what_it_does_not_run_is_said(tool: Node, reason: str) -> None:
    assert why_not_runnable(tree(tool), TOOL, "x86_64") == reason


@pytest.mark.parametrize("first_line", [f"#!{TOOL}", "#!/usr/bin/env tool"])
def test_a_script_that_is_its_own_interpreter_comes_to_an_end(first_line: str) -> None:
    found = find_program(tree(script(first_line)), "tool", "x86_64")
    assert found is not None
    assert "too many scripts in a row" in found.problem
