"""From what a user names to an image: archives, layouts and directories, good, damaged and hostile."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard

from agent_images import (
    PROGRAM,
    REFERENCE,
    configuration,
    digest,
    docker_archive,
    entry,
    layer,
    link,
    oci_layout,
    packed,
    program,
)
from tpu_image.agents import spool as spool_module
from tpu_image.agents.directory_writer import write_below
from tpu_image.agents.errors import AgentError, ImageError
from tpu_image.agents.filesystem import File, Link
from tpu_image.agents.image import ContainerImage
from tpu_image.agents.sources import opened
from tpu_image.agents.spool import Spool

LAYERS = (layer(entry("etc/a", b"1"), program()), layer(entry("etc/.wh.a"), entry("etc/b", b"2")))


def gzipped(path: Path) -> Path:
    path.write_bytes(gzip.compress(path.read_bytes(), 1))
    return path


def in_two_members(path: Path) -> Path:
    data = path.read_bytes()
    path.write_bytes(gzip.compress(data[:700], 1) + gzip.compress(data[700:], 1) + bytes(512))
    return path


def with_zstd(path: Path) -> Path:
    path.write_bytes(zstandard.compress(path.read_bytes()))
    return path


def as_docker_save_wrote_layers_twice(folder: Path) -> Path:
    one = layer(program())
    described = configuration([one, one])
    listed = [{"Config": "c.json", "RepoTags": [REFERENCE], "Layers": ["1/layer.tar", "2/layer.tar"]}]
    path = folder / "twice.tar"
    path.write_bytes(
        layer(
            entry("c.json", described),
            entry("1/layer.tar", one),
            link("2/layer.tar", "../1/layer.tar"),
            entry("manifest.json", json.dumps(listed).encode()),
        )
    )
    return path


def archive(folder: Path) -> Path:
    return docker_archive(folder / "image.tar", *LAYERS)


def layout(folder: Path) -> Path:
    return oci_layout(folder / "layout", *LAYERS)


SOURCES: dict[str, Callable[[Path], str]] = {
    "docker archive": lambda folder: str(archive(folder)),
    "docker archive in gzip": lambda folder: str(gzipped(archive(folder))),
    "docker archive in two gzip members": lambda folder: str(in_two_members(archive(folder))),
    "docker archive in zstd": lambda folder: str(with_zstd(archive(folder))),
    "docker archive by name": lambda folder: f"docker-archive:{archive(folder)}:{REFERENCE}",
    "OCI layout": lambda folder: str(layout(folder)),
    "OCI layout by tag": lambda folder: f"oci:{layout(folder)}:0.0.1",
    "OCI archive": lambda folder: str(packed(layout(folder), folder / "oci.tar")),
    "OCI archive by tag": lambda folder: f"oci-archive:{packed(layout(folder), folder / 'oci.tar')}:0.0.1",
    "index of several platforms": lambda folder: str(
        oci_layout(folder / "layout", *LAYERS, platforms=["arm64", "amd64", "s390x"])
    ),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES.keys())
def test_every_form_gives_the_same_files(make: Callable[[Path], str], tmp_path: Path) -> None:
    with Spool() as spool, opened(make(tmp_path), spool) as image:
        assert isinstance(image, ContainerImage)
        assert image.configuration.entrypoint == (PROGRAM,)
        filesystem = image.unpack(spool)
        assert filesystem.is_program(PROGRAM)
        assert filesystem.find("/etc/a") is None
        assert filesystem.text("/etc/b", 100) == "2"


def test_layers_that_stand_twice_as_docker_save_wrote_them_are_found(tmp_path: Path) -> None:
    with Spool() as spool, opened(str(as_docker_save_wrote_layers_twice(tmp_path)), spool) as image:
        assert image.unpack(spool).is_program(PROGRAM)


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/vbar_control_agent").write_bytes(b"\x7fELF")
    (root / "usr/bin/vbar_control_agent").chmod(0o755)
    (root / "passwd").symlink_to("/etc/passwd")
    os.link(root / "usr/bin/vbar_control_agent", root / "agent")
    os.mkfifo(root / "pipe")
    with Spool() as spool, opened(str(root), spool) as image:
        filesystem = image.unpack(spool)
        children = filesystem.root.children
        assert filesystem.is_program(PROGRAM)
        assert isinstance(children["agent"], File)
        assert children["agent"] is (filesystem.find(PROGRAM) or ("", None))[1]
        assert isinstance(children["passwd"], Link)
        assert filesystem.left_out == ["special file pipe"]


def test_a_path_in_an_image_is_found_as_chroot_would(tmp_path: Path) -> None:
    tar = layer(
        link("bin", "usr/bin"),
        link("agent", "/bin/../bin/vbar_control_agent"),
        link("loop", "loop"),
        program(),
    )
    with Spool() as spool, opened(str(docker_archive(tmp_path / "a.tar", tar)), spool) as image:
        filesystem = image.unpack(spool)
        assert (filesystem.find("/agent") or ("",))[0] == PROGRAM
        assert (filesystem.find("/../../agent") or ("",))[0] == PROGRAM
        assert filesystem.find("/loop") is None
        assert filesystem.program("vbar_control_agent", "/sbin:/bin") == "/bin/vbar_control_agent"


def test_what_is_unpacked_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of a few kilobytes that unpacks to many megabytes."""
    bomb = oci_layout(tmp_path / "layout", layer(entry("zeros", bytes(8 << 20))))
    monkeypatch.setattr(spool_module.Spool.append, "__kwdefaults__", {"limit": 1 << 20})
    with (
        Spool() as spool,
        opened(str(bomb), spool) as image,
        pytest.raises(ImageError, match="unpacks to more than 1 MiB"),
    ):
        image.unpack(spool)


