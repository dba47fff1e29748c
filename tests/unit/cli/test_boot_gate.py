"""``tpu-image build --boot``: the image gets its name after a boot that holds, and not otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import build_bases as bases
from cli_types import Run
from lab_results import FAILED, RESULT, TIMED_OUT
from tpu_image.disks.image import open_image
from tpu_image.lab.errors import LabError
from tpu_image.lab.result import BootResult


class Lab:
    """Takes the lab's place: looks at the image as the lab would, gives a result."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.result: BootResult | Exception = RESULT
        self.requests: list[Any] = []
        self.named: list[bool] = []
        self.sizes: list[int] = []

    def boot(self, request: Any, progress: object) -> BootResult:
        self.requests.append(request)
        self.named.append(self.output.exists())
        with open_image(request.image) as image:
            self.sizes.append(image.size)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "tpu.tar.gz"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, output: Path) -> Lab:
    stand_in = Lab(output)
    monkeypatch.setattr("tpu_image.cli.boot_gate.boot", stand_in.boot)
    return stand_in


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return bases.gpt_disk(tmp_path / "made")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_image_that_holds_when_booted_gets_its_name(run: Run, lab: Lab, base: Path, output: Path) -> None:
    done = run("build", base, "-o", output, "--no-agent", "--boot", "--tpu", "v6e,tpu7x")
    assert done.status == 0, done.err
    assert lab.named == [False]
    assert lab.sizes == [1 << 30]
    (request,) = lab.requests
    assert [(g.name, n) for g, n in request.chips.counts] == [("v6e", 1), ("tpu7x", 1)]
    assert request.name == str(output)
    assert request.profile.agent_elsewhere
    assert {"tpu.tar.gz", "tpu.tar.gz.json"} <= files(output.parent)


@pytest.mark.parametrize(("result", "status"), [(FAILED, 1), (TIMED_OUT, 2)])
def test_an_image_that_does_not_gets_none_and_what_is_wrong_is_shown(
    run: Run, lab: Lab, base: Path, output: Path, result: BootResult, status: int
) -> None:
    lab.result = result
    done = run("build", base, "-o", output, "--no-agent", "--boot")
    assert done.status == status
    assert files(output.parent) == {"made"}
    assert f"{output} was not written: it does not hold when it is booted" in done.err
    problem = next(v for v in result.verdicts if v.status.value == "fail")
    assert problem.requirement in done.out


def test_a_lab_that_cannot_boot_is_told_and_nothing_is_written(
    run: Run, lab: Lab, base: Path, output: Path
) -> None:
    lab.result = LabError("QEMU is missing", "run: tpu-image lab setup")
    done = run("build", base, "-o", output, "--no-agent", "--boot")
    assert done.status == 2
    assert "run: tpu-image lab setup" in done.err
    assert files(output.parent) == {"made"}


def test_the_lab_is_not_asked_where_the_image_does_not_even_pass_its_check(
    run: Run, lab: Lab, base: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_image.catalogue.readings.holds", lambda verdicts: False)
    assert run("build", base, "-o", output, "--no-agent", "--boot").status == 1
    assert lab.requests == []
