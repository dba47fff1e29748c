"""What a boot showed decides what is said of the image, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab_results import GUEST, STEPS, device
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.lab.judgement import Boot, judge, requirements
from tpu_image.lab.result import ApiStep, BootTask, GuestReport, LockedMemory, RunResult

GOOD = Boot(GUEST, ("0000:00:08.0",))
CHECKED = {"user": {"machine.thp": Verdict("machine.thp", Status.PASS, "always")}}
DENIED = ApiStep("group", "open group", ok=False, detail="Permission denied")
THP = "huge_memory: transparent_hugepage= cannot parse, ignored"


def lab(boot: Boot) -> dict[str, Verdict]:
    """The lab's own verdicts by name."""
    return {
        v.requirement.removeprefix("lab."): v
        for v in judge(boot, {}, Profile())
        if v.requirement[:4] == "lab."
    }


def guest(**changes: object) -> Boot:
    return GOOD._replace(guest=replace(GUEST, **changes))  # type: ignore[arg-type]


def test_of_a_good_boot_everything_passes() -> None:
    assert {name for name, verdict in lab(GOOD).items() if verdict.status is not Status.PASS} == set()


@pytest.mark.parametrize(
    ("boot", "name", "message"),
    [
        (GOOD._replace(expected=("0000:00:0c.0",)), "attached", "does not show 0000:00:0c.0"),
        (guest(devices=(device(steps=(DENIED,)),)), "usable", "08.0: group: open group: Permission denied"),
        (guest(devices=(device(steps=STEPS[:-1]),)), "usable", "not used to the end"),
        (
            guest(devices=(device(steps=(*STEPS, ApiStep("cdev", "open device", ok=False, detail="no"))),)),
            "usable",
            "cdev",
        ),
        (guest(kernel_warnings=(THP,)), "kernel-log", "cannot parse, ignored"),
        (
            guest(locked_memory=(LockedMemory("service", ok=False, detail="limit 8192 KiB"),)),
            "locked-memory",
            "8192",
        ),
        (
            guest(tasks=(BootTask("x.service", "failed", "exit-code", "no", 1.0, 2.0),)),
            "tasks",
            "x.service: exit-code",
        ),
        (guest(run=(RunResult("false", 1, ""),)), "run", "false ended with status 1"),
        (guest(run=(RunResult("sleep 9", None, ""),)), "run", "did not end in time"),
        (GOOD._replace(artefact_unchanged=False), "artefact", "is another after the boot"),
    ],
)
def test_one_thing_that_is_wrong_fails_one_verdict(boot: Boot, name: str, message: str) -> None:
    verdicts = lab(boot)
    assert message in verdicts[name].message
    assert [n for n, verdict in verdicts.items() if verdict.status is Status.FAIL] == [name]


def test_a_closed_iommufd_is_a_warning_where_groups_work() -> None:
    closed = ApiStep("cdev", "open /dev/iommu", ok=False, detail="Permission denied")
    verdict = lab(guest(devices=(device(steps=(*STEPS, closed)),)))["usable"]
    assert (verdict.status, "by groups alone" in verdict.message) == (Status.WARN, True)


def test_a_rejected_parameter_of_somebody_else_is_no_failure() -> None:
    lines = (
        "Malformed early option 'earlyprintk'",
        'Unknown kernel command line parameters "BOOT_IMAGE=/boot/vmlinuz splash", will be passed to user space.',
    )
    assert lab(guest(kernel_warnings=lines))["kernel-log"].status is Status.PASS


def test_what_was_not_measured_is_unknown() -> None:
    verdicts = lab(Boot(GuestReport(), ()))
    unknown = {name for name, verdict in verdicts.items() if verdict.status is Status.UNKNOWN}
    assert unknown == {"kernel-log", "locked-memory"}


def test_commands_whose_results_did_not_come_are_unknown() -> None:
    one = RunResult("true", 0, "")
    assert lab(GOOD._replace(commands=2))["run"].status is Status.UNKNOWN
    assert (
        lab(guest(run=(one,))._replace(commands=2))["run"].message
        == "1 of 2 results of commands were reported"
    )
    assert lab(guest(run=(one, one))._replace(commands=2))["run"].status is Status.PASS


def test_failed_units_and_an_unfinished_boot_are_warnings() -> None:
    assert lab(guest(failed_units=("foo.service",)))["units"].status is Status.WARN
    assert lab(guest(settled=False))["units"].status is Status.WARN


def test_without_a_report_the_one_verdict_says_how_it_ended() -> None:
    boot = Boot(GuestReport(), GOOD.expected, ending="kernel panic: no init", console=("last line",))
    (verdict,) = judge(boot, {}, Profile())
    assert (verdict.requirement, verdict.status) == ("lab.boot", Status.FAIL)
    assert verdict.evidence[0].found == "last line"


def inside(*checked: tuple[str, Status], profile: Profile | None = None) -> Verdict:
    """The verdict on huge pages, from what the checker said as whom."""
    said = {who: {"machine.thp": Verdict("machine.thp", status, who)} for who, status in checked}
    return next(v for v in judge(GOOD, said, profile or Profile()) if v.requirement == "machine.thp")


def test_what_a_user_sees_counts_and_root_fills_in_what_a_user_cannot_tell() -> None:
    assert inside(("user", Status.FAIL), ("root", Status.PASS)).status is Status.FAIL
    assert inside(("user", Status.UNKNOWN), ("root", Status.PASS)).message == "root"
    assert inside(("user", Status.UNKNOWN)).status is Status.UNKNOWN


def test_a_verdict_that_did_not_come_is_unknown_and_cannot_be_left_out() -> None:
    assert inside().message == "the checker inside did not report it"


def test_a_guest_cannot_add_verdicts() -> None:
    forged = {"user": {"vfio.rule": Verdict("vfio.rule", Status.PASS, "trust me")}}
    assert all(v.requirement.startswith(("machine.", "lab.")) for v in judge(GOOD, forged, Profile()))


def test_a_waiver_holds_in_a_boot_too() -> None:
    verdict = inside(("user", Status.FAIL), profile=Profile(waivers={"machine.thp": "known"}))
    assert verdict.message == "waived: known"


def test_every_requirement_of_the_lab_can_be_explained() -> None:
    known = {one.id: one for one in requirements()}
    assert all(known[f"lab.{name}"].title and known[f"lab.{name}"].why for name in lab(GOOD))
