import io
import sys

import pytest

from rollbook.cli.run_display import PlainDisplay, make_display
from rollbook.engine import LiveDisplay, Progress, format_duration, format_progress

HALFWAY = Progress(
    requested=100,
    scored=45,
    failed={"model_timeout": 3, "verifier_error": 2},
    pending=50,
    rate=10.0,
    mean_reward=0.4,
    in_flight=8,
    concurrency=16,
    loop_lag_ms=1.5,
    model_ms=120.0,
    verify_ms=0.7,
    seconds=75.0,
)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_line_has_every_number():
    line = format_progress(HALFWAY)
    for words in (
        "scored 45/100",
        "failed 5 (model_timeout 3, verifier_error 2)",
        "pending 50",
        "mean reward 0.400",
        "10.0/s",
        "left 5s",
        "in flight 8/16",
        "model 120 ms",
        "verify 0.7 ms",
        "loop lag 1.5 ms",
        "after 1m 15s",
    ):
        assert words in line


def test_before_anything_has_ended_nothing_is_invented():
    line = format_progress(Progress(requested=4, pending=4))
    assert "mean reward" not in line
    assert " ms" not in line
    assert "left ?" in line
    assert "failed 0" in line


def test_one_rollout_is_not_several(capsys):
    PlainDisplay().start(1)
    assert capsys.readouterr().err == "1 rollout to do\n"


def test_what_is_over_has_no_pace():
    line = format_progress(Progress(requested=4, scored=4, seconds=0.2))
    assert "scored 4/4" in line
    assert "left" not in line
    assert "/s" not in line


def test_plain_lines_come_every_ten_seconds_and_once_at_the_end(capsys):
    clock = Clock()
    plain = PlainDisplay(clock)
    plain.start(100)
    for clock.now in (1.0, 9.0, 10.0, 11.0, 19.0, 21.0, 22.0):
        plain.update(HALFWAY)
    plain.stop()
    plain.stop()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["100 rollouts to do", *[format_progress(HALFWAY)] * 3]


def test_a_note_is_shown_at_once(capsys):
    PlainDisplay().note("the weights are downloaded")
    assert capsys.readouterr().err == "the weights are downloaded\n"


def test_a_pipe_gets_plain_lines_and_a_terminal_the_panel(monkeypatch):
    assert isinstance(make_display(), PlainDisplay)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert isinstance(make_display(), LiveDisplay)


def test_the_panel_shows_the_numbers_and_leaves_them_standing(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    live = LiveDisplay()
    live.start(100)
    live.note("[not markup]")
    live.update(HALFWAY)
    live.stop()
    live.stop()
    assert "[not markup]" in screen.getvalue()
    assert "scored 45/100" in screen.getvalue()
    assert "loop lag 1.5 ms" in screen.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m 00s"), (3600, "1h 00m"), (None, "?")])
def test_durations_read_like_durations(seconds, text):
    assert format_duration(seconds) == text