@dataclass(frozen=True)
class Bad:
    about: str
    make: Callable[[Path], str]
    mentions: str


def changed(folder: Path, name: str, change: Callable[[bytes], bytes]) -> str:
    """A layout in which one blob, found by its kind, is not what it was."""
    path = layout(folder)
    index = json.loads((path / "index.json").read_text())
    found = index["manifests"][0]["digest"]
    if name != "manifest":
        manifest = json.loads((path / "blobs/sha256" / found[7:]).read_text())
        found = (manifest["config"] if name == "config" else manifest["layers"][0])["digest"]
    blob = path / "blobs/sha256" / found[7:]
    blob.write_bytes(change(blob.read_bytes()))
    return str(path)


def missing_blob(folder: Path) -> str:
    path = layout(folder)
    for blob in (path / "blobs/sha256").iterdir():
        if blob.read_bytes()[:2] == b"\x1f\x8b":
            blob.unlink()
    return str(path)


def with_index(folder: Path, text: str) -> str:
    path = layout(folder)
    (path / "index.json").write_text(text)
    return str(path)


def linked_blob(folder: Path) -> str:
    path = layout(folder)
    (path / "blobs").rename(folder / "elsewhere")
    (path / "blobs").symlink_to(folder / "elsewhere")
    return str(path)


def wrong_layer(folder: Path) -> str:
    path = archive(folder)
    data = path.read_bytes()
    place = data.index(b"\x7fELF")
    path.write_bytes(data[:place] + b"evil" + data[place + 4 :])
    return str(path)


def two_images(folder: Path) -> str:
    one = layer(program())
    described = configuration([one])
    listed = [{"Config": "c.json", "RepoTags": [name], "Layers": ["l.tar"]} for name in ("a/b:1", "a/c:1")]
    path = folder / "two.tar"
    path.write_bytes(
        layer(
            entry("c.json", described),
            entry("l.tar", one),
            entry("manifest.json", json.dumps(listed).encode()),
        )
    )
    return str(path)


def half(folder: Path) -> str:
    path = gzipped(archive(folder))
    path.write_bytes(path.read_bytes()[:-200])
    return str(path)


