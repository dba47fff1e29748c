"""One tree with every kind of node, every kind of change to it, and planning and applying in one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tpu_image.plan import Change, Plan, apply
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import Directory, File, Node, Symlink
from tpu_image.trees.overlay import Overlay

STATE_DIRECTORIES: list[dict[str, Node]] = [
    {},
    {"/var": Directory()},
    {"/var": Directory(), "/var/lib": Directory(0o711)},
    {"/var": Directory(), "/var/lib": Directory(), "/var/lib/tpu-image": Directory(0o700)},
    {"/srv": Directory(), "/var": Symlink("srv")},
]
"""What a tree may have of the directories that hold the journal."""


NODES: dict[str, Node] = {
    "/etc": Directory(),
    "/etc/conf": File(b"old\n", 0o640, 1, 2),
    "/etc/conf.d": Symlink("elsewhere"),
    "/etc/gone": File(b"gone\n"),
    "/etc/link": Symlink("conf", 1, 2),
    "/etc/private": Directory(0o755),
    "/etc/private/key": File(b"key\n", 0o600),
}

CHANGES = Plan(
    (
        Change("/etc/conf", NODES["/etc/conf"], File(b"new\n", 0o640, 1, 2)),
        Change("/etc/conf.d", NODES["/etc/conf.d"], Directory(0o750, 1, 2)),
        Change("/etc/conf.d/new", None, File(b"new\n", 0o600)),
        Change("/etc/gone", NODES["/etc/gone"], None),
        Change("/etc/link", NODES["/etc/link"], Symlink("private/key")),
        Change("/etc/private", NODES["/etc/private"], Directory(0o700, 1, 1)),
        Change("/etc/private/key", NODES["/etc/private/key"], File(b"key\n", 0o400)),
        Change("/usr", None, Directory()),
        Change("/usr/new", None, File(b"", 0o755)),
        Change("/var", None, Directory()),
        Change("/var/lib", None, Directory(0o711)),
        Change("/var/lib/state", None, File(b"state\n")),
    )
)
"""Every kind of change, the journal's own directories among them."""


def write_everything(overlay: Overlay) -> None:
    """What two applies later the tree should be, said again each time as the catalogue does."""
    overlay.write("/etc/conf", "new\n")
    if overlay.lstat("/etc/conf.d") == overlay.base.lstat("/etc/conf.d") and not overlay.is_directory(
        "/etc/conf.d"
    ):
        overlay.remove("/etc/conf.d")
    overlay.make_directory("/etc/conf.d", mode=0o750, owner=(1, 2))
    overlay.write("/etc/conf.d/new", "new\n", mode=0o600)
    overlay.remove("/etc/gone")
    overlay.symlink("/etc/link", "private/key")
    overlay.write("/etc/private/key", "key\n", mode=0o400)
    overlay.make_directory("/etc/private", mode=0o700, owner=(1, 1))
    overlay.write("/usr/lib/new", "", mode=0o755)


def write_more(overlay: Overlay) -> None:
    """A later version of the same."""
    write_everything(overlay)
    overlay.write("/etc/conf", "newer\n")
    overlay.make_directory("/etc/private", mode=0o711, owner=(2, 1))
    overlay.write("/usr/lib/newer", "newer\n")
    overlay.remove("/usr/lib/new")


def change(
    root: Path, write: Callable[[Overlay], None], on_step: Callable[[str], None] = lambda _: None
) -> Plan:
    """Plan from the tree as it is, and apply."""
    with DirectoryTree(root) as tree:
        overlay = Overlay(tree)
        write(overlay)
        plan = Plan.from_overlay(overlay)
    apply(plan, root, on_step=on_step)
    return plan
