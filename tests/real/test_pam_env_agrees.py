"""Our reader of ``/etc/environment`` beside the real pam_env."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pam_env
from tpu_image.formats import FormatError, pam_environment

pytestmark = pytest.mark.real

TEXTS = st.lists(
    st.sampled_from(
        ["A=1\n", "export A=2\n", 'A="b c"\n', "A=1 # x\n", "A\n", "A=x\\\n", "#\n", "\n", "A='", "A=\n"]
    )
    | st.text(alphabet="AB=#\\ \"'xé\t\r\n", max_size=12),
    max_size=6,
).map("".join)


def ours(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for assignment in pam_environment.parse(text):
        found.pop(assignment.name, None)
        if assignment.value is not None:
            found[assignment.name] = assignment.value
    return found


@settings(max_examples=1500)
@given(TEXTS)
def test_pam_env_reads_any_file_as_we_do(text: str) -> None:
    assert pam_env.read(text.encode()) == ours(text)


@settings(max_examples=300)
@given(TEXTS, st.text(alphabet="ab01/ .'\"=é\\", max_size=10))
def test_pam_env_reads_the_value_that_was_set(text: str, value: str) -> None:
    try:
        changed = pam_environment.set_value(text, "CLOUDSDK_PYTHON", value)
    except FormatError:
        return
    assert pam_env.read(changed.encode())["CLOUDSDK_PYTHON"] == value
