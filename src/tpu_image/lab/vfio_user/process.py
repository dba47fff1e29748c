"""The emulated TPUs of one lab session: the server in a process of its own, started, asked and ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import tpu_image
from tpu_image.lab.errors import LabError
from tpu_image.lab.vfio_user.config_space import Identity
from tpu_image.lab.vfio_user.function import Statistics

_SECONDS = 30.0
"""How long the server may take for an answer: it has nothing else to do, but the machine may."""

_SOCKET_PATH_LIMIT = 107
"""Bytes of a Unix socket's path (``sun_path`` in unix(7), less the final NUL)."""

_PROGRAM = """\
import sys
sys.path.append(sys.argv[1])
from tpu_image.lab.vfio_user.__main__ import main
sys.exit(main(sys.argv[2:]))
"""
"""The server, in isolation: with ``-m`` Python would look for every module in the working directory first."""


class EmulationError(LabError):
    """The emulated TPUs cannot be started, or are gone."""


class Emulation:
    """A running server; made by :func:`emulating`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self._folder = folder
        self._process = process
        self._input = cast("IO[bytes]", process.stdin)
        self._output = cast("IO[bytes]", process.stdout)
        self._lock = threading.Lock()
        self._received = b""

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def socket(self, name: str) -> Path:
        """Give the socket of a function."""
        return self._folder / f"{name}.sock"

    def statistics(self) -> dict[str, Statistics]:
        """Ask what happened to each function so far.

        Raises:
            EmulationError: the server is gone.
        """
        with self._lock:
            try:
                os.write(self._input.fileno(), b"statistics\n")
            except OSError as error:
                raise self._gone() from error
            values = json.loads(self.next_line())
        return {name: Statistics(**counts) for name, counts in values.items()}

    def next_line(self) -> str:
        """Wait for the server's next line.

        Raises:
            EmulationError: none comes.
        """
        output = self._output.fileno()
        while b"\n" not in self._received:
            ready, _, _ = select.select([output], [], [], _SECONDS)
            data = os.read(output, 65536) if ready else b""
            if not data:
                raise self._gone()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        """End the server, which removes its sockets, and wait for that."""
        self._input.close()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _gone(self) -> EmulationError:
        try:
            what = f"ended with status {self._process.wait(1)}"
        except subprocess.TimeoutExpired:
            what = "does not answer"
        return EmulationError(f"{self._folder}: the server of the emulated TPUs {what}", "run it again")


@contextmanager
def emulating(folder: Path, functions: Mapping[str, Identity]) -> Iterator[Emulation]:
    """Run a server of these functions, by name, with its sockets in an existing folder.

    Raises:
        EmulationError: it does not start.
    """
    for name in functions:
        path = folder / f"{name}.sock"
        if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
            raise EmulationError(
                f"{path}: longer than the {_SOCKET_PATH_LIMIT} bytes of a socket's path",
                "set TMPDIR to a shorter one",
            )
    specifications = [f"{name}={':'.join(f'{part:04x}' for part in ids)}" for name, ids in functions.items()]
    package = str(Path(tpu_image.__file__).resolve().parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _PROGRAM, package, str(folder), *specifications],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    emulation = Emulation(folder, process)
    try:
        emulation.next_line()
        yield emulation
    finally:
        emulation.close()
