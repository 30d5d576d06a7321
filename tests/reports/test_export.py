"""Taking rollouts out: whole, as conversations, as Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbook import Shortfall, run
from rollbook.errors import UsageError
from rollbook.reports.export import ExportCounts, export_rollouts
from rollbook.stats import Expression
from support.sums import SUMS, write_script, write_sums


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    script = write_script(folder, prompt_ids=[1, 2], ids=[3, 4], logprobs=[-0.5, -0.25])
    run(write_sums(folder), script, out=folder / "run", samples=2)
    return folder / "run"


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_whole_rows_have_the_task_and_the_tokens(book: Path, tmp_path: Path) -> None:
    assert export_rollouts(book, "jsonl", tmp_path / "a.jsonl").written == 20
    rows = lines(tmp_path / "a.jsonl")
    one = next(r for r in rows if (r["task"], r["sample"]) == ("sum-4", 1))
    assert (one["reward"], one["expected"]) == (1.0, "8")
    assert one["turns"][0]["ids"] == [3, 4]  # type: ignore[index]


def test_conversations_that_pass_a_filter(book: Path, tmp_path: Path) -> None:
    assert export_rollouts(book, "sft", tmp_path / "a.jsonl", Expression("reward >= 1 and sample == 0")).written == 8
    rows = lines(tmp_path / "a.jsonl")
    assert {len(r["messages"]) for r in rows} == {2}  # type: ignore[arg-type]
    assert {r["reward"] for r in rows} == {1.0}


def test_conversations_are_those_that_pass_unless_told_otherwise(book: Path, tmp_path: Path) -> None:
    assert export_rollouts(book, "sft", tmp_path / "a.jsonl") == ExportCounts(written=16, unscored=0, filtered=4)
    assert {row["reward"] for row in lines(tmp_path / "a.jsonl")} == {1.0}
    assert export_rollouts(book, "sft", tmp_path / "b.jsonl", Expression("reward >= 0")).written == 20


def test_what_is_not_exported_is_counted_by_why(tmp_path: Path) -> None:
    broken = SUMS.replace("        return roll", "        assert task.id != 'sum-3', 'broken'\n        return roll")
    with pytest.raises(Shortfall):
        run(write_sums(tmp_path, broken), write_script(tmp_path), out=tmp_path / "run")
    found = export_rollouts(tmp_path / "run", "jsonl", tmp_path / "a.jsonl", Expression("reward >= 1"))
    assert found == ExportCounts(written=8, unscored=1, filtered=1)


def test_parquet_is_read_by_others(book: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (rollbook[parquet])")
    assert export_rollouts(book, "parquet", tmp_path / "a.parquet").written == 20
    table = parquet.read_table(tmp_path / "a.parquet")
    assert sum(table.column("reward").to_pylist()) == 16.0
    assert json.loads(table.column("messages").to_pylist()[0])[0]["role"] == "user"


def test_parts_that_only_some_rollouts_have_are_null_for_the_others_and_overwrite_nothing(tmp_path: Path) -> None:
    verdict = "Score(1.0, {'fmt': 1.0, 'reward': 7.0} if task.id == 'sum-1' else {})"
    source = SUMS.replace("return rollout", f"return {verdict} or rollout")
    run(write_sums(tmp_path, source), write_script(tmp_path), out=tmp_path / "run")
    assert (
        export_rollouts(tmp_path / "run", "sft", tmp_path / "a.jsonl", Expression("fmt > 0 and reward == 1")).written
        == 1
    )
    export_rollouts(tmp_path / "run", "jsonl", tmp_path / "b.jsonl")
    assert {row["reward"] for row in lines(tmp_path / "b.jsonl")} == {1.0}


def test_mistakes_are_one_line(book: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="known are jsonl"):
        export_rollouts(book, "xml", tmp_path / "a")
    with pytest.raises(UsageError, match="did you mean reward"):
        export_rollouts(book, "sft", tmp_path / "b", Expression("rewards > 0"))
    (tmp_path / "c").touch()
    with pytest.raises(UsageError, match="exists already"):
        export_rollouts(book, "jsonl", tmp_path / "c")
