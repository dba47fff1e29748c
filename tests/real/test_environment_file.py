"""One file, many readers: bash, dash and systemd get the same value for everything that we write."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import container
from tpu_image.formats import tpu_env
from tpu_image.formats.variable_names import READONLY_IN_SHELLS, is_name, is_reserved

pytestmark = pytest.mark.real

AWKWARD = [
    "'",
    '"',
    "$",
    "`",
    "\\",
    " ",
    "\t",
    "#",
    "=",
    ";",
    "~",
    "!",
    "&",
    "|",
    "(",
    ")",
    "*",
    "?",
    "%",
    "é",
    "日",
    "\x85",
]
WORDS = [
    "$HOME",
    "${HOME}",
    "$(id)",
    "`id`",
    "$'a'",
    "\\n",
    "\\\\",
    "C:\\x",
    "!!",
    "%n",
    "a'b",
    '"quoted"',
    "'",
    "\\'",
    "🙂",
]
VALUES = st.lists(st.sampled_from(AWKWARD + WORDS) | st.text(max_size=5)).map("".join)


def representable(value: str) -> bool:
    return all(map(tpu_env.is_representable, value))


def generated_values(examples: int) -> list[str]:
    """Values that hypothesis makes, and every pair of awkward characters."""
    made = ["", *map("".join, itertools.product(AWKWARD, repeat=2)), *WORDS]

    @settings(max_examples=examples, database=None, derandomize=True)
    @given(VALUES.filter(representable))
    def collect(value: str) -> None:
        made.append(value)

    collect()
    return made


def shell_values(shell: list[str], file: Path, names: list[str]) -> dict[str, str]:
    """The variables that a shell exports after it sourced the file, whose status must be success."""
    command = [*shell, 'set -aeu; . "$1"; exec /usr/bin/env -0', shell[0], str(file)]
    done = subprocess.run(command, env={"HOME": "/nowhere"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return variables(done.stdout, names)


def variables(block: bytes, names: list[str]) -> dict[str, str]:
    found = dict(
        entry.split("=", 1) for entry in block.decode("utf-8", "surrogateescape").split("\0") if entry
    )
    return {name: found[name] for name in names if name in found}


def chunks(values: list[str], size: int) -> list[list[str]]:
    return [values[start : start + size] for start in range(0, len(values), size)]


SHELLS = [["bash", "-c"], ["bash", "--posix", "-c"], ["dash", "-c"]]


@pytest.mark.parametrize("shell", SHELLS, ids=["bash", "bash --posix", "dash"])
def test_a_shell_reads_every_value_as_it_was(shell: list[str], tmp_path: Path) -> None:
    wanted = {f"V{number}": value for number, value in enumerate(generated_values(400))}
    for part in range(0, len(wanted), 300):
        chosen = dict(list(wanted.items())[part : part + 300])
        file = tmp_path / "tpu-env"
        file.write_text(tpu_env.serialise(chosen, "A heading."), encoding="utf-8")
        assert shell_values(shell, file, list(chosen)) == chosen


def test_an_interactive_bash_reads_them_too(tmp_path: Path) -> None:
    """History expansion is for what is typed, not for what is sourced."""
    wanted = {f"V{number}": value for number, value in enumerate(["!!", "a!b", "!$", '!"', "\\!"])}
    file = tmp_path / "tpu-env"
    file.write_text(tpu_env.serialise(wanted))
    script = f"set -aH; . {file}; env -0 > {tmp_path}/out; exit\n"
    subprocess.run(["bash", "--norc", "-i"], input=script.encode(), capture_output=True, check=True)
    assert variables((tmp_path / "out").read_bytes(), list(wanted)) == wanted


@pytest.mark.parametrize("shell", SHELLS, ids=["bash", "bash --posix", "dash"])
def test_readonly_names_never_break_sourcing(shell: list[str], tmp_path: Path) -> None:
    wanted = {**dict.fromkeys(READONLY_IN_SHELLS, "4242"), "LAST": "reached"}
    file = tmp_path / "tpu-env"
    file.write_text(tpu_env.serialise(wanted))
    names = ["LAST", *(f"TPU_{name}" for name in READONLY_IN_SHELLS)]
    assert shell_values(shell, file, names) == {"LAST": "reached", **dict.fromkeys(names[1:], "4242")}


def test_every_variable_that_bash_has_of_its_own_is_refused_or_holds_what_it_is_given() -> None:
    listed = subprocess.run(
        [
            "bash",
            "--norc",
            "-c",
            "compgen -v; readonly -p | sed -n 's/^declare -[a-z]* \\([A-Z_]*\\).*/\\1/p'",
        ],
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    own = set(listed.stdout.split())
    assert {"UID", "RANDOM", "SHELLOPTS"} <= own
    free = {name for name in own if not is_reserved(name) and name not in READONLY_IN_SHELLS}
    assert free == {"HOSTNAME"}, "variables of bash that metadata may set"


def test_the_names_that_are_written_are_the_ones_that_bash_takes() -> None:
    for name in ["A", "_a1", "1A", "A-B", "é", "A.B", ""]:
        done = subprocess.run(["bash", "-c", f"{name}=x"], capture_output=True, check=False)
        assert is_name(name) is (done.returncode == 0)


LONGEST = "x" * (tpu_env.ASSIGNMENT_LIMIT - len("LONGEST="))

SERVICE = """\
[Service]
Type=oneshot
EnvironmentFile=/var/lib/tpu-image-test/env-%i
ExecStart=/usr/bin/env -0
StandardOutput=file:/var/lib/tpu-image-test/out-%i
"""


PARTS = [{f"V{n}": value for n, value in enumerate(chunk)} for chunk in chunks(generated_values(1000), 300)]
PARTS.append({**dict.fromkeys(READONLY_IN_SHELLS, "4242"), "LAST": "reached"})
PARTS.append({"LONGEST": LONGEST})
REFUSED = ["\ufdd0", "\ufffe", "\U0010ffff"]


@pytest.fixture(scope="module")
def booted(unpack_root: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what services saw, each of which the root's system manager gave a file by EnvironmentFile=."""
    root = unpack_root(tmp_path_factory.mktemp("environment") / "root")
    contents = [tpu_env.serialise(part, "A heading.") for part in PARTS]
    contents += [f'BAD="{character}"\nGOOD="1"\n' for character in REFUSED]
    numbers = " ".join(map(str, range(len(contents))))
    folder = container.prepare(
        root, f"for number in {numbers}; do systemctl start environment@$number; done; true\n"
    )
    (root / "etc/systemd/system/environment@.service").write_text(SERVICE)
    for number, content in enumerate(contents):
        (folder / f"env-{number}").write_text(content, encoding="utf-8")
    container.boot(root)
    yield folder
    container.remove(root)


def test_systemd_reads_every_value_as_it_was(booted: Path) -> None:
    for number, part in enumerate(PARTS):
        assert variables((booted / f"out-{number}").read_bytes(), list(part)) == part


def test_systemd_refuses_a_whole_file_for_the_characters_that_we_refuse(booted: Path) -> None:
    assert not any(map(tpu_env.is_representable, REFUSED))
    for number in range(len(PARTS), len(PARTS) + len(REFUSED)):
        assert not (booted / f"out-{number}").exists()
