from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpu_image.downloads import cache
from tpu_image.downloads.download import Limits, download, split_sha256, web_url
from tpu_image.downloads.errors import DownloadError
from web_server import Handle, Handler, Site, cut, cut_headers, drip, drip_headers, endless, fail

QUICK = Limits(timeout=2, pause=0.01, longest_pause=0.05, window=0.2, tries=3)
"""Patience enough for a test."""


def get(site: Site, **options: Any) -> Path:
    return download(site.url, **{"limits": QUICK, **options})


def leftovers(own_cache: Path) -> list[str]:
    return [path.name for path in (own_cache / "downloads").iterdir() if ".part" in path.name]


def test_a_file_comes_whole_and_its_sha256_is_recorded(site: Site, own_cache: Path) -> None:
    path = get(site)
    assert path.read_bytes() == site.content
    about = cache.about(path)
    assert about is not None
    assert (about.origin, about.sha256) == (site.url, site.sha256)
    assert leftovers(own_cache) == []


def test_progress_tells_bytes_total_and_rate(site: Site) -> None:
    told: list[tuple[int, int, float]] = []
    get(site, report=lambda *state: told.append(state))
    assert told[-1][:2] == (len(site.content), len(site.content))
    assert told[-1][2] > 0


def test_a_cut_connection_goes_on_where_it_was_cut(site: Site) -> None:
    site.script = [cut(1000)]
    assert get(site, sha256=site.sha256).read_bytes() == site.content
    assert site.asked_ranges == ["", "bytes=1000-"]
    assert site.requests[1]["If-Range"] == '"one"'


def test_an_answer_that_ends_among_its_headers_is_no_empty_file(site: Site) -> None:
    site.script = [cut_headers]
    assert get(site).read_bytes() == site.content


def test_an_empty_file_is_a_file(site: Site) -> None:
    site.content = b""
    assert get(site).read_bytes() == b""


def test_what_an_interrupted_run_fetched_is_used_by_the_next(site: Site) -> None:
    site.script = [cut(5000), fail(404)]
    with pytest.raises(DownloadError, match="404"):
        get(site)
    assert get(site, sha256=site.sha256).read_bytes() == site.content
    assert site.asked_ranges == ["", "bytes=5000-", "bytes=5000-"]


def wrong_part(handler: Handler) -> None:
    size = len(handler.site.content)
    headers = {
        "ETag": '"one"',
        "Content-Range": f"bytes 7-{size - 1}/{size}",
        "Content-Length": str(size - 7),
    }
    handler.answer(206, headers, handler.site.content[7:])


def part_of_another_version(handler: Handler) -> None:
    size = len(handler.site.content)
    headers = {"ETag": '"two"', "Content-Range": f"bytes 1000-{size - 1}/{size}"}
    handler.answer(206, headers | {"Content-Length": str(size - 1000)}, bytes(size - 1000))


@pytest.mark.parametrize(
    "second",
    [
        cut(2000, '"two"'),
        wrong_part,
        part_of_another_version,
        fail(416),
        fail(416, Content_Range="bytes */5"),
    ],
    ids=["another version", "wrong part", "part of another version", "shorter now", "says it is shorter"],
)
def test_bytes_of_another_version_are_never_joined(site: Site, second: Handle) -> None:
    site.script = [cut(1000), second]
    site.etag = '"two"' if second is not wrong_part else '"one"'
    assert get(site, sha256=site.sha256).read_bytes() == site.content


