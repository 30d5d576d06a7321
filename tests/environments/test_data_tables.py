"""Rows from CSV, Parquet and the hub: streamed, and each mistake one line."""

import gzip
import sys

import pytest

from rollbook.environments import data_rows as module
from rollbook.environments.data_rows import rows
from rollbook.errors import UsageError


def values(path):
    return [row.values for row in rows(path)]


def test_csv_rows_have_the_names_of_the_first_line(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_bytes(b'\xef\xbb\xbfquestion,answer,note\r\n"1 + 1,\nthen?",2,\r\nWhy?,3,x\r\n')
    first, second = rows(path)
    assert (first.values, first.id) == ({"question": "1 + 1,\nthen?", "answer": "2"}, "mine-3")
    assert (second.values, second.where) == ({"question": "Why?", "answer": "3", "note": "x"}, f"{path}:4")


def test_tabs_and_compression_are_read_too(tmp_path):
    (tmp_path / "mine.tsv").write_text("question\tanswer\na, b?\t1\n")
    (tmp_path / "mine.csv.gz").write_bytes(gzip.compress(b"question,answer\nc?,2\n"))
    assert values(tmp_path / "mine.tsv") == [{"question": "a, b?", "answer": "1"}]
    assert values(tmp_path / "mine.csv.gz") == [{"question": "c?", "answer": "2"}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no rows; put them below a first line that names the columns"),
        (b"question,answer\n", "holds no rows; put them below a first line that names the columns"),
        (b"question,question\na,b\n", "mine.csv:1: two columns are called 'question'"),
        (b"question,answer\na,b,c\n", "mine.csv:2: 3 cells under 2 columns"),
        (b'question,answer\n"a,b\n', "mine.csv:3?: not CSV"),
        (b"question,answer\n\xff,b\n", "not UTF-8"),
    ],
)
def test_each_mistake_in_csv_is_one_line(tmp_path, content, words):
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(UsageError, match=words.replace("3?", r"\d")) as caught:
        values(tmp_path / "mine.csv")
    assert "\n" not in str(caught.value)


def test_parquet_rows_are_json(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import datetime

    import pyarrow.parquet as pq

    table = pa.table({"question": ["a?", "b?"], "answer": [1, None], "day": [datetime.date(2026, 1, 2)] * 2})
    pq.write_table(table, tmp_path / "mine.parquet")
    found = list(rows(tmp_path / "mine.parquet"))
    assert found[0].values == {"question": "a?", "answer": 1, "day": "2026-01-02"}
    assert [row.id for row in found] == ["mine-1", "mine-2"]


def test_what_is_no_parquet_and_what_is_not_there_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(UsageError, match=r"bad.parquet: not a Parquet file"):
        values(tmp_path / "bad.parquet")
    with pytest.raises(UsageError, match=r"none.parquet: cannot be read"):
        values(tmp_path / "none.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install 'rollbook\[parquet\]'"):
        values(tmp_path / "bad.parquet")


def test_a_row_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ROW_BYTES", 1 << 20)
    (tmp_path / "huge.jsonl").write_bytes(b'{"prompt": "a"}\n{"prompt": "' + b"x" * (2 << 20))
    stream = rows(tmp_path / "huge.jsonl")
    assert next(stream).line == 1
    with pytest.raises(UsageError, match=r"huge.jsonl:2: a row of more than 1 MiB"):
        next(stream)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A dataset in a folder, read by the package itself and without the network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    pytest.importorskip("datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"question": "a?", "answer": "1"}\n')
    (folder / "test.jsonl").write_text('{"question": "b?", "answer": "2"}\n{"question": "c?", "answer": "3"}\n')
    return f"hf://{folder}"


def test_a_dataset_of_the_hub_is_streamed_by_split(hub):
    found = list(rows(f"{hub}?split=test"))
    assert [row.values["question"] for row in found] == ["b?", "c?"]
    assert found[0].id == "set-1"
    with pytest.raises(UsageError, match=r"has several splits; give \?split= one of train, test"):
        values(hub)
    with pytest.raises(UsageError, match="has no split 'dev'"):
        values(f"{hub}?split=dev")


def test_a_dataset_that_cannot_be_had_is_one_line(hub):
    with pytest.raises(UsageError, match="cannot be read") as caught:
        values("hf://no-such-org/no-such-set")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", ["hf://", "hf://a/b?splt=test"])
def test_a_misspelt_address_is_one_line(path):
    with pytest.raises(UsageError, match=r"write hf://org/name\?split=test"):
        values(path)


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'rollbook\[hf\]'"):
        values("hf://a/b")
