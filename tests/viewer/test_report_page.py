"""The one-file report: opens from disk, needs nothing, and says what was said without becoming it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rollbook.book import Book
from rollbook.core import Score, encode_line, make_failed_line, make_scored_line
from rollbook.reports import RunData, build_report
from rollbook.viewer import report_page
from rollbook.viewer.report_page import make_report_page, write_report_page
from support.books import failed, make_book, open_round, scored

VOID = {"meta", "line", "rect", "polyline", "polygon", "circle"}
EVIL = "<script>alert('x')</script>&\"'"


class Checked(HTMLParser):
    """Every tag is closed in its order; what is said and referred to is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> Checked:
    checked = Checked()
    checked.feed(text)
    assert checked.open == []
    return checked


@pytest.fixture
def book(tmp_path: Path) -> Book:
    book = make_book(tmp_path / "run", tasks=4, samples=3)
    open_round(book)
    lines = []
    for row in range(3):
        for sample in range(3):
            rollout = scored(book, row, sample)
            rollout.score = Score((row + sample) / 4, {EVIL: 0.5}, EVIL)
            lines.append(encode_line(make_scored_line(rollout, [None])))
    (book.path / "journals" / "w.1.jsonl").write_bytes(b"".join(lines))
    lost = failed(book, 3, 0, "verifier_error")
    message = encode_line(make_failed_line(lost, [None], True)).replace(b"as asked", b"<script>alert(1)</script>")
    (book.path / "journals" / "w.1.failures.jsonl").write_bytes(message)
    return book


def made(book: Book) -> str:
    read = RunData([book.path])
    return make_report_page(read, build_report(read))


def test_it_has_everything_the_numbers_have(book: Book) -> None:
    checked = parsed(made(book))
    for words in ("9/12 scored, 1 failed, 2 pending", "pass@1", "maj@2", "best@2", "verifier_error", "Slowest tasks"):
        assert words in checked.text
    assert checked.tags.count("svg") == 4
    assert {value for name, value in checked.attributes if name == "aria-label"} == {
        "Reward histogram",
        "pass@k over k",
        "Tasks by mean reward",
        "Length against reward",
    }


def test_the_numbers_at_k_stand_beside_what_they_rest_on(book: Book) -> None:
    read = RunData([book.path])
    report = build_report(read, threshold=0.5)
    text = parsed(make_report_page(read, report)).text
    assert "@1 rests on 3 of 4 tasks" in text
    assert "a rollout passes from a reward of 0.5" in text
    low, high = report.overall.pass_interval or (0, 0)
    assert f"{low:.3f} to {high:.3f}" in text
    assert "passes from" not in made(book)


def test_the_legend_names_only_the_lines_that_are_drawn(book: Book) -> None:
    assert 'class="second-key"' in made(book)
    journal = book.path / "journals" / "w.1.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"reward":1.0', b'"reward":9.0'))
    text = made(book)
    assert 'class="line second"' not in text
    assert 'class="second-key"' not in text


def test_what_a_model_or_an_environment_said_is_escaped(book: Book) -> None:
    text = made(book)
    assert "<script" not in text
    checked = parsed(text)
    assert "script" not in checked.tags
    assert EVIL in checked.text
    assert "<script>alert(1)</script>" in checked.text


def test_it_needs_no_network_runs_no_script_and_has_two_themes(book: Book) -> None:
    text = made(book)
    assert not re.search(r"https?://|src=|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert not any(name.startswith("on") for name, _ in parsed(text).attributes)


def test_it_is_written_into_the_run_directory(book: Book) -> None:
    read = RunData([book.path])
    path = write_report_page(read, build_report(read))
    assert path == book.path / "report.html"
    assert path.read_text().startswith("<!doctype html>")


def test_a_run_without_scores_says_so(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    checked = parsed(made(book))
    assert "nothing scored yet" in checked.text
    assert "svg" not in checked.tags


def test_of_very_many_dots_some_are_drawn_and_it_is_said() -> None:
    assert len(report_page.choose_drawn(10)) == 10
    assert len(set(report_page.choose_drawn(100_000).tolist())) == report_page.MAX_DOTS
    assert report_page.describe_shown(100_000, "tasks") == "1,500 of 100,000 tasks"
    assert report_page.describe_shown(10, "tasks") == "10 tasks"
