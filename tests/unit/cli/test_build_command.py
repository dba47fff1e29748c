"""``tpu-image build`` as a person meets it: what it says, how it ends, and what it leaves behind however it ends."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

import build_bases as bases
import small_catalogue
from cli_types import Run
from disk_trees import NOBODY, as_nobody, folder, mount, with_private_mounts
from tpu_image import catalogue, cli

TESTS = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}:{TESTS}"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A base with some data, which no test may change."""
    top = tmp_path_factory.mktemp("base")
    for name, content in {
        "etc/os-release": "ID=debian\n",
        "usr/sbin/init": "",
        "etc/machine-id": "1\n",
    }.items():
        (top / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (top / "root" / name).write_text(content)
    (top / "root/sbin").symlink_to("usr/sbin")
    (top / "root/data").write_bytes(random.Random(1).randbytes(24 * MIB))
    image = bases.disk(
        top / "base.raw", (bases.ROOT, bases.file_system(top / "ext4", top / "root", size=40 * MIB))
    )
    top.chmod(0o755)
    before = digest(image)
    yield image
    assert digest(image) == before


def digest(path: Path) -> str:
    taken = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            taken.update(piece)
    return taken.hexdigest()


def process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line with the small catalogue in a process of its own, after some code."""
    return subprocess.run(
        command(code, *arguments), env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )


def command(code: str, *arguments: object) -> list[str]:
    program = (
        f"import small_catalogue\nsmall_catalogue.install()\n{code}\nfrom tpu_image.cli import run\nrun()\n"
    )
    return [sys.executable, "-c", program, "build", *map(str, arguments)]


# --- what it says --------------------------------------------------------------------------------------------------


def test_it_says_what_was_changed_and_what_comes_next(run: Run, base: Path, tmp_path: Path) -> None:
    done = run("build", base, "-o", tmp_path / "out.tar.gz")
    assert done.status == 0
    assert "create /etc/greeting (regular file, mode 0644, 6 bytes)\n" in done.out
    assert "change /etc/machine-id (content)\n" in done.out
    assert "out.tar.gz: 24 MiB for a disk of 1 GiB" in done.out
    assert "next: gcloud storage cp" in done.out
    assert "tpu-image:" not in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.tar.gz", "out.tar.gz.json"]


def test_a_bill_of_materials_is_written_beside_the_image(run: Run, base: Path, tmp_path: Path) -> None:
    done = run("build", base, "-o", tmp_path / "out.tar.gz", "--sbom", "spdx")
    assert f"bill of materials: {tmp_path / 'out.tar.gz.spdx.json'}, " in done.out
    bill = json.loads((tmp_path / "out.tar.gz.spdx.json").read_text())
    assert [package["name"] for package in bill["packages"]] == ["out.tar.gz"]
    assert run("build", base, "-o", tmp_path / "out.tar.gz", "--sbom", "bill").status == 2
    assert run("build", base, "-o", tmp_path / "out.tar.gz", "--sbom", base).status == 2


def test_every_stage_is_an_event(run: Run, base: Path, tmp_path: Path) -> None:
    done = run(
        "build", base, "-o", tmp_path / "out.qcow2", "--format", "qcow2", "--progress", "json", "--size", "2G"
    )
    events = [json.loads(line) for line in done.err.splitlines()]
    stages = list(dict.fromkeys(event["stage"] for event in events))
    assert [stage for stage in stages if stage != "hashing"] == [
        "reading",
        "growing",
        "placing files",
        "getting agents",
        "planning",
        "checking",
        "writing",
        "syncing",
    ]
    assert "hashing" in stages
    last = [event for event in events if event["stage"] == "writing"][-1]
    assert last["done"] == last["total"] > 0


def test_quiet_says_nothing_where_all_is_well(run: Run, base: Path, tmp_path: Path) -> None:
    done = run("build", base, "-o", tmp_path / "out.raw", "--format", "raw", "--quiet")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_a_requirement_that_fails_writes_nothing_but_by_force(run: Run, base: Path, tmp_path: Path) -> None:
    arguments = ("build", base, "-o", tmp_path / "out.tar.gz", "--quiet", "--platform", "gke")

    class Missing(small_catalogue.Running):
        id = "gke.missing"
        live = False

        def inspect(self, tree: object, profile: object) -> object:  # type: ignore[override]
            return self.failed("nothing makes it right", remedy="do it by hand")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "requirements", lambda: (small_catalogue.Greeting(), Missing()))
        done = run(*arguments)
        assert (done.status, done.out) == (1, "")
        first, second = done.err.splitlines()
        assert first == "tpu-image: fail: gke.missing: nothing makes it right; do it by hand"
        assert second.endswith(
            "was not written, since the image does not hold (--force writes it all the same)"
        )
        assert list(tmp_path.iterdir()) == []
        assert run(*arguments, "--force").status == 1
    assert json.loads((tmp_path / "out.tar.gz.json").read_text())["ok"] is False
    assert (tmp_path / "out.tar.gz").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "out.zip",
            "out.zip: Compute Engine imports names that end in .tar.gz alone; name it out.tar.gz, or",
        ),
        ("none/out.tar.gz", "none: is no folder to write to; make it first"),
    ],
)
def test_an_output_that_cannot_be_is_one_line(
    run: Run, base: Path, tmp_path: Path, name: str, message: str
) -> None:
    done = run("build", base, "-o", tmp_path / name)
    assert (done.status, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "start"), [("out.qcow2", b"QFI\xfb"), ("out.raw", b"\x00" * 4)])
def test_the_name_says_the_format_where_no_option_does(
    run: Run, base: Path, tmp_path: Path, name: str, start: bytes
) -> None:
    assert run("build", base, "-o", tmp_path / name).status == 0
    assert (tmp_path / name).read_bytes()[:4] == start


def test_a_bill_of_an_unknown_format_is_refused_in_one_line(run: Run, base: Path, tmp_path: Path) -> None:
    done = run("build", base, "-o", tmp_path / "out.tar.gz", "--sbom", "toy")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "'--sbom'" in done.err
    assert "internal" not in done.err


@pytest.mark.parametrize("size", ["2G", "2GiB", "2048M"])
def test_the_disk_can_be_grown(run: Run, base: Path, tmp_path: Path, size: str) -> None:
    done = run("build", base, "-o", tmp_path / "out.tar.gz", "--size", size)
    assert "for a disk of 2 GiB" in done.out


@pytest.mark.parametrize("size", ["2", "20.5G", "1500M", "0G", "-2G", "2GB", "", "x"])
def test_a_size_that_is_none_is_refused(run: Run, base: Path, tmp_path: Path, size: str) -> None:
    done = run("build", base, "-o", tmp_path / "out.tar.gz", "--size", size)
    assert done.status == 2
    assert "give whole GiB, such as 20G or 20480M" in done.err


def test_a_base_that_is_no_disk_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "base").write_bytes(b"text " * 1000)
    done = run("build", tmp_path / "base", "-o", tmp_path / "out.tar.gz")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "no partition table or file system is found" in done.err


@pytest.mark.parametrize("value", ["yesterday", "-1", "1" * 30, "\u0663"])
def test_a_time_that_is_none_is_refused(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    done = run("build", base, "-o", tmp_path / "out.tar.gz")
    assert done.status == 2
    assert "give seconds since 1970" in done.err


def test_the_time_given_makes_builds_alike(
    run: Run, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        assert run("build", base, "-o", tmp_path / name / "out.tar.gz", "-q").status == 0
    assert digest(tmp_path / "a/out.tar.gz") == digest(tmp_path / "b/out.tar.gz")
    assert digest(tmp_path / "a/out.tar.gz.json") == digest(tmp_path / "b/out.tar.gz.json")


def test_the_schema_holds_a_manifest(run: Run, base: Path, tmp_path: Path) -> None:
    schema = json.loads(run("schema", "build").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    run("build", base, "-o", tmp_path / "out.raw", "--format", "raw", "-q")
    document = json.loads((tmp_path / "out.raw.json").read_text())
    jsonschema.validate(document, schema)
    assert document["output"]["sha256"] == digest(tmp_path / "out.raw")


# --- how it ends ---------------------------------------------------------------------------------------------------

WITHOUT_UNNAMED_FILES = """
import errno, os
real = os.open
def fake(path, flags, *rest, **options):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(errno.EOPNOTSUPP, "not supported", str(path))
    return real(path, flags, *rest, **options)
os.open = fake
"""
KILLED_AT = """
import os, signal
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
{place} = killed
"""
PLACES = {
    "before the name": KILLED_AT.format(place="os.link"),
    "while it is made durable": KILLED_AT.format(place="os.fsync"),
    "before the name, where files have one": WITHOUT_UNNAMED_FILES
    + "from pathlib import Path\n"
    + KILLED_AT.format(place="Path.replace"),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_killed_at_the_last_step_it_leaves_what_the_next_run_takes_away(
    place: str, base: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.tar.gz"
    assert process(PLACES[place], base, "-o", output, "-q").returncode == -signal.SIGKILL
    assert not output.exists()
    after = WITHOUT_UNNAMED_FILES if "where files have one" in place else ""
    assert process(after, base, "-o", output, "-q").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.tar.gz", "out.tar.gz.json"]
    subprocess.run(["gzip", "--test", output], check=True)


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_nothing(base: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.tar.gz"
    began = time.monotonic()
    assert process("", base, "-o", output, "-q").returncode == 0
    whole = time.monotonic() - began
    moments, cut = 15, 0
    for moment in range(moments):
        for path in tmp_path.iterdir():
            path.unlink()
        with subprocess.Popen(command("", base, "-o", output, "-q"), env=ENVIRONMENT) as child:
            time.sleep(whole * moment / moments)
            child.kill()
        if child.returncode == -signal.SIGKILL:
            cut += 1
            # Killed between the two names only the manifest has its own; killed at the very end both are whole.
            left = {path.name for path in tmp_path.iterdir()}
            assert left in (set(), {"out.tar.gz.json"}, {"out.tar.gz", "out.tar.gz.json"})
            if output.exists():
                subprocess.run(["gzip", "--test", output], check=True)
    assert cut > moments / 2
    assert process("", base, "-o", output, "-q").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.tar.gz", "out.tar.gz.json"]


@pytest.mark.parametrize("code", ["", WITHOUT_UNNAMED_FILES])
def test_control_c_ends_with_130_and_leaves_nothing(code: str, base: Path, tmp_path: Path) -> None:
    interrupt = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where who runs the tests ignores it
from tpu_image.disks import archive
stored_extents = archive.stored_extents
def interrupted(disk):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    return stored_extents(disk)
archive.stored_extents = interrupted
"""
    done = process(code + interrupt, base, "-o", tmp_path / "out.tar.gz", "-q")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "tpu-image: interrupted")
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_do_not_write_into_one_file(base: Path, tmp_path: Path) -> None:
    held = WITHOUT_UNNAMED_FILES + (
        "import fcntl, sys\n"
        "taken = os.open(os.path.dirname(sys.argv[-2]) + '/.out.tar.gz.new', os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(taken, fcntl.LOCK_EX)\n"
    )
    done = process(held, base, "-o", tmp_path / "out.tar.gz", "-q")
    assert done.returncode == 2
    assert done.stderr == f"tpu-image: {tmp_path / 'out.tar.gz'}: another process is writing it\n"


