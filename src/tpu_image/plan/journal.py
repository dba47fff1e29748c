"""The journal of a tree: what was at each path before tpu-image first changed it.

It is on the disk before the first change, so an ``apply`` that is stopped can be taken back. What it holds is
data from the tree, so possibly forged: it is checked to the last field, and its paths are walked like any
other, so that they cannot lead outside.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from tpu_image.plan.change import Change, PlanError
from tpu_image.plan.difference import visible
from tpu_image.plan.snapshot import INODE_SIGNATURE, Snapshot, digest
from tpu_image.trees.base import READ_LIMIT, normalise
from tpu_image.trees.directory import encode_path
from tpu_image.trees.memory import Directory, File, Node, Symlink

T = TypeVar("T")

JOURNAL = "/var/lib/tpu-image/undo.json"
"""Where the journal is (Filesystem Hierarchy Standard, section 5.8: state of one program)."""

SCHEMA = "tpu-image/undo/1"

_RECORDS_LIMIT = 10_000  # an apply changes some thirty paths
_PATH_LIMIT = 4096
_NAME_LIMIT = 255
_ID_LIMIT = 2**32 - 2  # one more means "leave as it is" to chown(2)
_TIME_LIMIT = 2**62 * 10**9  # nanoseconds; seconds are a 64-bit time_t
_ATTRIBUTE_CLASSES = ("user.", "trusted.", "security.", "system.")  # xattr(7)


class Record(NamedTuple):
    """A path's original, and the digest of every state that tpu-image gave it since."""

    original: Snapshot
    written: frozenset[str] = frozenset()


class Journal(NamedTuple):
    """Records by path, and the directories that were made to hold the journal itself, outermost first."""

    records: Mapping[str, Record] = MappingProxyType({})
    directories: tuple[str, ...] = ()

    def with_changes(self, changes: Iterable[tuple[Change, Snapshot]]) -> Journal:
        """Note changes about to be made, each with what is there now; an original noted before stays."""
        records = dict(self.records)
        for change, present in changes:
            record = records.get(change.path, Record(present))
            written = record.written | _states(change, record.original.node)
            records[change.path] = record._replace(written=written)
        return self._replace(records=records)


def _states(change: Change, original: Node | None) -> frozenset[str]:
    """Digests of every state that making a change, and taking it back, leads through."""
    nodes: set[Node | None] = {change.after}
    if isinstance(change.after, Directory):
        # A directory's owner and mode are set one after the other, and it takes the place of nothing alone.
        kin = [node for node in (change.before, change.after, original) if isinstance(node, Directory)]
        nodes |= {Directory(a.mode, b.uid, b.gid) for a, b in product(kin, kin)}
        nodes |= set() if isinstance(change.before, Directory) else {None}
    return frozenset(map(digest, nodes))


def encode(journal: Journal) -> bytes:
    """Write a journal as JSON, the same each time.

    Raises:
        PlanError: it would be larger than :data:`~tpu_image.trees.base.READ_LIMIT`.
    """
    import json

    document = {
        "schema": SCHEMA,
        "directories": journal.directories,
        "paths": {
            path: {"original": _encode_snapshot(record.original), "written": sorted(record.written)}
            for path, record in sorted(journal.records.items())
        },
    }
    content = json.dumps(document).encode("ascii") + b"\n"
    if len(content) > READ_LIMIT:
        raise PlanError(
            JOURNAL, f"would hold more than {READ_LIMIT} bytes of originals; change smaller files"
        )
    return content


def _encode_snapshot(snapshot: Snapshot) -> dict[str, Any] | None:
    node = snapshot.node
    if node is None:
        return None
    xattrs = {name: _encode_bytes(value) for name, value in sorted((snapshot.xattrs or {}).items())}
    common = {"uid": node.uid, "gid": node.gid, "xattrs": xattrs}
    if isinstance(node, Symlink):
        return {"kind": "link", **common, "target": node.target, "mtime_ns": snapshot.mtime_ns}
    if isinstance(node, Directory):
        return {"kind": "directory", **common, "mode": node.mode}
    content = _encode_bytes(node.content)
    return {"kind": "file", **common, "mode": node.mode, "content": content, "mtime_ns": snapshot.mtime_ns}


