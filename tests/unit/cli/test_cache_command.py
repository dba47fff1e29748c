"""``tpu-image cache``, and the bases of ``tpu-image build`` that are not files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from cli_types import Run
from tpu_image import cache_folder
from tpu_image.bases.releases import DEFAULT
from tpu_image.downloads import cache
from tpu_image.lab import qemu
from tpu_image.lab.errors import LabError

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TPU_IMAGE_CACHE_LIMIT", raising=False)
    for path in list(cache_folder._held):
        cache.release(path)
    return tmp_path / "cache" / "tpu-image"


def add(name: str, *, days: int = 0, kind: str = "downloads", size: int = 3 << 20) -> Path:
    path = cache.subfolder(kind) / name
    path.write_bytes(os.urandom(size))
    cache.describe(path, cache.About(f"origin of {name}"))
    for file in (path, cache.about_path(path)):
        os.utime(file, (time.time() - days * DAY,) * 2)
    return path


def test_the_list_says_what_each_entry_is_and_how_large(run: Run) -> None:
    add("a", days=3)
    add("debian.qcow2", days=1, kind="bases")
    lines = run("cache").out.splitlines()
    assert lines[0].split() == ["3.0", "MiB", "download", "3", "d", "ago", "origin", "of", "a"]
    assert lines[1].split()[2:3] == ["base"]
    assert lines[2].startswith("  6.0 MiB  in ")
    assert run("cache", "list").out == run("cache").out


def test_an_empty_cache_is_no_error(run: Run) -> None:
    assert run("cache").status == 0


def test_the_list_for_programs(run: Run, own_cache: Path) -> None:
    path = add("a")
    document = json.loads(run("cache", "--format", "json").out)
    assert document["folder"] == str(own_cache)
    assert [(entry["path"], entry["kind"]) for entry in document["entries"]] == [(str(path), "download")]


CLEANED = {
    (): ["new", "old", "older"],
    ("--older-than", "30d"): ["new", "old", "unfinished.part"],
    ("--older-than", "12h"): ["new", "unfinished.part"],
    ("--all",): [],
}


@pytest.mark.parametrize(("options", "kept"), CLEANED.items(), ids=map(" ".join, CLEANED))
def test_clean_removes_what_the_options_say(run: Run, options: tuple[str, ...], kept: list[str]) -> None:
    add("new")
    add("old", days=10)
    add("older", days=40)
    add("unfinished.part")
    assert run("cache", "clean", *options).status == 0
    assert sorted(entry.path.name for entry in cache.entries()) == kept


def test_what_the_lab_keeps_goes_when_all_goes_and_its_lock_is_no_entry(run: Run, own_cache: Path) -> None:
    own_cache.mkdir(parents=True)
    (own_cache / "qemu.lock").touch()
    kept = own_cache / "qemu"
    kept.mkdir()
    os.utime(kept, (time.time() - 90 * DAY,) * 2)
    run("cache", "clean", "--older-than", "30d")
    assert [entry.path for entry in cache.entries()] == [kept]
    run("cache", "clean", "--all")
    assert not kept.exists()


def test_what_is_over_the_limit_goes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    add("new")
    add("old", days=10)
    monkeypatch.setenv("TPU_IMAGE_CACHE_LIMIT", "4M")
    assert run("cache", "clean").out == "removed 1, 3.0 MiB\n"
    assert [entry.path.name for entry in cache.entries()] == ["new"]


def test_a_qemu_that_a_guest_may_be_running_stays(
    run: Run, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("usr/bin/qemu-system-x86_64", "usr/lib64/ld-linux-x86-64.so.2"):
        (own_cache / "qemu" / name).parent.mkdir(parents=True)
        (own_cache / "qemu" / name).touch()
    with pytest.raises(LabError):  # which has looked at it
        qemu.find()
    assert run("cache", "clean", "--all").status == 1
    assert (own_cache / "qemu").is_dir()


def test_what_is_in_use_stays_and_is_named(run: Run) -> None:
    path = add("a")
    assert cache.hold(path)
    done = run("cache", "clean", "--all")
    assert done.status == 1
    assert f"{path}: is in use" in done.err
    assert path.exists()


@pytest.mark.parametrize(
    "arguments", [("--older-than", "soon"), ("--older-than", "-1d"), ("--all", "--older-than", "1d")]
)
def test_options_that_make_no_sense_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    add("a")
    assert run("cache", "clean", *arguments).status == 2
    assert len(cache.entries()) == 1


def test_a_base_that_is_nothing_is_refused_with_what_there_is(run: Run, tmp_path: Path) -> None:
    done = run("build", "debian:sarge", "-o", tmp_path / "x.tar.gz")
    assert done.status == 2
    assert "BASE is a file, a URL, or one of debian:bookworm" in done.err


def test_a_base_may_be_a_url(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "base.img"
    path.write_bytes(b"no disk")
    done = run("build", f"{path.as_uri()}#sha256={'0' * 64}", "-o", tmp_path / "x.tar.gz")
    assert done.status == 2
    assert "its sha256 is" in done.err
    done = run("build", path.as_uri(), "-o", tmp_path / "x.tar.gz")
    assert f"{path}: " in done.err


def test_without_a_base_one_is_made(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(reference: str, *rest: object) -> Path:
        asked.append(reference)
        return tmp_path / "nothing"

    monkeypatch.setattr("tpu_image.bases.make.resolve", resolve)
    run("build", "-o", tmp_path / "x.tar.gz")
    assert asked == [DEFAULT]
