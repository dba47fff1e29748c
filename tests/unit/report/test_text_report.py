from __future__ import annotations

from hypothesis import given

import reports
from tpu_image.catalogue.requirement import Evidence, Status, Verdict
from tpu_image.report import text
from tpu_image.report.model import Report

SHOWN = """\
root: compute-engine, TPU v5p, v6e, tpu7x

kernel
  fail     kernel.thp    transparent_hugepage is mangled
           /boot/grub/grub.cfg:7: found always,sm_on; expected always
           /etc/default/grub.d/a b\\xff.cfg
           remedy: run: tpu-image apply
  warn     kernel.idle   idle is set twice
           remedy: remove one
  pass     kernel.iommu  on

vfio
  unknown  vfio.modules  no /lib/modules
           remedy: mount it

gke
  skip     gke.tools     GKE alone needs it

not ok: 1 pass, 1 fail, 1 warn, 1 skip, 1 unknown
"""


def test_it_reads_so() -> None:
    assert text.render(reports.report(*reports.EVERY_STATUS)) == SHOWN


def test_a_remedy_that_many_share_is_said_once() -> None:
    verdicts = [Verdict(f"a.{n}", Status.FAIL, "no", remedy="run: this") for n in range(3)]
    shown = text.render(reports.report(*verdicts, Verdict("a.own", Status.FAIL, "no", remedy="do that")))
    assert shown.count("run: this") == 1
    assert "where no remedy is named, run: this" in shown
    assert "remedy: do that" in shown


def test_long_evidence_is_cut_and_says_so() -> None:
    evidence = tuple(Evidence(f"/{n}", found="x" * 200, expected="y") for n in range(6))
    shown = text.render(reports.report(Verdict("a.b", Status.FAIL, "no", evidence)))
    assert "/3: found" in shown
    assert "/4: found" not in shown
    assert "and 2 more" in shown


def test_skips_of_one_section_and_reason_are_one_line() -> None:
    same = [Verdict(f"machine.{name}", Status.SKIP, "no machine") for name in ("thp", "kernel")]
    other = Verdict("machine.limits", Status.SKIP, "waived: no need")
    shown = text.render(reports.report(*same, other))
    assert "machine.* (2)" in shown
    assert "machine.limits" in shown


def test_failures_are_never_put_together() -> None:
    same = [Verdict(f"kernel.{name}", Status.FAIL, "no grub.cfg") for name in ("thp", "idle")]
    shown = text.render(reports.report(*same))
    assert "kernel.thp" in shown
    assert "kernel.idle" in shown


def test_nothing_checked_is_said() -> None:
    assert text.render(reports.report()).endswith("not ok: nothing was checked\n")


def test_colour_is_on_the_status_alone() -> None:
    colored = text.render(reports.report(reports.PASS, ok=True), color=True)
    assert "\x1b[32mpass   \x1b[0m  kernel.iommu" in colored
    assert colored.endswith("\x1b[32mok\x1b[0m: 1 pass\n")


@given(reports.reports)
def test_what_an_image_holds_cannot_reach_the_terminal(report: Report) -> None:
    for line in text.render(report).split("\n"):
        assert line.isprintable()
