"""The HTML page: what it shows, and that nothing shown can become a part of it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings

import reports
from lab_results import PANICKED, RESULT, any_result
from tpu_image.lab.result import BootResult
from tpu_image.report import boot_page, elements, html
from tpu_image.report.model import Report
from tpu_image.report.timeline import Span, plot

VOID = {"meta", "br", "line", "rect", "input"}
ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "div",
        "span",
        "strong",
        "code",
        "pre",
    ),
    *(
        "dl",
        "dt",
        "dd",
        "ul",
        "li",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "section",
    ),
    *("figure", "figcaption", "svg", "text", "rect", "line"),
}


class Page(HTMLParser):
    """A page taken apart: tags well nested, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.problems: list[str] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        if self.open:
            self.problems.append(f"never closed: {self.open}")

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ALLOWED:
            self.problems.append(f"tag {tag}")
        for name, value in attributes:
            if name.startswith("on") or name in ("src", "href", "style"):
                self.problems.append(f"attribute {name}={value}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.problems.append(f"tag {tag}")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"end of {tag}")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def boot(result: BootResult) -> Page:
    return Page(boot_page.render(result, (reports.Thp(),)))


def test_a_check_shows_verdicts_evidence_and_remedy() -> None:
    page = Page(html.render(reports.report(*reports.EVERY_STATUS)))
    assert page.problems == []
    for words in (
        "✗ not passed",
        "1 pass, 1 fail, 1 warn, 1 skip, 1 unknown",
        "✗ fail kernel.thp Huge pages are always on",
        "/boot/grub/grub.cfg:7 , found always,sm_on , expected always",
        "Remedy: run: tpu-image apply",
        "- skip gke.tools GKE alone needs it",
    ):
        assert words in page.text
    assert page.text.index("What needs attention") < page.text.index("Verdicts")


def test_a_check_without_verdicts_did_not_pass() -> None:
    assert "✗ not passed nothing was checked" in Page(html.render(reports.report())).text


PASSED = (
    "✓ passed reported after 84.2 s 5 pass, 1 skip",
    "v6e:4; 2 CPUs, 4096 MiB, BIOS",
    "QEMU 11.1.3, TCG: /dev/kvm does not boot a guest",
    "976,872,557 bytes",
    "✓ unchanged",
    "10.3 s host: kernel",
    "52.7 s guest: userspace",
    "0.61 s ours: tpu-image-environment.service",
    "Our units held the boot up for 0.62 s, 0.9% of it.",
    "21.4 s cloud-init.service",
    "0000:00:0b.0 v6e 1ae0:006f 1ae0:00d1 vfio-pci 7 /dev/vfio/7 0666 0:0",
    "✓ group: 7 of 7 calls succeed",
    "✓ cdev: 2 of 2 calls succeed",
    "4 requests",
    "no answer metadata=down:5s",
    "[ OK ] Reached target multi-user.target.",
    "4 devices",
)
FAILED = (
    "✗ not passed panicked after 140 s: Kernel panic - not syncing: VFS",
    "✗ changed by the boot",
    "✗ fail machine.devices",
    "1 of 4 functions is not bound to vfio-pci: 0000:00:0b.0",
    "? unknown machine.agent",
    "! warn support.distribution",
    "✗ failed: exit-code tpu-image-environment.service",
    "✗ group: open group: Permission denied",
    "/dev/vfio/7 0600",
    "Failed units tpu-image-environment.service docker.service",
    "huge_memory: transparent_hugepage= cannot parse, ignored",
    "✗ service mlock: Cannot allocate memory",
    "✗ did not end in time after 60.0 s",
    "systemd-analyze did not answer within 30 s",
)


@pytest.mark.parametrize(("result", "expected"), [(RESULT, PASSED), (PANICKED, FAILED)], ids=["good", "bad"])
def test_a_boot_shows_everything_that_is_known(result: BootResult, expected: tuple[str, ...]) -> None:
    page = boot(result)
    assert page.problems == []
    assert [words for words in expected if words not in page.text] == []


def test_a_console_shows_what_was_printed_last_on_each_line() -> None:
    page = elements.lines("10 %\r50 %\rdone\r\n\x1b[31mred\x1b[0m\x1b]0;title\x07 <b>\n\ttab\x00")
    assert page == "<pre>done\nred &lt;b&gt;\n    tab\\x00</pre>"


def test_of_a_long_console_the_end_is_shown() -> None:
    page = elements.lines("\n".join(str(number) for number in range(6000)))
    assert "1000 earlier lines are left out" in page
    assert "\n5999</pre>" in page
    assert ">999\n" not in page


def test_the_page_may_fetch_and_run_nothing() -> None:
    page = boot_page.render(RESULT, ())
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|url\(|@import|<script|<link|<img", page)


@settings(max_examples=50)
@given(any_result)
def test_any_boot_is_a_well_formed_page(result: BootResult) -> None:
    page = boot_page.render(result, ())
    assert Page(page).problems == []
    page.encode()


@given(reports.reports)
def test_any_check_is_a_well_formed_page(report: Report) -> None:
    page = html.render(report)
    assert Page(page).problems == []
    page.encode()


def test_our_units_stand_in_the_order_in_which_they_started() -> None:
    page = boot(RESULT).text
    assert page.index("0.32 s ours: tpu-image-system") < page.index("0.61 s ours: tpu-image-environment")


def test_bars_stand_where_their_seconds_are() -> None:
    drawn = plot([Span("a", 0, 5), Span("b", 5, 10, ours=True), Span("c", 2.5, 2.5)], "Plot")
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" y="\d+" width="([\d.]+)%"', drawn)
    assert bars == [("bar", "0.000", "50.000"), ("ours", "50.000", "50.000"), ("bar", "25.000", "0.250")]
    assert re.findall(r'class="axis"[^>]*>([^<]*)<', drawn) == ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"]


@pytest.mark.parametrize("longest", [0, 1e-9, 0.003, 0.07, 1, 59.9, 60, 61, 3600, 1e7])
def test_an_axis_has_few_round_ticks_and_no_bar_leaves_it(longest: float) -> None:
    drawn = plot([Span("a", 0, longest)], "Plot")
    ticks = re.findall(r'class="axis"', drawn)
    assert 2 <= len(ticks) <= 8
    (width,) = re.findall(r'width="([\d.]+)%"', drawn)
    assert float(width) <= 100
