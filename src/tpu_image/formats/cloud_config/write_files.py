"""The entries of ``write_files``, as cloudinit/config/cc_write_files.py turns them into files."""

from __future__ import annotations

import posixpath
from collections.abc import Collection
from typing import NamedTuple

from tpu_image.formats.cloud_config.findings import Findings, nearest
from tpu_image.formats.yaml_text import Mapping, Node, Scalar, Sequence

DEFAULT_MODE = 0o644
DEFAULT_OWNER = "root:root"
CONTENT_LIMIT = 16 * 1024 * 1024
"""Bytes that a gzip'd content may unpack to here."""

LOST = {
    "path": "nothing is written",
    "content": "the file stays empty",
    "owner": "root owns the file",
    "permissions": f"the mode is {DEFAULT_MODE:04o}",
    "encoding": "the content is written undecoded",
    "append": "what the file held is replaced",
    "defer": "the file is written before users and packages exist",
}
"""The keys of an entry, and what follows where one is misspelt or unusable."""

NEWER_KEYS = ("source",)
"""Keys that 22.4 does not know and later versions do; they are not judged."""

OTHER_TOOLS_KEYS = {
    "mode": "permissions",
    "perm": "permissions",
    "user": "owner",
    "dest": "path",
    "file": "path",
}

PLAIN = "text/plain"
BASE64 = ("b64", "base64")
GZIP = ("gz", "gzip")
GZIP_BASE64 = ("gz+base64", "gzip+base64", "gz+b64", "gzip+b64")
ENCODINGS = (PLAIN, *BASE64, *GZIP, *GZIP_BASE64)

TRUE_TEXTS = ("true", "1", "on", "yes")
"""What is taken for true where no boolean stands (cloudinit/util.py)."""


class Accounts(NamedTuple):
    """The names of users and groups that exist before cloud-init runs."""

    users: Collection[str]
    groups: Collection[str]


class WrittenFile(NamedTuple):
    """A file as it comes out, not as it is spelt."""

    path: str
    mode: int
    owner: str
    content: bytes | None
    """None where the text does not tell it."""
    append: bool
    deferred: bool
    """Whether it is written at the end of the boot, after users and packages."""
    line: int


def read_entries(node: Node | None, accounts: Accounts | None, findings: Findings) -> list[WrittenFile]:
    """Give the files that the value of ``write_files`` makes; without ``accounts`` no owner is judged."""
    if node is None:
        return []
    if not isinstance(node, Sequence):
        findings.add("write_files is not a list: cloud-init writes none of it", node, "a list")
        return []
    files = []
    for item in node.items:
        if not isinstance(item, Mapping):
            message = "an entry of write_files is not a mapping: cloud-init writes none of the files"
            findings.add(message, item, "path, content, …")
        elif file := _Entry(item, accounts, findings).read():
            files.append(file)
    return files


