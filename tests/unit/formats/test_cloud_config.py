from __future__ import annotations

import pytest

import cloud_configs
from cloud_configs import Case, entry
from tpu_image.formats import cloud_config
from tpu_image.formats.yaml_text import YamlError

ACCOUNTS = cloud_config.Accounts(users={"root"}, groups={"root"})


@pytest.mark.parametrize("case", cloud_configs.CASES.values(), ids=cloud_configs.CASES)
def test_each_fault_is_found_with_its_line_and_effect(case: Case) -> None:
    findings = cloud_config.read(case.text, ACCOUNTS).findings
    assert [(f.line, f.breaks) for f in findings] == [(line, breaks) for line, _, breaks in case.found]
    for finding, (_, part, _) in zip(findings, case.found, strict=True):
        assert part in finding.message
        assert "\n" not in finding.message


@pytest.mark.parametrize(("text", "line"), cloud_configs.UNUSABLE.values(), ids=cloud_configs.UNUSABLE)
def test_a_text_that_is_ignored_as_a_whole_is_an_error_at_its_line(text: str, line: int) -> None:
    with pytest.raises(YamlError) as caught:
        cloud_config.read(text)
    assert caught.value.line == line


def test_files_come_out_decoded_with_the_mode_that_results() -> None:
    text = entry(
        f"permissions: 0755\nowner: root:root\nencoding: gz+b64\ncontent: {cloud_configs.GZIP_OF_HELLO}"
    )
    (file,) = cloud_config.read(text).files
    assert (file.path, file.mode, file.content) == ("/run/made/file", 0o755, b"hello")
    assert (file.owner, file.append, file.deferred, file.line) == ("root:root", False, False, 3)


def test_commands_are_told_apart_by_when_they_run() -> None:
    config = cloud_config.read("runcmd:\n- [sh, -c, x y]\nbootcmd:\n- ls -l\n")
    assert config.runcmd == (cloud_config.Command("sh -c x y", "sh", 2),)
    assert config.bootcmd == (cloud_config.Command("ls -l", "ls", 4),)


def test_without_accounts_owners_are_not_judged() -> None:
    assert cloud_config.read(entry("owner: someone")).findings == ()


def test_an_empty_text_does_nothing() -> None:
    config = cloud_config.read("#cloud-config\n")
    assert (config.files, config.runcmd, config.findings) == ((), (), ())


def test_a_gzip_bomb_is_not_unpacked_whole() -> None:
    import base64
    import gzip

    bomb = base64.b64encode(gzip.compress(bytes(64 * 1024 * 1024), 9)).decode()
    (file,) = cloud_config.read(entry(f"encoding: gz+b64\ncontent: {bomb}")).files
    assert file.content is not None
    assert len(file.content) == 16 * 1024 * 1024


USER_DATA = {
    "#cloud-config\nruncmd: []\n": (True, True),
    "\n#Cloud-Config\n": (True, True),
    "#!/bin/sh\n": (True, False),
    "#cloud-config-archive\n- x\n": (True, False),
    "## template: jinja\n#cloud-config\n": (True, False),
    'Content-Type: multipart/mixed; boundary="x"\nMIME-Version: 1.0\n': (True, False),
    "#include\nhttp://x\n": (True, False),
    "\x1f\udc8b\x08": (True, False),
    "": (True, False),
    "write_files: []\n": (False, False),
    "# cloud-config\n": (False, False),
}


@pytest.mark.parametrize("text", USER_DATA)
def test_the_kind_of_user_data_is_told_by_its_beginning(text: str) -> None:
    assert (cloud_config.is_user_data(text), cloud_config.is_cloud_config(text)) == USER_DATA[text]
