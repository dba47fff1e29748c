"""How a whole process ends: pipes, full disks, closed streams, Ctrl-C, and what it loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}"}
COMMAND = [sys.executable, "-m", "small_catalogue"]


def run_shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in which `"$@"` is the command."""
    command = ["bash", "-c", script, "bash", *COMMAND]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"import small_catalogue; small_catalogue.install()\n{code}"]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)


def test_the_package_is_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tpu_image", "--version"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("tpu-image 0.")


def test_a_reader_that_leaves_early_changes_neither_messages_nor_status(root: Path) -> None:
    for command, status in (("explain", 0), (f"check {root} --format json", 1)):
        done = run_shell(f'"$@" {command} | true; echo "${{PIPESTATUS[0]}}"')
        assert (done.stdout, done.stderr) == (f"{status}\n", "")


def test_a_reader_that_leaves_the_help_early_gets_no_traceback() -> None:
    assert run_shell('"$@" check --help | true').stderr == ""


def test_a_full_disk_is_said() -> None:
    done = run_shell('"$@" explain > /dev/full')
    assert done.returncode == 2
    where = "standard output: No space left on device; the result is lost, name another place for it"
    assert done.stderr == f"tpu-image: {where}\n"


def test_a_closed_standard_output_is_said() -> None:
    done = run_shell('"$@" explain >&-')
    assert done.returncode == 2
    assert done.stderr == "tpu-image: standard output is closed; the result is lost\n"


def test_control_c_ends_with_130() -> None:
    code = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where who runs the tests ignores it
def interrupted(tree, profile):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
small_catalogue.REQUIREMENTS[0].inspect = interrupted
from tpu_image.cli import run
sys.argv[1:] = ["check", "/usr"]
run()
"""
    done = run_python(code)
    assert done.returncode == 130
    assert done.stderr.strip() == "tpu-image: interrupted"


FAULT = """
import sys
small_catalogue.REQUIREMENTS[0].inspect = None
from tpu_image.cli import run
sys.argv[1:] = ["check", "/usr"] + {options}
run()
"""


def test_a_fault_of_ours_is_one_line() -> None:
    done = run_python(FAULT.format(options=[]))
    assert done.returncode == 2
    assert done.stderr.startswith("tpu-image: internal error: TypeError: ")
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run_python(FAULT.format(options=["--debug"])).stderr


def test_names_that_are_not_utf_8_are_no_obstacle(root: Path) -> None:
    os.mkdir(os.fsencode(root) + b"/\xff")
    done = run_shell(f'LC_ALL=C "$@" check {root}/$(printf "\\377") --only kernel')
    assert done.returncode == 1
    assert "\\xff: compute-engine" in done.stdout


HEAVY = ("rich", "pydantic", "ruamel", "yaml", "subprocess", "difflib", "hashlib", "xml", "urllib.request")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_check_loads_nothing_heavy(root: Path, form: str) -> None:
    code = f"""
import sys
from tpu_image.cli import main
main(["check", {str(root)!r}, "--format", {form!r}])
loaded = [name for name in {HEAVY!r} if name in sys.modules]
print(*loaded, file=sys.stderr)
"""
    done = run_python(code)
    assert done.stderr.strip() == ""


def test_a_check_loads_no_other_command(root: Path) -> None:
    code = f"""
import sys
from tpu_image.cli import main
main(["check", {str(root)!r}])
print(*(name for name in sys.modules if name.startswith(("tpu_image.plan", "tpu_image.render"))), file=sys.stderr)
"""
    assert run_python(code).stderr.strip() == ""