BOTH = '{"manifests": [], "layers": []}'
BAD = [
    Bad("nothing there", lambda folder: str(folder / "none.tar"), "none.tar: does not exist; give"),
    Bad(
        "an empty file", lambda folder: str(_file(folder, b"")), "neither a Docker archive nor an OCI layout"
    ),
    Bad("no archive", lambda folder: str(_file(folder, b"x" * 2048)), "at byte 0"),
    Bad("half a gzip", half, "ends early"),
    Bad(
        "gzip members without end",
        lambda folder: str(_file(folder, gzip.compress(b"") * 2000)),
        "too many members",
    ),
    Bad("damaged gzip", lambda folder: str(_file(folder, b"\x1f\x8b" + bytes(600))), "gzip data"),
    Bad("damaged zstd", lambda folder: str(_file(folder, b"\x28\xb5\x2f\xfd" + b"x" * 600)), "zstd data"),
    Bad("layer cut short", lambda f: changed(f, "layer", lambda data: data[:-9]), "it is cut short"),
    Bad("layer with more behind", lambda f: changed(f, "layer", lambda data: data + b"x"), "more than the"),
    Bad(
        "layer with another byte", lambda f: changed(f, "layer", lambda d: d[:-9] + b"x" + d[-8:]), "SHA-256"
    ),
    Bad("configuration with another byte", lambda f: changed(f, "config", lambda d: b" " + d[1:]), "SHA-256"),
    Bad("manifest with another byte", lambda f: changed(f, "manifest", lambda d: b" " + d[1:]), "SHA-256"),
    Bad("layer of a docker archive with another byte", wrong_layer, "has the SHA-256"),
    Bad("blob missing", missing_blob, "cannot be read: no such file"),
    Bad("blobs behind a link", linked_blob, "has no blob"),
    Bad("index that is no JSON", lambda f: with_index(f, "{"), "index.json is no JSON"),
    Bad("index without end", lambda f: with_index(f, "[" * 200_000), "index.json is no JSON"),
    Bad(
        "name with half a character",
        lambda f: str(docker_archive(f / "a.tar", *LAYERS, names=("a/b:\ud800", "a/c:1"))) + ":a/x:1",
        "manifest.json is no JSON",
    ),
    Bad("index that is a list", lambda f: with_index(f, "[]"), "no JSON object"),
    Bad("index and manifest at once", lambda f: with_index(f, BOTH), "index and manifest at once"),
    Bad("index of nothing", lambda f: with_index(f, '{"manifests": []}'), "holds nothing"),
    Bad(
        "digest that is a path",
        lambda f: with_index(f, '{"manifests": [{"digest": "sha256:../../etc/passwd", "size": 1}]}'),
        "is no SHA-256",
    ),
    Bad(
        "another architecture",
        lambda f: str(docker_archive(f / "a.tar", architecture="arm64")),
        "linux/arm64",
    ),
    Bad(
        "index without our platform",
        lambda f: str(oci_layout(f / "l", *LAYERS, platforms=["arm64", "s390x"])),
        "nothing for linux/amd64, only for linux/arm64, linux/s390x",
    ),
    Bad("unknown name in an archive", lambda f: f"{archive(f)}:x/y:1", "and no x/y:1"),
    Bad("unknown tag in a layout", lambda f: f"{layout(f)}:9", "holds 0.0.1, and no 9"),
    Bad("several images, none named", two_images, "several images: a/b:1, a/c:1"),
    Bad(
        "entry point that is no list",
        lambda f: str(docker_archive(f / "a.tar", Entrypoint="sh")),
        "texts in a list",
    ),
    Bad("name of nothing", lambda f: "vbar", "vbar: is neither a file nor the name of an image"),
    Bad("hostile name", lambda f: "gcr.io/a/b:1 --help", "neither a file nor the name"),
    Bad("name like an option", lambda f: "docker:--help", "neither a file nor the name"),
]


def _file(folder: Path, data: bytes) -> Path:
    path = folder / "file.tar"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.about)
def test_what_cannot_be_used_is_refused_in_one_line(case: Bad, tmp_path: Path) -> None:
    source = case.make(tmp_path)
    with pytest.raises(AgentError) as caught, Spool() as spool, opened(source, spool) as image:
        image.unpack(spool)
    assert case.mentions in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("make", [docker_archive, oci_layout])
def test_contents_do_not_sit_in_memory(make: Callable[..., Path], tmp_path: Path) -> None:
    source = make(tmp_path / "image", layer(entry("large", os.urandom(48 << 20)), program()))
    tracemalloc.start()
    try:
        with Spool() as spool, opened(str(source), spool) as image:
            write_below(
                str(tmp_path), "/agents", 0o700, {"it": image.unpack(spool).root}, spool, durable=False
            )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "agents/it/large").stat().st_size == 48 << 20
    assert peak < 12 << 20


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = archive(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    with (
        Spool(tmp_path) as spool,
        pytest.raises(AgentError, match="No space left on device; make room there"),
    ):
        opened(str(path), spool).__enter__()


def test_nothing_of_an_archive_stays_behind(tmp_path: Path) -> None:
    path = archive(tmp_path)
    with Spool(tmp_path) as spool, opened(str(path), spool) as image:
        image.unpack(spool)
        assert [one.name for one in tmp_path.iterdir()] == ["image.tar"]


def test_the_digest_is_that_of_the_manifest(tmp_path: Path) -> None:
    path = layout(tmp_path)
    expected = json.loads((path / "index.json").read_text())["manifests"][0]["digest"]
    with Spool() as spool, opened(str(path), spool) as image:
        assert isinstance(image, ContainerImage)
        assert image.digest == expected
        assert image.identity == digest(configuration(LAYERS))


def test_an_archive_may_be_any_tar(tmp_path: Path) -> None:
    """bsdtar and Go write what Python does not: names in ./, directories before files."""
    folder = tmp_path / "image"
    folder.mkdir()
    subprocess.run(["tar", "-xf", archive(tmp_path), "-C", folder], check=True)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as file:
        file.add(folder, ".")
    (tmp_path / "other.tar").write_bytes(buffer.getvalue())
    with Spool() as spool, opened(str(tmp_path / "other.tar"), spool) as image:
        assert image.unpack(spool).is_program(PROGRAM)
