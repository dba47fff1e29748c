"""What the manifest says of a customisation."""

from __future__ import annotations

from jsonschema import Draft202012Validator

from tpu_image.customise.execution import Executed, PackageChange, ScriptRun
from tpu_image.customise.record import customisation_document, customisation_schema

DONE = Executed(
    "namespace",
    (PackageChange("nginx", "", "1.22"), PackageChange("snapd", "2.57", "")),
    (ScriptRun("script 1", "0" * 64),),
    "vmlinuz-6.1.0-57-cloud-amd64",
    ("/opt/jax",),
)


def test_what_was_done_holds_the_published_schema() -> None:
    for executed in (DONE, Executed()):
        document = customisation_document(executed, ["place /etc/motd"])
        Draft202012Validator(customisation_schema()).validate(document)


def test_a_build_that_executed_nothing_says_so() -> None:
    assert customisation_document(Executed(), [])["method"] == "files"


def test_what_an_image_gives_is_safe_to_print() -> None:
    document = customisation_document(Executed("namespace", (PackageChange("a\x1b[31m", "", "1"),)), [])
    assert document["packages"][0]["name"] == "a\\x1b[31m"
