"""The commands as Python functions: what they return, that they block in a running loop, and that they refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import rollbook
from rollbook import RunResult, UsageError
from support.sums import SUMS, write_script, write_sums

POISON = SUMS.replace(
    "        return roll", "        if task.id == 'sum-3':\n            raise KeyError('x')\n        return roll"
)


def start(folder: Path, name: str = "run", **more: object) -> RunResult:
    return rollbook.run(write_sums(folder), write_script(folder), out=folder / name, **more)  # type: ignore[arg-type]


def in_loop(call: Callable[[], RunResult]) -> RunResult:
    """Call from a coroutine, as a cell of a notebook does."""

    async def cell() -> RunResult:
        return call()

    return asyncio.run(cell())


def test_a_planned_run_is_worked_on_and_its_plan_asks_no_model(tmp_path: Path) -> None:
    path = rollbook.plan(write_sums(tmp_path), write_script(tmp_path), samples=2, out=tmp_path / "run")
    assert rollbook.report(path).pending == 20
    assert in_loop(lambda: rollbook.work(path, concurrency=3)).report.scored == 20


def test_resume_finishes_what_is_missing_in_a_running_loop_too(tmp_path: Path) -> None:
    path = rollbook.plan(write_sums(tmp_path), write_script(tmp_path), samples=2, out=tmp_path / "run")
    assert in_loop(lambda: rollbook.resume(path)).report.scored == 20
    assert rollbook.resume(path).report.scored == 20  # nothing is left to do


def test_extend_adds_samples_and_takes_what_run_returned(tmp_path: Path) -> None:
    result = start(tmp_path)
    assert in_loop(lambda: rollbook.extend(result, 3)).report.scored == 30
    with pytest.raises(UsageError, match="has 3 samples of every task already"):
        rollbook.extend(result, 3)


def test_hooks_follow_work_resume_and_extend(tmp_path: Path) -> None:
    path = rollbook.plan(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run")
    seen: list[tuple[str, int]] = []
    ends: list[Path] = []

    def remember(rollout: rollbook.Rollout) -> None:
        seen.append(rollout.key)

    rollbook.work(path, on_rollout=remember, on_end=lambda run: ends.append(run.path))
    assert len(seen) == 10
    rollbook.extend(path, 2, on_rollout=remember, on_end=lambda run: ends.append(run.path))
    assert [sample for _, sample in seen[10:]] == [1] * 10
    rollbook.resume(path, on_rollout=remember, on_end=lambda run: ends.append(run.path))  # nothing is left to do
    assert len(seen) == 20
    assert ends[:2] == [path, path]


def test_failures_stay_failures_unless_they_are_named(tmp_path: Path) -> None:
    path = rollbook.plan(write_sums(tmp_path, POISON), write_script(tmp_path), out=tmp_path / "run")
    with pytest.raises(rollbook.Shortfall, match="1 failed: verifier_error"):
        rollbook.resume(path)
    again = rollbook.resume(path, retry=["verifier_error"], allow_shortfall=True)
    assert (again.report.scored, again.report.failed) == (9, {"verifier_error": 1})
    assert rollbook.load(path).report.failed == {"verifier_error": 1}


def test_a_misspelt_setting_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    result = start(tmp_path)
    with pytest.raises(UsageError, match="no setting is called concurency; there are urls"):
        rollbook.resume(result, concurency=3)


def test_a_run_on_a_cluster_is_not_resumed_here_by_accident(tmp_path: Path) -> None:
    path = rollbook.plan(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run")
    (path / "jobs" / "0001").mkdir(parents=True)
    (path / "jobs" / "0001" / "order.json").write_text('{"profile": {}, "workers": 4}')
    with pytest.raises(UsageError, match=r'was submitted to slurm: `rollbook resume .*on="local" on this machine'):
        rollbook.resume(path)
    assert rollbook.resume(path, on="local").report.scored == 10


def test_report_has_the_numbers_that_the_run_reported(tmp_path: Path) -> None:
    result = start(tmp_path, samples=4)
    assert rollbook.report(result).json() == result.report.json()
    assert set(rollbook.report(result, at=[3, 1]).overall.pass_at) == {1, 3}
    with pytest.raises(UsageError, match="--at 0: write whole numbers from 1"):
        rollbook.report(result, at=[0])
    with pytest.raises(UsageError, match="--threshold nan: not a finite number"):
        rollbook.report(result, threshold=float("nan"))


def test_compare_gives_a_table_with_a_row_for_each_number(tmp_path: Path) -> None:
    a, b = start(tmp_path, "a", samples=2), start(tmp_path, "<b>", samples=2, seed=1)
    made = rollbook.compare(a, rollbook.load(b))
    frame = made.to_polars()
    assert frame.columns == ["number", "a", "b", "difference", "low", "high", "tasks"]
    assert made.to_pandas()["b"].tolist() == frame["b"].to_list()
    mean = frame.to_dicts()[0]
    assert (mean["number"], mean["a"], mean["difference"], mean["tasks"]) == ("mean", 0.8, 0.0, 10)
    assert "better on 0 tasks" in repr(made)
    assert "mean" in repr(made)
    html = made._repr_html_()
    assert "<b>" not in html
    assert "<td>mean</td>" in html


def test_profile_and_curate_write_files_for_the_next_run(tmp_path: Path) -> None:
    result = start(tmp_path, samples=2)
    made = rollbook.profile(result)
    assert (made.path, made.tasks, made.scored, made.live) == (tmp_path / "run" / "profile.jsonl", 10, 20, False)
    chosen = rollbook.curate(made.path, tmp_path / "hard.jsonl", keep="mean < 1")
    assert (chosen.rows, chosen.matched, chosen.written) == (10, 2, 2)
    rows = [json.loads(line) for line in chosen.path.read_text().splitlines()]
    assert all(row["mean"] < 1 for row in rows)
    assert rollbook.curate(result, tmp_path / "none.jsonl", keep="mean > 2").written == 0
    assert not (tmp_path / "none.jsonl").exists()
    with pytest.raises(UsageError, match=r"the ending must be .jsonl"):
        rollbook.curate(result, tmp_path / "hard.csv")


def test_export_writes_a_file_and_counts_what_it_left_out(tmp_path: Path) -> None:
    result = start(tmp_path, samples=2)
    made = rollbook.export(result, tmp_path / "rows.csv", format="csv", keep="reward >= 1")
    assert made.place == str(tmp_path / "rows.csv")
    assert made.counts.written == len((tmp_path / "rows.csv").read_text().splitlines()) - 1
    assert made.counts.written + made.counts.filtered == 20
    with pytest.raises(UsageError, match="export writes to one place"):
        rollbook.export(result)


def test_reverify_scores_stored_rollouts_with_another_verifier(tmp_path: Path) -> None:
    result = start(tmp_path)
    lenient = write_sums(tmp_path, SUMS.replace("return roll", "return 1.0 or roll"))
    again = rollbook.reverify(result, env=lenient)
    assert again.path == tmp_path / "run-reverified"
    assert (again.verified, again.changed, again.report.overall.mean) == (10, 2, 1.0)
    with pytest.raises(UsageError, match="--only some: give failed, scored or all"):
        rollbook.reverify(result, only="some")  # type: ignore[arg-type]
