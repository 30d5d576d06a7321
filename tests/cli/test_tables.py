import json
import sys

from rollbook.cli.tables import plain_table, show_json, show_table
from rollbook.core.failure import Kind


def test_a_plain_table_aligns_text_left_and_numbers_right():
    assert plain_table(["env", "n", "mean"], [["gsm8k", 5, 0.5], ["sums", 12345, None]]) == [
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


def test_json_is_json(capsys):
    show_json([Kind("infra", 4)])
    assert json.loads(capsys.readouterr().out) == [{"side": "infra", "attempts": 4}]
