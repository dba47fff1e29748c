"""`tpu-image check`: what it says, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from cli_types import Run
from tpu_image.report.schema import check_schema


def statuses(text: str) -> dict[str, str]:
    return {verdict["requirement"]: verdict["status"] for verdict in json.loads(text)["verdicts"]}


def test_a_root_that_holds_everything_is_ok(run: Run, good_root: Path) -> None:
    done = run("check", good_root)
    assert done.status == 0
    assert done.out.endswith("ok: 2 pass, 3 skip\n")
    assert not done.err


def test_a_root_that_lacks_something_is_not(run: Run, root: Path) -> None:
    done = run("check", root)
    assert done.status == 1
    assert "kernel.greeting  no greeting" in done.out
    assert f"remedy: run: tpu-image apply {root}\n" in done.out
    assert done.out.endswith("not ok: 2 fail, 3 skip\n")


def test_skips_alone_are_not_ok(run: Run, root: Path) -> None:
    done = run("check", root, "--only", "gke")
    assert done.status == 1
    assert done.out.endswith("not ok: nothing was checked (1 skip)\n")


def test_json_follows_the_published_schema(run: Run, root: Path) -> None:
    Draft202012Validator.check_schema(check_schema())
    for options in (
        [],
        ["--platform", "gke"],
        ["--waive", "vfio.rule=x", "--device-group", "tpu"],
        ["--only", "gke"],
    ):
        document = json.loads(run("check", root, "--format", "json", *options).out)
        Draft202012Validator(check_schema()).validate(document)
        assert document["schema"] == "tpu-image/check/1"
        assert document["ok"] is False


def test_a_result_that_could_not_be_written_is_refused_before_the_work(
    run: Run, good_root: Path, tmp_path: Path
) -> None:
    done = run("check", good_root, "-o", tmp_path / "none/report")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert f"no folder '{tmp_path / 'none'}'; make it first" in done.err


def test_a_check_needs_no_file_that_a_build_would(run: Run, good_root: Path, tmp_path: Path) -> None:
    specification = tmp_path / "tpu-image.yaml"
    specification.write_text(
        "base: gone.qcow2\nfiles: [{path: /x, source: gone}]\nrun: [{file: gone.sh}]\nwaive: {vfio.rule: later}\n"
    )
    done = run("check", good_root, "--spec", specification)
    assert (done.status, done.err) == (0, "")
    assert "waived: later" in done.out
    refused = run("build", "--spec", specification, "-o", tmp_path / "out.raw")
    assert (refused.status, len(refused.err.splitlines())) == (2, 3)


def test_json_is_the_same_each_time(run: Run, root: Path) -> None:
    first, second = (run("check", root, "--format", "json").out for _ in range(2))
    assert first == second


def test_a_recorded_machine_is_looked_at(run: Run, good_root: Path, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    (recording / "proc").mkdir(parents=True)
    assert run("check", good_root, "--live", recording, "--only", "machine.kernel").status == 1
    (recording / "proc/version").write_text("Linux")
    found = statuses(run("check", good_root, "--live", recording, "--format", "json").out)
    assert found["machine.kernel"] == "pass"


def test_without_a_machine_its_requirements_are_one_line(run: Run, good_root: Path) -> None:
    lines = [line for line in run("check", good_root).out.splitlines() if "machine." in line]
    assert len(lines) == 1
    assert "machine.* (2)" in lines[0]


def test_the_root_is_this_machine(run: Run) -> None:
    assert statuses(run("check", "--format", "json", "--only", "machine").out)["machine.kernel"] == "pass"


def test_only_takes_ids_and_sections(run: Run, root: Path) -> None:
    done = run("check", root, "--only", "machine", "--only", "vfio.rule", "--format", "json")
    assert list(statuses(done.out)) == ["vfio.rule", "machine.kernel", "machine.thp"]


def test_a_waived_requirement_is_skipped_with_its_reason(run: Run, good_root: Path) -> None:
    (good_root / "etc/greeting").unlink()
    done = run("check", good_root, "--waive", "kernel.greeting=shy  machine")
    assert done.status == 0
    assert "skip     kernel.greeting  waived: shy machine" in done.out


def test_the_profile_is_what_the_options_say(run: Run, root: Path) -> None:
    options = [
        "--platform",
        "gke",
        "--tpu",
        "tpu7x,v6e",
        "--telemetry",
        "--device-group",
        "tpu",
        "--no-agent",
    ]
    profile = json.loads(run("check", root, *options, "--format", "json").out)["profile"]
    assert profile == {
        "platform": "gke",
        "generations": ["v6e", "tpu7x"],
        "architecture": "x86_64",
        "telemetry": True,
        "device_group": "tpu",
        "agent": "elsewhere",
        "waive": {},
    }


def test_a_machine_type_stands_for_its_generation(run: Run, root: Path) -> None:
    done = run("check", root, "--machine", "ct6e-standard-4t-tpu", "--format", "json")
    assert json.loads(done.out)["profile"]["generations"] == ["v6e"]


def test_options_go_before_the_specification(run: Run, root: Path, tmp_path: Path) -> None:
    spec = tmp_path / "tpu-image.yaml"
    spec.write_text("profile: {platform: gke, telemetry: true, tpu: [v5p]}\nwaive: {vfio.rule: by spec}\n")
    options = ["--spec", spec, "--tpu", "v6e", "--no-telemetry", "--waive", "kernel.greeting=by option"]
    profile = json.loads(run("check", root, *options, "--format", "json").out)["profile"]
    assert (profile["platform"], profile["generations"], profile["telemetry"]) == ("gke", ["v6e"], False)
    assert profile["waive"] == {"kernel.greeting": "by option", "vfio.rule": "by spec"}


def test_quiet_says_nothing_when_all_is_well(run: Run, good_root: Path) -> None:
    assert run("check", good_root, "--quiet").out == ""


def test_quiet_still_says_what_is_wrong(run: Run, root: Path) -> None:
    out = run("check", root, "--quiet").out
    assert "vfio.rule" in out
    assert "skip" not in out


def test_colours_are_for_terminals_unless_asked_for(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b" not in run("check", root).out
    assert "\x1b[1;31mfail" in run("check", root, "--color", "always").out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b" in run("check", root).out
    assert "\x1b" not in run("check", root, "--color", "never").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("check", root).out


@pytest.mark.parametrize("form", ["text", "json", "junit", "sarif", "html"])
def test_a_file_gets_what_standard_output_would(
    run: Run, root: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    shown = run("check", root, "--format", form).out
    done = run("check", root, "--format", form, "-o", tmp_path / "report")
    assert (done.status, done.out) == (1, "")
    assert (tmp_path / "report").read_text() == shown


REFUSED = {
    "missing root": (["check", "MISSING"], "does not exist; give a disk image, a directory"),
    "file as root": (["check", "FILE"], "is empty; name a disk image"),
    "missing recording": (["check", "ROOT", "--live", "MISSING"], "proc, sys and dev"),
    "unknown generation": (["check", "--tpu", "v9"], "unknown TPU generation 'v9'; give one of v2,"),
    "no generation": (["check", "--tpu", ","], "no TPU generation is named"),
    "unknown machine type": (["check", "--machine", "ct6e-standard-3t"], "did you mean ct6e-standard-"),
    "contradiction": (["check", "--machine", "ct6e-standard-4t", "--tpu", "v5p"], "has v6e"),
    "unknown platform": (["check", "--platform", "gce"], "'compute-engine', 'gke'"),
    "bad group": (["check", "--device-group", 'a" MODE="0777'], "is no group name"),
    "unknown waiver": (["check", "--waive", "kernel.greting=x"], "did you mean kernel.greeting"),
    "waived section": (["check", "--waive", "kernel=x"], "no requirement 'kernel'"),
    "empty reason": (["check", "--waive", "kernel.greeting= "], "has no reason"),
    "no reason": (["check", "--waive", "kernel.greeting"], "write ID=REASON"),
    "unknown requirement": (["check", "--only", "kernel.greting"], "did you mean kernel.greeting"),
    "unknown option": (["check", "--frmat"], "--format"),
    "unknown command": (["chekc"], "did you mean check"),
    "missing specification": (["check", "--spec", "MISSING"], "No such file or directory"),
    "output into nothing": (["check", "ROOT", "-o", "MISSING/report"], "make it first"),
}


@pytest.mark.parametrize(("arguments", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_used_is_refused_in_one_line(
    run: Run, root: Path, tmp_path: Path, arguments: list[str], reason: str
) -> None:
    (tmp_path / "file").write_text("")
    names = {"MISSING": tmp_path / "missing", "FILE": tmp_path / "file", "ROOT": root}
    for name, path in names.items():
        arguments = [argument.replace(name, str(path)) for argument in arguments]
    done = run(*arguments)
    assert (done.status, done.out) == (2, "")
    assert reason in done.err
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("tpu-image: ")


def test_a_root_that_may_not_be_read_is_refused(
    run: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read everything
    done = run("check", root)
    assert (done.status, done.err) == (2, f"tpu-image: {root}: permission denied; run it as root\n")


def test_every_problem_of_a_specification_is_told(run: Run, root: Path, tmp_path: Path) -> None:
    spec = tmp_path / "tpu-image.yaml"
    spec.write_text("profile:\n  platfrm: gke\nwaive: {kernel.greeting: ''}\n")
    done = run("check", root, "--spec", spec)
    assert done.status == 2
    assert f"{spec}:2:3: unknown key 'platfrm'; did you mean platform?" in done.err
    assert f"{spec}:3:26: the waiver has no reason" in done.err


def test_a_name_cannot_write_to_the_terminal(run: Run, tmp_path: Path) -> None:
    assert "\x1b" not in run("check", tmp_path / "\x1b[2J").err


def test_a_file_that_cannot_be_written_stays_as_it_was(run: Run, root: Path, tmp_path: Path) -> None:
    assert run("check", root, "-o", tmp_path).status == 2
    assert list(tmp_path.iterdir()) == [root]


def test_a_result_does_not_replace_the_image_that_it_is_about(run: Run, tmp_path: Path) -> None:
    image = tmp_path / "disk.raw"
    image.write_bytes(b"a disk")
    done = run("check", image, "-o", image)
    assert (done.status, "would replace what it is about" in done.err) == (2, True)
    assert image.read_bytes() == b"a disk"
