"""The server as a program.

    python -m tpu_image.lab.vfio_user FOLDER NAME=VENDOR:DEVICE:SUBVENDOR:SUBDEVICE...

It makes ``FOLDER/NAME.sock`` for each function, ids in hexadecimal, prints ``ready``, answers each line on standard
input with its statistics as one line of JSON, and ends where standard input ends. So it ends with whoever started it,
however that ended: the kernel closes the pipe of a killed process too. A signal on the parent's death
(PR_SET_PDEATHSIG) would not do: it follows the thread that started the child, not the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tpu_image.lab.vfio_user.config_space import Identity
from tpu_image.lab.vfio_user.function import TpuFunction
from tpu_image.lab.vfio_user.server import Server


def main(arguments: list[str]) -> int:
    """Serve until standard input ends or SIGTERM comes."""
    folder = Path(arguments[0])
    functions: dict[str, TpuFunction] = {}
    for argument in arguments[1:]:
        name, _, ids = argument.partition("=")
        functions[name] = TpuFunction(Identity(*(int(part, 16) for part in ids.split(":"))))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt of the terminal is the parent's to handle
    try:
        server = Server({folder / f"{name}.sock": function for name, function in functions.items()})
    except OSError as error:
        print(f"{folder}: {error.strerror or error}", file=sys.stderr)
        return os.EX_CANTCREAT
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        server.watch(sys.stdin.fileno(), lambda: _obey(server, functions))
        print("ready", flush=True)
        server.run()
    except BrokenPipeError:
        sys.stdout = None  # nobody reads any more
    finally:
        server.close()
    return os.EX_OK


def _obey(server: Server, functions: dict[str, TpuFunction]) -> None:
    """Answer each line; stop at the end."""
    data = os.read(sys.stdin.fileno(), 4096)
    if not data:
        server.stop()
    for _ in range(data.count(b"\n")):
        values = {name: function.statistics()._asdict() for name, function in functions.items()}
        print(json.dumps(values), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
