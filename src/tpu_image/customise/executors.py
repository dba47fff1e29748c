"""The ways to execute what a customisation asks for, by name."""

from __future__ import annotations

import os

from tpu_image.customise.session import Executor

NAMES = ("namespace", "virtual-machine")
"""``namespace``: by this machine's kernel, as root; ``virtual-machine``: by the image's own, as any user, slower."""


def executor(name: str = "") -> Executor:
    """Give the executor of a name; without one, what this user can have, and the faster where that is both."""
    if (name or NAMES[0 if os.geteuid() == 0 else 1]) == "namespace":
        from tpu_image.customise.namespace import NamespaceExecutor

        return NamespaceExecutor()
    from tpu_image.customise.virtual_machine import VirtualMachineExecutor

    return VirtualMachineExecutor()