class _Entry:
    """One entry being read."""

    def __init__(self, entry: Mapping, accounts: Accounts | None, findings: Findings) -> None:
        self._entry = entry
        self._accounts = accounts
        self._findings = findings

    def read(self) -> WrittenFile | None:
        for key, _ in self._entry:
            self._judge_key(key)
        path = self._path()
        deferred = self._flag("defer")
        file = WrittenFile(
            path=path,
            mode=self._mode(),
            owner=self._owner(path, deferred),
            content=self._content(),
            append=self._flag("append"),
            deferred=deferred,
            line=self._entry.line,
        )
        return file if path else None

    def _judge_key(self, key: Scalar) -> None:
        if key.text in LOST or key.text in NEWER_KEYS:
            return
        meant = OTHER_TOOLS_KEYS.get(key.text.lower()) or nearest(key.text, tuple(LOST), 0.6)
        effect = f": {LOST[meant]}" if meant else ""
        self._findings.add(f"unknown key {key.text[:40]!r} in write_files is ignored{effect}", key, meant)

    def _text(self, key: str) -> tuple[Scalar, str] | None:
        """Give a value that must be text; None where it is absent, blank or, which is found, no text."""
        node = self._entry.get(key)
        if node is None or (isinstance(node, Scalar) and not node.value):
            return None
        if isinstance(node, Scalar) and isinstance(node.value, str):
            return node, node.value
        self._findings.stops(f"{key} is not text", node)
        return None

    def _path(self) -> str:
        node = self._entry.get("path")
        if node is None or (isinstance(node, Scalar) and not node.value):
            at = node or self._entry
            self._findings.add("an entry of write_files has no path, so it is not written", at, "path")
        text = self._text("path")
        if text is None:
            return ""
        path = posixpath.normpath("/" + text[1].lstrip("/"))
        if not text[1].startswith("/"):
            message = f"path {text[1]!r} is relative: it is taken from /"
            self._findings.add(message, text[0], path, breaks=False)
        return path

    def _mode(self) -> int:
        """Give the permission bits that result (``decode_perms``, and ``chmod`` of cloudinit/util.py)."""
        node = self._entry.get("permissions")
        if node is None:
            return DEFAULT_MODE
        value = node.value if isinstance(node, Scalar) else b""
        if isinstance(node, Scalar) and isinstance(value, int | float):
            return self._number_mode(node, value)
        mode = _octal(value) if isinstance(value, str) else None
        if mode:
            return mode
        shown = "mode 0000 is not applied" if mode == 0 else "permissions is not an octal number"
        if value is None:
            shown = "permissions is blank"
        self._findings.add(f"{shown}: {LOST['permissions']}", node, "'0644'", breaks=value is not None)
        return DEFAULT_MODE

    def _number_mode(self, node: Scalar, value: float) -> int:
        meant = _octal(node.text)
        try:
            mode = int(value) & 0o7777 or DEFAULT_MODE
        except (ValueError, OverflowError):
            mode = DEFAULT_MODE
        effect = f"the mode becomes {mode:04o}"
        if mode == meant:
            effect = f"the mode is {mode:04o} all the same, but cloud-init's schema wants a string"
        message = f"permissions {node.text[:20]} without quotes is the number {value}: {effect}"
        self._findings.add(message, node, f"'{meant or DEFAULT_MODE:04o}'", breaks=mode != meant)
        return mode

    def _owner(self, path: str, deferred: bool) -> str:
        owner = self._text("owner")
        if owner is None:
            return DEFAULT_OWNER
        node, text = owner
        user, _, group = (part.strip() for part in text.partition(":"))
        if self._accounts and not deferred:
            self._judge_account(node, path, f"user {user!r}", user, self._accounts.users)
            self._judge_account(node, path, f"group {group!r}", group, self._accounts.groups)
        return text

    def _judge_account(
        self, node: Scalar, path: str, label: str, name: str, existing: Collection[str]
    ) -> None:
        # Numbers are looked up as names too; "-1" and "none" leave the owner alone (extract_usergroup).
        if not name or name == "-1" or name.lower() == "none" or name in existing:
            return
        self._findings.add(
            f"{label} does not exist when {path} is written: cloud-init stops there and writes no later file",
            node,
            "root, or defer: true",
        )

    def _flag(self, key: str) -> bool:
        node = self._entry.get(key)
        if node is None:
            return False
        value = node.value if isinstance(node, Scalar) else None
        if isinstance(value, bool):
            return value
        result = str(value).strip().lower() in TRUE_TEXTS
        message = f"{key} is not a boolean: cloud-init takes it for {str(result).lower()}"
        self._findings.add(message, node, "true or false", breaks=False)
        return result

    def _encoding(self) -> str:
        encoding = self._text("encoding")
        if encoding is None:
            return PLAIN
        node, text = encoding
        name = text.lower().strip()
        if name not in ENCODINGS:
            message = f"unknown encoding {text[:40]!r}: {LOST['encoding']}"
            self._findings.add(message, node, nearest(name, ENCODINGS, 0.5) or "base64")
            return PLAIN
        if name != text:
            message = f"encoding {text[:40]!r} works, but cloud-init's schema wants it in lower case"
            self._findings.add(message, node, name, breaks=False)
        return name

    def _content(self) -> bytes | None:
        """Give what lands in the file (``extract_contents``)."""
        encoding = self._encoding()
        node = self._entry.get("content")
        if node is None:
            return None if self._entry.get("source") else b""
        value = node.value if isinstance(node, Scalar) else None
        if not isinstance(value, str | bytes):
            self._findings.stops("content is not text", node)
            return None
        try:
            return _decode(value, encoding)
        except ValueError:
            self._findings.stops(f"content is no valid {encoding}", node, f"{encoding} data")
            return None


def _octal(text: str) -> int | None:
    """Read a mode as ``int(text, 8)`` does; None where it is none or has other bits than a mode."""
    try:
        mode = int(text, 8)
    except ValueError:
        return None
    return mode if 0 <= mode <= 0o7777 else None


def _decode(content: str | bytes, encoding: str) -> bytes:
    """Decode as cloud-init does.

    Raises:
        ValueError: the content is not of that encoding.
    """
    base64 = encoding in (*BASE64, *GZIP_BASE64)
    data = content if isinstance(content, bytes) else content.encode("ascii" if base64 else "utf-8")
    if base64:
        import binascii

        data = binascii.a2b_base64(data)
    return _gunzip(data) if encoding in (*GZIP, *GZIP_BASE64) else data


def _gunzip(data: bytes) -> bytes:
    import zlib

    gzip_header = 16
    try:
        return zlib.decompressobj(wbits=gzip_header + zlib.MAX_WBITS).decompress(data, CONTENT_LIMIT)
    except zlib.error as error:
        raise ValueError(str(error)) from None
