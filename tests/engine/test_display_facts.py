"""The numbers that displays show: on a line, in a panel, as HTML."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from rich.console import Console

from rollbook.engine import Hooks, displays
from rollbook.engine.displays import (
    LiveDisplay,
    format_duration,
    format_progress,
    make_html,
    make_panel,
    make_progress_hooks,
)
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


class Calls:
    """Records the calls of its methods, whatever they are named."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[object, ...], dict[str, object]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given, **named: self.made.append((name, given, named))


def test_a_notebook_replaces_its_bar_and_ends_without_a_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Calls()
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    monkeypatch.setattr(displays, "is_notebook", lambda: True)
    hooks = make_progress_hooks()
    assert hooks.name == "the progress bar"
    assert hooks.on_progress
    assert hooks.on_end
    hooks.on_end(None)  # type: ignore[arg-type]
    assert shown.made == []
    for _ in range(2):
        hooks.on_progress(EVERYTHING)
    hooks.on_end(None)  # type: ignore[arg-type]
    bars, named = zip(*(((name, given[0]["text/html"]), named) for name, given, named in shown.made), strict=True)  # type: ignore[index]
    assert bars == tuple(("display", make_html(EVERYTHING, ended)) for ended in (False, False, True))
    assert [each["update"] for each in named] == [False, True, True]
    assert all(each["raw"] is True for each in named)
    assert len({each["display_id"] for each in named}) == 1
    assert shown.made[0][1][0]["text/plain"] == format_progress(EVERYTHING)  # type: ignore[index]


def test_a_terminal_has_a_panel_that_opens_once(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = Calls()
    monkeypatch.setattr(displays, "LiveDisplay", lambda: panel)
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: True))
    hooks = make_progress_hooks()
    assert hooks.name == "the progress display"
    assert hooks.on_progress
    assert hooks.on_end
    for _ in range(2):
        hooks.on_progress(EVERYTHING)
    hooks.on_end(None)  # type: ignore[arg-type]
    assert [(name, given) for name, given, _ in panel.made] == [
        ("start", (10,)),
        ("update", (EVERYTHING,)),
        ("update", (EVERYTHING,)),
        ("stop", ()),
    ]


def test_elsewhere_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(isatty=lambda: False))
    assert make_progress_hooks() == Hooks()


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (None, False),
        (SimpleNamespace(), False),
        (SimpleNamespace(get_ipython=lambda: None), False),
        (SimpleNamespace(get_ipython=lambda: object()), False),
        (SimpleNamespace(get_ipython=lambda: type("ZMQInteractiveShell", (), {})()), True),
    ],
)
def test_a_notebook_is_known_by_its_shell(monkeypatch: pytest.MonkeyPatch, module: object, expected: bool) -> None:
    monkeypatch.setitem(sys.modules, "IPython", module)
    assert displays.is_notebook() is expected


@pytest.mark.parametrize(("requested", "scored", "length"), [(1, 1, 40), (4, 1, 10), (0, 0, 0)])
def test_the_bar_of_a_panel_is_as_long_as_what_is_done(requested: int, scored: int, length: int) -> None:
    bar, *_ = draw(Progress(requested=requested, scored=scored, pending=requested - scored))
    assert len(bar) == length


def test_a_note_is_printed_as_it_is_on_a_terminal_with_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    display = LiveDisplay()
    display.start(4)
    display.note("worker 12 took [bold]3[/bold] s")
    display.stop()
    assert "worker 12 took [bold]3[/bold] s" in capsys.readouterr().err
