"""A journal comes back as it was written, and one that lies does no harm."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_trees import (
    NOBODY,
    folder,
    nodes_of,
    picture,
)
from plan_cases import change, write_everything
from tpu_image.plan import JOURNAL, PlanError, undo
from tpu_image.plan.journal import Journal, Record, decode, encode
from tpu_image.plan.snapshot import Snapshot, digest
from tpu_image.trees.base import TreeError
from tpu_image.trees.memory import Directory, File, Node

pytestmark = pytest.mark.usefixtures("root_user")


def snapshots() -> st.SearchStrategy[Snapshot]:
    attributes = st.dictionaries(
        st.sampled_from(["user.a", "security.selinux"]), st.binary(max_size=9), max_size=2
    )
    times = st.integers(-(2**40), 2**70)

    def of(node: Node | None, time: int, xattrs: dict[str, bytes]) -> Snapshot:
        if node is None:
            return Snapshot()
        return Snapshot(node, None if isinstance(node, Directory) else time, xattrs)

    return st.builds(of, st.one_of(st.none(), nodes_of()), times, attributes)


@given(st.dictionaries(st.sampled_from(["/a", "/b/c", "/\udcff é"]), snapshots(), max_size=3))
def test_a_journal_is_read_as_it_was_written(originals: dict[str, Snapshot]) -> None:
    records = {
        path: Record(snapshot, frozenset({digest(snapshot.node)})) for path, snapshot in originals.items()
    }
    journal = Journal(records, ("/var", "/var/lib"))
    assert decode(encode(journal)) == journal


FILE = {"kind": "file", "uid": 0, "gid": 0, "mode": 0o644, "content": "", "mtime_ns": 0, "xattrs": {}}
LINK = {"kind": "link", "uid": 0, "gid": 0, "target": "x", "mtime_ns": 0, "xattrs": {}}


def forged(path: str = "/x", original: Any = None, **fields: Any) -> dict[str, Any]:
    record = {"original": original, "written": [], **fields}
    return {"schema": "tpu-image/undo/1", "directories": [], "paths": {path: record}}


ATTRIBUTES: list[Any] = [{"evil": ""}, {"security.evm": ""}, {"user.a": 1}, {"user." + "x" * 255: ""}, []]

FORGED: list[Any] = [
    None,
    [],
    {},
    {"schema": "tpu-image/undo/2", "directories": [], "paths": {}},
    {"schema": "tpu-image/undo/1", "directories": [], "paths": []},
    {"schema": "tpu-image/undo/1", "directories": [], "paths": {}, "more": 1},
    {"schema": "tpu-image/undo/1", "directories": ["/etc"], "paths": {}},
    {"schema": "tpu-image/undo/1", "directories": ["/var/lib/../.."], "paths": {}},
    {"schema": "tpu-image/undo/1", "directories": [["/var"]], "paths": {}},
    *(
        forged(path)
        for path in ("", "/", "x", "../x", "/../x", "/a/../../x", "/a//x", "/a/", "//x", "/a\0", "/\ud800")
    ),
    forged("/" + "x/" * 5000 + "x"),
    {**forged(), "paths": {f"/{n}": {"original": None, "written": []} for n in range(10_001)}},
    forged(written="sha256"),
    forged(written=["sha256:0"]),
    forged(written=[1]),
    forged(original=1),
    forged(original={}),
    forged(original={**FILE, "kind": "device"}),
    *(forged(original={**FILE, "mode": mode}) for mode in (-1, 0o10000, True, "0644", 1.5, None)),
    *(forged(original={**FILE, "uid": uid}) for uid in (-1, 2**32 - 1, 10**30, "root")),
    *(forged(original={**FILE, "mtime_ns": time}) for time in (None, 10**40, "now")),
    *(forged(original={**FILE, "content": content}) for content in (None, "é", "abc")),
    *(forged(original={**FILE, "xattrs": given}) for given in ATTRIBUTES),
    *(forged(original={**LINK, "target": target}) for target in ("", "a\0b", "x" * 4097, 7)),
]


@pytest.mark.parametrize("document", FORGED, ids=lambda document: json.dumps(document)[:80])
@pytest.mark.parametrize("use", [undo, lambda root: change(root, write_everything)], ids=["undo", "apply"])
def test_a_forged_journal_is_refused_in_one_line_and_nothing_is_done(
    root: Path, document: Any, use: Callable[[Path], object]
) -> None:
    plant(root, json.dumps(document))
    before = picture(root)
    with pytest.raises(PlanError) as raised:
        use(root)
    assert str(raised.value).startswith(f"{JOURNAL}: is not a usable undo journal (")
    assert str(raised.value).isprintable()
    assert picture(root) == before


def plant(root: Path, text: str | bytes, mode: int = 0o600) -> Path:
    journal = root / JOURNAL[1:]
    journal.parent.mkdir(parents=True)
    journal.write_bytes(text.encode() if isinstance(text, str) else text)
    journal.chmod(mode)
    return journal


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b'{"schema": NaN}', b"\0"]
)
def test_what_is_no_journal_is_refused(root: Path, text: bytes) -> None:
    plant(root, text)
    with pytest.raises(PlanError, match="is not a usable undo journal"):
        undo(root)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=5)
        | st.sampled_from([FILE, LINK, forged()]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*FILE, "schema", "paths", "directories", "original"]), inner, max_size=4
            )
        ),
    )
)
def test_any_json_is_a_journal_or_refused(document: object) -> None:
    for text in (json.dumps(document), json.dumps(forged(original=document))):
        try:
            decode(text.encode())
        except PlanError:
            continue


@pytest.mark.parametrize(("mode", "owner"), [(0o602, 0), (0o620, 0), (0o600, NOBODY)])
def test_a_journal_that_others_could_have_written_is_refused(root: Path, mode: int, owner: int) -> None:
    journal = plant(root, json.dumps(forged(original=FILE)), mode)
    os.chown(journal, owner, owner)
    with pytest.raises(
        PlanError, match=r"undo.json: .*others than root and you could have written it.*move it away"
    ):
        undo(root)
    assert not (root / "x").exists()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/conf", path)])
def test_a_journal_that_is_no_file_is_refused(root: Path, make: Callable[[Path], object]) -> None:
    (root / JOURNAL[1:]).parent.mkdir(parents=True)
    make(root / JOURNAL[1:])
    with pytest.raises(TreeError, match=r"undo.json: "):
        undo(root)


@pytest.mark.parametrize("path", ["/out/file", "/etc/out/file", "/chain/file", "/out"])
@pytest.mark.parametrize("force", [False, True])
def test_a_forged_journal_never_leads_out_of_the_root(root: Path, path: str, force: bool) -> None:
    with folder() as outside:
        (outside / "file").write_text("outside")
        (root / "out").symlink_to(outside)
        (root / "etc/out").symlink_to(f"../../{outside.name}")
        (root / "chain").symlink_to("out")
        before = picture(outside)
        written = [digest(None), digest(File(b"outside"))]
        for original in (None, FILE, LINK, {**FILE, "mode": 0o4755}):
            journal = root / JOURNAL[1:]
            journal.parent.mkdir(parents=True, exist_ok=True)
            journal.write_text(json.dumps(forged(path, original, written=written)))
            journal.chmod(0o600)
            undo(root, force=force)
        assert picture(outside) == before


def test_a_journal_reached_through_a_link_stays_inside_the_root(root: Path) -> None:
    with folder() as outside:
        (root / "var").symlink_to(outside)
        before = picture(root)
        change(root, write_everything)
        assert (root / f".{outside}/lib/tpu-image/undo.json").is_file()
        assert list(outside.iterdir()) == []
        undo(root)
        assert picture(root) == before


def test_a_journal_in_the_way_of_what_it_restores_is_no_harm(root: Path) -> None:
    plant(root, json.dumps(forged(JOURNAL, FILE, written=[])))
    undo(root, force=True)
    undo(root, force=True)