@pytest.mark.parametrize("form", ["gce", "raw"])
def test_a_full_disk_is_one_line_and_leaves_nothing(form: str, base: Path, tmp_path: Path) -> None:
    def on_a_small_disk() -> tuple[int, str, list[str]]:
        mount(tmp_path, "size=8m")
        done = process("", base, "-o", tmp_path / "out.tar.gz", "--format", form)
        return done.returncode, done.stderr, os.listdir(tmp_path)

    status, err, left = with_private_mounts(on_a_small_disk)
    assert (status, left) == (2, [])
    assert err == f"tpu-image: {tmp_path / 'out.tar.gz'}: No space left on device\n"


def test_a_user_without_rights_builds_in_a_folder_of_his(run: Run, base: Path, tmp_path: Path) -> None:
    run("build", base, "-o", tmp_path / "out.tar.gz")  # loads all that it needs

    def build() -> tuple[int, str]:
        status = Path("/proc/self/status").read_text()
        capabilities = status.partition("CapEff:")[2].split()[0]
        return cli.main(["build", str(copy), "-o", str(output), "-q"]), capabilities

    with folder() as place:
        copy, output = place / "base", place / "his/out.tar.gz"
        copy.write_bytes(base.read_bytes())
        output.parent.mkdir()
        os.chown(output.parent, NOBODY, NOBODY)
        assert as_nobody(build) == (0, "0" * 16)
        assert output.stat().st_uid == NOBODY
        output = place / "out.tar.gz"
        assert as_nobody(build)[0] == 2, "the folder is not his"
        assert not output.exists()
