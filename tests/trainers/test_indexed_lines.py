"""Lines by number: only offsets in memory, blank lines left out, every byte kept."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import pytest

from rollbook.errors import UsageError
from rollbook.trainers.rows import IndexedLines


def test_lines_of_several_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n\n  \n{"a": "\xc3\xa9"}')
    (tmp_path / "b.jsonl").write_bytes(b"")
    (tmp_path / "c.jsonl").write_bytes(b'{"a": 3}\r\n')
    lines = pickle.loads(pickle.dumps(IndexedLines([str(tmp_path / f"{name}.jsonl") for name in "abc"])))
    assert [lines[i] for i in range(len(lines))] == [b'{"a": 1}', b'{"a": "\xc3\xa9"}', b'{"a": 3}']
    assert lines.describe(1).endswith("a.jsonl at byte 13")
    with pytest.raises(IndexError):
        lines[3]


def test_the_file_is_not_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    with path.open("wb") as file:
        for number in range(2000):
            file.write(b'{"id": %d, "text": "%s"}\n' % (number, b"x" * 10_000))
    tracemalloc.start()
    lines = IndexedLines([str(path)])
    in_memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert in_memory < 200_000
    assert lines[1999].startswith(b'{"id": 1999')


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"nowhere.jsonl: No such file"):
        IndexedLines(["nowhere.jsonl"])
