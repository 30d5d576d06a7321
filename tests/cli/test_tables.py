import json
import sys

from rollbook.cli.report_tables import format_plain_table, show_json, show_numbers_table, show_table
from rollbook.core import Extent


def test_a_plain_table_aligns_text_left_and_numbers_right():
    assert format_plain_table(["env", "n", "mean"], [["gsm8k", 5, 0.5], ["sums", 12345, None]]) == [
        "env        n   mean",
        "gsm8k      5  0.500",
        "sums   12345      -",
    ]


def test_a_pipe_gets_plain_text(capsys):
    show_table(["a"], [["[b]x[/b]"]])
    assert capsys.readouterr().out == "a\n[b]x[/b]\n"


def test_a_terminal_gets_the_same_words(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    show_table(["env", "mean"], [["[b]sums[/b]", 0.25]])
    out = capsys.readouterr().out
    assert "[b]sums[/b]" in out
    assert "0.250" in out


def test_control_characters_do_not_reach_the_terminal(capsys, monkeypatch):
    said = "a\x1b]0;owned\x07\nb\x9b2J\u202ec"
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal, raising=False)
        show_table(["missing\x1b[2J"], [[said]])
        out = capsys.readouterr().out
        assert "a]0;owned b2Jc" in out
        assert not [steering for steering in ("\x07", "\x9b", "\x1b]", "\x1b[2J", "\u202e") if steering in out]
    show_json([said])
    assert json.loads(capsys.readouterr().out) == [said]


def test_json_is_json(capsys):
    show_json([Extent(5, "ab")])
    assert json.loads(capsys.readouterr().out) == [{"bytes": 5, "sha256": "ab"}]


def test_on_a_narrow_terminal_columns_become_lines(capsys, monkeypatch):
    columns, rows = ["environment", "tasks", "mean", "pass@1"], [["sums", 5, 0.5, 0.25]]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "30")
    show_numbers_table(columns, rows)
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["environment", "sums"]
    assert lines[2:] == [["tasks", "5"], ["mean", "0.500"], ["pass@1", "0.250"]]
    monkeypatch.setenv("COLUMNS", "100")
    show_numbers_table(columns, rows)
    assert "sums" in capsys.readouterr().out.splitlines()[3]


def test_a_pipe_never_gets_a_turned_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    show_numbers_table(["environment", "mean"], [["sums", 0.5]])
    assert capsys.readouterr().out == "environment   mean\nsums         0.500\n"
