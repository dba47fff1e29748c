from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_image.cache_folder import CacheError
from tpu_image.downloads import cache
from tpu_image.downloads.download import download

MIB = 1 << 20


def add(name: str, *, size: int = MIB, used: float = 0, kind: str = "downloads") -> Path:
    """Put an entry into the cache."""
    path = cache.subfolder(kind) / name
    path.write_bytes(os.urandom(size))
    cache.describe(path, cache.About(f"https://host/{name}"))
    for file in (path, cache.about_path(path)):
        os.utime(file, (used, used))
    return path


def kept() -> list[str]:
    return sorted(entry.path.name for entry in cache.entries())


def in_another_process(path: Path) -> subprocess.Popen[str]:
    """Hold an entry elsewhere, until the standard input ends."""
    code = "import sys; from pathlib import Path; from tpu_image.downloads import cache; "
    code += "print(cache.hold(Path(sys.argv[1])), flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(cache.__file__).parents[2])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_the_folder_is_the_platforms(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.folder() == own_cache
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.folder() == Path.home() / ".cache" / "tpu-image"


def test_entries_say_what_they_are(own_cache: Path) -> None:
    add("a", used=30)
    add("debian.qcow2", used=10, kind="bases")
    add("b.part", used=20)
    (own_cache / "debian-bookworm.tar").write_bytes(b"x")
    assert [(entry.kind, entry.origin) for entry in cache.entries()] == [
        ("base", "https://host/debian.qcow2"),
        ("unfinished", "https://host/b.part"),
        ("download", "https://host/a"),
        ("other", ""),
    ]


def test_a_sparse_file_counts_what_it_takes(own_cache: Path) -> None:
    path = add("a", size=0)
    os.truncate(path, 1 << 30)
    assert cache.entries()[0].size < MIB


def test_a_cache_that_is_not_there_is_empty(own_cache: Path) -> None:
    assert cache.entries() == []


def test_the_longest_unused_goes_first(own_cache: Path) -> None:
    for name, used in (("new", 30), ("old", 10), ("middle", 20)):
        add(name, used=used)
    removed = cache.shrink(limit=2 * MIB + MIB // 2)
    assert [entry.path.name for entry in removed] == ["old"]
    assert kept() == ["middle", "new"]
    assert not cache.about_path(removed[0].path).exists()


def test_what_was_just_made_stays_however_small_the_limit(own_cache: Path) -> None:
    path = add("old", used=10)
    add("new", used=30)
    cache.shrink(path, limit=1)
    assert kept() == ["old"]


def test_what_is_in_use_is_never_removed(own_cache: Path) -> None:
    path = add("a")
    user = in_another_process(path)
    try:
        entry = cache.entries()[0]
        assert not cache.remove(entry)
        assert cache.shrink(limit=0) == []
        assert path.exists()
    finally:
        user.kill()
        user.communicate()
    assert cache.remove(entry)


def test_holding_counts_as_use(own_cache: Path) -> None:
    path = add("a", used=10)
    assert cache.hold(path)
    assert cache.entries()[0].used > 1e9
    assert path.stat().st_mtime == 10  # who reads it meanwhile takes another time for another file


def test_what_is_gone_or_made_anew_is_not_held_by_an_old_lock(own_cache: Path) -> None:
    path = add("a")
    assert cache.hold(path)
    path.unlink()
    assert not cache.hold(path)
    add("a")
    assert cache.hold(path)
    assert not cache.remove(cache.entries()[0])


@pytest.mark.parametrize("text", ["", "[]", "{", '{"origin": 1}', '{"other": ""}', "[" * 60000])
def test_a_description_that_is_spoilt_says_nothing(own_cache: Path, text: str) -> None:
    path = add("a")
    cache.about_path(path).write_text(text)
    assert cache.about(path) is None
    assert cache.entries()[0].origin == ""


@pytest.mark.parametrize(("text", "size"), [("5G", 5 << 30), ("100", 100), ("7MiB", 7 << 20), ("1kb", 1024)])
def test_the_limit_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("TPU_IMAGE_CACHE_LIMIT", text)
    assert cache.size_limit() == size


@pytest.mark.parametrize("text", ["much", "-1", "1.5G", "5X"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TPU_IMAGE_CACHE_LIMIT", text)
    with pytest.raises(CacheError, match="give a size such as 20G"):
        cache.size_limit()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="Not a directory; name a folder of yours in XDG_CACHE_HOME"):
        cache.subfolder("downloads")


SHARED = [
    ("", "another's"),
    *(
        (name, whose)
        for name in ("tpu-image", "tpu-image/downloads")
        for whose in ("another's", "everybody's")
    ),
]


@pytest.mark.parametrize(("name", "whose"), SHARED)
def test_a_cache_that_somebody_else_could_fill_is_refused(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, whose: str
) -> None:
    cache.subfolder("downloads")
    path = own_cache.parent / name
    if whose == "everybody's":
        path.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(CacheError, match="somebody else can write to it; name a folder of yours"):
        cache.subfolder("downloads")
    with pytest.raises(CacheError, match="somebody else can write to it"):
        download("http://host/x", sha256="0" * 64)


@pytest.mark.parametrize("name", ["tpu-image", "tpu-image/downloads"])
def test_a_link_of_somebody_else_is_refused_wherever_it_leads(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    link, true_lstat = own_cache.parent / name, Path.lstat
    link.parent.mkdir(parents=True)
    (own_cache.parent / "elsewhere").mkdir()
    link.symlink_to(own_cache.parent / "elsewhere")

    def another_owns_the_link(path: Path) -> os.stat_result:
        status = list(true_lstat(path))
        status[4] = 12345 if path == link else status[4]
        return os.stat_result(status)

    monkeypatch.setattr(Path, "lstat", another_owns_the_link)
    with pytest.raises(CacheError, match="somebody else can write to it"):
        cache.subfolder("downloads")


def test_a_folder_whose_names_anybody_can_change_is_no_place_for_a_cache(own_cache: Path) -> None:
    own_cache.parent.mkdir()
    own_cache.parent.chmod(0o777)
    with pytest.raises(CacheError, match="somebody else can write to it"):
        cache.subfolder("downloads")


def test_without_a_home_the_message_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(CacheError, match="no home folder; name a folder of yours in XDG_CACHE_HOME"):
        cache.subfolder("downloads")


def test_a_cache_within_a_folder_for_all_is_ones_own(own_cache: Path) -> None:
    own_cache.parent.mkdir()
    own_cache.parent.chmod(0o1777)
    before = os.umask(0)
    try:
        assert cache.subfolder("downloads").is_dir()
    finally:
        os.umask(before)
