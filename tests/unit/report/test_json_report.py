from __future__ import annotations

import json

from hypothesis import given
from jsonschema import Draft202012Validator

import reports
from tpu_image.report import json as json_report
from tpu_image.report.model import Report
from tpu_image.report.schema import check_schema

VALIDATOR = Draft202012Validator(check_schema())


def test_a_verdict_has_all_its_parts() -> None:
    document = json.loads(json_report.render(reports.report(reports.FAILURE)))
    assert document["summary"] == {"pass": 0, "fail": 1, "warn": 0, "skip": 0, "unknown": 0}
    assert document["verdicts"] == [
        {
            "requirement": "kernel.thp",
            "status": "fail",
            "message": "transparent_hugepage is mangled",
            "evidence": [
                {"path": "/boot/grub/grub.cfg", "line": 7, "found": "always,sm_on", "expected": "always"},
                {"path": "/etc/default/grub.d/a b\\xff.cfg", "line": 0, "found": "", "expected": ""},
            ],
            "remedy": "run: tpu-image apply",
        }
    ]


@given(reports.reports)
def test_any_report_is_ascii_that_follows_the_schema_and_holds_no_control_character(report: Report) -> None:
    text = json_report.render(report)
    assert text.isascii()
    document = json.loads(text)
    VALIDATOR.validate(document)
    for verdict in document["verdicts"]:
        assert verdict["message"].isprintable()
        assert all(value.isprintable() for piece in verdict["evidence"] for value in map(str, piece.values()))
