"""The cloud-config of a plan, read as YAML reads it."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import yaml
from hypothesis import example, given, strategies

from tpu_image.catalogue.requirement import Profile
from tpu_image.render import cloud_config
from tpu_image.render.steps import steps_of
from tpu_image.trees.memory import Directory, File, MemoryTree, Symlink
from tpu_image.trees.overlay import Overlay


def config_of(overlay: Overlay) -> dict[str, Any]:
    text = cloud_config.render(steps_of(overlay, Profile()))
    assert text.startswith("#cloud-config\n")
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def test_files_have_text_permissions_and_an_owner() -> None:
    overlay = Overlay(MemoryTree())
    overlay.write("/var/scripts/x.sh", "#!/bin/sh\n\necho  'hi' # é\n", mode=0o755)
    assert config_of(overlay)["write_files"] == [
        {
            "path": "/var/scripts/x.sh",
            "owner": "root:root",
            "permissions": "0755",
            "content": "#!/bin/sh\n\necho  'hi' # é\n",
        }
    ]


def test_what_write_files_cannot_do_is_a_command() -> None:
    overlay = Overlay(MemoryTree({"/etc/gone": File(b"")}))
    overlay.symlink("/etc/systemd/system/a.target.wants/b.service", "/usr/lib/b c.service")
    overlay.make_directory("/srv/private", mode=0o700, owner=(5, 6))
    overlay.write("/srv/private/file", "x\n", owner=(5, 6))
    overlay.remove("/etc/gone")
    assert config_of(overlay)["runcmd"] == [
        ["mkdir", "-p", "/etc/systemd", "/etc/systemd/system", "/etc/systemd/system/a.target.wants"],
        ["rm", "-f", "/etc/gone"],
        ["ln", "-sfn", "/usr/lib/b c.service", "/etc/systemd/system/a.target.wants/b.service"],
        ["chmod", "0700", "/srv/private"],
        ["chown", "-h", "5:6", "/srv/private"],
        ["chown", "-h", "5:6", "/srv/private/file"],
        ["systemctl", "daemon-reload"],
        ["systemctl", "start", "b.service"],
    ]


def test_lines_are_added_to_a_file_that_every_machine_has() -> None:
    overlay = Overlay(MemoryTree())
    overlay.write("/etc/environment", "A=1\nB='2 3'\n")
    config = config_of(overlay)
    assert "write_files" not in config
    assert config["runcmd"][0][:2] == ["sh", "-c"]
    assert config["runcmd"][0][3:] == ["sh", "/etc/environment", "A=1", "B='2 3'"]


def test_kernel_parameters_bring_one_reboot_and_nothing_else_does() -> None:
    overlay = Overlay(MemoryTree())
    overlay.write("/etc/udev/rules.d/x.rules", "x\n")
    assert "power_state" not in config_of(overlay)
    overlay.write("/etc/default/grub.d/x.cfg", "x\n")
    assert config_of(overlay)["power_state"]["mode"] == "reboot"


def test_nothing_to_change_is_an_empty_configuration() -> None:
    assert config_of(Overlay(MemoryTree({"/a": Directory(), "/b": Symlink("a")}))) is None


@example(b"a\n\n")
@example(b"\na\n")
@given(
    strategies.binary(max_size=80)
    | strategies.text("a \n\t#:-|>'\"\\é\U0001f600\x85\ufeff", max_size=30).map(str.encode)
)
def test_any_content_comes_out_as_it_went_in(content: bytes) -> None:
    overlay = Overlay(MemoryTree())
    overlay.write("/x", content)
    (file,) = config_of(overlay)["write_files"]
    if "encoding" in file:
        assert file["encoding"] == "gz+b64"
        assert gzip.decompress(base64.b64decode(file["content"])) == content
    else:
        assert file["content"].encode() == content
