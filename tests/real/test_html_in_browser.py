"""The HTML page in a real browser: nothing sticks out, nothing is complained about, the verdicts can be read."""

from __future__ import annotations

import functools
import html as escaping
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import reports
from lab_results import PANICKED, RESULT, device
from tpu_image.catalogue.requirement import Status, Verdict
from tpu_image.report import boot_page, html

pytestmark = pytest.mark.real

LONG = "x" * 900
HOSTILE = replace(
    PANICKED,
    machine=LONG,
    verdicts=(Verdict("machine.devices", Status.FAIL, LONG, (), LONG),),
    guest=replace(
        PANICKED.guest,
        devices=(device()._replace(address=LONG, driver=LONG, group=LONG, generation=LONG),),
        failed_units=("<script>document.title='run'</script>", LONG),
    ),
)
PAGES = {
    "good": boot_page.render(RESULT, (reports.Thp(),)),
    "bad": boot_page.render(PANICKED, (reports.Thp(),)),
    "hostile": boot_page.render(HOSTILE, ()),
    "check": html.render(reports.report(*reports.EVERY_STATUS)),
}
VISIBLE = {
    "good": [
        "passed",
        "4 functions of 4 v6e chips are bound to vfio-pci",
        "group: 7 of 7 calls succeed",
    ],
    "bad": ["not passed", "the kernel rejected transparent_hugepage", "Kernel panic - not syncing"],
    "hostile": ["not passed", "<script>document.title='run'</script>"],
    "check": ["not passed", "transparent_hugepage is mangled", "Remedy: run: tpu-image apply"],
}
LOOK = """<!DOCTYPE html><title>look</title>
<iframe id=page src=PAGE.html style="width:WIDTHpx;height:900px;border:0"></iframe><pre id=found></pre>
<script>
const page = document.getElementById("page");
page.onload = () => {
  const inside = page.contentDocument, root = inside.documentElement;
  document.getElementById("found").textContent = JSON.stringify({
    overflow: root.scrollWidth - root.clientWidth,
    title: inside.title,
    text: inside.body.innerText,
    plots: inside.querySelectorAll("svg rect").length,
  });
};
</script>
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The pages, and beside each one that looks at it: a script of its own the page would not let run."""
    folder = tmp_path_factory.mktemp("site")
    for name, page in PAGES.items():
        (folder / f"{name}.html").write_text(page)
        for width in (360, 1200):
            looking = LOOK.replace("PAGE", name).replace("WIDTH", str(width))
            (folder / f"look-{name}-{width}.html").write_text(looking)
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def browse(url: str, profile: Path) -> tuple[str, str]:
    """What Chromium makes of a page, and what it says about it."""
    program = shutil.which("chromium")
    assert program, "chromium is not installed: apt-get install chromium"
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
    ]
    done = subprocess.run(
        [program, *flags, "--virtual-time-budget=10000", "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_and_can_be_read(site: str, tmp_path: Path, name: str, width: int) -> None:
    page, said = browse(f"{site}/look-{name}-{width}.html", tmp_path)
    match = re.search(r'<pre id="found">(.+?)</pre>', page, re.DOTALL)
    assert match, page
    found = json.loads(escaping.unescape(match[1]))
    assert found["overflow"] <= 0
    assert [words for words in VISIBLE[name] if words not in found["text"]] == []
    assert found["title"].startswith("tpu-image: ")
    assert (found["plots"] > 5) == (name != "check")
    assert [line for line in said.splitlines() if "CONSOLE" in line and "favicon" not in line] == []


def test_a_page_has_no_complaint_on_its_own_and_asks_for_nothing(site: str, tmp_path: Path) -> None:
    _, said = browse(f"{site}/bad.html", tmp_path)
    assert [line for line in said.splitlines() if "CONSOLE" in line] == []
