"""``tpu-image boot``: its options become a request, its result an exit status."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from cli_types import Run
from lab_results import FAILED, RESULT, TIMED_OUT
from tpu_image.lab.errors import LabError
from tpu_image.lab.result import BootResult


class Lab:
    """Takes the lab's place: keeps the request, gives a result."""

    def __init__(self) -> None:
        self.request: Any = None
        self.result: BootResult | Exception = RESULT

    def boot(self, request: object, progress: object) -> BootResult:
        self.request = request
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    stand_in = Lab()
    monkeypatch.setattr("tpu_image.cli.boot.boot", stand_in.boot)
    return stand_in


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "tpu.tar.gz"
    path.touch()
    return path


def test_options_become_a_request(run: Run, lab: Lab, image: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("#cloud-config\n")
    done = run(
        *("boot", image, "--tpu", "v6e:4,tpu7x:1", "--firmware", "uefi", "--run", "id", "--run", "true"),
        *("--metadata", "a=b", "--metadata", f"user-data=@{tmp_path / 'data'}", "--no-agent"),
        *("--fault", "metadata=down:30s", "--fault", "iommu=off", "--fault", "device=late"),
        *("--timeout", "30", "--ssh-port", "0", "--keep", "--boots", "2"),
    )
    assert done.status == 0, done.err
    request = lab.request
    assert [(generation.name, count) for generation, count in request.chips.counts] == [
        ("v6e", 4),
        ("tpu7x", 1),
    ]
    assert [generation.name for generation in request.profile.generations] == ["v6e", "tpu7x"]
    assert request.profile.agent_elsewhere
    assert request.metadata == {"a": "b", "user-data": "#cloud-config\n"}
    assert request.faults.words == ("iommu=off", "device=late", "metadata=down:30s")
    assert (request.firmware, request.run, request.timeout) == ("uefi", ("id", "true"), 30)
    assert (request.keep, request.shell, request.ssh_port, request.boots) == (True, False, 0, 2)


def test_a_machine_type_stands_for_its_chips(run: Run, lab: Lab, image: Path) -> None:
    assert run("boot", image, "--machine", "tpu7x-standard-4t").status == 0
    assert lab.request.chips.total == 4
    assert run("boot", image).status == 0
    assert lab.request.chips.asked == "v6e:1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tpu", "v9:1"), "unknown TPU generation 'v9'"),
        (("--tpu", "v6e:0"), "'0' is no number of v6e chips"),
        (("--tpu", "v6e:1", "--machine", "ct6e-standard-4t"), "has 4 v6e chips: leave --tpu out"),
        (("--fault", "power=off"), "unknown fault 'power=off'"),
        (("--fault", "metadata=dwn"), "did you mean down?"),
        (("--metadata", "novalue"), "write KEY=VALUE or KEY=@FILE"),
        (("--metadata", "a=@/does/not/exist"), "/does/not/exist: No such file"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    run: Run, lab: Lab, image: Path, options: tuple[str, ...], message: str
) -> None:
    done = run("boot", image, *options)
    assert done.status == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert lab.request is None


def test_a_shell_without_a_terminal_is_refused(
    run: Run, lab: Lab, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("ls\n"))
    done = run("boot", image, "--shell")
    assert (done.status, lab.request) == (2, None)
    assert done.err == "tpu-image: --shell needs a terminal; commands without one: --run COMMAND\n"


@pytest.mark.parametrize(("result", "status"), [(RESULT, 0), (FAILED, 1), (TIMED_OUT, 2)])
def test_the_exit_status_says_what_came_of_it(
    run: Run, lab: Lab, image: Path, result: BootResult, status: int
) -> None:
    lab.result = result
    assert run("boot", image).status == status


@pytest.mark.parametrize("option", ["-o", "--html"])
def test_a_result_replaces_no_image_and_is_not_lost_for_want_of_a_folder(
    run: Run, lab: Lab, image: Path, option: str
) -> None:
    for place, why in ((image, "would replace what it is about"), ("/no/folder/x", "there is no folder")):
        done = run("boot", image, option, place)
        assert (done.status, why in done.err, lab.request) == (2, True, None)


def test_a_missing_qemu_is_one_line_that_says_what_to_do(run: Run, lab: Lab, image: Path) -> None:
    lab.result = LabError("qemu-system-x86_64 is not installed", "run: tpu-image lab setup")
    done = run("boot", image)
    assert (done.status, done.err) == (
        2,
        "tpu-image: qemu-system-x86_64 is not installed; run: tpu-image lab setup\n",
    )


def test_the_result_goes_into_a_file(run: Run, lab: Lab, image: Path, tmp_path: Path) -> None:
    done = run("boot", image, "--format", "json", "-o", tmp_path / "boot.json")
    assert (done.status, done.out) == (0, "")
    assert json.loads((tmp_path / "boot.json").read_text())["schema"] == "tpu-image/boot/1"


def test_a_page_is_written_beside_the_result(run: Run, lab: Lab, image: Path, tmp_path: Path) -> None:
    done = run("boot", image, "--html", tmp_path / "boot.html")
    assert done.out.endswith("ok: 5 pass, 1 skip\n")
    assert (tmp_path / "boot.html").read_text().startswith("<!DOCTYPE html>")


def test_the_schema_is_published(run: Run) -> None:
    assert json.loads(run("schema", "boot").out)["$id"] == "urn:tpu-image:boot:1"
