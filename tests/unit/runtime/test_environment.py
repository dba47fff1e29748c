"""The tpu-env attribute: what of YAML is taken, what is refused, and that the file survives every failure."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from metadata_faults import metadata as served
from tpu_image.formats import FormatError, tpu_env
from tpu_image.lab.metadata.faults import HOSTILE
from tpu_image.runtime import environment
from tpu_image.runtime.atomic_file import Owner
from tpu_image.runtime.metadata import EmptyAnswerError, MetadataError, MetadataServer, NotSetError

ME = Owner(os.geteuid(), os.getegid())

OF_THE_TPU_API = b"""\
ACCELERATOR_TYPE: 'v6e-8'
ALT: 'false'
CONSUMER_PROJECT_NUMBER: '012345678901'
WORKER_ID: '0'
VBARCONTROL_AGENT_DOCKER_URL: ''
UID: '8765'
"""
OF_COMPUTE_ENGINE = b"TYPE: V6E\nTOPOLOGY: 2x2x2\nWRAP: false,false,false\nWORKER_ID:\n"


def test_the_quoted_shape_is_read() -> None:
    assert environment.parse(OF_THE_TPU_API) == {
        "ACCELERATOR_TYPE": "v6e-8",
        "ALT": "false",
        "CONSUMER_PROJECT_NUMBER": "012345678901",
        "WORKER_ID": "0",
        "VBARCONTROL_AGENT_DOCKER_URL": "",
        "UID": "8765",
    }


def test_the_plain_shape_is_read_and_blank_is_not_zero() -> None:
    assert environment.parse(OF_COMPUTE_ENGINE) == {
        "TYPE": "V6E",
        "TOPOLOGY": "2x2x2",
        "WRAP": "false,false,false",
        "WORKER_ID": "",
    }


PLAIN = [
    "2x2x2",
    "yes",
    "No",
    "on",
    "1e3",
    "0o17",
    "0x1F",
    "012",
    "1_000",
    "1.50",
    ".inf",
    "2026-11-30",
    "12:30:45",
    "~",
    "null",
    "True",
    "<<x",
    "$HOME",
    "C:\\x",
    "a b",
    "a#b",
    "x=y",
    "é",
]


@pytest.mark.parametrize("written", PLAIN)
def test_a_plain_value_stays_as_it_is_written(written: str) -> None:
    assert environment.parse(f"KEY: {written}\n".encode()) == {"KEY": written}


YAML_TEXT = st.text().filter(lambda text: not set(text) & set("\x85\u2028\u2029"))  # line breaks in YAML 1.1


@given(st.dictionaries(YAML_TEXT.filter(bool), YAML_TEXT))
def test_whatever_yaml_writes_as_a_mapping_is_read_back(values: dict[str, str]) -> None:
    document = yaml.safe_dump(values, allow_unicode=True)
    assert environment.parse(document.encode()) == values


REFUSED = [
    (b"A: 1\nB: {c: d}\n", "the value of 'B' is nested", 2),
    (b"A:\n- 1\n", "the value of 'A' is nested", 2),
    (b"A: 1\nB: 2\nA: 3\n", "'A' stands there twice", 3),
    (b"'A': 1\nA: 3\n", "'A' stands there twice", 2),
    (b"- A: 1\n", "not a mapping", 1),
    (b"just text", "not a mapping", 1),
    (b"<!DOCTYPE html>\n<html><body>\n", "not a mapping", 1),
    (b"", "empty", 1),
    (b"# a comment alone\n", "empty", 2),
    (b"A: &x 1\nB: *x\n", "the value of 'B' is an alias", 2),
    (b"A: !!python/object/apply:os.system [id]\n", "nested", 1),
    (b"A: !!python/name:os.system ''\n", "has the tag", 1),
    (b"? [a, b]\n: c\n", "a key is nested", 1),
    (b"A: 1\n---\nB: 2\n", "second document", 2),
    (b"A: 1\nB: 'open\n", "not YAML", 3),
    (b"A: 1\n\tB: 2\n", "not YAML", 2),
    (b"A: 1\nB: \x00\n", "U.0000", 2),
    (b"A: 1\nB: \xff\n", "not UTF-8", 2),
    (b"A: 1\xe2\x80\xa8B: [\n", "nested|not YAML", 0),
    (b"A: " + b"[" * 500_000, "nested", 1),
    (b"{" * 500_000, "nested|not YAML", 1),
    (b"? " * 300_000, "nested|not YAML", 1),
]


@pytest.mark.parametrize(("document", "reason", "line"), REFUSED, ids=[str(d[:24]) for d, _, _ in REFUSED])
def test_anything_but_one_flat_mapping_is_refused_with_its_line(
    document: bytes, reason: str, line: int
) -> None:
    started = time.monotonic()
    with pytest.raises(FormatError, match=reason) as refused:
        environment.parse(document)
    assert not line or refused.value.line == line
    assert "\n" not in str(refused.value)
    assert time.monotonic() - started < 5


@given(st.binary())
def test_any_bytes_are_read_or_refused(document: bytes) -> None:
    try:
        values = environment.parse(document)
    except FormatError:
        return
    assert all(isinstance(part, str) for pair in values.items() for part in pair)


def test_the_largest_attribute_is_read_well_within_the_deadline() -> None:
    document = b"".join(b"KEY_%06d: 'some value'\n" % n for n in range(10_000))
    assert len(document) > 200_000
    started = time.monotonic()
    assert len(environment.parse(document)) == 10_000
    assert time.monotonic() - started < 30


def update(attribute: str, folder: Path, *faults: str) -> tuple[int, bool]:
    with served({"tpu-env": attribute}, *faults) as running:
        server = MetadataServer(running.host, "", seconds=3, attempt_seconds=1.5)
        return environment.update(server, ME, str(folder / "tpu-runtime"))


def test_the_file_is_written_once_and_then_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "tpu-runtime/tpu-env"
    assert update(OF_THE_TPU_API.decode(), tmp_path) == (6, True)
    first = file.stat()
    assert tpu_env.values(tpu_env.parse(file.read_text()))["UID"] == "8765"
    assert update(OF_THE_TPU_API.decode(), tmp_path) == (6, False)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert update(OF_COMPUTE_ENGINE.decode(), tmp_path) == (4, True)


FAILURES = [
    ("not set", "", "unset", NotSetError, "is not set"),
    ("empty", " \n", "", EmptyAnswerError, "empty"),
    ("set to nothing", "", "empty", EmptyAnswerError, "empty"),
    ("server error", "", "503", MetadataError, "503"),
    ("no answer", "", "hang", MetadataError, "in time"),
    ("a page", "", "html", MetadataError, "a page"),
    ("a page as text", "<!DOCTYPE html>\n", "", FormatError, "not a mapping"),
    ("not the metadata server", "", "portal", MetadataError, "not the metadata server"),
    ("too large", "A: " + "x" * (1 << 20), "", MetadataError, "longer than"),
    ("nested", "A: {b: c}", "", FormatError, "'A' is nested"),
    ("a newline in a value", 'LABEL: "a\\nb"', "", FormatError, "LABEL holds a newline"),
    ("a NUL in a value", 'LABEL: "a\\0b"', "", FormatError, "LABEL holds a NUL"),
    ("half a character", 'LABEL: "\\ud800"', "", FormatError, "LABEL holds the character U.D800"),
    ("a name of the loader's", "LD_PRELOAD: /tmp/x.so", "", FormatError, "LD_PRELOAD has a meaning"),
    ("no name", "A-B: x", "", FormatError, "'A-B' is not a name"),
    ("one long value", f"A: {'x' * 200_000}", "", FormatError, "longer than 131071"),
    ("no YAML", "", "malformed", FormatError, "not YAML"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attribute", "fault", "kind", "reason"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES]
)
def test_a_failure_is_named_and_the_previous_file_stays(
    attribute: str, fault: str, kind: type[Exception], reason: str, tmp_path: Path
) -> None:
    update("WORKER_ID: '3'", tmp_path)
    before = (tmp_path / "tpu-runtime/tpu-env").read_bytes()
    with pytest.raises(kind, match=reason):
        update(attribute, tmp_path, *filter(None, [fault]))
    assert (tmp_path / "tpu-runtime/tpu-env").read_bytes() == before
    assert os.listdir(tmp_path / "tpu-runtime") == ["tpu-env"]


def test_values_that_a_shell_would_run_are_written_as_text(tmp_path: Path) -> None:
    update("", tmp_path, "hostile")
    written = tpu_env.values(tpu_env.parse((tmp_path / "tpu-runtime/tpu-env").read_text()))
    assert written == yaml.safe_load(HOSTILE)
