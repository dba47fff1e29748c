"""Bills of materials are ones that the formats' own libraries find valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from tpu_image.build import Built, Request
from tpu_image.catalogue.requirement import Profile
from tpu_image.disks.archive import ArchiveResult
from tpu_image.installed import Package, packages_of
from tpu_image.sbom import SUFFIXES, path_of, sbom
from tpu_image.trees.memory import File, MemoryTree

PACKAGES = (
    Package("bash", "5.2.15-2+b8", "amd64"),
    Package("libc6", "2.36-9+deb12u10", "amd64"),
    Package("libc6", "2.36-9+deb12u10", "i386"),
    Package("libstdc++6", "1:12.2.0-14~rc1", "amd64"),
    Package("python3", "3.11.2-1+b1", "amd64"),
    Package("odd \x1b name", "", "all"),
)


def written(folder: Path, form: str, sha256: str = "a" * 64) -> Path:
    request = Request(Path("base"), folder / "out.tar.gz", Profile(), time=1_700_000_000)
    archive = ArchiveResult(1, sha256, 1)
    built = Built((), (), True, archive, 1 << 30, PACKAGES, "debian", "b" * 64)
    path = path_of(form, request.output)
    path.write_text(sbom(path, request, built))
    return path


def test_a_cyclonedx_bill_is_valid(tmp_path: Path) -> None:
    text = written(tmp_path, "cyclonedx").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    assert bill["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert len(bill["components"]) == len(PACKAGES)


def test_an_spdx_bill_is_valid(tmp_path: Path) -> None:
    path = written(tmp_path, "spdx")
    document = parse_file(str(path))
    assert validate_full_spdx_document(document) == []
    assert {package.name for package in document.packages} >= {"out.tar.gz", "bash", "libc6"}
    assert "\x1b" not in path.read_text()


@pytest.mark.parametrize("package", PACKAGES[:-1], ids=lambda package: package.name)
def test_a_package_url_is_canonical_and_holds_what_dpkg_says(package: Package) -> None:
    purl = package.purl("debian")
    parsed = PackageURL.from_string(purl)
    assert parsed.to_string() == purl
    assert (parsed.type, parsed.namespace, parsed.name, parsed.version) == ("deb", "debian", *package[:2])
    assert parsed.qualifiers == {"arch": package.architecture}


def test_a_package_url_of_bytes_that_are_no_text_is_one() -> None:
    assert Package("a\udcff", "1", "all").purl("d\udcfe") == "pkg:deb/d%FE/a%FF@1?arch=all"


@pytest.mark.parametrize("form", SUFFIXES)
def test_equal_images_have_equal_bills_and_others_do_not(form: str, tmp_path: Path) -> None:
    first = written(tmp_path, form).read_text()
    assert written(tmp_path, form).read_text() == first
    identifier = {"spdx": "documentNamespace", "cyclonedx": "serialNumber"}[form]
    assert (
        json.loads(written(tmp_path, form, "c" * 64).read_text())[identifier] != json.loads(first)[identifier]
    )


def test_the_name_of_a_file_says_its_format(tmp_path: Path) -> None:
    image = tmp_path / "out.tar.gz"
    assert path_of("spdx", image) == tmp_path / "out.tar.gz.spdx.json"
    assert path_of("some/bill.cdx.json", image) == Path("some/bill.cdx.json")
    with pytest.raises(ValueError, match=r"give spdx or cyclonedx, or FILE\.spdx\.json or FILE\.cdx\.json"):
        path_of("bill.json", image)


def test_packages_are_those_that_are_installed() -> None:
    status = b"Package: a\nStatus: install ok installed\nArchitecture: all\nVersion: 1\nDescription: b\n Version: 2\n"
    gone = b"\nPackage: b\nStatus: deinstall ok config-files\nVersion: 1\n"
    assert packages_of(MemoryTree({"/var/lib/dpkg/status": File(status + gone)})) == (
        Package("a", "1", "all"),
    )
    assert packages_of(MemoryTree({})) == ()
    assert packages_of(MemoryTree({"/var/lib/dpkg/status": File(b"\xff: \n\n: \n\n")})) == ()
