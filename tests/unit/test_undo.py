"""Whatever was applied, and wherever it was cut off, undo brings back what was there before."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_trees import (
    NOBODY,
    dies_at,
    folder,
    materialise,
    need_root,
    nodes_of,
    picture,
    read_nodes,
    trees,
)
from overlay_writes import Write, plan_of, writes
from tpu_image.plan import JOURNAL, Kept, Plan, PlanError, Undone, apply, undo
from tpu_image.plan.journal import Journal, Record, decode, encode
from tpu_image.plan.snapshot import Snapshot, digest
from tpu_image.trees.base import READ_LIMIT, TreeError
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import Directory, File, Node, Symlink
from tpu_image.trees.overlay import Overlay


@pytest.fixture(autouse=True)
def root_user() -> None:
    need_root()


NODES: dict[str, Node] = {
    "/etc": Directory(),
    "/etc/conf": File(b"old\n", 0o640, 1, 2),
    "/etc/conf.d": Symlink("elsewhere"),
    "/etc/gone": File(b"gone\n"),
    "/etc/link": Symlink("conf", 1, 2),
    "/etc/private": Directory(0o755),
    "/etc/private/key": File(b"key\n", 0o600),
}

STATE_DIRECTORIES: list[dict[str, Node]] = [
    {},
    {"/var": Directory(), "/var/lib": Directory()},
    {"/var": Directory(), "/var/lib": Directory(), "/var/lib/tpu-image": Directory(0o700)},
]


def write_everything(overlay: Overlay) -> None:
    """What two applies later the tree should be, said again each time as the catalogue does."""
    overlay.write("/etc/conf", "new\n")
    if overlay.lstat("/etc/conf.d") == overlay.base.lstat("/etc/conf.d") and not overlay.is_directory(
        "/etc/conf.d"
    ):
        overlay.remove("/etc/conf.d")
    overlay.make_directory("/etc/conf.d", mode=0o750, owner=(1, 2))
    overlay.write("/etc/conf.d/new", "new\n", mode=0o600)
    overlay.remove("/etc/gone")
    overlay.symlink("/etc/link", "private/key")
    overlay.write("/etc/private/key", "key\n", mode=0o400)
    overlay.make_directory("/etc/private", mode=0o700, owner=(1, 1))
    overlay.write("/usr/lib/new", "", mode=0o755)


def write_more(overlay: Overlay) -> None:
    """A later version of the same."""
    write_everything(overlay)
    overlay.write("/etc/conf", "newer\n")
    overlay.make_directory("/etc/private", mode=0o711, owner=(2, 1))
    overlay.write("/usr/lib/newer", "newer\n")
    overlay.remove("/usr/lib/new")


def change(
    root: Path, write: Callable[[Overlay], None], on_step: Callable[[str], None] = lambda _: None
) -> Plan:
    """Plan from the tree as it is, and apply."""
    with DirectoryTree(root) as tree:
        overlay = Overlay(tree)
        write(overlay)
        plan = Plan.from_overlay(overlay)
    apply(plan, root, on_step=on_step)
    return plan


@pytest.fixture
def root() -> Iterator[Path]:
    with folder() as path:
        materialise(NODES, path)
        yield path


def nodes_without_journal(root: Path) -> dict[str, Node]:
    nodes = read_nodes(root)
    del nodes[JOURNAL]
    return nodes


# Being killed.


@pytest.mark.parametrize("state", STATE_DIRECTORIES)
def test_killed_at_any_step_an_apply_can_be_completed_and_taken_back(state: dict[str, Node]) -> None:
    with folder(in_memory=True) as root:
        materialise(NODES | state, root)
        change(root, write_everything)
        expected = nodes_without_journal(root)
    step, died = 0, True
    while died:
        with folder(in_memory=True) as root:
            materialise(NODES | state, root)
            before = picture(root)
            died = dies_at(step, lambda on_step: change(root, write_everything, on_step))
            change(root, write_everything)
            assert nodes_without_journal(root) == expected, f"after step {step}"
            assert undo(root).kept == ()
            assert picture(root) == before, f"after step {step}"
        step += 1
    assert step > 35


@pytest.mark.parametrize("state", STATE_DIRECTORIES)
@pytest.mark.parametrize("earlier", [False, True], ids=["first", "second"])
def test_killed_at_any_step_an_apply_can_be_taken_back_at_once(state: dict[str, Node], earlier: bool) -> None:
    step, died = 0, True
    while died:
        with folder(in_memory=True) as root:
            materialise(NODES | state, root)
            before = picture(root)
            if earlier:
                change(root, write_everything)
            died = dies_at(step, lambda on_step: change(root, write_more, on_step))
            assert undo(root).kept == (), f"after step {step}"
            assert picture(root) == before, f"after step {step}"
        step += 1
    assert step > 15


@pytest.mark.parametrize("state", STATE_DIRECTORIES)
def test_killed_at_any_step_an_undo_can_be_run_again(state: dict[str, Node]) -> None:
    step, died = 0, True
    while died:
        with folder(in_memory=True) as root:
            materialise(NODES | state, root)
            before = picture(root)
            change(root, write_everything)
            change(root, write_more)
            died = dies_at(step, lambda on_step: undo(root, on_step=on_step))
            assert undo(root).kept == (), f"after step {step}"
            assert picture(root) == before, f"after step {step}"
        step += 1
    assert step > 30


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STATE_DIRECTORIES), st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=5))
def test_killed_again_and_again_the_tree_still_comes_back(
    state: dict[str, Node], runs: list[tuple[bool, int]]
) -> None:
    with folder(in_memory=True) as root:
        materialise(NODES | state, root)
        before = picture(root)
        for undoing, step in runs:
            if undoing:
                dies_at(step, lambda on_step: undo(root, on_step=on_step))
            else:
                dies_at(step, lambda on_step: change(root, write_more, on_step))
        assert undo(root).kept == ()
        assert picture(root) == before


# Several applies.


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.lists(writes(), max_size=3), max_size=3))
def test_the_first_original_is_restored_after_any_applies(
    nodes: dict[str, Node], rounds: list[list[Write]]
) -> None:
    with folder(in_memory=True) as root:
        materialise(nodes, root)
        before = picture(root)
        for calls in rounds:
            apply(plan_of(root, calls), root)
        assert undo(root).kept == ()
        assert picture(root) == before


def test_undo_names_what_it_restored_and_a_second_one_has_nothing_to_do(root: Path) -> None:
    plan = change(root, write_everything)
    assert undo(root) == Undone(tuple(change.path for change in plan.changes), ())
    before = picture(root)
    assert undo(root) == Undone()
    assert picture(root) == before


def test_undo_needs_a_root(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="gone: does not exist"):
        undo(tmp_path / "gone")


# What somebody else changed since.


def overwrite(root: Path) -> None:
    (root / "etc/conf").write_text("mine\n")


def forbid(root: Path) -> None:
    (root / "etc/conf").chmod(0o600)


def delete(root: Path) -> None:
    (root / "etc/conf").unlink()


def make_link(root: Path) -> None:
    (root / "etc/conf").unlink()
    (root / "etc/conf").symlink_to("gone")


def make_pipe(root: Path) -> None:
    (root / "etc/conf").unlink()
    os.mkfifo(root / "etc/conf")


def make_huge(root: Path) -> None:
    os.truncate(root / "etc/conf", READ_LIMIT + 1)


@pytest.mark.parametrize("interfere", [overwrite, forbid, delete, make_link, make_pipe, make_huge])
def test_what_somebody_changed_since_is_kept_and_named_until_undo_is_forced(
    root: Path, interfere: Callable[[Path], None]
) -> None:
    before = picture(root)
    change(root, write_everything)
    interfere(root)
    changed = picture(root).get("/etc/conf")

    for _ in range(2):
        undone = undo(root)
        assert [kept.path for kept in undone.kept] == ["/etc/conf"]
        assert picture(root).get("/etc/conf") == changed
        rest = {path: look for path, look in picture(root).items() if not path.startswith("/var")}
        assert {**rest, "/etc/conf": before["/etc/conf"]} == before

    assert undo(root, force=True) == Undone(("/etc/conf",), ())
    assert picture(root) == before


def test_a_reason_is_given_for_what_is_kept(root: Path) -> None:
    change(root, write_everything)
    overwrite(root)
    assert undo(root).kept == (Kept("/etc/conf", "was changed by something else since"),)


def test_what_somebody_put_back_by_hand_is_nothing_to_undo(root: Path) -> None:
    change(root, write_everything)
    (root / "etc/conf").write_bytes(b"old\n")
    assert undo(root).kept == ()
    assert not (root / "var").exists()


def test_a_made_directory_that_holds_something_of_others_stays(root: Path) -> None:
    change(root, write_everything)
    (root / "usr/lib/mine").touch()
    assert undo(root).kept == ()
    assert sorted(os.listdir(root / "usr/lib")) == ["mine"]
    assert not (root / "var").exists()


def test_directories_of_the_journal_that_hold_something_of_others_stay(root: Path) -> None:
    change(root, write_everything)
    (root / "var/mine").touch()
    undo(root)
    assert sorted(os.listdir(root / "var")) == ["mine"]


def test_a_made_directory_goes_with_the_kept_file_in_it_when_undo_is_forced(root: Path) -> None:
    before = picture(root)
    change(root, write_everything)
    (root / "usr/lib/new").write_text("mine")
    assert [kept.path for kept in undo(root).kept] == ["/usr/lib/new"]
    undo(root, force=True)
    assert picture(root) == before


def test_what_cannot_be_reached_any_more_is_kept_even_by_force(root: Path) -> None:
    change(root, write_everything)
    with folder() as outside:
        (root / "etc").rename(root / "moved")
        (root / "etc").symlink_to(outside)
        for force in (False, True):
            kept = undo(root, force=force).kept
            assert "/etc/conf" in [one.path for one in kept]
            assert "is reached through a symbolic link" in kept[0].reason
            assert list(outside.iterdir()) == []


def test_a_directory_in_the_place_of_a_link_stays_with_what_others_put_in_it(root: Path) -> None:
    change(root, write_everything)
    (root / "etc/conf.d/mine").touch()
    assert [kept.path for kept in undo(root, force=True).kept] == ["/etc/conf.d"]
    (root / "etc/conf.d/mine").unlink()
    undo(root)
    assert os.readlink(root / "etc/conf.d") == "elsewhere"


# Journals that lie.


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
