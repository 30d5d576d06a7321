from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from rollbook.book import LineReader, json_lines, number_damaged_lines, read_whole_lines
from rollbook.book.counted_lines import ScoredLineHeader
from rollbook.core import Extent, add_crc, encode, encode_line, make_scored_line
from rollbook.errors import BookError
from rollbook.reports.journal_columns import UNKNOWN_TASK, normalize_answer, read_journal_columns
from rollbook.reports.run_columns import split_by_size
from support.books import make_book, scored

ROWS = {"t0": 0, "t1": 1}


@pytest.fixture
def lines(tmp_path: Path) -> list[bytes]:
    book = make_book(tmp_path / "run", tasks=3, samples=5)
    return [encode_line(make_scored_line(scored(book, row, sample), [None])) for row in range(3) for sample in range(5)]


@pytest.mark.parametrize("size", [64, 700, 1500, 1 << 20])
@pytest.mark.parametrize("end", [b"", b'{"torn', b"\0\0"])
def test_lines_are_the_same_in_blocks_of_any_size(
    tmp_path: Path, lines: list[bytes], size: int, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.1.jsonl"
    path.write_bytes(b"".join(lines) + end)
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", size)
    found = read_journal_columns(path, 1, ROWS)
    assert found.ends.tolist() == [end for end, _ in read_whole_lines(path)]
    assert found.sample.tolist() == list(range(5)) * 3
    assert found.columns.task.tolist() == [0] * 5 + [1] * 5 + [UNKNOWN_TASK] * 5
    assert found.read_task_id(14) == "t2"


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize("size", [64, 1500, 1 << 20])
@pytest.mark.parametrize("damage", [b"\0", b"7", b"\n"])
def test_damaged_lines_are_skipped_and_named_as_by_the_reader_of_lines(
    tmp_path: Path, lines: list[bytes], schema: int, size: int, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.1.jsonl"
    content = bytearray(b"".join(add_crc(line.rstrip()) + b"\n" for line in lines))
    at = len(content) // 2
    content[at : at + 1] = damage
    path.write_bytes(content)
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", size)
    reader = LineReader(ScoredLineHeader, schema)
    ends = [end for end, _ in reader.read(path)]
    found = read_journal_columns(path, schema, ROWS)
    assert (found.ends.tolist(), found.damaged.tolist()) == (ends, [line.end for line in reader.damaged])
    assert number_damaged_lines(path, schema, set(found.damaged.tolist())) == reader.damaged
    assert len(ends) == 14
    assert found.read_task_id(13) == "t2"


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize("size", [64, 1500, 1 << 20])
@pytest.mark.parametrize(("old", "new"), [(b'"}\n', b'"]\n'), (b'"crc"', b'"crX"')])
def test_a_first_line_that_lost_its_checksum_is_damaged_in_blocks_of_any_size(
    tmp_path: Path,
    lines: list[bytes],
    schema: int,
    size: int,
    old: bytes,
    new: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "w.1.jsonl"
    content = b"".join(add_crc(line.rstrip()) + b"\n" for line in lines)
    path.write_bytes(content.replace(old, new, 1))
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", size)
    reader = LineReader(ScoredLineHeader, schema)
    ends = [end for end, _ in reader.read(path)]
    found = read_journal_columns(path, schema, ROWS)
    assert (found.ends.tolist(), found.damaged.tolist()) == (ends, [content.index(b"\n") + 1])
    assert number_damaged_lines(path, schema, set(found.damaged.tolist())) == reader.damaged
    assert [(line.number, line.why) for line in reader.damaged] == [(1, "the checksum is missing")]


def test_the_only_line_needs_a_checksum_in_schema_2(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "w.1.jsonl"
    path.write_bytes(lines[0])
    counts = [(len(found.ends), len(found.damaged)) for found in (read_journal_columns(path, n, ROWS) for n in (1, 2))]
    assert counts == [(1, 0), (0, 1)]


def test_the_checksums_of_sealed_lines_are_not_compared_again(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes are covered by the extents; lines behind them are checked."""
    path = tmp_path / "w.1.jsonl"
    checked = [add_crc(line.rstrip()) + b"\n" for line in lines]
    for number in (3, 12):
        checked[number] = checked[number].replace(b'"reward":1.0', b'"reward":7.0')
    path.write_bytes(b"".join(checked))
    sealed = sum(map(len, checked[:10]))
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 64)
    assert read_journal_columns(path, 2, ROWS, [sealed]).damaged.tolist() == [sum(map(len, checked[:13]))]
    assert read_journal_columns(path, 2, ROWS, [len(b"".join(checked))]).damaged.tolist() == []


def test_the_hashes_of_sealed_beginnings_are_taken_on_the_way(
    tmp_path: Path, lines: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.1.jsonl"
    whole = b"".join(lines) + b'{"torn'
    path.write_bytes(whole)
    monkeypatch.setattr(json_lines, "BLOCK_BYTES", 1000)
    sizes = [0, 1, len(lines[0]), 1000, 2500, len(whole)]
    expected = {Extent(size, hashlib.sha256(whole[:size]).hexdigest()) for size in sizes}
    assert read_journal_columns(path, 1, ROWS, sizes).extents == expected
    assert read_journal_columns(path, 1, ROWS, [len(whole) + 1]).extents == set()


@pytest.mark.parametrize("bad", [b"not json\n", b"\n", b"{}\n", b'{"task": 3}\n'])
def test_a_malformed_line_is_named_by_file_and_line(tmp_path: Path, lines: list[bytes], bad: bytes) -> None:
    path = tmp_path / "w.1.jsonl"
    path.write_bytes(b"".join(lines[:4]) + bad + b"".join(lines[4:]))
    with pytest.raises(BookError, match=r"w\.1\.jsonl:5: malformed line"):
        read_journal_columns(path, 1, ROWS)


def test_an_empty_file_is_an_empty_sheet(tmp_path: Path) -> None:
    (tmp_path / "w.1.jsonl").touch()
    found = read_journal_columns(tmp_path / "w.1.jsonl", 1, ROWS)
    assert len(found.columns) == len(found.ends) == 0
    assert found.columns.reward.dtype == np.float64


def test_files_are_shared_out_by_size_and_none_is_lost(tmp_path: Path) -> None:
    paths = []
    for at, size in enumerate((900, 10, 800, 20, 700)):
        paths.append(tmp_path / str(at))
        paths[-1].write_bytes(b"x" * size)
    shares = split_by_size(paths, 2)
    assert sorted(path for share in shares for path in share) == paths
    ours, theirs = (sum(path.stat().st_size for path in share) for share in shares)
    assert ours >= theirs > 0
    assert split_by_size(paths, 1)[0] == sorted(paths, key=lambda path: -path.stat().st_size)


@pytest.mark.parametrize(
    "same",
    [
        ["7", "7.0", "7.00", "+7", " 7 ", "7.", "007.0"],
        ["1000", "1,000", "1,000.0", "1000."],
        ["-0", "0", "0.0", "-.0"],
        [".5", "0.5", "+.5", "00.5", "0.50"],
        ["-7", "\u22127", " \u22127.0"],
        ["a b", " a \n b"],
        ["caf\u00e9", "cafe\u0301"],
    ],
)
def test_one_number_is_one_answer_however_it_is_written(same: list[str]) -> None:
    assert len({normalize_answer(text) for text in same}) == 1


@pytest.mark.parametrize(
    "apart",
    [
        ["10", "10 am", "10 pm", "$10", "10%", "10.."],
        ["5 m", "5 km", "5%", "5"],
        ["007", "7", "-7", "7e0", "0.7", "07"],
        ["1,00", "100", "1 00"],
        ["x", "X", "x."],
        ["9" * 300, "9" * 301, "9" * 300 + ".5"],
    ],
)
def test_different_answers_stay_apart(apart: list[str]) -> None:
    assert len({normalize_answer(text) for text in apart}) == len(apart)


def test_a_number_that_no_column_holds_is_a_malformed_line(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    journal = book.path / "journals" / "w.1.jsonl"
    line = encode(make_scored_line(scored(book, 0, 0), [None]))
    for huge in (b'"sample":99999999999999999999', b'"sample":-1', b'"sample":1152921504606846976'):
        lines = (line, line.replace(b'"sample":0', huge))
        journal.write_bytes(b"".join(add_crc(each) + b"\n" for each in lines))
        with pytest.raises(BookError, match=r"w\.1\.jsonl:2: malformed line \(Expected `int`"):
            read_journal_columns(journal, book.manifest.schema, book.tasks.rows)