MISBEHAVIOUR = {
    "cut early": cut(1000),
    "cut late": cut(90_000),
    "cut at once": cut(0),
    "another version, cut": cut(5000, '"two"'),
    "no version, cut": cut(3000, ""),
    "headers cut": cut_headers,
    "busy": fail(503),
    "range refused": fail(416),
    "wrong part": wrong_part,
    "part of another version": part_of_another_version,
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(names=st.lists(st.sampled_from(sorted(MISBEHAVIOUR)), max_size=6), number=st.integers(0, 1 << 30))
def test_whatever_the_server_does_before_the_file_is_right(site: Site, names: list[str], number: int) -> None:
    site.content = b"%010d" % number * 10_000
    site.script = [MISBEHAVIOUR[name] for name in names]
    path = get(site, limits=Limits(timeout=2, pause=0, longest_pause=0, tries=10))
    assert path.read_bytes() == site.content
    cache.release(path)
    path.unlink()


def test_a_server_that_knows_no_ranges_gives_the_file_anew(site: Site) -> None:
    site.ranges = False
    site.script = [cut(1000)]
    assert get(site).read_bytes() == site.content


def test_without_a_validator_nothing_is_resumed(site: Site) -> None:
    site.etag = ""
    site.script = [cut(1000, "")]
    assert get(site).read_bytes() == site.content
    assert site.asked_ranges == ["", ""]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again_after_the_time_it_names(site: Site, status: int) -> None:
    site.script = [fail(status, Retry_After="30"), fail(status)]
    notes: list[str] = []
    assert get(site, note=notes.append).read_bytes() == site.content
    assert len(site.requests) == 3
    assert f"the server answers {status}" in notes[0]


def test_tries_that_bring_nothing_are_bounded(site: Site, own_cache: Path) -> None:
    site.script = [fail(503)] * 50
    with pytest.raises(DownloadError, match=r"503 .*3 times; try again later"):
        get(site)
    assert len(site.requests) == 3
    assert leftovers(own_cache) == []


def test_a_server_that_changes_its_mind_forever_is_given_up(site: Site) -> None:
    site.script = [cut(10 + number, f'"{number}"') for number in range(300)]
    with pytest.raises(DownloadError):
        get(site, limits=Limits(pause=0, longest_pause=0))
    assert len(site.requests) <= 100


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_final(site: Site, status: int) -> None:
    site.script = [fail(status)]
    with pytest.raises(DownloadError, match=f"{site.url}: the server answers {status}.*; check the address"):
        get(site)
    assert len(site.requests) == 1


def test_a_redirect_is_followed(site: Site) -> None:
    site.script = [fail(302, Location="/elsewhere")]
    assert get(site).read_bytes() == site.content


@pytest.mark.parametrize("target", ["/base.img", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_redirects_lead_neither_in_circles_nor_out_of_the_web(site: Site, target: str) -> None:
    site.script = [fail(302, Location=target)] * 30
    with pytest.raises(DownloadError):
        get(site)
    assert len(site.requests) <= 11


def test_an_endless_body_ends_at_the_size_limit(site: Site, own_cache: Path) -> None:
    site.script = [endless]
    with pytest.raises(DownloadError, match="larger than 3 MiB"):
        get(site, limits=Limits(size=3 << 20))
    assert leftovers(own_cache) == []


def test_a_size_over_the_limit_is_refused_by_its_announcement(site: Site) -> None:
    with pytest.raises(DownloadError, match="larger than 0 MiB"):
        get(site, limits=Limits(size=100))


@pytest.mark.parametrize("slow", [drip(0.01), drip_headers], ids=["body", "headers"])
def test_a_trickle_is_not_waited_for(site: Site, slow: Handle) -> None:
    site.script = [slow]
    path = get(site, limits=Limits(timeout=0.3, pause=0, window=0.3, slowest=100_000))
    assert path.read_bytes() == site.content


def test_another_sha256_is_an_error_that_leaves_nothing(site: Site, own_cache: Path) -> None:
    with pytest.raises(DownloadError, match=f"its sha256 is {site.sha256}, not {'0' * 64}"):
        get(site, sha256="0" * 64)
    assert list((own_cache / "downloads").iterdir()) == []


def test_a_copy_with_the_sha256_is_used_without_asking(site: Site) -> None:
    path = get(site)
    assert download("https://nowhere.invalid/other", sha256=site.sha256) == path
    assert len(site.requests) == 1


def test_without_a_sha256_the_server_says_whether_a_copy_is_current(site: Site) -> None:
    first = get(site)
    assert get(site) == first
    assert site.requests[1]["If-None-Match"] == '"one"'
    site.content, site.etag = b"new", '"two"'
    assert get(site).read_bytes() == b"new"


def test_a_server_that_is_down_leaves_the_copy_of_the_cache(site: Site) -> None:
    first = get(site)
    site.script = [fail(503)] * 50
    notes: list[str] = []
    assert get(site, note=notes.append) == first
    assert notes[-1].endswith("the copy in the cache is used")


def test_a_server_that_is_not_there_is_named(own_cache: Path) -> None:
    with pytest.raises(DownloadError, match=r"http://127\.0\.0\.1:9/x: Connection refused, 3 times"):
        download("http://127.0.0.1:9/x", limits=QUICK)


def test_a_signature_in_a_url_is_neither_shown_nor_kept(site: Site, own_cache: Path) -> None:
    site.url += "?X-Goog-Signature=secret"
    path = get(site)
    site.script = [fail(404)]
    with pytest.raises(DownloadError) as error:
        get(site)
    kept = b"".join(path.read_bytes() for path in (own_cache / "downloads").glob("*.json"))
    assert b"secret" not in kept + str(path).encode() + str(error.value).encode()


def test_two_runs_at_once_fetch_once(site: Site) -> None:
    code = (
        "import sys; from tpu_image.downloads.download import download;"
        "print(download(sys.argv[1], sha256=sys.argv[2]).read_bytes() == bytes(range(256)) * 400)"
    )
    site.script = [drip(0.002, 512)]
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, site.url, site.sha256], stdout=subprocess.PIPE, text=True, env=env
        )
        for env in [{**os.environ, "PYTHONPATH": str(Path(cache.__file__).parents[2])}] * 3
    ]
    assert [run.communicate()[0] for run in runs] == ["True\n"] * 3
    assert len(site.requests) == 1


def test_no_room_is_one_line_and_leaves_nothing(
    site: Site, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((DownloadError, OSError), match="No space left on device"):
        get(site)
    assert leftovers(own_cache) == []


def test_a_file_url_is_used_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a b.img"
    path.write_bytes(b"x")
    assert download(path.as_uri(), sha256=hashlib.sha256(b"x").hexdigest()) == path
    with pytest.raises(DownloadError, match="its sha256 is"):
        download(path.as_uri(), sha256="0" * 64)
    with pytest.raises(DownloadError, match="is no file"):
        download((tmp_path / "none").as_uri())


def test_a_proxy_of_the_environment_is_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", site.url.rpartition("/")[0])
    assert download("http://nowhere.invalid/base.img", limits=QUICK).read_bytes() == site.content


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("gs://bucket/a b/disk.raw", "https://storage.googleapis.com/bucket/a%20b/disk.raw"),
        ("https://host/x", "https://host/x"),
    ],
)
def test_urls_as_they_are_asked_for(url: str, expected: str) -> None:
    assert web_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/x", "https://user:secret@host/x", "data://x", "http://[::1", "http://a b/"),
        *("gs://bucket/\udcff", "https://host/\udcff", "https://host/\n"),
    ],
)
def test_urls_that_are_refused_in_one_line(url: str) -> None:
    with pytest.raises(DownloadError) as error:
        download(url, limits=QUICK)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_fragment_names_the_sha256() -> None:
    assert split_sha256("https://host/x#sha256=ab") == ("https://host/x", "ab")
    assert split_sha256("https://host/x#y") == ("https://host/x#y", "")
