"""Reports for tests of how they are written."""

from __future__ import annotations

from hypothesis import strategies

from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.report.model import Report

HOSTILE = (
    "\x1b[2J\x1b[1;1Hok",  # clears the screen
    "\x9b2J",  # the same in one byte of ISO 8859-1
    "a\rb\nc\td",
    "\u202egnp.exe",  # right-to-left override
    "\udcff\udc80",  # bytes that were not UTF-8
    "]]><x>&amp;\"'",
    "\x00\x08\x7f\ufffe\uffff",
    "\U000e0001\u2028\u00ad",
)
"""Text from images that would move a cursor or break a document."""

any_text = strategies.one_of(
    strategies.text(strategies.characters(codec=None), max_size=40),  # lone surrogates too
    strategies.sampled_from(HOSTILE),
)
evidence = strategies.builds(Evidence, any_text, strategies.integers(0, 99), any_text, any_text)
verdicts = strategies.builds(
    Verdict,
    strategies.sampled_from(["kernel.thp", "kernel.idle", "vfio.modules"]),
    strategies.sampled_from(Status),
    any_text,
    strategies.lists(evidence, max_size=2).map(tuple),
    any_text,
)


class Thp(Requirement):
    """A requirement to report on."""

    id = "kernel.thp"
    title = "Huge pages are always on"
    why = "TPU workloads map much memory"
    source = "R7"


def report(*verdicts: Verdict, ok: bool = False, target: str = "root") -> Report:
    return Report(target, Profile(), verdicts, ok, (Thp(),), "/srv/a b/\udcff")


reports = strategies.builds(
    lambda found, target: report(*found, target=target), strategies.lists(verdicts, max_size=4), any_text
)

FAILURE = Verdict(
    "kernel.thp",
    Status.FAIL,
    "transparent_hugepage is mangled",
    (
        Evidence("/boot/grub/grub.cfg", 7, "always,sm_on", "always"),
        Evidence("/etc/default/grub.d/a b\udcff.cfg", 0),
    ),
    "run: tpu-image apply",
)
WARNING = Verdict("kernel.idle", Status.WARN, "idle is set twice", (), "remove one")
UNKNOWN = Verdict("vfio.modules", Status.UNKNOWN, "no /lib/modules", (), "mount it")
SKIP = Verdict("gke.tools", Status.SKIP, "GKE alone needs it")
PASS = Verdict("kernel.iommu", Status.PASS, "on", (Evidence("/boot/grub/grub.cfg", 7),))
EVERY_STATUS = (FAILURE, WARNING, UNKNOWN, SKIP, PASS)
