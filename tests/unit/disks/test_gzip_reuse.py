"""What is deflated already is carried over only where it decodes to the same bytes amid other parts."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from disk_tools import run, sparse, whole
from tpu_image.disks.archive import write_archive
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.gzip_member import Chunk, deflate, joined, reuse, write_member
from tpu_image.disks.image import open_image

MIB = 1 << 20

texts = st.binary(max_size=300) | st.lists(st.sampled_from([b"the ", b"same ", b"words "]), max_size=400).map(
    b"".join
)
streams = st.tuples(texts, st.integers(0, 9), st.sampled_from([zlib.Z_DEFAULT_STRATEGY, zlib.Z_FIXED]))


def deflated(data: bytes, level: int, strategy: int) -> bytes:
    stream = zlib.compressobj(level, zlib.DEFLATED, -12, 9, strategy)
    return stream.compress(data) + stream.flush()


def member(*chunks: Chunk) -> bytes:
    sink = io.BytesIO()
    write_member([lambda chunk=chunk: chunk for chunk in chunks], sink, threads=1)  # type: ignore[misc]
    return sink.getvalue()


@given(st.lists(streams, max_size=8))
def test_streams_that_are_carried_over_decode_in_any_order_with_others(
    made: list[tuple[bytes, int, int]],
) -> None:
    chunks = [reuse(deflated(*one), len(one[0])) or deflate(one[0]) for one in made]
    wanted = b"".join(data for data, _, _ in made)
    assert gzip.decompress(member(*chunks)) == wanted
    if chunks:
        assert gzip.decompress(member(deflate(b"before"), joined(chunks), deflate(b"behind"))) == (
            b"before" + wanted + b"behind"
        )


def test_an_ordinary_stream_is_carried_over() -> None:
    chance, carried = random.Random(1), 0
    for _ in range(200):
        data = bytes(chance.choice(b"some letters ") for _ in range(chance.randrange(100, 5000)))
        stream = deflated(data, 6, zlib.Z_DEFAULT_STRATEGY)
        chunk = reuse(stream, len(data))
        assert chunk is not None
        assert len(chunk.deflated) - len(stream) in (4, 5)
        carried += len(chunk.deflated) - len(stream) == 5
    assert 0 < carried < 200, "both places of the header are met"


@given(st.data())
def test_a_damaged_stream_is_not_carried_over(data: st.DataObject) -> None:
    text = b"some words and some more words " * 20
    stream = bytearray(deflated(text, 6, zlib.Z_DEFAULT_STRATEGY))
    for _ in range(data.draw(st.integers(0, 3))):
        stream[data.draw(st.integers(0, len(stream) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = bytes(stream[: data.draw(st.integers(0, len(stream)))]) + data.draw(st.binary(max_size=3))
    chunk = reuse(cut, len(text))
    if chunk is not None:
        content = gzip.decompress(member(chunk))
        assert (len(content), zlib.crc32(content)) == (len(text), chunk.crc)


def test_an_archive_of_a_compressed_base_is_as_small_and_holds_the_edits(tmp_path: Path) -> None:
    words = [random.Random(2).randbytes(6) for _ in range(500)]
    chance = random.Random(3)
    text = b"".join(chance.choice(words) for _ in range(700_000))
    raw = sparse(tmp_path / "raw", 8 * MIB, {MIB: text, 6 * MIB: chance.randbytes(300_000)})
    run("qemu-img", "convert", "-c", "-O", "qcow2", raw, tmp_path / "base")
    with open_image(tmp_path / "base") as base:
        disk = EditedDisk(base, 8 * MIB)
        disk.write_at(2 * MIB + 70_000, b"edited")
        disk.discard([(3 * MIB + 4096, 8192)])
        with (tmp_path / "out.tar.gz").open("wb") as file:
            result = write_archive(disk, file, modified=0, threads=2)
        wanted = whole(disk)
        carried = [reuse(base.stored_deflate(at) or b"", base.unit) for at in range(MIB, 2 * MIB, base.unit)]
        assert sum(chunk is not None for chunk in carried) >= 15
        assert disk.stored_deflate(2 * MIB + 65_536) is None
        assert disk.stored_deflate(3 * MIB) is None
    assert result.size < (tmp_path / "base").stat().st_size * 1.02
    run("tar", "-C", tmp_path, "-xzSf", tmp_path / "out.tar.gz")
    assert (tmp_path / "disk.raw").read_bytes() == wanted
