from __future__ import annotations

import io
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats.zip_archive import pack

NAMES = st.text("abcdé/._", min_size=1, max_size=12).filter(lambda name: not name.endswith("/"))


@given(st.dictionaries(NAMES, st.binary(max_size=300), max_size=5), st.booleans(), st.binary(max_size=9))
def test_zipfile_reads_what_is_packed(members: dict[str, bytes], deflated: bool, before: bytes) -> None:
    packed = pack(members, before=before, deflated=deflated)
    assert packed.startswith(before)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == members
        for information in archive.infolist():
            assert information.date_time == (1980, 1, 1, 0, 0, 0)
            assert information.external_attr >> 16 == stat.S_IFREG | 0o644


@pytest.mark.parametrize("deflated", [False, True])
def test_python_runs_it_and_unzip_tests_it(deflated: bool, tmp_path: Path) -> None:
    path = tmp_path / "program.pyz"
    members = {"__main__.py": b"import a.b\nprint(a.b.X)\n", "a/__init__.py": b"", "a/b.py": b"X = 'here'\n"}
    path.write_bytes(pack(members, before=b"#!/usr/bin/env python3\n", deflated=deflated))
    assert subprocess.run([sys.executable, path], capture_output=True, text=True).stdout == "here\n"
    assert subprocess.run(["bsdtar", "-tf", path], capture_output=True, text=True).stdout.split() == [
        *members
    ]
