"""systemd's own parsers, called in the library that its programs share, to compare ours with."""

from __future__ import annotations

import ctypes as c
import glob
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

LIBRARIES = (
    "/usr/lib/*/systemd/libsystemd-shared-*.so",
    "/usr/lib/systemd/libsystemd-shared-*.so",
    "/usr/lib64/systemd/libsystemd-shared-*.so",
)
UNQUOTE_AND_UNESCAPE = 1 << 1 | 1 << 2 | 1 << 5
"""EXTRACT_CUNESCAPE, EXTRACT_UNESCAPE_RELAX and EXTRACT_UNQUOTE of systemd's ``src/basic/extract-word.h``."""

Callback = c.CFUNCTYPE(
    c.c_int,
    c.c_char_p,
    c.c_char_p,
    c.c_uint,
    c.c_char_p,
    c.c_uint,
    c.c_char_p,
    c.c_int,
    c.c_char_p,
    c.c_void_p,
    c.c_void_p,
)
Lookup = c.CFUNCTYPE(
    c.c_int,
    c.c_void_p,
    c.c_char_p,
    c.c_char_p,
    c.POINTER(c.c_void_p),
    c.POINTER(c.c_int),
    c.POINTER(c.c_void_p),
    c.c_void_p,
)


def load() -> Any:
    """The library that belongs to the installed systemd."""
    found = [path for pattern in LIBRARIES for path in glob.glob(pattern)]
    if not found:
        pytest.fail("libsystemd-shared is missing: apt-get install systemd")
    return c.CDLL(found[0])


def decode(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "surrogateescape")


def split(text: str) -> list[str] | None:
    """The words of a command line; None where systemd refuses it."""
    library = load()
    buffer = c.create_string_buffer(text.encode("utf-8", "surrogateescape"))
    rest = c.cast(buffer, c.c_char_p)
    words: list[str] = []
    while True:
        word = c.c_char_p()
        status = library.extract_first_word(c.byref(rest), c.byref(word), None, UNQUOTE_AND_UNESCAPE)
        if status <= 0:
            return None if status < 0 else words
        words.append(decode(word.value))


def settings(path: Path, sections: Sequence[str]) -> list[tuple[str, str, str]]:
    """Section, key and value of every assignment that systemd takes from a file."""
    seen: list[tuple[str, str, str]] = []

    def assign(*arguments: Any) -> int:
        section, key, value = (decode(arguments[index]) for index in (3, 5, 7))
        seen.append((section, key, value))
        return 0

    def find(_table: Any, _section: Any, _key: Any, function: Any, kind: Any, data: Any, _user: Any) -> int:
        function[0] = c.cast(callback, c.c_void_p).value
        kind[0] = 0
        data[0] = None
        return 1

    callback = Callback(assign)
    known = b"".join(section.encode() + b"\0" for section in sections) + b"\0"
    load().config_parse(None, os.fsencode(path), None, c.c_char_p(known), Lookup(find), None, 0, None, None)
    return seen


def limit(resource: int, text: str) -> tuple[int, int] | None:
    """Soft and hard value of a ``Limit…=`` setting; None where systemd refuses it."""
    values = (c.c_ulong * 2)()
    status = load().rlimit_parse(resource, os.fsencode(text), c.byref(values))
    return None if status < 0 else (values[0], values[1])


def inside(root: Path, function: Callable[[], Any]) -> Any:
    """What a function returns in a process of its own whose root is the folder."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.chroot(root)
        os.chdir("/")
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(function(), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pickle.load(pipe)
    os.waitpid(child, 0)
    return answer


def unit_files(root: Path, names: Sequence[str]) -> dict[str, tuple[str, list[str]]]:
    """The main file and the drop-ins of each unit of a root, as the manager finds them."""
    library = load()
    return inside(root, lambda: {name: _unit_files(library, name) for name in names})  # type: ignore[no-any-return]


def _unit_files(library: Any, name: str) -> tuple[str, list[str]]:
    lookup_paths = c.create_string_buffer(4096)
    assert library.lookup_paths_init(lookup_paths, 0, 0, None) >= 0
    search = c.c_void_p(c.cast(lookup_paths, c.POINTER(c.c_void_p))[0])
    ids, names, cache, aliases = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_void_p()
    library.unit_file_build_name_map(lookup_paths, None, c.byref(ids), c.byref(names), c.byref(cache))
    fragment = c.c_char_p()
    library.unit_file_find_fragment(ids, names, name.encode(), c.byref(fragment), c.byref(aliases))
    found = c.POINTER(c.c_char_p)()
    arguments = (None, search, cache, b".d", b".conf", name.encode(), aliases, c.byref(found))
    library.unit_file_find_dropin_paths(*arguments)
    drop_ins: list[str] = []
    while found and found[len(drop_ins)]:
        drop_ins.append(decode(found[len(drop_ins)]))
    return decode(fragment.value), drop_ins
