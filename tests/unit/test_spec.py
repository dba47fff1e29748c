"""The specification file: what it gives, and every problem at its line and column."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies
from jsonschema import Draft202012Validator

import small_catalogue
from tpu_image import catalogue, spec
from tpu_image.catalogue.requirement import Platform, Profile


@pytest.fixture(autouse=True)
def _small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "requirements", lambda: small_catalogue.REQUIREMENTS)


def problems(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(spec.SpecificationError) as caught:
        spec.parse(data, "f")
    return caught.value.problems


WHOLE = """\
profile:
  platform: gke
  tpu: [tpu7x, v6e]
  telemetry: true
  device_group: tpu
  agent: elsewhere
waive:
  kernel.greeting: >
    the machine
    is shy
"""


def test_a_whole_file_is_a_profile() -> None:
    profile = spec.parse(WHOLE.encode(), "f").to_profile()
    assert profile.platform is Platform.GKE
    assert [g.name for g in profile.generations] == ["v6e", "tpu7x"]
    assert (profile.telemetry, profile.device_group, profile.agent_elsewhere) == (True, "tpu", True)
    assert profile.waivers == {"kernel.greeting": "the machine is shy"}


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "profile: {}\nwaive: {}\n"])
def test_everything_may_be_left_out(text: str) -> None:
    assert spec.parse(text.encode(), "f").to_profile() == Profile()


@pytest.mark.parametrize("text", ["tpu: v6e", "generations: [v6e]", "tpu: V6E", "tpu: 'v6e,v6e'"])
def test_generations_may_be_written_in_several_ways(text: str) -> None:
    assert [g.name for g in spec.parse(f"profile: {{{text}}}".encode(), "f").to_profile().generations] == [
        "v6e"
    ]


KEYS = ", ".join(spec.Specification.model_fields)

NONE = "f:1:1: a number, a date or a tag (!) in it is none; put it in quotes, or correct the YAML"
REFUSED = {
    "unknown key": ("profil: {}\n", ["f:1:1: unknown key 'profil'; did you mean profile?"]),
    "unknown key, nothing like it": ("x: 1\n", [f"f:1:1: unknown key 'x'; give one of {KEYS}"]),
    "unknown key inside": (
        "profile:\n  telemtry: true\n",
        ["f:2:3: unknown key 'telemtry'; did you mean telemetry?"],
    ),
    "word that is none": (
        "profile:\n  agent: none\n",
        ["f:2:10: profile.agent is 'none'; give install or elsewhere"],
    ),
    "yes is text": (
        "profile:\n  telemetry: yes\n",
        ["f:2:14: profile.telemetry is neither true, false nor a mapping; give true or false"],
    ),
    "item of a list": (
        "profile:\n  tpu:\n  - v6e\n  - v9\n",
        ["f:4:5: unknown TPU generation 'v9'; give one of v2, v3, v4, v5e, v5p, v6e, tpu7x"],
    ),
    "list of nothing": ("profile: {tpu: []}", ["f:1:16: profile.tpu is an empty list; give at least one"]),
    "name missing in a list": (
        "profile: {tpu: 'v6e, '}",
        ["f:1:16: no TPU generation is named; give some of v2, v3, v4, v5e, v5p, v6e, tpu7x"],
    ),
    "number in a list": ("profile: {tpu: [6]}", ["f:1:17: item 1 of profile.tpu is 6; give text"]),
    "two names at once": (
        "profile: {tpu: [v6e], generations: [v5p]}",
        ["f:1:10: tpu and generations are two names of one thing; keep one"],
    ),
    "empty section": ("profile:\n", ["f:2:1: profile is empty; give a mapping"]),
    "not a mapping": ("- profile\n", ["f:1:1: the file is a list; give a mapping"]),
    "unknown waiver": (
        "waive:\n  kernel.greting: x\n",
        ["f:2:3: no requirement 'kernel.greting': did you mean kernel.greeting?"],
    ),
    "waiver without reason": (
        "waive:\n  vfio.rule: ' '\n",
        ["f:2:14: the waiver has no reason; say why the requirement need not hold"],
    ),
    "reason that is no text": ("waive: {vfio.rule: 3}", ["f:1:20: waive.vfio.rule is 3; give text"]),
    "several": (
        "x: 1\nprofile: {agent: 1, telemetry: 2}\n",
        [
            f"f:1:1: unknown key 'x'; give one of {KEYS}",
            "f:2:18: profile.agent is 1; give install or elsewhere",
            "f:2:32: profile.telemetry is neither true, false nor a mapping; give true or false",
        ],
    ),
    "key twice": (
        "waive: {}\nwaive: {}\n",
        [
            "f:2:1: while constructing a mapping found duplicate key"
            ' "waive" with value "{}" (original value: "{}"); correct the YAML'
        ],
    ),
    "no YAML": (
        "profile: [\n",
        [
            "f:2:1: while parsing a flow node expected the node content, but the file ends there; correct the YAML"
        ],
    ),
    "a tab": (
        "profile:\n\tagent: install\n",
        [
            "f:2:1: while scanning for the next token a tab stands where only blanks may; indent with blanks;"
            " correct the YAML"
        ],
    ),
    "two documents": (
        "profile: {}\n---\nwaive: {}\n",
        ["f:2:1: expected a single document in the stream but found another document; correct the YAML"],
    ),
    "number without end": (f"size: {'9' * 5000}", [NONE]),
    "date that is none": ("size: 2001-99-99", [NONE]),
    "tag that does not fit": (
        "profile: !!omap [a: 1]",
        ["f:1:10: unknown key 'a'; give one of platform, tpu, generations, telemetry, device_group, agent"],
    ),
    "tag": (
        "profile: !!python/object:os.system x",
        ["f:1:10: profile is a value with a tag of YAML's (!); give a mapping"],
    ),
    "not UTF-8": (b"x: 1\ny: \xff\n", ["f:2:1: byte 0xff is not UTF-8; save the file as UTF-8"]),
    "too deep": ("[" * 600, ["f:1:1: nested too deeply; a specification has four levels"]),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.values(), ids=REFUSED.keys())
def test_every_problem_is_told_where_it_is(text: str | bytes, expected: list[str]) -> None:
    assert problems(text) == expected


def test_aliases_that_would_unfold_without_end_are_refused_at_once() -> None:
    names = "abcdefghijklmnopqrstuvwxyz"
    doubled = (f"{new}: &{new} [*{old}, *{old}]\n" for old, new in itertools.pairwise(names))
    assert len(problems("a: &a [x, x]\n" + "".join(doubled))) == len(names)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"#" * (spec.SIZE_LIMIT + 1))
    with pytest.raises(spec.SpecificationError, match="larger than 65536 bytes"):
        spec.load(path)


@pytest.mark.parametrize("text", ["profile: " + "[" * 60_000, "profile: " + "{a: " * 10_000])
def test_a_file_of_brackets_is_refused_before_it_is_parsed(text: str) -> None:
    assert problems(text) == ["f:1:1: more than 1000 brackets; a specification has few"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(spec.SpecificationError, match="missing: No such file or directory"):
        spec.load(tmp_path / "missing")


@given(strategies.binary(max_size=60) | strategies.text(max_size=60).map(str.encode))
def test_any_bytes_give_a_specification_or_problems(data: bytes) -> None:
    with contextlib.suppress(spec.SpecificationError):
        assert spec.parse(data, "f").to_profile()


ACCEPTED = [WHOLE, "{}", "profile: {tpu: v6e}", "profile: {generations: [v5e]}\nwaive: {machine.thp: x}\n"]


@pytest.mark.parametrize("text", ACCEPTED)
def test_the_published_schema_takes_what_is_accepted(text: str) -> None:
    Draft202012Validator(spec.json_schema()).validate(yaml.safe_load(text))


WRONG = (
    {"x": 1},
    {"profile": {"tpu": ["v9"]}},
    {"waive": {"nope": "x"}},
    {"profile": {"agent": 1}},
    {"profile": None},
)


@pytest.mark.parametrize("document", WRONG)
def test_the_published_schema_refuses_what_is_refused(document: Any) -> None:
    assert list(Draft202012Validator(spec.json_schema()).iter_errors(document))
