"""What a specification wants beyond the profile: what is read, and every problem at its line and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tpu_image import spec
from tpu_image.customise.customisation import (
    Customisation,
    GcloudArchive,
    Placement,
    PythonEnvironment,
    Script,
)

DIGEST = "0123456789abcdef" * 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project's folder with what specifications here name."""
    for name, content in {
        "base.qcow2": "x",
        "motd": "hello\n",
        "setup.sh": "#!/bin/sh\necho set up\n",
        "requirements.txt": "jax==0.6\n",
        "sdk.tar.gz": "x",
        "debian.sources": "Types: deb\n",
        "empty.sh": "\n",
    }.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "app").mkdir()
    (tmp_path / "wheels").mkdir()
    return tmp_path


def no_fetch(url: str, digest: str) -> Path:
    pytest.fail(f"{url} is not to be fetched")


def read(text: str, folder: Path) -> spec.Specification:
    (folder / "f").write_text(text)
    return spec.load(folder / "f")


WHOLE = f"""\
base: {{image: base.qcow2, sha256: {DIGEST}}}
size: 20G
output: {{path: out/tpu.qcow2, format: qcow2}}
files:
- {{path: /etc/motd, source: motd, mode: "0600", owner: app, group: 1002}}
- path: /etc/issue
  content: |
    welcome
- {{path: /opt/app, source: app}}
- {{path: /srv/data/, directory: true, mode: "1777"}}
packages: [nginx, "curl=7.88.1-10+deb12u8", libc6:amd64, tmux/bookworm-backports]
remove: [snapd]
sources: debian.sources
kernel: linux-image-cloud-amd64
pip:
- {{venv: /opt/jax, packages: ["jax[tpu]"], requirements: requirements.txt}}
- {{venv: /opt/other, wheels: wheels, python: /usr/bin/python3.11}}
run:
- echo one
- {{script: echo two, name: greeting}}
- {{file: setup.sh}}
gcloud: sdk.tar.gz
time_limit: 90m
"""


def test_a_whole_file_is_a_customisation(folder: Path) -> None:
    read_back = read(WHOLE, folder)
    assert read_back.base is not None
    assert (read_back.base.kind, read_back.base.image) == ("file", str(folder / "base.qcow2"))
    assert read_back.base.sha256 == DIGEST
    assert read_back.size == 20 << 30
    assert read_back.output is not None
    assert (read_back.output.path, read_back.output.format) == (folder / "out/tpu.qcow2", "qcow2")
    assert read_back.to_customisation(no_fetch) == Customisation(
        files=(
            Placement("/etc/motd", folder / "motd", mode=0o600, owner="app", group="1002"),
            Placement("/etc/issue", content=b"welcome\n"),
            Placement("/opt/app", folder / "app"),
            Placement("/srv/data", mode=0o1777),
        ),
        packages=("nginx", "curl=7.88.1-10+deb12u8", "libc6:amd64", "tmux/bookworm-backports"),
        remove=("snapd",),
        kernel="linux-image-cloud-amd64",
        environments=(
            PythonEnvironment("/opt/jax", ("jax[tpu]",), b"jax==0.6\n"),
            PythonEnvironment("/opt/other", wheels=folder / "wheels", python="/usr/bin/python3.11"),
        ),
        scripts=(
            Script("script 1", b"echo one"),
            Script("greeting", b"echo two"),
            Script("setup.sh", b"#!/bin/sh\necho set up\n"),
        ),
        gcloud=GcloudArchive(folder / "sdk.tar.gz"),
        sources=b"Types: deb\n",
        time_limit=5400,
    )


BASES = {
    "debian:bookworm": "reference",
    "ubuntu:24.04": "reference",
    "https://example.org/a/base.qcow2": "url",
    "base.qcow2": "file",
}


@pytest.mark.parametrize(("text", "kind"), BASES.items())
def test_a_base_is_a_file_a_url_or_a_reference(folder: Path, text: str, kind: str) -> None:
    base = read(f"base: {text}", folder).base
    assert base is not None
    assert base.kind == kind


def test_a_cloud_cli_that_is_a_url_is_fetched(folder: Path) -> None:
    asked = []

    def fetch(url: str, digest: str) -> Path:
        asked.append((url, digest))
        return folder / "cached"

    wanted = read(f"gcloud: {{archive: 'https://example.org/sdk.tar.gz', sha256: {DIGEST.upper()}}}", folder)
    assert wanted.to_customisation(fetch).gcloud == GcloudArchive(folder / "cached", DIGEST)
    assert asked == [("https://example.org/sdk.tar.gz", DIGEST)]


