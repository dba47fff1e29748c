"""The checker as one file, run by Pythons that have nothing else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from tpu_image import catalogue, cli, single_file
from tpu_image.report.schema import check_schema


def pythons() -> list[str]:
    """This Python, and Python 3.10 where the machine has one (pyenv's are not on the path)."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    oldest = [*root.glob("versions/3.10.*/bin/python3.10"), Path("/usr/bin/python3.10")]
    return [sys.executable, *(str(path) for path in oldest if path.exists())]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dist") / "folder" / "tpu-image.pyz"
    single_file.write(path)
    return path


@pytest.fixture(params=pythons())
def bare(request: pytest.FixtureRequest, archive: Path) -> list[str]:
    """The file run by a Python that sees neither site-packages nor the sources."""
    return [request.param, "-I", "-S", str(archive)]


def run(command: list[str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd="/",
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_same_sources_give_the_same_bytes(archive: Path) -> None:
    assert single_file.build() == archive.read_bytes()
    assert {member.date_time for member in zipfile.ZipFile(archive).infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_it_is_a_program(archive: Path) -> None:
    assert os.access(archive, os.X_OK)
    assert archive.read_bytes().startswith(b"#!/usr/bin/env python3\n")


def test_it_holds_the_checker_and_no_more(archive: Path) -> None:
    names = zipfile.ZipFile(io.BytesIO(archive.read_bytes())).namelist()
    packages = {name.rpartition("/")[0] for name in names}
    assert {"tpu_image/catalogue", "tpu_image/formats", "tpu_image/trees", "yaml"} <= packages
    assert not {"tpu_image/cli", "tpu_image/plan", "tpu_image/render"} & packages
    assert "yaml/LICENSE" in names
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_it_says_what_the_command_line_says(
    bare: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="22.04"\n')
    options = ["--no-agent", "--tpu", "v6e", "--waive", "kernel.idle=power budget", "--live", str(tmp_path)]
    done = run(bare, tmp_path, *options)
    assert (done.returncode, done.stderr) == (1, "")
    Draft202012Validator(check_schema()).validate(json.loads(done.stdout))
    assert cli.main(["check", str(tmp_path), *options, "--format", "json"]) == 1
    assert done.stdout == capsys.readouterr().out


def test_yaml_is_read_without_pyyaml_installed(bare: list[str], tmp_path: Path) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    (tmp_path / "usr/bin/cloud-init").write_text("#!/usr/bin/python3\n")
    folder = tmp_path / "etc/cloud/cloud.cfg.d"
    folder.mkdir(parents=True)
    (folder / "x.cfg").write_text("write_files:\n  - {path: /x, permissions: 0444, content: x}\n")
    (verdict,) = json.loads(run(bare, tmp_path, "--only", "image.cloud-config").stdout)["verdicts"]
    assert verdict["status"] in ("warn", "fail")
    assert "permissions" in json.dumps(verdict)


def test_it_explains(bare: list[str]) -> None:
    document = json.loads(run(bare, "--explain").stdout)
    assert [entry["id"] for entry in document["requirements"]] == [r.id for r in catalogue.requirements()]


def test_it_tells_people_too(bare: list[str], tmp_path: Path) -> None:
    done = run(bare, tmp_path, "--format", "text", "--only", "kernel.thp")
    assert (done.returncode, done.stderr) == (1, "")
    assert "  fail     kernel.thp  " in done.stdout
    assert done.stdout.endswith("not ok: 1 fail\n")


REFUSED = [
    (["/missing"], "/missing: does not exist; give a directory"),
    (["--tpu", "v9"], "unknown TPU generation 'v9'"),
    (["--waive", "kernel.idel=x"], "did you mean kernel.idle"),
    (["--waive", "kernel.idle="], "has no reason"),
    (["--only", "kernal"], "no requirement 'kernal'"),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "reason"), REFUSED)
def test_it_refuses_in_one_line(bare: list[str], arguments: list[str], reason: str) -> None:
    done = run(bare, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_older_python_is_told_what_is_needed(archive: Path) -> None:
    pretend = (
        "import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    done = run([sys.executable, "-I", "-c", pretend], archive)
    assert done.returncode == 2
    assert "tpu-image: Python 3.10 or newer is needed" in done.stderr
