"""The running machine: making files that were changed on it take effect."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tpu_image.catalogue.activation import Command

PROGRAM_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""Where a system's own programs are: what the caller's PATH says does not count."""

ENVIRONMENT: Mapping[str, str] = {"PATH": ":".join(PROGRAM_DIRECTORIES), "LC_ALL": "C.UTF-8"}

OUTPUT_LIMIT = 2000
"""Characters of a failed command's output that are shown, the last ones."""


class ActivationError(Exception):
    """A command that should make changes take effect did not succeed: one line says which, and why."""


def managed_by_systemd() -> bool:
    """Whether systemd runs this machine (sd_booted(3)): nothing can be reloaded where it does not."""
    return os.path.isdir("/run/systemd/system")


def find_program(name: str) -> str | None:
    """Give the absolute path of a program of the system; None where it is not installed."""
    for directory in PROGRAM_DIRECTORIES:
        path = f"{directory}/{name}"
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def run(command: Command) -> None:
    """Run one command to its end.

    Raises:
        ActivationError: its program is missing, it fails, or takes longer than it may.
    """
    import subprocess

    program = find_program(command.arguments[0])
    shown = " ".join(command.arguments)
    if program is None:
        raise ActivationError(f"{shown}: {command.arguments[0]} is not installed; run it to {command.why}")
    try:
        done = subprocess.run(
            [program, *command.arguments[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(ENVIRONMENT),
            timeout=command.seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ActivationError(
            f"{shown}: not done after {command.seconds} s; run it to {command.why}"
        ) from error
    if done.returncode:
        output = done.stdout.decode("utf-8", "replace").strip()[-OUTPUT_LIMIT:]
        told = f": {output}" if output else ""
        raise ActivationError(f"{shown}: exit status {done.returncode}{told}; run it to {command.why}")
