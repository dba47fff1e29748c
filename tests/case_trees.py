"""Small trees written down as data: how a case folder becomes trees in memory.

A tree is a folder of files, a list of entries in YAML, or both. ``case.yaml`` may hold, for the image
(``tree``) and the running machine (``live``), a mapping of path to one of

    content            a regular file of that text, 0644
    {content, mode}    the same with a mode written in octal as text, e.g. '0600'
    {elf: x86_64}      a program of that architecture, 0755
    {link: target}     a symbolic link
    {append: text}     the file of the start, with this text after it
    {replace: {a: b}}  the file of the start, with a made b in it (which must occur)
    null               what the start has there is taken away

``faults`` lists what is wrong with the disk that the image is on (absent: it is on none).
``applied: true`` applies the plan to the start, changed by ``before``, before ``tree`` is laid over it.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tpu_image.catalogue import hardware, readings
from tpu_image.catalogue.requirement import Platform, Profile
from tpu_image.trees.base import Fault, Tree
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink

CASES = Path(__file__).parent / "cases"
STARTS = Path(__file__).parent / "starts"

ELF_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine, elf.h


def program(architecture: str) -> bytes:
    """The ELF header of a 64-bit little-endian program, which is all that a check may look at."""
    identification = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    return identification + struct.pack("<HHIQQQIHHHHHH", 3, ELF_MACHINES[architecture], 1, *[0] * 10)


def node_of(value: Any, before: Node | None) -> Node:
    """The node that one entry of a case stands for."""
    if isinstance(value, str):
        value = {"content": value}
    mode = int(value.get("mode", "0644"), 8)
    if "link" in value:
        return Symlink(value["link"])
    if "directory" in value:
        return Directory(int(value.get("mode", "0755"), 8))
    if "elf" in value:
        return File(program(value["elf"]), 0o755)
    if "content" in value:
        return File(value["content"].encode(), mode, value.get("uid", 0), value.get("gid", 0))
    assert isinstance(before, File), f"nothing to change: {value}"
    text = before.content.decode()
    for old, new in value.get("replace", {}).items():
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return File((text + value.get("append", "")).encode(), int(value.get("mode", oct(before.mode)), 8))


def read_folder(folder: Path) -> dict[str, Node]:
    """The nodes of a folder on disk: contents, links and whether a file is executable."""
    nodes: dict[str, Node] = {}
    for path in sorted(folder.rglob("*")):
        name = "/" + path.relative_to(folder).as_posix()
        if path.is_symlink():
            nodes[name] = Symlink(str(path.readlink()))
        elif path.is_file():
            nodes[name] = File(path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644)
    return nodes


def merge(nodes: dict[str, Node], entries: Mapping[str, Any]) -> dict[str, Node]:
    """Lay the entries of a case over the nodes of its start."""
    merged = dict(nodes)
    for path, value in entries.items():
        if value is None:
            assert path in merged, f"the start has no {path}"
            del merged[path]
        else:
            merged[path] = node_of(value, merged.get(path))
    return merged


@functools.cache
def start(name: str) -> dict[str, Node]:
    """The nodes of a start: a folder under ``starts``, with ``tree.yaml`` for what a folder cannot hold."""
    folder = STARTS / name
    entries = yaml.safe_load((folder / "tree.yaml").read_text()) if (folder / "tree.yaml").exists() else {}
    base = start(entries.pop("start")) if "start" in entries else {}
    return merge(base | read_folder(folder / "tree"), entries)


def nodes_of(tree: MemoryTree) -> dict[str, Node]:
    """Every node of a tree in memory."""
    return {path: node for path, node in tree.nodes() if path != "/"}


def applied(nodes: dict[str, Node], profile: Profile) -> dict[str, Node]:
    """The nodes after ``apply``."""
    overlay = readings.plan(MemoryTree(nodes), profile)
    result: dict[str, Node] = dict(nodes)
    for path, node in overlay.written.items():
        if node is None:
            result.pop(path, None)
        else:
            result[path] = node
    return result


def profile_of(values: Mapping[str, Any]) -> Profile:
    """The profile that a case names."""
    generations = values.get("tpu", list(hardware.DOCUMENTED))
    return Profile(
        platform=Platform(values.get("platform", "compute-engine")),
        generations=tuple(hardware.generation(name) for name in generations),
        telemetry=values.get("telemetry", False),
        device_group=values.get("device_group", ""),
        agent_elsewhere=values.get("agent_elsewhere", False),
        waivers=values.get("waive", {}),
    )


def load(folder: Path) -> tuple[dict[str, Any], Tree, Tree | None, Profile]:
    """A case's description, its image tree, its running machine if it has one, and its profile."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    profile = profile_of(case.get("profile", {}))
    nodes = merge(start(case["start"]) if "start" in case else {}, case.get("before", {}))
    if case.get("applied"):
        nodes = applied(nodes, profile)
    tree = MemoryTree(merge(nodes | read_folder(folder / "tree"), case.get("tree", {})))
    if "faults" in case:
        tree.faults = tuple(Fault(**fault) for fault in case["faults"])
    if "live" not in case and "machine" not in case and not (folder / "live").exists():
        return case, tree, None, profile
    machine = start(case["machine"]) if "machine" in case else {}
    live = MemoryTree(merge(machine | read_folder(folder / "live"), case.get("live", {})))
    return case, tree, live, profile
