"""Reading journals back: what is torn is dropped, what is broken is named."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.book import LineReader, read_whole_lines
from rollbook.core import add_crc
from rollbook.errors import BookError


class Thing(msgspec.Struct):
    n: int


def write(folder: Path, data: bytes) -> Path:
    path = folder / "w.1.jsonl"
    path.write_bytes(data)
    return path


def numbers(path: Path, stop: int = 1 << 62) -> list[int]:
    """The numbers in a file without checksums."""
    return [thing.n for _, thing in LineReader(Thing, 1).read(path, stop)]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    assert numbers(write(tmp_path, b'{"n":1}\n{"n":2}\n{"n":')) == [1, 2]


@pytest.mark.parametrize("crc", [False, True])
@pytest.mark.parametrize("end", [b"\0", b"\0" * 5000, b'{"n":\0\0\0'])
def test_nul_bytes_up_to_the_end_are_torn(tmp_path: Path, end: bytes, crc: bool) -> None:
    reader = LineReader(Thing, 2 if crc else 1)
    path = write(tmp_path, make_line(1, crc) + make_line(2, crc) + end)
    assert ([thing.n for _, thing in reader.read(path)], reader.damaged) == ([1, 2], [])


@pytest.mark.parametrize("crc", [False, True])
def test_nul_bytes_before_a_line_are_damage_and_what_follows_is_read(tmp_path: Path, crc: bool) -> None:
    reader = LineReader(Thing, 2 if crc else 1)
    path = write(tmp_path, make_line(1, crc) + b"\0\0\0\0" + make_line(2, crc) + make_line(3, crc))
    assert [thing.n for _, thing in reader.read(path)] == [1, 3]
    assert [(line.path, line.number) for line in reader.damaged] == [(path, 2)]


def make_line(n: int, crc: bool = True) -> bytes:
    plain = b'{"n":%d}' % n
    return (add_crc(plain) if crc else plain) + b"\n"


def test_the_checksum_can_be_computed_without_our_code() -> None:
    line = make_line(7).rstrip(b"\n")
    body, _, rest = line.rpartition(b',"crc":')
    assert json.loads(line) == {"n": 7, "crc": f"{zlib.crc32(body):08x}"}
    assert rest == b'"%08x"}' % zlib.crc32(body)


@given(count=st.integers(1, 8), data=st.data())
def test_no_changed_byte_changes_a_line_and_at_most_two_lines_are_lost(
    tmp_path_factory: pytest.TempPathFactory, count: int, data: st.DataObject
) -> None:
    content = bytearray(b"".join(make_line(100 + n) for n in range(count)))
    at, change = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 255))
    content[at] ^= change
    reader = LineReader(Thing, 2)
    path = write(tmp_path_factory.mktemp("changed"), bytes(content))
    read = [thing.n for _, thing in reader.read(path)]
    assert set(read) < set(range(100, 100 + count))
    assert len(read) >= count - 2
    assert reader.damaged or at >= len(content) - 1


@pytest.mark.parametrize("block_bytes", [1, 5, 64, 1 << 18])
@pytest.mark.parametrize("schema", [1, 2])
def test_a_line_without_a_checksum_among_others_is_damaged_wherever_it_is(
    tmp_path: Path, schema: int, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.book.json_lines.BLOCK_BYTES", block_bytes)
    for lines in ([make_line(1, False), make_line(2)], [make_line(2), make_line(1, False)]):
        reader = LineReader(Thing, schema)
        assert [thing.n for _, thing in reader.read(write(tmp_path, b"".join(lines)))] == [2]
        assert [line.why for line in reader.damaged] == ["the checksum is missing"]


@pytest.mark.parametrize(
    "line", [b'{"n":1}', add_crc(b'{"n":1}')[:-1] + b"]", add_crc(b'{"n":1}').replace(b"crc", b"crX")]
)
def test_the_only_line_of_a_file_needs_a_checksum_in_schema_2(tmp_path: Path, line: bytes) -> None:
    reader = LineReader(Thing, 2)
    assert list(reader.read(write(tmp_path, line + b"\n"))) == []
    assert [(each.number, each.why) for each in reader.damaged] == [(1, "the checksum is missing")]


def test_text_that_is_not_utf8_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    class Named(msgspec.Struct):
        name: str

    with pytest.raises(BookError, match=r"w\.1\.jsonl:1: malformed line"):
        list(LineReader(Named, 1).read(write(tmp_path, b'{"name":"\xff"}\n')))


def test_a_malformed_line_in_the_middle_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    with pytest.raises(BookError, match=r"w\.1\.jsonl:2: malformed line"):
        numbers(write(tmp_path, b'{"n":1}\n{"n":\n{"n":3}\n'))


def test_reading_stops_at_a_sealed_extent(tmp_path: Path) -> None:
    assert numbers(write(tmp_path, b'{"n":1}\n{"n":2}\n'), stop=8) == [1]


@given(lines=st.lists(st.integers(0, 10**9), max_size=40), cut=st.integers(0, 400))
def test_any_cut_loses_only_lines_behind_it(
    tmp_path_factory: pytest.TempPathFactory, lines: list[int], cut: int
) -> None:
    data = b"".join(b'{"n":%d}\n' % n for n in lines)
    path = write(tmp_path_factory.mktemp("cut"), data[:cut])
    whole = data[:cut].count(b"\n")
    assert numbers(path) == lines[:whole]
    assert [end for end, _ in read_whole_lines(path)] == [i + 1 for i, b in enumerate(data[:cut]) if b == 10]


def test_lines_longer_than_a_block_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.book.json_lines.BLOCK_BYTES", 5)
    assert numbers(write(tmp_path, b'{"n":123456789}\n{"n":2}\n')) == [123456789, 2]


def test_reading_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"n":1}\n{"n":2}\n{"n":x}\n{"n')
    reader = LineReader(Thing, 1).read(path, start=8, first_number=2)
    assert next(reader) == (16, Thing(2))
    with pytest.raises(BookError, match=r"w\.1\.jsonl:3: malformed line"):
        next(reader)
