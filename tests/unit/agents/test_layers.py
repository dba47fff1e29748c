"""Layers over one another: what image-spec says of them, and everything that is refused."""

from __future__ import annotations

import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_images import directory, entry, hard_link, layer, link
from tpu_image.agents import layers
from tpu_image.agents.directory_writer import write_below
from tpu_image.agents.errors import ImageError
from tpu_image.agents.filesystem import File, Link, RootFileSystem, walk
from tpu_image.agents.layers import Stretch, lay_over
from tpu_image.agents.nodes import LazyNodes
from tpu_image.agents.spool import Spool
from tpu_image.trees import memory


def laid(spool: Spool, *tars: bytes) -> RootFileSystem:
    return lay_over(
        spool, [Stretch(*spool.append([tar], "image"), f"layer {n}") for n, tar in enumerate(tars)]
    )


def shown(filesystem: RootFileSystem) -> dict[str, str]:
    """Paths of all that is no directory, with the content or target."""
    found = {}
    for path, node in walk(filesystem.root):
        if isinstance(node, File):
            found[path] = filesystem.spool.read(node.offset, node.size).decode()
        elif isinstance(node, Link):
            found[path] = f"-> {node.target}"
        elif not node.children:
            found[path] = "directory"
    return found


@dataclass(frozen=True)
class Laid:
    about: str
    layers: tuple[bytes, ...]
    result: dict[str, str]


ETC = layer(directory("etc"), entry("etc/a", b"1"), entry("etc/b", b"2"))
TREE = layer(entry("opt/x/one", b"1"), entry("opt/y", b"2"))

LAID = [
    Laid("the later layer wins", (ETC, layer(entry("etc/a", b"new"))), {"/etc/a": "new", "/etc/b": "2"}),
    Laid("the later entry of one layer wins", (layer(entry("a", b"1"), entry("a", b"2")),), {"/a": "2"}),
    Laid("directories need no entry", (TREE,), {"/opt/x/one": "1", "/opt/y": "2"}),
    Laid("names may begin with a dot", (layer(entry("./a", b"1"), directory("./")),), {"/a": "1"}),
    Laid("a whiteout takes a file away", (ETC, layer(entry("etc/.wh.a"))), {"/etc/b": "2"}),
    Laid("a whiteout takes a directory away", (TREE, layer(entry("opt/.wh.x"))), {"/opt/y": "2"}),
    Laid(
        "a whiteout of nothing does nothing", (ETC, layer(entry("var/.wh.a"))), {"/etc/a": "1", "/etc/b": "2"}
    ),
    Laid(
        "an opaque directory hides what is below, wherever it says so",
        (ETC, layer(entry("etc/new", b"3"), entry("etc/.wh..wh..opq"))),
        {"/etc/new": "3"},
    ),
    Laid(
        "a whiteout does not touch its own layer",
        (ETC, layer(entry("etc/a", b"new"), entry("etc/.wh.a"))),
        {"/etc/a": "new", "/etc/b": "2"},
    ),
    Laid(
        "a file takes a directory's place",
        (TREE, layer(entry("opt/x", b"f"))),
        {"/opt/x": "f", "/opt/y": "2"},
    ),
    Laid(
        "a directory takes a file's place",
        (TREE, layer(directory("opt/y"))),
        {"/opt/x/one": "1", "/opt/y": "directory"},
    ),
    Laid(
        "a file that came for a directory is not written through",
        (layer(entry("d/one", b"1"), entry("d", b"f"), entry("d/two", b"2")),),
        {"/d/two": "2"},
    ),
    Laid(
        "links are text",
        (layer(link("a", "/etc/passwd"), link("b", "../../..")),),
        {"/a": "-> /etc/passwd", "/b": "-> ../../.."},
    ),
    Laid(
        "a link's place may be taken",
        (layer(link("a", "/etc")), layer(entry("a/b", b"1"), entry(".wh.a"))),
        {"/a/b": "1"},
    ),
    Laid(
        "hard links reach lower layers",
        (ETC, layer(hard_link("c", "etc/a"))),
        {"/etc/a": "1", "/etc/b": "2", "/c": "1"},
    ),
    Laid(
        "aufs's own files are no files",
        (layer(entry(".wh..wh.plnk/x", b"1"), entry("a", b"1")),),
        {"/a": "1"},
    ),
    Laid("no layer is no file", (), {"": "directory"}),
]


@pytest.mark.parametrize("case", LAID, ids=lambda case: case.about)
def test_layers_lie_over_one_another(case: Laid) -> None:
    with Spool() as spool:
        assert shown(laid(spool, *case.layers)) == case.result


@dataclass(frozen=True)
class Refused:
    about: str
    layers: tuple[bytes, ...]
    mentions: str


