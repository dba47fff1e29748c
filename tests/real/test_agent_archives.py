"""Archives that skopeo and buildah make are read, and hold what these tools say they hold; ours are read by skopeo."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_images import PROGRAM, directory, entry, layer, link, oci_layout, program
from registries import need
from tpu_image.agents.directory_writer import write_below
from tpu_image.agents.image import ContainerImage
from tpu_image.agents.installation import installed
from tpu_image.agents.sources import opened
from tpu_image.agents.spool import Spool
from tpu_image.agents.units import Docker
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.vbar_agent import VBAR
from tpu_image.trees.memory import MemoryTree

pytestmark = pytest.mark.real

LAYERS = (
    layer(directory("etc"), entry("etc/a", b"1"), entry("etc/b", b"2"), link("bin", "usr/bin"), program()),
    layer(entry("etc/.wh.a"), entry("etc/c", b"3")),
)


def skopeo(*arguments: object) -> str:
    need("skopeo", "skopeo")
    return subprocess.run(["skopeo", *map(str, arguments)], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("form", ["docker-archive", "oci-archive", "oci"])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_what_skopeo_makes_is_read(form: str, compression: str, tmp_path: Path) -> None:
    source = oci_layout(tmp_path / "layout", *LAYERS)
    options = [] if form == "docker-archive" else ["--dest-compress-format", compression, "--dest-compress"]
    if form == "oci-archive":
        options = []
    target = f"{form}:{tmp_path / 'made'}:example.org/vbar_control_agent:1"
    skopeo("copy", "--quiet", *options, f"oci:{source}:0.0.1", target)
    with Spool() as spool, opened(str(tmp_path / "made"), spool) as image:
        filesystem = image.unpack(spool)
        assert filesystem.is_program(PROGRAM)
        assert filesystem.find("/etc/a") is None
        assert filesystem.text("/etc/c", 9) == "3"


def described(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that unpacking must bring: kind, mode, owner, links, content."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = Path(folder, name)
            status = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            links = status.st_nlink if stat.S_ISREG(status.st_mode) else 0
            found[str(path.relative_to(root))] = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                links,
                content,
            )
    return found


def change_everything(root: Path) -> None:
    """Changes of a second layer that need whiteouts, opaque directories and replacements."""
    (root / "etc/a").unlink()
    (root / "opt/gone/deep/f").unlink()
    (root / "opt/gone/deep").rmdir()
    (root / "opt/gone").rmdir()
    (root / "opt/again/old").unlink()
    (root / "opt/again").rmdir()
    (root / "opt/again").mkdir()
    (root / "opt/again/new").write_text("new")
    (root / "opt/file").unlink()
    (root / "opt/file").mkdir(mode=0o700)
    (root / "opt/folder").rmdir()
    (root / "opt/folder").symlink_to("/etc")
    (root / "etc/b").chmod(0o4711)
    os.chown(root / "etc/b", 12, 34)


@pytest.mark.parametrize("form", ["docker-archive", "oci-archive", "oci"])
def test_what_buildah_makes_is_unpacked_as_buildah_mounts_it(form: str, tmp_path: Path) -> None:
    need("buildah", "buildah")
    store = ["--root", str(tmp_path / "store"), "--runroot", str(tmp_path / "run"), "--storage-driver", "vfs"]

    def buildah(*arguments: object) -> str:
        command = ["buildah", *store, *map(str, arguments)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def layered(base: str, change: Callable[[Path], None], target: str) -> None:
        name = buildah("from", "--pull-never", base)
        change(Path(buildah("mount", name)))
        buildah("config", "--entrypoint", json.dumps([PROGRAM]), name)
        buildah("commit", "--quiet", "--rm", name, target)

    def fill(root: Path) -> None:
        for name in ("etc", "opt/gone/deep", "opt/again", "opt/folder", "usr/bin"):
            (root / name).mkdir(parents=True)
        for name in ("etc/a", "etc/b", "opt/gone/deep/f", "opt/again/old", "opt/file", PROGRAM[1:]):
            (root / name).write_text(name)
            (root / name).chmod(0o755)
        os.link(root / "etc/b", root / "etc/hard")

    layered("scratch", fill, "localhost/first:1")
    layered("localhost/first:1", change_everything, "localhost/agent:1")
    archive = f"{form}:{tmp_path / 'made'}"
    skopeo_target = archive if form.startswith("oci") else f"{archive}:localhost/agent:1"
    buildah("push", "--quiet", "localhost/agent:1", skopeo_target)
    mounted = Path(buildah("mount", buildah("from", "--pull-never", "localhost/agent:1")))
    with Spool() as spool, opened(str(tmp_path / "made"), spool) as image:
        assert isinstance(image, ContainerImage)
        assert len(image.layers) == 2
        write_below(str(tmp_path), "/ours", 0o700, {"image": image.unpack(spool).root}, spool)
    assert described(tmp_path / "ours/image") == described(mounted)


def test_the_archive_that_is_kept_for_docker_is_one_to_skopeo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = Docker("/usr/bin/docker", "docker.service")
    monkeypatch.setattr("tpu_image.agents.installation.find_docker", lambda _: docker)
    source = oci_layout(tmp_path / "layout", *LAYERS)
    with Spool() as spool, installed(VBAR, str(source), spool, MemoryTree()) as made:
        made.unpack(str(tmp_path))
    kept = tmp_path / AGENTS.lstrip("/") / "vbar_control_agent.tar"
    assert (
        json.loads(skopeo("inspect", "--config", f"docker-archive:{kept}:{VBAR.image}"))["architecture"]
        == "amd64"
    )
    skopeo("copy", "--quiet", f"docker-archive:{kept}:{VBAR.image}", f"oci:{tmp_path / 'back'}:1")
    with Spool() as spool, opened(f"oci:{tmp_path / 'back'}:1", spool) as image:
        filesystem = image.unpack(spool)
        assert filesystem.text("/etc/c", 9) == "3"
        assert filesystem.find("/etc/a") is None


def test_file_capabilities_are_kept(tmp_path: Path) -> None:
    value = bytes.fromhex("0100000200200000000000000000000000000000")  # cap_net_raw=ep
    (tmp_path / "in").mkdir()
    (tmp_path / "in/ping").write_bytes(b"x")
    os.setxattr(tmp_path / "in/ping", "security.capability", value)
    tar = tmp_path / "layer.tar"
    with_attributes = ["--format=pax", "--xattrs", "--xattrs-include=security.capability"]
    subprocess.run(["tar", "-cf", tar, *with_attributes, "-C", tmp_path / "in", "."], check=True)
    with Spool() as spool, opened(str(oci_layout(tmp_path / "layout", tar.read_bytes())), spool) as image:
        write_below(str(tmp_path), "/ours", 0o700, {"image": image.unpack(spool).root}, spool)
    assert os.getxattr(tmp_path / "ours/image/ping", "security.capability") == value
