"""``tpu-image build`` from a specification, and with agents from archives: what is written, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import build_bases as bases
import small_catalogue
from agent_images import REFERENCE, docker_archive, layer, program
from cli_types import Run
from tpu_image import catalogue
from tpu_image.catalogue.vbar_agent import VbarAgent
from tpu_image.customise.execution import Executed
from tpu_image.customise.session import CustomisationError, Executor, Listener
from tpu_image.disks.image import open_image
from tpu_image.disks.objections import open_system


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return bases.gpt_disk(tmp_path / "made")


@pytest.fixture(autouse=True)
def few_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of what is looked at here."""
    monkeypatch.setattr(catalogue, "requirements", lambda: (small_catalogue.Greeting(), VbarAgent()))


def specification(folder: Path, text: str) -> Path:
    path = folder / "tpu-image.yaml"
    path.write_text(text)
    return path


def manifest(path: Path) -> Any:
    return json.loads(path.with_name(path.name + ".json").read_text())


@pytest.mark.slow
def test_a_specification_says_all_that_a_build_needs(run: Run, base: Path, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(base.read_bytes()).hexdigest()
    (tmp_path / "motd").write_text("from a file\n")
    text = f"""
base: {{image: made/{base.name}, sha256: {sha256}}}
size: 1100M
output: {{path: out.raw, format: raw}}
profile: {{agent: elsewhere}}
files:
- {{path: /etc/motd, source: motd, mode: "0600"}}
- {{path: /srv/empty, directory: true}}
"""
    done = run("build", "--spec", specification(tmp_path, text))
    assert done.status == 0, done.err
    assert "place /etc/motd\n" in done.out
    with open_image(tmp_path / "out.raw") as disk:
        assert disk.size == 2 << 30
        tree = open_system(disk)
        assert tree.read_text("/etc/motd") == "from a file\n"
        entry = tree.stat("/etc/motd")
        assert entry is not None
        assert entry.mode == 0o600
        assert tree.is_directory("/srv/empty")
    said = manifest(tmp_path / "out.raw")["customisation"]
    assert said["method"] == "files"
    assert "place /etc/motd" in said["changes"]


def test_the_command_line_goes_before_the_specification(run: Run, base: Path, tmp_path: Path) -> None:
    path = specification(tmp_path, "base: missing.raw\noutput: other.raw\n")
    path.write_text("base: debian:bookworm\noutput: other.raw\n")
    done = run("build", base, "--spec", path, "-o", tmp_path / "mine.tar.gz", "--no-agent", "--quiet")
    assert done.status == 0
    assert (tmp_path / "mine.tar.gz").exists()
    assert not (tmp_path / "other.raw").exists()


def test_another_base_than_the_one_that_is_meant_is_refused(run: Run, base: Path, tmp_path: Path) -> None:
    text = f"base: {{image: {base}, sha256: {'a' * 64}}}\noutput: out.tar.gz\n"
    done = run("build", "--spec", specification(tmp_path, text), "--no-agent", "--quiet")
    assert done.status == 2
    assert f"not {'a' * 64}; get the file again, or correct the sha256" in done.err
    assert not list(tmp_path.glob("out*"))


def executing(monkeypatch: pytest.MonkeyPatch, execute: Callable[..., object]) -> None:
    """Have a function in the place of what executes programs of the image, whoever runs this test."""
    stub = SimpleNamespace(method="stub", require=lambda: None, execute=execute)
    monkeypatch.setattr("tpu_image.build.executor", lambda _name: stub)


def test_nothing_of_another_base_than_the_one_that_is_meant_is_run(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executing(monkeypatch, lambda *_: pytest.fail("it was run"))
    text = f"base: {{image: {base}, sha256: {'a' * 64}}}\noutput: out.tar.gz\nrun: [id]\n"
    done = run("build", "--spec", specification(tmp_path, text), "--no-agent", "--quiet")
    assert done.status == 2
    assert "correct the sha256" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: debian:bookworm\n", "nothing says where the image goes; give -o OUT, or output: in"),
        ("base: debian:woody\noutput: x.tar.gz\n", "debian:woody is no base that can be made; give one of"),
    ],
)
def test_what_a_specification_leaves_open_is_asked_for(
    run: Run, text: str, said: str, tmp_path: Path
) -> None:
    done = run("build", "--spec", specification(tmp_path, text), "--no-agent")
    assert done.status == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_what_fails_inside_the_image_is_shown_and_leaves_nothing(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Executed:
        raise CustomisationError("run: script 1 ended with status 3", ["one", "two"])

    executing(monkeypatch, fail)
    text = f"base: {base}\noutput: out.tar.gz\nrun: [exit 3]\n"
    done = run("build", "--spec", specification(tmp_path, text), "--no-agent", "--quiet")
    assert done.status == 2
    assert done.err.splitlines() == [
        "tpu-image: one",
        "tpu-image: two",
        "tpu-image: run: script 1 ended with status 3",
    ]
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("user", "options", "method"),
    [
        (0, [], "namespace"),
        (1000, [], "virtual-machine"),
        (0, ["--run-in", "virtual-machine"], "virtual-machine"),
        (1000, ["--run-in", "namespace"], "namespace"),
    ],
)
def test_programs_run_where_the_user_can_unless_told_otherwise(
    run: Run,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    options: list[str],
    method: str,
) -> None:
    def refuse(executor: Executor) -> None:
        raise CustomisationError(f"{executor.method} was chosen")

    monkeypatch.setattr("tpu_image.customise.namespace.NamespaceExecutor.require", refuse)
    monkeypatch.setattr("tpu_image.customise.virtual_machine.VirtualMachineExecutor.require", refuse)
    monkeypatch.setattr("os.geteuid", lambda: user)
    text = f"base: {base}\noutput: out.tar.gz\nrun: ['true']\n"
    done = run("build", "--spec", specification(tmp_path, text), "--no-agent", "--quiet", *options)
    assert (done.status, done.err) == (2, f"tpu-image: {method} was chosen\n")


