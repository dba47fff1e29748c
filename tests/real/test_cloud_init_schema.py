"""What is said of a cloud-config is what the installed cloud-init does with it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import cloud_configs
from cloud_configs import entry
from tpu_image.formats import cloud_config
from tpu_image.formats.yaml_text import YamlError

pytestmark = pytest.mark.real

JUDGE = Path(__file__).with_name("cloud_init_judge.py")
ACCOUNTS = cloud_config.Accounts(users={"root"}, groups={"root"})


@pytest.fixture(scope="session")
def cloud_init() -> str:
    program = shutil.which("cloud-init")
    if program is None:
        pytest.fail("install the package cloud-init: these tests compare with it")
    return program


def run(cloud_init: str, *arguments: str | Path, data: str = "") -> Any:
    """What a script prints as JSON under cloud-init's own Python."""
    interpreter = Path(cloud_init).read_text().splitlines()[0].removeprefix("#!").split()
    done = subprocess.run([*interpreter, *arguments], input=data, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def judged(cloud_init: str, texts: list[str], folder: Path) -> list[dict[str, Any]]:
    verdicts: list[dict[str, Any]] = run(cloud_init, JUDGE, folder / "made", data=json.dumps(texts))
    return verdicts


def test_each_fault_is_one_to_the_real_modules_or_their_schema(cloud_init: str, tmp_path: Path) -> None:
    cases = list(cloud_configs.CASES.values())
    verdicts = judged(cloud_init, [case.text for case in cases], tmp_path)
    for name, case, verdict in zip(cloud_configs.CASES, cases, verdicts, strict=True):
        assert verdict["schema"] == case.schema_objects, name
        assert verdict["raises"] == case.raises, name


def test_files_come_out_as_read(cloud_init: str, tmp_path: Path) -> None:
    spellings = [entry(f"permissions: {mode}\ncontent: x") for mode in cloud_configs.MODES]
    texts = spellings + [case.text for case in cloud_configs.CASES.values() if not case.raises]
    compared = 0
    for text, verdict in zip(texts, judged(cloud_init, texts, tmp_path), strict=True):
        for file in cloud_config.read(text, ACCOUNTS).files:
            if file.deferred or file.path != "/run/made/file":
                continue
            mode, content = verdict["files"]["file"]
            assert (file.mode, file.content) == (mode, content.encode("latin-1")), text
            compared += 1
    assert compared > len(spellings)


@pytest.mark.parametrize(
    "text", [text for text, _ in cloud_configs.UNUSABLE.values()], ids=cloud_configs.UNUSABLE
)
def test_what_is_unusable_to_us_is_so_to_cloud_init(cloud_init: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("#cloud-config\n" + text)
    done = subprocess.run([cloud_init, "schema", "--config-file", file], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    with pytest.raises(YamlError):
        cloud_config.read(file.read_text())


def test_keys_that_cloud_init_knows_are_not_called_misspelt(cloud_init: str) -> None:
    script = (
        "import json; from cloudinit.config.schema import get_schema\n"
        "print(json.dumps([k for d in get_schema()['$defs'].values() for k in d.get('properties', {})]))"
    )
    keys = run(cloud_init, "-c", script)
    assert "write_files" in keys
    text = "".join(f"{key}: null\n" for key in dict.fromkeys(keys))
    assert [f.message for f in cloud_config.read(text).findings if "unknown key" in f.message] == []


def test_lists_of_the_user_replace_baked_ones_whole(cloud_init: str) -> None:
    script = (
        "import json; from cloudinit import util\n"
        "baked = {'runcmd': ['baked'], 'bootcmd': ['baked']}\n"
        "print(json.dumps(util.mergemanydict([{'runcmd': ['user']}, baked])))"
    )
    assert run(cloud_init, "-c", script) == {"runcmd": ["user"], "bootcmd": ["baked"]}


def test_write_files_and_runcmd_are_once_per_instance_and_bootcmd_is_not(cloud_init: str) -> None:
    modules = "cc_write_files, cc_runcmd, cc_scripts_user, cc_bootcmd"
    script = (
        f"import json; from cloudinit.config import {modules}\n"
        f"print(json.dumps([module.meta['frequency'] for module in ({modules})]))"
    )
    assert run(cloud_init, "-c", script) == [*["once-per-instance"] * 3, "always"]
