"""The lab's metadata server as a program for a container: ``python3 metadata_program.py ADDRESS PORT NAME=FILE...``.

Attributes of the instance are what stands in files now: a file that is missing is an attribute that is not set, and one
that says ``forbidden`` is answered with 403. Beside this file lies the package ``tpu_image``.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from tpu_image.lab.metadata.faults import Fault
from tpu_image.lab.metadata.machine import Machine
from tpu_image.lab.metadata.server import MetadataServer


class FilesServer(MetadataServer):
    """Reads the files anew for every request."""

    files: dict[str, Path]

    def fault(self, path: str) -> Fault | None:
        contents = {name: file.read_text() if file.is_file() else None for name, file in self.files.items()}
        for name, content in contents.items():
            self.state.set_attribute(name, content)
        return Fault("403") if contents.get(path.rpartition("/")[2]) == "forbidden\n" else None


def main(address: str, port: str, *files: str) -> None:
    server = FilesServer(Machine(), (), socket.create_server((address, int(port))))
    server.files = {name: Path(file) for name, _, file in (argument.partition("=") for argument in files)}
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
