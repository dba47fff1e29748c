"""The archive that goes into images: the same everywhere, and running on every Python from 3.8."""

from __future__ import annotations

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import tpu_image
from metadata_faults import metadata
from tpu_image.catalogue import runtime_archive
from tpu_image.catalogue.runtime_archive import Condition

PACKAGE = Path(tpu_image.__file__).parent


def works(program: str) -> bool:
    return subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0


def interpreters() -> dict[str, str]:
    """Every Python from 3.8 on the PATH or that pyenv has; at least the one that runs the tests."""
    found = {"this": sys.executable}
    pyenv = os.environ.get("PYENV_ROOT", "")
    for minor in range(8, 15):
        name = f"python3.{minor}"
        places = [shutil.which(name), *map(str, Path(pyenv).glob(f"versions/*/bin/{name}") if pyenv else ())]
        working = [place for place in places if place and works(place)]
        found.update({name: working[-1]} if working else {})
    return found


INTERPRETERS = interpreters()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "runtime.pyz"
    path.write_bytes(runtime_archive.build())
    return path


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        return {info.filename: packed.read(info) for info in packed.infolist()}


def test_every_module_of_the_runtime_is_packed() -> None:
    packed = members(runtime_archive.build())
    wanted = {
        f"tpu_image/{path.relative_to(PACKAGE).as_posix()}" for path in (PACKAGE / "runtime").glob("*.py")
    }
    assert wanted <= set(packed)
    assert not [name for name in packed if name.endswith((".pyc", ".so"))]


def test_everything_packed_is_python_3_8() -> None:
    for name, content in members(runtime_archive.build()).items():
        if name.endswith(".py"):
            ast.parse(content, name, feature_version=(3, 8))


def test_what_parses_yaml_is_packed_with_its_licence_and_stands_behind_the_systems_own(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "runtime.pyz"
    archive.write_bytes(runtime_archive.build())
    assert b"Kirill Simonov" in members(archive.read_bytes())["yaml/LICENSE"]
    code = f"""
import sys
sys.argv = ["x"]
sys.path.insert(0, {str(archive)!r})
from tpu_image.runtime.environment import parse
import yaml.parser
print(parse(b"a: 'b'"), yaml.parser.__file__, "yaml.constructor" in sys.modules)
"""
    alone = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=True).stdout
    assert alone == f"{{'a': 'b'}} {archive}/yaml/parser.py False\n"
    beside = subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True, check=True).stdout
    assert beside == f"{{'a': 'b'}} {yaml.parser.__file__} False\n"


BUILD = "import sys; from tpu_image.catalogue import runtime_archive as r; sys.stdout.buffer.write(r.build())"


@pytest.mark.slow
@pytest.mark.parametrize(
    "python", [p for n, p in INTERPRETERS.items() if n not in ("python3.8", "python3.9")]
)
def test_the_bytes_are_the_same_whatever_makes_them_even_a_zip_archive(python: str, tmp_path: Path) -> None:
    whole = tmp_path / "tpu-image.pyz"
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in (PACKAGE, Path(yaml.__file__).parent):
            for path in package.rglob("*"):
                if path.suffix in (".py", ".txt"):
                    packed.write(path, path.relative_to(package.parent))
    done = subprocess.run(
        [python, "-c", BUILD], env={"PYTHONPATH": str(whole)}, capture_output=True, check=True
    )
    assert done.stdout == runtime_archive.build()


UPDATE = """
import os, sys
sys.path.insert(0, sys.argv[1])
sys.path.append(sys.argv[1] + "/packed")
from tpu_image.runtime import environment, atomic_file, metadata
owner = atomic_file.Owner(os.geteuid(), os.getegid())
print(environment.update(metadata.MetadataServer(sys.argv[2], "", seconds=5), owner, sys.argv[3]))
"""


@pytest.mark.parametrize("python", INTERPRETERS.values(), ids=INTERPRETERS.keys())
def test_it_runs_with_no_home_no_path_and_no_locale(python: str, archive: Path, tmp_path: Path) -> None:
    with metadata({"tpu-env": "ZONE: zürich\nWORKER_ID: ''\n"}) as running:
        command = [python, "-I", "-c", UPDATE, str(archive), running.host, str(tmp_path / "home")]
        done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("(2, True)\n", "")
        asked = subprocess.run(
            [python, "-I", archive, "get-metadata", "tpu-env"],
            env={"GCE_METADATA_HOST": running.host, "LC_ALL": "C"},
            capture_output=True,
            check=False,
        )
        assert (asked.returncode, asked.stdout.decode()) == (0, "ZONE: zürich\nWORKER_ID: ''\n\n")
    assert 'ZONE="zürich"' in (tmp_path / "home/tpu-env").read_text(encoding="utf-8")


def get_metadata(archive: Path, host: str, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-I", str(archive), "get-metadata", *arguments]
    done = subprocess.run(
        command, env={"GCE_METADATA_HOST": host}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_value_is_printed_as_it_is_and_a_default_only_for_a_key_that_is_not_set(archive: Path) -> None:
    with metadata({"two": "x y"}) as running:
        host = running.host
        assert get_metadata(archive, host, "two", "none") == (0, "x y\n", "")
        assert get_metadata(archive, host, "0/ip", "none", "network-interfaces") == (0, "10.128.0.15\n", "")
        assert get_metadata(archive, host, "missing", "none") == (0, "none\n", "")
        assert get_metadata(archive, host, "missing", "") == (0, "\n", "")
        status, output, error = get_metadata(archive, host, "missing")
        assert (status, output, error) == (66, "", "tpu-image: instance/attributes/missing is not set\n")
    with metadata({}, "403") as running:
        assert get_metadata(archive, running.host, "tpu-env", "none")[:2] == (77, "")


@pytest.mark.parametrize(
    "arguments", [[], ["unknown"], ["environment", "x"], ["get-metadata"], ["get-metadata", ""]]
)
def test_wrong_arguments_are_answered_with_the_usage(arguments: list[str], archive: Path) -> None:
    done = subprocess.run([sys.executable, archive, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith("tpu-image: usage: ")
    assert done.stderr.count("\n") == 1


def test_our_archive_is_recognised_without_pyyaml(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert runtime_archive.examine(archive.read_bytes()) is Condition.CURRENT


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_is_noticed(position: int, change: int) -> None:
    content = bytearray(ARCHIVE)
    content[position % len(content)] ^= change
    assert runtime_archive.examine(bytes(content)) is not Condition.CURRENT


@given(st.binary())
def test_any_bytes_are_judged(content: bytes) -> None:
    assert runtime_archive.examine(content) is Condition.FOREIGN
    assert runtime_archive.examine(ARCHIVE[:100] + content) in (Condition.DAMAGED, Condition.FOREIGN)


ARCHIVE = runtime_archive.build()
