"""A plot of spans of time as SVG that lies in an HTML page: it takes the page's colours, and its width.

Places along the time are percentages, so that bars grow with the page while letters keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpu_image.report.elements import text

_ROW = 38
_LABEL = 14
_BAR = 12
_AXIS = 24
_NARROWEST = 0.25
"""Per cent of the width that a bar has at least: one of no width is not drawn."""

_TICKS = 6
"""Ticks at most: more would touch each other on a telephone."""


class Span(NamedTuple):
    """Something that lasted from one second to another; ``ours`` where it is a part of what this project installs."""

    label: str
    start: float
    end: float
    ours: bool = False


def plot(spans: Sequence[Span], title: str) -> str:
    """Draw spans under each other, each with its label and how long it took; nothing where there are none.

    Args:
        spans: in seconds, none negative.
        title: what the plot shows, for who cannot see it.
    """
    if not spans:
        return ""
    step, last = _scale(max(span.end for span in spans))
    height = len(spans) * _ROW
    rows = "".join(_row(span, place * _ROW, last) for place, span in enumerate(spans))
    axis = "".join(_ticks(step, last, height))
    described = text(f"{title}: {'; '.join(_label(span) for span in spans)}"[:2000])
    return f'<svg role="img" aria-label="{described}" height="{height + _AXIS}">{axis}{rows}</svg>'


def seconds(value: float) -> str:
    """Write a duration with as many digits as tell something."""
    return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def _scale(longest: float) -> tuple[float, float]:
    """Give the distance of ticks, one of 1, 2 and 5 times a power of ten, and where the axis ends."""
    rough = max(longest, 1e-3) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    return step, step * max(1, math.ceil(longest / step - 1e-9))


def _label(span: Span) -> str:
    """The duration comes first: on a narrow page the end of a long name is cut off."""
    ours = "ours: " if span.ours else ""
    return f"{seconds(span.end - span.start)} {ours}{span.label}"


def _row(span: Span, top: int, last: float) -> str:
    width = max(100 * (span.end - span.start) / last, _NARROWEST)
    left = min(100 * span.start / last, 100 - width)
    kind = "ours" if span.ours else "bar"
    return (
        f'<text x="0" y="{top + _LABEL}">{text(_label(span))}</text>'
        f'<rect class="{kind}" x="{left:.3f}%" y="{top + _LABEL + 5}" width="{width:.3f}%" height="{_BAR}" rx="2"/>'
    )


def _ticks(step: float, last: float, height: int) -> Iterator[str]:
    count = round(last / step)
    for number in range(count + 1):
        place = 100 * number / count
        anchor = "start" if number == 0 else "end" if number == count else "middle"
        yield f'<line class="grid" x1="{place:.3f}%" x2="{place:.3f}%" y1="0" y2="{height}"/>'
        label = f"{number * step:g} s"
        yield f'<text class="axis" x="{place:.3f}%" y="{height + 16}" text-anchor="{anchor}">{label}</text>'
