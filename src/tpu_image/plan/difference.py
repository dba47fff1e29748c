"""Changes as text: the extended unified format of git(1), with owners, for any content.

What is shown comes from hostile files and is read on a terminal: what does not print, as escape sequences,
carriage returns and bytes that are not UTF-8, is shown by its code.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpu_image.formats.printable import escaped
from tpu_image.trees.memory import Directory, File, Node, Symlink

CONTEXT = 3
"""Unchanged lines shown around a change, as diff(1) shows."""

COMPARED_LINES = 500
"""Changed lines within which what stayed is searched for. Beyond, all are shown as replaced, since the search
takes quadratic time on content made for it."""

_TYPE_BITS: dict[type[Node], int] = {File: 0o100000, Directory: 0o040000, Symlink: 0o120000}

Edit = tuple[int, int, int, int]
"""Lines ``old[i:j]`` become ``new[k:l]``: (i, j, k, l)."""


def difference(path: str, before: Node | None, after: Node | None) -> str:
    """Show the change of one path; what changes its kind is shown as removed and made anew."""
    if before is not None and after is not None and type(before) is not type(after):
        return difference(path, before, None) + difference(path, None, after)
    name = visible(path)
    lines = [f"diff --git a{name} b{name}\n", *_attributes(before, after)]
    if _content(before) != _content(after):
        lines.extend(_body(name, before, after))
    return "".join(lines)


def visible(text: str) -> str:
    """Give text with what does not print escaped, tabs aside: one line, encodable, harmless to a terminal."""
    return escaped(text, keep="\t")


def _attributes(before: Node | None, after: Node | None) -> Iterator[str]:
    if before is None and after is not None:
        yield f"new file mode {_mode(after)}\n"
        if _owner(after) != "0:0":
            yield f"new owner {_owner(after)}\n"
    elif after is None and before is not None:
        yield f"deleted file mode {_mode(before)}\n"
    elif before is not None and after is not None:
        for word, old, new in (
            ("mode", _mode(before), _mode(after)),
            ("owner", _owner(before), _owner(after)),
        ):
            if old != new:
                yield f"old {word} {old}\nnew {word} {new}\n"


def _mode(node: Node) -> str:
    permissions = 0 if isinstance(node, Symlink) else node.mode
    return f"{_TYPE_BITS[type(node)] | permissions:06o}"


def _owner(node: Node) -> str:
    return f"{node.uid}:{node.gid}"


def _content(node: Node | None) -> bytes | None:
    if isinstance(node, File):
        return node.content
    return node.target.encode("utf-8", "surrogateescape") if isinstance(node, Symlink) else None


def _body(name: str, before: Node | None, after: Node | None) -> Iterator[str]:
    old, new = _content(before), _content(after)
    old_name = "/dev/null" if old is None else f"a{name}"
    new_name = "/dev/null" if new is None else f"b{name}"
    if b"\0" in (old or b"") or b"\0" in (new or b""):
        yield f"Binary files {old_name} and {new_name} differ: {_measure(old)} -> {_measure(new)}\n"
    elif old or new:
        yield f"--- {old_name}\n+++ {new_name}\n"
        yield from _hunks(_lines(old or b""), _lines(new or b""))


def _measure(content: bytes | None) -> str:
    if content is None:
        return "nothing"
    import hashlib

    return f"{len(content)} bytes sha256:{hashlib.sha256(content).hexdigest()}"


def _lines(content: bytes) -> list[str]:
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for edits in _groups(_edits(old, new)):
        start = max(edits[0][0] - CONTEXT, 0)
        end = min(edits[-1][1] + CONTEXT, len(old))
        new_start = start + edits[0][2] - edits[0][0]
        new_end = end + edits[-1][3] - edits[-1][1]
        yield f"@@ -{_span(start, end)} +{_span(new_start, new_end)} @@\n"
        for i, j, k, m in edits:
            yield from (_shown(" ", line) for line in old[start:i])
            yield from (_shown("-", line) for line in old[i:j])
            yield from (_shown("+", line) for line in new[k:m])
            start = j
        yield from (_shown(" ", line) for line in old[start:end])


def _span(start: int, end: int) -> str:
    length = end - start
    return f"{start + 1 if length else start},{length}"


def _shown(mark: str, line: str) -> str:
    ending = "\n" if line.endswith("\n") else "\n\\ No newline at end of file\n"
    return mark + visible(line.removesuffix("\n")) + ending


def _edits(old: list[str], new: list[str]) -> list[Edit]:
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    tail = next((n for n in range(shorter - head) if old[-1 - n] != new[-1 - n]), shorter - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    if max(old_end, new_end) - head > COMPARED_LINES:
        return [(head, old_end, head, new_end)]
    import difflib

    matcher = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end])
    return [
        (head + i, head + j, head + k, head + m)
        for tag, i, j, k, m in matcher.get_opcodes()
        if tag != "equal"
    ]


def _groups(edits: list[Edit]) -> list[list[Edit]]:
    """Put edits into one hunk whose context would touch."""
    groups: list[list[Edit]] = []
    for edit in edits:
        if groups and edit[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    return groups
