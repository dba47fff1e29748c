"""`explain`, `schema`, `version`, and the help of every command."""

from __future__ import annotations

import json

import pytest
from click.shell_completion import BashComplete
from jsonschema import Draft202012Validator

from cli_types import Run
from tpu_image import __version__
from tpu_image.cli.group import COMMANDS, tpu_image


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.status == 0
    assert f"\n  Examples:\n    tpu-image {command}" in done.out.replace("sudo ", "")
    assert all(len(line) <= 100 for line in done.out.splitlines())


def test_without_a_command_the_help_is_shown_and_nothing_done(run: Run) -> None:
    done = run()
    assert (done.status, done.out) == (2, "")
    assert "Commands:" in done.err


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).out == f"tpu-image {__version__}\n"


def test_explain_lists_every_requirement_by_section(run: Run) -> None:
    out = run("explain").out
    assert out.startswith("kernel\n  kernel.greeting  The greeting is there\n\nvfio\n")


def test_explain_tells_all_of_one(run: Run) -> None:
    out = run("explain", "kernel.greeting").out
    for part in ("The greeting is there", "Every machine greets.", "R0, section", "/etc/greeting", "apply"):
        assert part in out


def test_explain_takes_a_section(run: Run) -> None:
    out = run("explain", "machine").out
    assert "machine.kernel: " in out
    assert "machine.thp: " in out


def test_explain_in_json(run: Run) -> None:
    document = json.loads(run("explain", "kernel.greeting", "--format", "json").out)
    assert document["schema"] == "tpu-image/explain/1"
    assert [entry["id"] for entry in document["requirements"]] == ["kernel.greeting"]


def test_explain_refuses_what_there_is_not(run: Run) -> None:
    done = run("explain", "kernel.greting")
    assert done.status == 2
    assert "did you mean kernel.greeting" in done.err


@pytest.mark.parametrize(
    ("word", "meant"), [("kernal", "kernel"), ("kernel.greting", "kernel.greeting"), ("VFIO", "vfio")]
)
def test_what_looks_alike_is_offered_sections_for_a_section(run: Run, word: str, meant: str) -> None:
    assert run("explain", word).err.endswith(f"did you mean {meant}?\n")


@pytest.mark.parametrize("document", ["check", "spec"])
def test_the_schemas_are_schemas(run: Run, document: str) -> None:
    schema = json.loads(run("schema", document).out)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:tpu-image:{document}:1"


COMPLETED = {
    "sections and requirements": ("explain machine", ["machine", "machine.kernel", "machine.thp"]),
    "one of a list": ("check --tpu v5p,v6", ["v5p,v6e"]),
    "machine types": ("check --machine ct6e-standard-1", ["ct6e-standard-1t"]),
    "what is checked": ("check ./im", ["./im as a file"]),
    "bases": ("build debian:tr", ["debian:trixie"]),
    "files of bases": ("build ./im", ["./im as a file"]),
}


@pytest.mark.parametrize(("line", "expected"), COMPLETED.values(), ids=COMPLETED)
def test_the_shell_completes(line: str, expected: list[str]) -> None:
    *words, last = line.split()
    completed = BashComplete(tpu_image, {}, "tpu-image", "_TPU_IMAGE_COMPLETE").get_completions(words, last)
    shown = [item.value if item.type == "plain" else f"{item.value} as a {item.type}" for item in completed]
    assert shown == expected
