"""Costs of a run, the limit on them, and the warning about answers that were cut."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.core import Price, TokenCounts, Turn, make_turn_line
from rollbook.reports import make_report
from rollbook.viewer import RunCache, RunFolder
from rollbook.viewer.run_overview import RunList, make_run_page
from support.book_assertions import assert_complete
from support.commands import Commands, Served
from support.sums import write_sums

PRICE = "in=1000,out=3000,cached=100"


@pytest.fixture
def sums(tmp_path: Path) -> str:
    return write_sums(tmp_path)


def read_lines(run: Path) -> list[dict[str, Any]]:
    """Every attempt on record."""
    return [json.loads(line) for path in (run / "journals").glob("*.jsonl") for line in path.read_text().splitlines()]


def count_cost(run: Path, cached: int = 0) -> float:
    """The cost of every attempt at PRICE, by hand."""
    usages = [line["usage"] for line in read_lines(run)]
    prompt, completion = (sum(u[name] for u in usages) for name in ("prompt_tokens", "completion_tokens"))
    known = cached * len(usages)
    return ((prompt - known) * 1000 + known * 100 + completion * 3000) / 1e6


def test_the_cost_of_all_attempts_is_shown_by_run_report_and_viewer(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    endpoint.switch("empty", times=3)  # three attempts fail, without tokens
    done = commands.run("run", sums, "-m", endpoint.url, "--no-probe", "--price", PRICE, "-o", "run")
    assert done.code == 0, done.stderr
    cost = count_cost(run)
    assert f", cost {cost:.4f}" in done.stdout or f", cost {cost:.2f}" in done.stdout
    assert " · cost " in done.stderr
    assert json.loads((run / "metrics.json").read_text())["cost"] == pytest.approx(cost)
    assert commands.run("report", "run", "--json").json["cost"] == pytest.approx(cost)
    assert ", cost " in commands.run("report", "run").stdout
    cache = RunCache(RunFolder(tmp_path))
    (row,) = [row for row in RunList(cache).rows() if row["run"] == "run"]
    assert row["cost"] == pytest.approx(cost)
    assert make_run_page("run", cache.take_snapshot("run"))["report"]["cost"] == pytest.approx(cost)


def test_without_a_price_there_is_no_cost(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    done = commands.run("run", sums, "-m", serve().url, "-o", "run")
    assert "cost" not in done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["cost"] is None


def test_cached_tokens_are_recorded_and_have_their_own_price(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    endpoint.switch("ok", cached=7)
    assert commands.run("run", sums, "-m", endpoint.url, "--price", PRICE, "-o", "run").code == 0
    assert {turn["cached_tokens"] for line in read_lines(run) for turn in line["turns"]} == {7}
    assert make_report(run).cost == pytest.approx(count_cost(run, cached=7))


def test_more_cached_tokens_than_the_prompt_has_cost_as_much_as_the_prompt(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    endpoint.switch("ok", cached=10**9)
    assert commands.run("run", sums, "-m", endpoint.url, "--price", PRICE, "-o", "run").code == 0
    usages = [line["usage"] for line in read_lines(run)]
    expected = sum(usage["prompt_tokens"] * 100 + usage["completion_tokens"] * 3000 for usage in usages) / 1e6
    assert make_report(run).cost == pytest.approx(expected)
    assert Price(2.0, 10.0, 0.5).cost(TokenCounts(prompt=10, cached=1000)) >= 0


def test_missing_token_counts_are_a_warning_where_there_is_a_price(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve()
    endpoint.switch("no_usage")
    done = commands.run("run", sums, "-m", endpoint.url, "--price", PRICE, "-n", 2, "-o", "run")
    warning = "warning: 2 rollouts report no token counts, so that the cost is too low"
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines().count(warning) == 1
    assert warning in commands.run("report", "run").stdout.splitlines()
    assert "token counts" not in commands.run("run", sums, "-m", endpoint.url, "-n", 2, "-o", "free").stdout


@pytest.mark.parametrize("fault", ["negative_usage", "huge_usage", "long_usage"])
def test_token_counts_that_cannot_be_true_are_missing_ones(
    fault: str, commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve()
    endpoint.switch(fault)
    done = commands.run("run", sums, "-m", endpoint.url, "--price", PRICE, "-n", 2, "-o", "run")
    assert done.code == 0, done.stderr
    assert "warning: 2 rollouts report no token counts, so that the cost is too low" in done.stdout.splitlines()
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["cost"] == 0


def test_a_new_price_is_applied_to_a_finished_run(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    assert commands.run("run", sums, "-m", serve().url, "-o", "run").code == 0
    again = commands.run("resume", "run", "--price", PRICE)
    assert again.code == 0, again.stderr
    assert commands.run("report", "run", "--json").json["cost"] == pytest.approx(count_cost(tmp_path / "run"))
    assert commands.run("resume", "run").code == 0
    assert len(list((tmp_path / "run" / "rounds").iterdir())) == 2, "only another price opens a round"


def test_a_line_has_no_cached_tokens_where_the_server_reports_none(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    assert commands.run("run", sums, "-m", serve().url, "-o", "run").code == 0
    assert all("cached_tokens" not in turn for line in read_lines(tmp_path / "run") for turn in line["turns"])
    assert make_turn_line(Turn(), None).to_turn() == Turn()
    assert make_turn_line(Turn(cached_tokens=0), None).to_turn() == Turn(cached_tokens=0)


@pytest.mark.parametrize("workers", [1, 2])
def test_max_cost_stops_the_run_and_earlier_rounds_count(
    workers: int, commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.3"), tmp_path / "run"
    words = ("run", f"{sums}?tasks=100", "-k", 4, "-m", endpoint.url, "-c", 4, "--workers", workers, "-o", "run")
    done = commands.run(*words, "--price", PRICE, "--max-cost", 2, within_s=120)
    assert done.code == 3, done.stderr
    assert "stopped by --max-cost 2 at a cost of" in done.complaint
    kept = read_lines(run)
    assert count_cost(run) > 2
    assert len(kept) < 300
    (advice,) = [line for line in done.stderr.splitlines() if "rollbook resume run" in line]
    assert float(advice.rpartition("rollbook resume run --max-cost ")[2]) > count_cost(run)
    assert "failures.jsonl" not in done.stderr
    asked = endpoint.calls
    assert endpoint.calls - len(kept) == 1, "all that was in flight is kept; the other call is the probe"
    again = commands.run("resume", "run", "--no-probe")
    assert again.code == 3, again.stderr
    assert "stopped by --max-cost 2" in again.complaint
    assert endpoint.calls == asked
    assert commands.run("resume", "run", "--max-cost", 1000, "-c", 64, within_s=120).code == 0
    assert_complete(run)


@pytest.mark.parametrize("concurrency", [64, "auto"])
def test_a_short_run_does_not_start_more_rollouts_than_its_limit_pays_for(
    concurrency: int | str, commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.5"), tmp_path / "run"
    words = ("run", f"{sums}?tasks=60", "-m", endpoint.url, "-c", concurrency, "-o", "run")
    assert commands.run(*words[:-1], "one", "-n", 1, "--price", PRICE).code == 0
    limit = 5 * count_cost(tmp_path / "one")
    done = commands.run(*words, "--price", PRICE, "--max-cost", limit, within_s=120)
    assert done.code == 3, done.stderr
    assert "stopped by --max-cost" in done.complaint
    assert limit < count_cost(run) < 1.3 * limit
    assert commands.run("resume", "run", "--max-cost", 1000, within_s=120).code == 0
    assert_complete(run)


def test_a_limit_that_is_far_away_slows_nothing_down(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve("--delay-s", "1")
    words = ("run", f"{sums}?tasks=64", "-m", endpoint.url, "-c", 64, "--no-probe", "-o", "run")
    began = time.monotonic()
    assert commands.run(*words, "--price", PRICE, "--max-cost", 1000).code == 0
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-cost", "5"], "--max-cost 5: give the price of tokens with --price in="),
        (["--price", "3"], "--price 3: write it as --price in="),
        (["--price", "in=3"], "--price in=3: in and out are both needed"),
        (["--price", "in=3,out=x"], "--price in=3,out=x: x is not a price"),
        (["--price", "in=3,out=-1"], "--price in=3,out=-1: -1 is not a price"),
        (["--price", "in=3,in=3,out=1"], "write it as --price in="),
        (["--price", "in=1,out=1", "--max-cost", "-1"], "--max-cost"),
    ],
)
def test_a_wrong_price_is_one_line(words: list[str], expected: str, commands: Commands, sums: str) -> None:
    done = commands.run("run", sums, "-m", "http://127.0.0.1:9/v1", *words, "-o", "run")
    assert done.code == 2
    assert expected in done.complaint


def test_many_cut_answers_are_a_warning_in_run_report_and_viewer(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    done = commands.run("run", sums, "-m", serve().url, "--max-tokens", 3, "-o", "run")
    cut = "warning: 100% of the rollouts were cut by --max-tokens 3"
    warning = f"{cut}, which may lower scores; start a new run with a higher limit"
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines().count(warning) == 1
    assert warning in commands.run("report", "run").stdout.splitlines()
    assert commands.run("report", "run", "--json").json["warnings"] == [warning]
    assert warning in make_run_page("run", RunCache(RunFolder(tmp_path)).take_snapshot("run"))["notes"]


@pytest.mark.parametrize(("cut", "warned"), [(1, False), (2, True)])
def test_the_warning_begins_above_a_tenth(
    cut: int, warned: bool, commands: Commands, sums: str, tmp_path: Path
) -> None:
    lines = [{"task": f"sum-{i}", "answer": "1", "finish_reason": "length"} for i in range(cut)]
    (tmp_path / "script.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"answer": "1"}])))
    done = commands.run("run", sums, "-m", "scripted:script.jsonl", "-o", "run")
    assert ("--max-tokens 1024" in done.stdout) == warned
