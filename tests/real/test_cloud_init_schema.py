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


def judged(cloud_init: str, texts: list[str], folder: Path) -> list[dict[str, Any]]:
    interpreter = Path(cloud_init).read_text().splitlines()[0].removeprefix("#!").split()
    done = subprocess.run(
        [*interpreter, JUDGE, folder / "made"],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=True,
    )
    verdicts: list[dict[str, Any]] = json.loads(done.stdout)
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
    interpreter = Path(cloud_init).read_text().splitlines()[0].removeprefix("#!").split()
    script = (
        "import json; from cloudinit.config.schema import get_schema\n"
        "print(json.dumps([k for d in get_schema()['$defs'].values() for k in d.get('properties', {})]))"
    )
    done = subprocess.run([*interpreter, "-c", script], capture_output=True, text=True, check=True)
    keys = json.loads(done.stdout)
    assert "write_files" in keys
    text = "".join(f"{key}: null\n" for key in dict.fromkeys(keys))
    assert [f.message for f in cloud_config.read(text).findings if "unknown key" in f.message] == []
