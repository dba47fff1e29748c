"""The checker as one file: a zip archive that Python runs (PEP 441), the same bytes from the same sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tpu_image.formats import zip_archive
from tpu_image.output import write_file

PACKED = (
    "__init__.py",
    "catalogue",
    "checker.py",
    "formats",
    "inspection.py",
    "output.py",
    "report/__init__.py",
    "report/json.py",
    "report/model.py",
    "report/printable.py",
    "report/text.py",
    "runtime",
    "trees",
)
"""What of this package goes in: what a check needs and no more."""

_SHEBANG = b"#!/usr/bin/env python3\n"

_MAIN = b"""\
import sys

if sys.version_info < (3, 10):
    sys.stderr.write("tpu-image: Python 3.10 or newer is needed; this is " + sys.version.split()[0] + "\\n")
    sys.exit(2)

from tpu_image.checker import main

sys.exit(main(sys.argv[1:]))
"""


def build() -> bytes:
    """Give the bytes of the checker's single file, with PyYAML's Python modules in it.

    Raises:
        PackageNotFoundError: PyYAML is not installed.
    """
    return zip_archive.pack(_members(), before=_SHEBANG, deflated=True)


def _members() -> dict[str, bytes]:
    here = Path(__file__).parent
    found = {"__main__.py": _MAIN}
    for name in PACKED:
        for path in _files(here / name):
            found[f"tpu_image/{path.relative_to(here).as_posix()}"] = path.read_bytes()
    return found | _yaml()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file


def _yaml() -> dict[str, bytes]:
    """Give PyYAML without its C extension, and its licence."""
    distribution = metadata.distribution("PyYAML")
    found: dict[str, bytes] = {}
    for file in distribution.files or []:
        name = file.as_posix()
        if name.startswith("yaml/") and name.endswith(".py"):
            found[name] = Path(str(file.locate())).read_bytes()
        elif name.rpartition("/")[2] == "LICENSE":
            found["yaml/LICENSE"] = Path(str(file.locate())).read_bytes()
    return found


def write(path: Path) -> None:
    """Write the single file, executable, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, build(), mode=0o777)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
