"""The zipapp that does the boot tasks on the VM: how it is made, and how one in an image is recognised.

It begins with two lines that Python's zip importer passes over: how to run it, and checksums, so that neither
PyYAML nor a zip reader is needed to judge one. The checksums find damage and other versions, not malice.
"""

from __future__ import annotations

import enum
import zlib

from tpu_image.formats import zip_archive
from tpu_image.runtime import settings

PATH = settings.ARCHIVE_PATH
MODE = 0o755

SIZE_LIMIT = 4 * 1024 * 1024
"""Bytes of an archive that are read at most; ours has about 300 KB."""

_OWN_FILES = (
    "__init__.py",
    "formats/__init__.py",
    "formats/pam_environment.py",
    "formats/tpu_env.py",
    "formats/variable_names.py",
    "runtime/__init__.py",
    "runtime/__main__.py",
    "runtime/atomic_file.py",
    "runtime/environment.py",
    "runtime/get_metadata.py",
    "runtime/http_exchange.py",
    "runtime/metadata.py",
    "runtime/settings.py",
    "runtime/system_environment.py",
)
"""What the boot tasks import of this package."""

_YAML_FILES = ("error.py", "events.py", "parser.py", "reader.py", "scanner.py", "tokens.py")
"""What of PyYAML gives events."""

_MAIN = b"""\
import sys

from tpu_image.runtime.__main__ import main

sys.exit(main(sys.argv[1:]))
"""

_YAML_PACKAGE = b"""\
import sys

__path__ = [entry + "/yaml" for entry in sys.path[1:]] + __path__
"""
"""PyYAML's package without what its own loads: its modules from the system, compiled already, else from here."""

_SHEBANG = f"#!{settings.INTERPRETER} -I\n".encode()
_MARK = b"# tpu-image runtime, checksums of its modules and of all that follows: "
_CHECKSUM_DIGITS = 8
_PREAMBLE_SIZE = len(_SHEBANG) + len(_MARK) + 2 * _CHECKSUM_DIGITS + len(b" \n")


class Condition(enum.Enum):
    """What the file in an image is."""

    CURRENT = "is this version's"
    OTHER_VERSION = "is another version's"
    DAMAGED = "is damaged"
    FOREIGN = "is not tpu-image's"


def examine(content: bytes) -> Condition:
    """Judge the file at :data:`PATH`."""
    preamble, archive = content[:_PREAMBLE_SIZE], content[_PREAMBLE_SIZE:]
    if not preamble.startswith(_SHEBANG + _MARK):
        return Condition.FOREIGN
    modules, _, rest = preamble[len(_SHEBANG + _MARK) :].partition(b" ")
    if rest != _checksum(archive) + b"\n":
        return Condition.DAMAGED
    return Condition.CURRENT if modules == _modules_checksum() else Condition.OTHER_VERSION


def build() -> bytes:
    """Give the archive: the same bytes on every host, for the same sources.

    Raises:
        ModuleNotFoundError: PyYAML is not installed here.
    """
    modules = _modules_checksum()
    unsigned = _preamble(modules, b"0" * _CHECKSUM_DIGITS)
    packed = zip_archive.pack(_members(), before=unsigned)[_PREAMBLE_SIZE:]
    return _preamble(modules, _checksum(packed)) + packed


def _preamble(modules: bytes, archive: bytes) -> bytes:
    return _SHEBANG + _MARK + modules + b" " + archive + b"\n"


def _members() -> dict[str, bytes]:
    members = {"__main__.py": _MAIN, "yaml/__init__.py": _YAML_PACKAGE}
    members["yaml/LICENSE"] = _source("tpu_image", "runtime/PyYAML-LICENSE.txt")
    members |= {f"tpu_image/{name}": _source("tpu_image", name) for name in _OWN_FILES}
    members |= {f"yaml/{name}": _source("yaml", name) for name in _YAML_FILES}
    return members


def _modules_checksum() -> bytes:
    return _checksum(b"\0".join((_MAIN, _YAML_PACKAGE, *(_source("tpu_image", name) for name in _OWN_FILES))))


def _checksum(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content)


def _source(package: str, name: str) -> bytes:
    """Read a file of a package without importing it; the package may itself lie in a zipapp."""
    import importlib.util
    import posixpath

    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"the Python package {package} is needed to make the boot runtime", name=package
        )
    content: bytes = spec.loader.get_data(posixpath.join(posixpath.dirname(spec.origin), name))  # type: ignore[union-attr]
    return content
