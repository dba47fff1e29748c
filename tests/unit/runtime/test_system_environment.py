"""Boot-time changes of ``/etc/environment``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats import FormatError, pam_environment
from tpu_image.runtime import settings, system_environment
from tpu_image.runtime.system_environment import with_cloudsdk_python, with_storage_timeouts

DEBIAN = 'PATH="/usr/local/bin:/usr/bin"\n'


def test_everything_is_added_to_a_file_that_has_nothing() -> None:
    assert with_storage_timeouts(with_cloudsdk_python(DEBIAN)) == DEBIAN + (
        "CLOUDSDK_PYTHON=/usr/bin/python3\n"
        "GCS_RESOLVE_REFRESH_SECS=60\n"
        "GCS_REQUEST_CONNECTION_TIMEOUT_SECS=300\n"
        "GCS_METADATA_REQUEST_TIMEOUT_SECS=300\n"
        "GCS_READ_REQUEST_TIMEOUT_SECS=300\n"
        "GCS_WRITE_REQUEST_TIMEOUT_SECS=600\n"
    )


@given(
    st.lists(
        st.sampled_from(["CLOUDSDK_PYTHON", *settings.STORAGE_TIMEOUTS]).flatmap(
            lambda name: st.sampled_from(["", "5", "60", "300", "900", "x", "/opt/python3"]).map(
                lambda v: f"{name}={v}\n"
            )
        )
    ).map("".join)
)
def test_correcting_twice_changes_nothing_more_and_repeated_lines_are_gone(text: str) -> None:
    once = with_storage_timeouts(with_cloudsdk_python(text))
    assert with_storage_timeouts(with_cloudsdk_python(once)) == once
    for name, seconds in settings.STORAGE_TIMEOUTS.items():
        current = pam_environment.effective(once, name)
        assert current is not None
        assert int(current.value or "") >= seconds


@pytest.mark.parametrize("value", ["/opt/python3.12/bin/python3", "python3"])
def test_a_python_that_somebody_chose_stays(value: str) -> None:
    assert with_cloudsdk_python(f"CLOUDSDK_PYTHON={value}\n") == f"CLOUDSDK_PYTHON={value}\n"


@pytest.mark.parametrize(
    "text", ["CLOUDSDK_PYTHON=\n", "#CLOUDSDK_PYTHON=x\n", "CLOUDSDK_PYTHON\n", 'CLOUDSDK_PYTHON=""\n']
)
def test_a_python_that_is_blank_is_set(text: str) -> None:
    current = pam_environment.effective(with_cloudsdk_python(text), "CLOUDSDK_PYTHON")
    assert current is not None
    assert current.value == "/usr/bin/python3"


TIMEOUTS = [("300", True), ("900", True), ("0300", True), (" 300 ", True), ("299", False), ("", False)] + [
    (text, False) for text in ("5m", "-300", "3e9", "٣٠٠", "9" * 5000)
]


@pytest.mark.parametrize(("value", "stays"), TIMEOUTS, ids=[v[:9] for v, _ in TIMEOUTS])
def test_a_time_out_stays_where_it_is_long_enough(value: str, stays: bool) -> None:
    line = f"GCS_READ_REQUEST_TIMEOUT_SECS={value}\n"
    assert (line in with_storage_timeouts(line)) is stays


def test_the_file_is_written_only_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "environment"
    file.write_bytes(b"\xff=1\n")
    assert system_environment.update(with_cloudsdk_python, path=str(file))
    assert file.read_bytes() == b"\xff=1\nCLOUDSDK_PYTHON=/usr/bin/python3\n"
    assert not system_environment.update(with_cloudsdk_python, path=str(file))


@pytest.mark.parametrize("content", [b"A=1\0\n", b"#" * (1 << 20) + b"\n"], ids=["NUL", "large"])
def test_a_file_that_cannot_be_read_stays_as_it_is(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "environment").write_bytes(content)
    with pytest.raises(FormatError):
        system_environment.update(with_cloudsdk_python, path=str(tmp_path / "environment"))
    assert (tmp_path / "environment").read_bytes() == content
