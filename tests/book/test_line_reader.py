"""Reading journals back: what is torn is dropped, what is broken is named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.book import LineReader, read_whole_lines
from rollbook.errors import BookError


class Thing(msgspec.Struct):
    n: int


def write(folder: Path, data: bytes) -> Path:
    path = folder / "w.1.jsonl"
    path.write_bytes(data)
    return path


def numbers(path: Path, stop: int = 1 << 62) -> list[int]:
    return [thing.n for _, thing in LineReader(Thing).read(path, stop)]


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    assert numbers(write(tmp_path, b'{"n":1}\n{"n":2}\n{"n":')) == [1, 2]


def test_everything_after_a_nul_byte_is_torn(tmp_path: Path) -> None:
    assert numbers(write(tmp_path, b'{"n":1}\n\0\0\0\0{"n":2}\n{"n":3}\n')) == [1]


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
    reader = LineReader(Thing).read(path, start=8, first_number=2)
    assert next(reader) == (16, Thing(2))
    with pytest.raises(BookError, match=r"w\.1\.jsonl:3: malformed line"):
        next(reader)
