"""The program in the archive: one boot task, one line about it, one exit status of sysexits.h.

====  =================================================================
 0    done, or nothing to do
64    wrong arguments
65    the attribute or ``/etc/environment`` cannot be used as it is
66    the attribute or key is not set: this is no TPU VM
69    the metadata server did not give the value
73    the file could not be written
77    the metadata server refuses to give the value
====  =================================================================
"""

from __future__ import annotations

import os
import pwd
import sys

from tpu_image.formats import FormatError
from tpu_image.runtime import settings

TYPE_CHECKING = False  # typing's own costs as much as the rest of a task
if TYPE_CHECKING:
    from tpu_image.runtime.atomic_file import Owner
    from tpu_image.runtime.metadata import MetadataError

BOOT_SECONDS = 60.0
"""How long a boot task asks for its attribute; the unit starts it again some times after that."""

INTERACTIVE_SECONDS = 30.0
"""How long somebody waits for one value."""

USAGE = (
    "usage: environment | system-environment | cloudsdk-python | storage-timeouts"
    " | get-metadata KEY [DEFAULT [TYPE]]"
)


class TaskError(Exception):
    """A task failed: one line for a person and an exit status for a program."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: list[str]) -> int:
    """Run one task and give the exit status; every failure is one line on standard error."""
    try:
        _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except TaskError as error:
        _tell(str(error))
        return error.status
    except OSError as error:
        _tell(_explain(error))
        return os.EX_CANTCREAT
    except KeyboardInterrupt:
        return 130
    return os.EX_OK


def _tell(problem: str) -> None:
    if sys.stderr is not None:  # print would take standard output instead, where the value belongs
        print(f"tpu-image: {_one_line(problem)}", file=sys.stderr)


def _run(arguments: list[str]) -> None:
    task, rest = (arguments[0] if arguments else ""), arguments[1:]
    if task == "get-metadata" and 1 <= len(rest) <= 3 and rest[0]:
        _print_metadata(*rest)
    elif task == "environment" and not rest:
        _update_environment()
    elif rest:
        raise TaskError(USAGE, os.EX_USAGE)
    else:
        _update_system_environment(task)


def _print_metadata(key: str, default: str | None = None, directory: str = "attributes") -> None:
    from tpu_image.runtime.get_metadata import get_metadata
    from tpu_image.runtime.metadata import MetadataError, MetadataServer

    if sys.stdout is None:
        raise TaskError("standard output is closed: there is no place for the value", os.EX_CANTCREAT)
    server = MetadataServer.of_this_machine(INTERACTIVE_SECONDS)
    try:
        value = get_metadata(server, key, default, directory)
    except MetadataError as error:
        raise TaskError(str(error), _status(error)) from error
    sys.stdout.buffer.write(value + b"\n")


def _update_environment() -> None:
    from tpu_image.runtime import environment
    from tpu_image.runtime.metadata import MetadataError, MetadataServer, NotSetError

    path = settings.ENVIRONMENT_PATH
    try:
        count, written = environment.update(MetadataServer.of_this_machine(BOOT_SECONDS), _owner())
    except NotSetError as error:
        raise TaskError(f"{error}: this is no TPU VM; {path} stays as it is", os.EX_NOINPUT) from error
    except MetadataError as error:
        raise TaskError(f"{error}; {path} stays as it is", _status(error)) from error
    except FormatError as error:
        raise TaskError(f"{settings.ATTRIBUTE}: {error}; {path} stays as it is", os.EX_DATAERR) from error
    print(f"{path}: {count} variables, {'written' if written else 'unchanged'}")


def _owner() -> Owner:
    """Give the user of the file, or this process's where that user does not exist; say what is unusual."""
    from tpu_image.runtime.atomic_file import Owner

    try:
        user = pwd.getpwnam(settings.USER)
    except KeyError:
        print(f"there is no user {settings.USER}: {settings.ENVIRONMENT_PATH} is given to root")
        return Owner(os.geteuid(), os.getegid())
    if user.pw_uid != settings.USER_ID:
        print(f"the user {settings.USER} has the id {user.pw_uid} in place of {settings.USER_ID}")
    return Owner(user.pw_uid, user.pw_gid)


def _update_system_environment(task: str) -> None:
    from tpu_image.runtime import system_environment

    if task not in system_environment.TASKS:
        raise TaskError(USAGE, os.EX_USAGE)
    path = settings.SYSTEM_ENVIRONMENT_PATH
    try:
        changed = system_environment.update(*system_environment.TASKS[task])
    except FormatError as error:
        raise TaskError(f"{path}: {error}; it stays as it is", os.EX_DATAERR) from error
    print(f"{path}: {'written' if changed else 'unchanged'}")


def _status(error: MetadataError) -> int:
    from tpu_image.runtime.metadata import EmptyAnswerError, ForbiddenError, NotSetError

    kinds = {NotSetError: os.EX_NOINPUT, ForbiddenError: os.EX_NOPERM, EmptyAnswerError: os.EX_DATAERR}
    return kinds.get(type(error), os.EX_UNAVAILABLE)


def _explain(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _one_line(message: str) -> str:
    """Keep a message that quotes metadata to one printable line of bounded length."""
    printable = "".join(c if c.isprintable() else "\\x%02x" % ord(c) for c in message)
    return printable if len(printable) <= 1000 else printable[:997] + "..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