def _encode_bytes(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def decode(content: bytes) -> Journal:
    """Read a journal strictly: every field that is expected, none else, each within its bounds.

    Raises:
        PlanError: it is not one.
    """
    import json

    try:
        document = _object(json.loads(content), "schema", "directories", "paths")
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is not {SCHEMA}")
        directories = tuple(_path(path) for path in _list(document["directories"]))
        paths = _typed(document["paths"], dict)
        if len(paths) > _RECORDS_LIMIT:
            raise ValueError(f"it names more than {_RECORDS_LIMIT} paths")
        return Journal({_path(path): _record(record) for path, record in paths.items()}, directories)
    except (ValueError, RecursionError) as error:
        raise PlanError(JOURNAL, unusable(visible(str(error))[:200])) from error


def unusable(reason: str) -> str:
    """Say why a journal is not used, and what to do."""
    return f"is not a usable undo journal ({reason}); move it away to go on without"


def _record(value: object) -> Record:
    fields = _object(value, "original", "written")
    return Record(_snapshot(fields["original"]), frozenset(map(_digest, _list(fields["written"]))))


def _snapshot(value: object) -> Snapshot:
    if value is None:
        return Snapshot()
    kind = _typed(value, dict).get("kind")
    if kind == "file":
        fields = _object(value, "kind", "uid", "gid", "xattrs", "mode", "content", "mtime_ns")
        node: Node = File(_bytes(fields["content"]), _mode(fields), *_owner(fields))
    elif kind == "directory":
        fields = _object(value, "kind", "uid", "gid", "xattrs", "mode")
        return Snapshot(Directory(_mode(fields), *_owner(fields)), None, _attributes(fields["xattrs"]))
    elif kind == "link":
        fields = _object(value, "kind", "uid", "gid", "xattrs", "target", "mtime_ns")
        node = Symlink(_text(fields["target"], _PATH_LIMIT), *_owner(fields))
    else:
        raise ValueError("an original is of no known kind")
    mtime_ns = _integer(fields["mtime_ns"], -_TIME_LIMIT, _TIME_LIMIT)
    return Snapshot(node, mtime_ns, _attributes(fields["xattrs"]))


def _object(value: object, *names: str) -> dict[str, Any]:
    fields = _typed(value, dict)
    if fields.keys() != set(names):
        raise ValueError(f"an entry does not have the fields {', '.join(names)}")
    return fields


def _typed(value: object, kind: type[T]) -> T:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} is expected where there is a {type(value).__name__}")
    return value


def _list(value: object) -> list[Any]:
    return _typed(value, list)


def _integer(value: object, lowest: int, highest: int) -> int:
    number = _typed(value, int)
    if not lowest <= number <= highest:
        raise ValueError("a number is out of bounds")
    return number


def _mode(fields: Mapping[str, object]) -> int:
    return _integer(fields["mode"], 0, 0o7777)


def _owner(fields: Mapping[str, object]) -> tuple[int, int]:
    return _integer(fields["uid"], 0, _ID_LIMIT), _integer(fields["gid"], 0, _ID_LIMIT)


def _text(value: object, limit: int) -> str:
    text = _typed(value, str)
    if not 0 < len(encode_path(text)) <= limit or "\0" in text:
        raise ValueError(f"a text is empty, holds NUL or is longer than {limit} bytes")
    return text


def _path(value: object) -> str:
    path = _text(value, _PATH_LIMIT)
    if path != normalise(path) or path == "/":
        raise ValueError(f"the path {path[:80]!r} is not absolute and plain")
    return path


def _bytes(value: object) -> bytes:
    return binascii.a2b_base64(_typed(value, str).encode("ascii"))


def _digest(value: object) -> str:
    text = _typed(value, str)
    if text != "absent" and not (text.startswith("sha256:") and len(text) == len("sha256:") + 64):
        raise ValueError("a digest is malformed")
    return text


def _attributes(value: object) -> dict[str, bytes]:
    attributes = _typed(value, dict)
    for name in attributes:
        if not _text(name, _NAME_LIMIT).startswith(_ATTRIBUTE_CLASSES) or name == INODE_SIGNATURE:
            raise ValueError("an extended attribute has a name that is never kept")
    return {name: _bytes(content) for name, content in attributes.items()}
