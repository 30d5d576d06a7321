"""The numbers that displays show: on a line, in a panel, as HTML."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rollbook.engine.displays import LiveDisplay, format_duration, format_progress, make_html, make_panel
from rollbook.engine.progress import Progress

EVERYTHING = Progress(
    requested=10,
    scored=4,
    failed={"verifier_error": 1, "model_timeout": 2},
    pending=3,
    rate=0.5,
    mean_reward=0.75,
    in_flight=2,
    concurrency=8,
    loop_lag_ms=0.44,
    model_ms=1234.4,
    verify_ms=5.55,
    seconds=75,
    cost=1.5,
    outage="no endpoint answers",
    prompt_tokens=100,
    cached_tokens=25,
)
COUNTS = "scored 4/10 · failed 3 (model_timeout 2, verifier_error 1) · pending 3"


def draw(progress: Progress) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    console.print(make_panel(progress))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_line_has_everything_that_is_known() -> None:
    assert format_progress(EVERYTHING) == (
        f"{COUNTS} · mean reward 0.750 · cost 1.50 · cached 25% · 0.5/s · left 6s · in flight 2/8"
        " · model 1234 ms · verify 5.5 ms · loop lag 0.4 ms · after 1m 15s · no endpoint answers"
    )


def test_a_line_says_nothing_of_what_is_not_known() -> None:
    progress = Progress(requested=10, scored=4, pending=6)
    assert format_progress(progress) == (
        "scored 4/10 · failed 0 · pending 6 · 0.0/s · left ? · in flight 0/0 · after 0s"
    )


def test_there_is_no_pace_once_nothing_is_pending() -> None:
    assert format_progress(Progress(requested=4, scored=4, rate=2.0, seconds=2)) == (
        "scored 4/4 · failed 0 · pending 0 · after 2s"
    )


def test_a_panel_has_a_bar_and_rows_of_facts() -> None:
    bar, counts, pace, times, trouble = draw(EVERYTHING)
    assert set(bar) == {"━"}, "seven tenths of it: without colours the rest is blank"
    assert len(bar) == 28
    assert counts.replace("  ", " · ").startswith(COUNTS)
    assert (pace, trouble) == ("0.5/s  left 6s  in flight 2/8", "no endpoint answers")
    assert times.startswith("model 1234 ms  verify")


@pytest.mark.parametrize("ended", [False, True])
def test_html_shows_the_pace_until_the_run_has_ended(ended: bool) -> None:
    bar, *lines = make_html(EVERYTHING, ended).split("<br>")
    assert bar == '<progress max="10" value="7"></progress>'
    assert (len(lines), "in flight" in " ".join(lines)) == ((3, False) if ended else (4, True))


def test_html_hides_no_text_of_an_outage_and_shows_none_as_markup() -> None:
    assert "&lt;b&gt;" in make_html(Progress(requested=1, outage="<b>"))
    assert make_html(Progress(requested=0)).startswith('<progress max="1" value="0">')


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (75, "1m 15s"),
        (3599, "59m 59s"),
        (3600, "1h 00m"),
        (4000, "1h 06m"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_notes_are_printed_before_while_and_after_a_panel_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    display = LiveDisplay()
    display.update(EVERYTHING)  # nothing is open
    display.note("before")
    display.start(12, pending=5)
    display.note("[while] it is open")
    display.update(EVERYTHING)
    display.stop()
    display.stop()
    display.note("after")
    shown = capsys.readouterr().err
    places = [shown.index(each) for each in ("before", "[while] it is open", "scored 4/10", "after\n")]
    assert places == sorted(places)


@pytest.mark.parametrize(("pending", "text"), [(None, "pending 12"), (5, "pending 5"), (0, "pending 0")])
def test_a_panel_opens_with_what_is_pending(pending: int | None, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    display = LiveDisplay()
    display.start(12, pending)
    display.stop()
    assert text in capsys.readouterr().err