def test_nothing_wanted_is_nothing_to_do(folder: Path) -> None:
    assert read("{}", folder).to_customisation(no_fetch) == Customisation()


COUNTED = "paths count from the folder of the specification"
REFUSED = {
    "base that is not there": (
        "base: none.qcow2",
        ["1:7: base is FOLDER/none.qcow2, where no file is; " + COUNTED],
    ),
    "base of another protocol": (
        "base: gs://bucket/base.qcow2",
        ["1:7: base is a URL that is not downloaded; give one of https, or a file"],
    ),
    "digest of a reference": (
        f"base: {{image: debian:trixie, sha256: {DIGEST}}}",
        ["1:7: base is debian:trixie, which is made anew and has no SHA-256; leave sha256 out"],
    ),
    "digest that is none": (
        "base: {image: debian:trixie, sha256: abc}",
        ["1:38: base.sha256 is no SHA-256; give 64 hexadecimal digits"],
    ),
    "base that is a list": ("base: [a]", ["1:7: base is a list; give a mapping"]),
    "size without unit": ("size: 20", ["1:7: size has no unit; write 20G for GiB"]),
    "size that is none": ("size: big", ["1:7: size is no size; write it such as 20G"]),
    "format": (
        "output: {path: x, format: vmdk}",
        ["1:27: output.format is 'vmdk'; give gce, raw, qcow2 or qcow2-zstd"],
    ),
    "output without path": ("output: {format: raw}", ["1:9: output has no path; give one"]),
    "file without path": ("files:\n- {content: x}", ["2:3: item 1 of files has no path; give one"]),
    "file without content": (
        "files:\n- {path: /etc/x}",
        [
            "2:3: item 1 of files has none of source, content and directory; give one of source, content and directory"
        ],
    ),
    "file with two contents": (
        "files:\n- {path: /etc/x, content: x, source: motd}",
        ["2:3: item 1 of files has source and content; give one of source, content and directory"],
    ),
    "directory that is none": (
        "files:\n- {path: /etc/x, directory: false}",
        ["2:29: directory in item 1 of files is false; give true"],
    ),
    "relative path": (
        "files:\n- {path: etc/x, content: x}",
        ["2:10: path in item 1 of files is no path from the image's root; begin it with /"],
    ),
    "path upwards": (
        "files:\n- {path: /etc/../x, content: x}",
        ["2:10: path in item 1 of files leads through ..; write the path without it"],
    ),
    "the root": (
        "files:\n- {path: /, directory: true}",
        ["2:10: path in item 1 of files is the root itself; name something in it"],
    ),
    "path in memory": (
        "files:\n- {path: /run/x, content: x}",
        [
            "2:10: path in item 1 of files is below /run, which a running machine has in memory;"
            " choose another folder"
        ],
    ),
    "mode as a number": (
        "files:\n- {path: /etc/x, content: x, mode: 0644}",
        [
            "2:36: mode in item 1 of files is a number, which YAML may have read as another;"
            ' put it in quotes, such as "0644"'
        ],
    ),
    "mode that is none": (
        "files:\n- {path: /etc/x, content: x, mode: 'u+x'}",
        [
            '2:36: mode in item 1 of files is no mode; give three or four octal digits in quotes, such as "0644"'
        ],
    ),
    "mode of a folder": (
        "files:\n- {path: /opt/app, source: app, mode: '0755'}",
        [
            "2:3: item 1 of files has a mode for a whole folder;"
            " leave it out, each file keeps whether it is executable"
        ],
    ),
    "owner": (
        "files:\n- {path: /etc/x, content: x, owner: 'a:b'}",
        [
            "2:37: owner in item 1 of files is no name or number of a user or group;"
            " give one that the image has"
        ],
    ),
    "source that is not there": (
        "files:\n- {path: /etc/x, source: none}",
        ["2:26: source in item 1 of files is FOLDER/none, where no file or folder is; " + COUNTED],
    ),
    "home of nobody": (
        "files:\n- {path: /etc/x, source: ~nobody-of-that-name/x}",
        [
            "2:26: source in item 1 of files is ~nobody-of-that-name/x,"
            " and nobody of that name has a home here; write the path whole"
        ],
    ),
    "NUL in a path": (
        'files:\n- {path: "/etc/\\0", content: x}',
        ["2:10: path in item 1 of files has a NUL in it, which no path has; take it out"],
    ),
    "option as a package": (
        "packages:\n- -y",
        ["2:3: item 1 of packages is no Debian package; write NAME, NAME=VERSION or NAME/RELEASE"],
    ),
    "packages in one text": ("packages: nginx", ["1:11: packages is 'nginx'; give a list"]),
    "package that is a number": ("packages: [7]", ["1:12: item 1 of packages is 7; give text"]),
    "package to remove with a version": (
        "remove: [nginx=1]",
        ["1:10: item 1 of remove is no name of a Debian package; write it as apt-get remove takes it"],
    ),
    "kernel": (
        "kernel: /boot/vmlinuz",
        ["1:9: kernel is no Debian package; write NAME, NAME=VERSION or NAME/RELEASE"],
    ),
    "pip without venv": ("pip: [{packages: [jax]}]", ["1:7: item 1 of pip has no venv; give one"]),
    "option for pip": (
        "pip: [{venv: /opt/x, packages: ['--index-url=x']}]",
        [
            "1:33: item 1 of packages in item 1 of pip is no Python package;"
            " options belong into a requirements file"
        ],
    ),
    "wheels that are a file": (
        "pip: [{venv: /opt/x, wheels: motd}]",
        ["1:30: wheels in item 1 of pip is FOLDER/motd, where no folder is; " + COUNTED],
    ),
    "script and file": (
        "run:\n- {script: x, file: setup.sh}",
        ["2:3: item 1 of run has script and file; give one of script and file"],
    ),
    "script that is empty": (
        "run: [' ', {file: empty.sh}]",
        [
            "1:7: item 1 of run is an empty script; write what it is to do, or leave it out",
            "1:12: item 2 of run is an empty script; write what it is to do, or leave it out",
        ],
    ),
    "unknown key of a script": (
        "run: [{scrpt: x}]",
        ["1:8: unknown key 'scrpt'; did you mean script?"],
    ),
    "cloud cli that is not there": (
        "gcloud: none.tar.gz",
        ["1:9: gcloud is FOLDER/none.tar.gz, where no file is; " + COUNTED],
    ),
    "cloud cli without digest": (
        "gcloud: https://example.org/sdk.tar.gz",
        ["1:9: gcloud is a URL without sha256; give that of the archive you mean"],
    ),
    "time without unit": ("time_limit: 90", ["1:13: time_limit has no unit; write 90s, 90m or 90h"]),
    "a value of another kind": ("packages: [2026-01-01]", ["1:12: item 1 of packages is a date; give text"]),
    "control characters": (
        'profile: {agent: "\\e[31m"}',
        ["1:18: profile.agent is '\\x1b[31m'; give install or elsewhere"],
    ),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_every_problem_is_told_where_it_is(folder: Path, text: str, expected: list[str]) -> None:
    with pytest.raises(spec.SpecificationError) as caught:
        read(text, folder)
    name = folder / "f"
    assert caught.value.problems == [f"{name}:{line.replace('FOLDER', str(folder))}" for line in expected]


def test_a_script_that_is_too_large_is_not_read(folder: Path) -> None:
    (folder / "large.sh").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(spec.SpecificationError, match="larger than 1 MiB"):
        read("run: [{file: large.sh}]", folder)


def test_the_published_schema_takes_what_is_accepted() -> None:
    Draft202012Validator(spec.json_schema()).validate(yaml.safe_load(WHOLE))


WRONG = (
    {"size": 20},
    {"base": {"sha256": DIGEST}},
    {"files": [{"path": "/etc/x"}]},
    {"files": [{"path": "/etc/x", "content": "x", "source": "y"}]},
    {"files": [{"path": "/etc/x", "content": "x", "mode": 644}]},
    {"run": [{"name": "x"}]},
    {"packages": ["-y"]},
    {"output": {"path": "x", "format": "vmdk"}},
    {"time_limit": "soon"},
)


@pytest.mark.parametrize("document", WRONG)
def test_the_published_schema_refuses_what_is_refused(document: Any) -> None:
    assert list(Draft202012Validator(spec.json_schema()).iter_errors(document))
