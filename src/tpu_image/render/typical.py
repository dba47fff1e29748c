"""The tree that a plan is made for where the machine it is for is not known."""

from __future__ import annotations

from tpu_image.trees.memory import File, MemoryTree, Symlink


def typical_tree() -> MemoryTree:
    """Give what a Debian or Ubuntu has in common with most, as far as a plan depends on it.

    /usr is merged, GRUB reads drop-ins, the shell is dash, and pam_limits takes ``*`` for everybody but root. Files
    that a plan would change are not there: what they hold on the machine is not known.
    """
    return MemoryTree(
        {
            "/bin": Symlink("usr/bin"),
            "/sbin": Symlink("usr/sbin"),
            "/lib": Symlink("usr/lib"),
            "/usr/bin/sh": Symlink("dash"),
            "/usr/bin/dash": File(b"", 0o755),
            "/usr/lib/os-release": File(b"ID=debian\n"),
            "/etc/os-release": Symlink("../usr/lib/os-release"),
            "/usr/sbin/grub-mkconfig": File(b"/etc/default/grub.d/*.cfg\n", 0o755),
            "/usr/lib/systemd/systemd": File(b"", 0o755),
        }
    )