SPARSE = layer(entry("holes", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": str(1 << 50)}))
OLD_SPARSE = layer(entry("holes", type=tarfile.GNUTYPE_SPARSE))
BACKWARDS = layer(entry("x", type=tarfile.XHDTYPE, pax_headers={"size": "-1536"}))
"""An extended header of an extended header: no entry comes between the two."""

REFUSED = [
    Refused("absolute name", (layer(entry("/etc/passwd", b"x")),), "/etc/passwd is absolute"),
    Refused("name that leads out", (layer(entry("a/../../etc/passwd")),), "a/../../etc/passwd leads out"),
    Refused("parent in the middle", (layer(entry("a/../b")),), "a/../b leads out"),
    Refused(
        "path through a link",
        (layer(link("a", "/etc"), entry("a/passwd", b"x")),),
        "through the symbolic link a",
    ),
    Refused(
        "path through a link below",
        (layer(link("a", "..")), layer(entry("a/x", b"x"))),
        "through the symbolic link a",
    ),
    Refused(
        "directory through a link",
        (layer(link("a", "/etc")), layer(directory("a/b"))),
        "through the symbolic link a",
    ),
    Refused("hard link out", (layer(hard_link("a", "../etc/shadow")),), "../etc/shadow"),
    Refused("absolute hard link", (layer(hard_link("a", "/etc/shadow")),), "/etc/shadow"),
    Refused("hard link to nothing", (layer(hard_link("a", "etc/shadow")),), "a is a hard link to etc/shadow"),
    Refused(
        "hard link through a link", (layer(link("l", "/etc"), hard_link("a", "l/shadow")),), "symbolic link l"
    ),
    Refused(
        "hard link to a directory", (layer(directory("d"), hard_link("a", "d")),), "no file of the image"
    ),
    Refused(
        "hard link to what comes later", (layer(hard_link("a", "b"), entry("b")),), "a is a hard link to b"
    ),
    Refused("whiteout through a link", (layer(link("a", "/")), layer(entry("a/.wh.etc"))), "symbolic link a"),
    Refused("whiteout of the parent", (layer(entry("a/.wh...")),), "whiteout of no name"),
    Refused("whiteout of itself", (layer(entry("a/.wh..")),), "whiteout of no name"),
    Refused("whiteout of nothing", (layer(entry("a/.wh.")),), "whiteout of no name"),
    Refused("file in a whiteout", (layer(entry(".wh.a/b")),), "lies in a whiteout"),
    Refused(
        "root that is a file",
        (layer(entry("./", b"", type=tarfile.REGTYPE), link(".", "/")),),
        "root directory",
    ),
    Refused("sparse file of pax", (SPARSE,), "holes is a sparse file"),
    Refused("sparse file of old GNU", (OLD_SPARSE,), "holes is a sparse file"),
    Refused("long name", (layer(entry("n" * 256)),), "a name that Linux does not take"),
    Refused("long path", (layer(entry("/".join(["d"] * 2100))),), "a path that Linux does not take"),
    Refused("deep path", (layer(entry("/".join(["d"] * 300))),), "a path that Linux does not take"),
    Refused("empty link", (layer(link("a", "")),), "what Linux does not take"),
    Refused("strange kind", (layer(entry("a", type=b"Z")),), "a kind that layers do not have"),
    Refused("owner that is none", (layer(entry("a", uid=0xFFFF_FFFF)),), "an owner that Linux does not take"),
    Refused("size below zero", (layer(entry("a", pax_headers={"size": "-1536"})),), "a number that is none"),
    Refused("size that leads back to its header", (BACKWARDS,), "a number that is none"),
    Refused("cut short", (ETC[:700],), "is cut short"),
    Refused("damaged header", (b"x" + ETC[1:],), "damaged tar header"),
    Refused(
        "entries without end",
        (layer(*(entry(f"{n}") for n in range(300)), form=tarfile.USTAR_FORMAT),),
        "more than 200 entries",
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.about)
def test_hostile_layers_are_refused_by_name(case: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "ENTRIES_LIMIT", 200)
    with Spool() as spool, pytest.raises(ImageError) as caught:
        laid(spool, *case.layers)
    assert case.mentions in str(caught.value)
    assert str(caught.value).startswith("layer ")


TIMES = {
    "after 2446, of pax": (tarfile.PAX_FORMAT, 1 << 60, (1 << 34) - 1),
    "after 2446, of GNU": (tarfile.GNU_FORMAT, 1 << 80, (1 << 34) - 1),
    "before 1970, of pax": (tarfile.PAX_FORMAT, -5, 0),
    "before 1970, of GNU": (tarfile.GNU_FORMAT, -5, 0),
}


@pytest.mark.parametrize(("form", "written", "kept"), TIMES.values(), ids=TIMES.keys())
def test_times_that_no_file_system_has_become_the_nearest(form: int, written: int, kept: int) -> None:
    with Spool() as spool:
        node = laid(spool, layer(entry("a", mtime=written), form=form)).root.children["a"]
        assert isinstance(node, File)
        assert node.mtime == kept


def test_what_a_limit_of_entries_lets_through_is_less_than_a_hundred_thousand() -> None:
    assert layers.ENTRIES_LIMIT < 100_000


def test_devices_are_left_out_and_said() -> None:
    tar = layer(
        entry("dev/mem", type=tarfile.CHRTYPE, devmajor=1, devminor=1), entry("f", type=tarfile.FIFOTYPE)
    )
    with Spool() as spool:
        filesystem = laid(spool, tar)
        assert filesystem.root.children == {}
        assert filesystem.left_out == ["character device dev/mem", "FIFO f"]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read_in_every_form_of_tar(form: int) -> None:
    folder = "/".join(["abcdefghij"] * 14)
    with Spool() as spool:
        tar = layer(entry(f"{folder}/f", b"1"), link("l", "t" * 99), form=form)
        assert shown(laid(spool, tar)) == {f"/{folder}/f": "1", "/l": f"-> {'t' * 99}"}


def written(folder: Path, *tars: bytes) -> Path:
    with Spool() as spool:
        filesystem = laid(spool, *tars)
        write_below(str(folder), "/agents", 0o700, {"it": filesystem.root}, spool)
    return folder / "agents/it"


def test_a_directory_gets_what_tar_would_write(tmp_path: Path) -> None:
    tar = layer(
        directory("d", 0o751),
        entry("d/f", b"content", mode=0o4755, mtime=1_000_000, uid=0),
        hard_link("d/g", "d/f"),
        link("l", "d/f"),
        entry("empty", mode=0o600),
    )
    (tmp_path / "layer.tar").write_bytes(tar)
    (tmp_path / "tar").mkdir()
    subprocess.run(["tar", "-xpf", "layer.tar", "-C", "tar", "--numeric-owner"], cwd=tmp_path, check=True)
    ours = written(tmp_path, tar)
    for path in ("d", "d/f", "d/g", "l", "empty"):
        one, other = (ours / path).lstat(), (tmp_path / "tar" / path).lstat()
        assert (one.st_mode, one.st_uid, one.st_gid, one.st_nlink) == (
            other.st_mode,
            other.st_uid,
            other.st_gid,
            other.st_nlink,
        )
    assert (ours / "d/f").stat().st_mtime == 1_000_000
    assert (ours / "d/g").read_bytes() == b"content"
    assert os.readlink(ours / "l") == "d/f"


def test_nobody_but_root_may_enter_where_agents_are(tmp_path: Path) -> None:
    assert written(tmp_path, ETC).parent.stat().st_mode & 0o777 == 0o700


def test_what_was_there_is_replaced_whole(tmp_path: Path) -> None:
    written(tmp_path, ETC)
    (tmp_path / "agents/.it.new").mkdir()  # of a run that was killed
    (tmp_path / "agents/.it.old").write_text("")
    it = written(tmp_path, layer(entry("only", b"1")))
    assert [path.name for path in it.iterdir()] == ["only"]
    assert sorted(path.name for path in (tmp_path / "agents").iterdir()) == ["it"]


def test_a_link_on_the_way_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "agents").symlink_to(outside)
    with pytest.raises(Exception, match="agents: cannot be written"):
        written(root, ETC)
    assert list(outside.iterdir()) == []


def test_nodes_for_a_disk_are_read_one_at_a_time() -> None:
    with Spool() as spool:
        filesystem = laid(spool, ETC, layer(link("l", "etc"), directory("empty")))
        nodes = LazyNodes(spool, "/agents/it", filesystem.root, {"/x": memory.File(b"y")})
        assert set(nodes) == {
            "/x",
            *(f"/agents/it{path}" for path in ("", "/etc", "/etc/a", "/etc/b", "/l", "/empty")),
        }
        assert len(nodes) == 7
        assert nodes["/agents/it/etc/a"] == memory.File(b"1", 0o644)
        assert nodes["/agents/it/l"] == memory.Symlink("etc")
        assert nodes["/agents/it/empty"] == memory.Directory(0o755)
        assert nodes["/x"] == memory.File(b"y")


MADE: dict[str, Callable[[str], tuple[tarfile.TarInfo, bytes]]] = {
    "file": entry,
    "directory": directory,
    "link": lambda name: link(name, "x"),
}
PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple)


def modelled(described: list[tuple[tuple[str, ...], str]]) -> dict[tuple[str, ...], str] | None:
    """What entries make of nothing, in the simplest words; None where one leads through a link."""
    there: dict[tuple[str, ...], str] = {}
    for path, kind in described:
        for end in range(1, len(path)):
            if there.get(path[:end]) == "link":
                return None
            there[path[:end]] = "directory"
        if kind != "directory" or there.get(path) != "directory":
            there = {other: what for other, what in there.items() if other[: len(path)] != path}
        there[path] = kind
    return there


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(PATHS, st.sampled_from(sorted(MADE))), max_size=12))
def test_entries_in_any_order_do_what_they_say(described: list[tuple[tuple[str, ...], str]]) -> None:
    tar = layer(*(MADE[kind]("/".join(path)) for path, kind in described))
    expected = modelled(described)
    with Spool() as spool:
        if expected is None:
            with pytest.raises(ImageError, match="symbolic link"):
                laid(spool, tar)
            return
        found = {
            tuple(path.split("/")[1:]): type(node).__name__.lower()
            for path, node in walk(laid(spool, tar).root)
        }
        assert {path: kind for path, kind in found.items() if path} == expected
