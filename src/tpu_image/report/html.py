"""The report as one HTML page that needs no network, no script and no other file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpu_image.catalogue.requirement import Evidence, Requirement, Status, Verdict
from tpu_image.report import elements
from tpu_image.report.elements import bullets, code, text
from tpu_image.report.model import Report

_ATTENTION = (Status.FAIL, Status.UNKNOWN, Status.WARN)


def render(report: Report) -> str:
    """Write what a check found."""
    generations = ", ".join(generation.name for generation in report.profile.generations)
    described = elements.facts(
        [
            ("Target", code(report.target)),
            ("Platform", text(report.profile.platform.value)),
            ("TPU", text(generations)),
        ]
    )
    return elements.page(
        f"tpu-image: {report.target}",
        f"<h1>Check of {text(report.target)}</h1>",
        banner(report.ok, counted(report.verdicts)),
        described,
        verdicts(report.verdicts, report.requirements),
    )


def banner(ok: bool, *sentences: str) -> str:
    """Say first of all what came out."""
    kind, mark, word = ("pass", "✓", "passed") if ok else ("fail", "✗", "not passed")
    paragraphs = "".join(f"<p>{text(sentence)}</p>" for sentence in sentences if sentence)
    return f'<div class="banner {kind}"><strong>{mark} {word}</strong>{paragraphs}</div>'


def counted(verdicts: Iterable[Verdict]) -> str:
    """Say how many verdicts there are of each status."""
    found = [verdict.status for verdict in verdicts]
    counts = ", ".join(f"{found.count(status)} {status.value}" for status in Status if status in found)
    return counts or "nothing was checked"


def verdicts(found: Sequence[Verdict], requirements: Sequence[Requirement]) -> str:
    """Show verdicts: first those that need attention with all behind them, then every one in a line."""
    titles = {requirement.id: requirement.title for requirement in requirements}
    attention = [verdict for status in _ATTENTION for verdict in found if verdict.status is status]
    first = "".join(_in_full(verdict, titles) for verdict in attention)
    return elements.section("What needs attention", first) + elements.section("Verdicts", _listed(found))


def _in_full(verdict: Verdict, titles: dict[str, str]) -> str:
    title = titles.get(verdict.requirement, "")
    heading = f"<h3>{elements.status(verdict.status.value)} {code(verdict.requirement)} {text(title)}</h3>"
    remedy = f"<p>Remedy: {text(verdict.remedy)}</p>" if verdict.remedy else ""
    return f"{heading}<p>{text(verdict.message)}</p>{bullets(map(_evidence, verdict.evidence))}{remedy}"


def _listed(found: Sequence[Verdict]) -> str:
    rows = [
        (elements.status(verdict.status.value), code(verdict.requirement), text(verdict.message))
        for verdict in found
    ]
    return elements.table(("Status", "Requirement", "Finding"), rows) if rows else ""


def _evidence(evidence: Evidence) -> str:
    line = f":{evidence.line}" if evidence.line else ""
    parts = [code(f"{evidence.path}{line}") if evidence.path else ""]
    parts.append(f"found {code(evidence.found)}" if evidence.found else "")
    parts.append(f"expected {code(evidence.expected)}" if evidence.expected else "")
    return ", ".join(part for part in parts if part)
