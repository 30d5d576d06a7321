"""report.html: the numbers of a run in one file that opens from disk and asks nobody for anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from rollbook.book import Book
from rollbook.core import JSON, Score, make_failed_line, make_scored_line
from rollbook.reports import RunData, build_report
from rollbook.viewer import export, write_report_page
from rollbook.viewer.export import collect_report, make_section
from support.books import edit_journal, encode_journal_line, failed, make_book, open_round, scored

EVIL = "<script>alert('x')</script>&\"'"


@pytest.fixture
def book(tmp_path: Path) -> Book:
    book = make_book(tmp_path / "run", tasks=4, samples=3)
    open_round(book)
    lines = []
    for row in range(3):
        for sample in range(3):
            rollout = scored(book, row, sample)
            rollout.score = Score((row + sample) / 4, {EVIL: 0.5}, EVIL)
            lines.append(encode_journal_line(make_scored_line(rollout, [None])))
    (book.path / "journals" / "w.1.jsonl").write_bytes(b"".join(lines))
    lost = failed(book, 3, 0, "verifier_error")
    journal = book.path / "journals" / "w.1.failures.jsonl"
    journal.write_bytes(encode_journal_line(make_failed_line(lost, [None], True)))
    edit_journal(journal, "as asked", "<script>alert(1)</script>")
    return book


def page_of(book: Book, **options: JSON) -> str:
    read = RunData([book.path])
    return write_report_page(read, build_report(read, **options)).read_text()


def shown(text: str) -> dict[str, JSON]:
    """The run that a page shows."""
    found = re.search(r'id="rollbook-data">(.*?)</script>', text, re.DOTALL)
    assert found
    run: dict[str, JSON] = json.loads(found[1])["run"]
    return run


def test_it_has_everything_the_numbers_have(book: Book) -> None:
    run = shown(page_of(book))
    report = build_report(RunData([book.path]))
    numbers = run["report"]
    assert (numbers["scored"], numbers["failed"], numbers["pending"]) == (9, {"verifier_error": 1}, 2)
    assert numbers["overall"] == json.loads(json.dumps(report.overall.json()))
    assert numbers["environments"]["Sums"]["pass@1_interval"] == list(report.overall.pass_interval or ())
    assert numbers["missing"][0] == ["t3", 0, "verifier_error: <script>alert(1)</script>"]
    assert run["run"] == "run"
    assert run["notes"] == [
        "@1 is computed from 3 of 4 tasks",
        "@2 is computed from 3 of 4 tasks",
        "@3 is computed from 3 of 4 tasks",
    ]


def test_every_environment_has_its_charts_and_its_slowest_tasks(book: Book) -> None:
    (section,) = shown(page_of(book))["sections"]
    assert (section["env"], section["note"], section["caption"]) == ("Sums", "", "9 rollouts")
    assert sum(section["histogram"]["counts"]) == 9
    assert [point["k"] for point in section["curve"]] == [1, 2, 3]
    assert sorted(section["tasks"]["labels"]) == ["t0: 0.25 of 3", "t1: 0.5 of 3", "t2: 0.75 of 3"]
    assert section["tasks"]["x"] == sorted(section["tasks"]["x"])
    assert section["lengths"]["labels"][0].startswith("2 tokens: ")
    slow = {"id": "t0", "seconds": 0.5, "n": 3, "mean": 0.25, "completion_tokens": 2.0}
    assert section["slowest"][0] == slow
    assert len(section["slowest"]) == 3


def test_numbers_are_those_of_the_report_that_was_asked_for(book: Book) -> None:
    run = shown(page_of(book, ks=[2], threshold=0.5))
    assert "a rollout passes with a reward of at least 0.5" in run["notes"]
    assert [point["k"] for point in run["sections"][0]["curve"]] == [2]
    assert run["report"]["overall"]["threshold"] == 0.5


def test_votes_are_drawn_only_where_they_are_shares(book: Book) -> None:
    assert all(point["maj"] is not None for point in shown(page_of(book))["curve"])
    edit_journal(book.path / "journals" / "w.1.jsonl", '"reward":1.0', '"reward":9.0')
    assert all(point["maj"] is None for point in shown(page_of(book))["curve"])


def test_what_a_model_or_an_environment_said_is_data_and_never_markup(book: Book) -> None:
    text = page_of(book)
    assert "<script>alert" not in text
    assert EVIL in shown(text)["report"]["overall"]["parts"]
    assert "<script>alert(1)</script>" in shown(text)["report"]["missing"][0][2]


def test_nothing_is_loaded_and_only_its_own_scripts_may_run(book: Book) -> None:
    text = page_of(book)
    shell = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"https?://| src=|<link|@import|url\(| on\w+=", shell)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert text.count("<script>") == policy[1].split("style-src")[0].count("sha256-") == 2
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 300_000


def test_it_is_written_into_the_run_directory(book: Book) -> None:
    read = RunData([book.path])
    path = write_report_page(read, build_report(read))
    assert path == book.path / "report.html"
    assert path.read_text().startswith("<!doctype html>")


def test_a_run_without_scores_says_so(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    run = shown(page_of(book))
    assert [section["note"] for section in run["sections"]] == ["nothing scored yet"]
    assert (run["state"], run["report"]["pending"]) == ("planned", 8)


def test_of_very_many_dots_some_are_drawn_and_it_is_said(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_DOTS", 2)
    read = RunData([book.path])
    (section,) = collect_report(read, build_report(read))["run"]["sections"]
    assert len(section["tasks"]["x"]) == len(section["lengths"]["labels"]) == 2
    assert (section["tasks"]["caption"], section["lengths"]["caption"]) == ("2 of 3 tasks", "2 of 9 rollouts")


def test_rewards_without_bound_are_drawn_at_the_edge(book: Book) -> None:
    read = RunData([book.path])
    read.scored.columns.reward[:2] = 1.7e308, -1.7e308
    section = make_section(read, 0, build_report(read).json()["environments"]["Sums"])
    assert section["caption"] == "9 rollouts; 2 beyond 1e+300 drawn at the edge"
    assert sum(section["histogram"]["counts"]) == 9
    assert np.isfinite([*section["tasks"]["x"], *section["lengths"]["y"], *section["lengths"]["y_range"]]).all()