def test_what_a_program_said_is_shown_once(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_disk: object, _session: object, listener: Listener) -> None:
        listener.line("one")
        raise CustomisationError("run: script 1 ended with status 3", ["one"])

    executing(monkeypatch, fail)
    text = f"base: {base}\noutput: out.tar.gz\nrun: [exit 3]\n"
    for options in ([], ["--progress", "none"]):
        done = run("build", "--spec", specification(tmp_path, text), "--no-agent", *options)
        assert done.err.count("one") == 1


def test_the_copy_that_programs_run_in_is_not_hashed(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashed(*_: object) -> None:
        raise AssertionError

    def fail(*_: object, **__: object) -> None:
        raise CustomisationError("the copy was made")

    monkeypatch.setattr("tpu_image.disks.archive._hash_zeros", hashed)
    executing(monkeypatch, fail)
    text = f"base: {base}\noutput: out.tar.gz\nrun: ['true']\n"
    done = run("build", "--spec", specification(tmp_path, text), "--no-agent")
    assert done.err.endswith("the copy was made\n")


def test_an_agent_from_an_archive_is_put_in_and_holds(run: Run, base: Path, tmp_path: Path) -> None:
    archive = docker_archive(tmp_path / "agent.tar", layer(program(b"\x7fELF" + os.urandom(1000))))
    done = run("build", base, "-o", tmp_path / "out.raw", "--format", "raw", "--agent", archive)
    assert done.status == 0, done.err
    (agent,) = manifest(tmp_path / "out.raw")["agents"]
    assert agent["reference"] == REFERENCE
    assert agent["digest"].startswith("sha256:")
    assert agent["runtime"] == "systemd"
    with open_image(tmp_path / "out.raw") as disk:
        tree = open_system(disk)
        assert tree.is_file("/usr/lib/tpu-image/agents/vbar_control_agent/usr/bin/vbar_control_agent")
    checked = run("check", tmp_path / "out.raw", "--only", "vbar")
    assert checked.status == 0, checked.out
    assert agent["digest"] in checked.out


def test_agents_of_a_specification_count_from_its_folder(run: Run, base: Path, tmp_path: Path) -> None:
    docker_archive(tmp_path / "agent.tar", layer(program()))
    text = f"base: {base}\noutput: out.tar.gz\nagents: {{vbar: agent.tar, runtime: docker}}\n"
    done = run("build", "--spec", specification(tmp_path, text), "--quiet")
    assert done.status == 2
    assert "the base has no Docker that starts at boot" in done.err
    specification(tmp_path, text.replace("docker", "systemd"))
    assert run("build", "--spec", tmp_path / "tpu-image.yaml", "--quiet").status == 0


def test_an_agent_that_is_not_there_is_told_before_anything_is_written(
    run: Run, base: Path, tmp_path: Path
) -> None:
    done = run("build", base, "-o", tmp_path / "out.tar.gz", "--agent", tmp_path / "none.tar", "--quiet")
    assert done.status == 2
    assert "none.tar" in done.err
    assert "does not exist" in done.err
    assert not list(tmp_path.glob("out*"))
