"""The report for people: a line for each verdict, grouped by section, with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpu_image.catalogue.requirement import Evidence, Status, Verdict
from tpu_image.catalogue.sections import by_section, section
from tpu_image.report.model import Report
from tpu_image.report.printable import printable

_COLORS = {
    Status.PASS: "32",
    Status.FAIL: "1;31",
    Status.WARN: "33",
    Status.SKIP: "2",
    Status.UNKNOWN: "35",
}
"""SGR parameters (ECMA-48, 8.3.117) by status."""

_INDENT = " " * 11

SHARED = 3
"""Verdicts from which on a remedy that they share is said once, at the end."""

EVIDENCE_SHOWN = 4
"""Pieces of evidence of one verdict that people are shown."""

LINE = 110
"""Columns that a line of evidence may take."""


def render(report: Report, *, color: bool = False, quiet: bool = False) -> str:
    """Write the report as text.

    Args:
        report: what to show.
        color: put the status words in colour, by escape sequences.
        quiet: only what needs attention: nothing at all where every verdict passes or is a skip.
    """
    shown = [v for v in report.verdicts if not quiet or v.status not in (Status.PASS, Status.SKIP)]
    width = max((len(v.requirement) for v in shown), default=0)
    common = _common_remedy(shown)
    lines = [] if quiet else [heading(report), ""]
    for name, verdicts in by_section(shown, lambda verdict: verdict.requirement).items():
        lines.append(name)
        for group in _alike(verdicts):
            lines += _lines(group, width, color, common)
        lines.append("")
    if common:
        lines.append(f"where no remedy is named, {printable(common)}")
    if not quiet:
        lines.append(summary(report, color=color))
    return "".join(f"{line}\n" for line in lines)


def heading(report: Report) -> str:
    """Name what was checked and for what."""
    profile = report.profile
    generations = ", ".join(generation.name for generation in profile.generations)
    return f"{printable(report.target)}: {profile.platform.value}, TPU {generations}"


def summary(report: Report, *, color: bool = False) -> str:
    """Say in one line how many verdicts there are of each status, and what follows."""
    counts = ", ".join(f"{count} {status.value}" for status, count in report.counts().items() if count)
    if report.ok:
        return f"{_paint('ok', Status.PASS, color)}: {counts}"
    if not any(report.counts()[status] for status in Status if status is not Status.SKIP):
        counts = f"nothing was checked ({counts})" if counts else "nothing was checked"
    return f"{_paint('not ok', Status.FAIL, color)}: {counts}"


def _common_remedy(verdicts: Sequence[Verdict]) -> str:
    """The remedy that so many verdicts share that it is better said once; empty where there is none."""
    remedies = [verdict.remedy for verdict in verdicts if verdict.status not in (Status.PASS, Status.SKIP)]
    common = max(remedies, key=remedies.count, default="")
    return common if remedies.count(common) >= SHARED else ""


def _alike(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Put skips of one section that have one reason together: they are one thing to know."""
    groups: list[list[Verdict]] = []
    for verdict in verdicts:
        last = groups[-1][-1] if groups else None
        same = last and last.status is verdict.status is Status.SKIP and last.message == verdict.message
        if same:
            groups[-1].append(verdict)
        else:
            groups.append([verdict])
    return groups


def _lines(group: Sequence[Verdict], width: int, color: bool, common: str) -> Iterator[str]:
    first = group[0]
    name = first.requirement if len(group) == 1 else f"{section(first.requirement)}.* ({len(group)})"
    status = _paint(f"{first.status.value:<7}", first.status, color)
    yield f"  {status}  {name:<{width}}  {printable(first.message)}"
    if first.status in (Status.PASS, Status.SKIP):
        return
    for evidence in first.evidence[:EVIDENCE_SHOWN]:
        yield from _evidence_lines(evidence)
    if len(first.evidence) > EVIDENCE_SHOWN:
        yield f"{_INDENT}and {len(first.evidence) - EVIDENCE_SHOWN} more (--format json has them all)"
    if first.remedy and first.remedy != common:
        yield f"{_INDENT}remedy: {printable(first.remedy)}"


def _evidence_lines(evidence: Evidence) -> Iterator[str]:
    """One line of evidence, or two where found and expected together are long."""
    line = f":{evidence.line}" if evidence.line else ""
    place = f"{printable(evidence.path)}{line}" if evidence.path else ""
    found = f"found {printable(evidence.found)}" if evidence.found else ""
    expected = f"expected {printable(evidence.expected)}" if evidence.expected else ""
    observed = ": ".join(part for part in (place, found) if part)
    if len(observed) + len(expected) < LINE:
        yield _INDENT + "; ".join(part for part in (observed, expected) if part)
        return
    yield _INDENT + observed
    if expected:
        yield f"{_INDENT}  {expected}"


def _paint(word: str, status: Status, color: bool) -> str:
    return f"\x1b[{_COLORS[status]}m{word}\x1b[0m" if color else word
