"""What was asked wrongly: one line that says what, where and what to do; exit 2; nothing done, nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import Commands, Process, Served

BROKEN = """
import sys
from rollbook import Environment, Task

class Sums(Environment):
    def tasks(self):
        yield Task(id="a", prompt="1 + 1?")
        yield Task(id="b", prompt="2 + 2?")

    def verify(self, task, rollout):
        return 1.0

class Twins(Sums):
    def tasks(self):
        yield Task(id="a", prompt="1 + 1?")
        yield Task(id="a", prompt="2 + 2?")

class Nobody(Sums):
    def tasks(self):
        return []

class Raises(Sums):
    def tasks(self):
        yield Task(id="a", prompt="1 + 1?")
        raise KeyError("lost")

class Leaves(Sums):
    def tasks(self):
        sys.exit(0)

class LeavesAtBirth(Sums):
    def __init__(self):
        sys.exit(0)

class Unjson(Sums):
    def tasks(self):
        yield Task(id="a", prompt="1 + 1?", secret=object())

class NotTasks(Sums):
    def tasks(self):
        yield {"id": "a", "prompt": "1 + 1?"}

class Blind(Environment):
    def tasks(self):
        yield Task(id="a", prompt="1 + 1?")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "env.py").write_text(BROKEN)
    (tmp_path / "syntax.py").write_text("class Sums(:\n")
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "prompt": "1 + 1?", "answer": "2"}\n{"id": "b", "prompt"\n')
    (tmp_path / "script.jsonl").write_text('{"answer": "2"}\n{"answr": "3"}\n')
    return tmp_path


@pytest.fixture(scope="module")
def url() -> str:
    served = Served()
    yield served.url
    served.kill()


def assert_refused(done: Process, folder: Path, before: set[str], *words: str) -> None:
    """One line, exit 2, and the folder as it was."""
    assert done.code == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.complaint
    assert {p.name for p in folder.iterdir()} - {".said", "__pycache__"} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "gsm9k"], ["gsm9k", "did you mean gsm8k?"]),
        (["run", "env.py:Sumz"], ["Sumz", "did you mean Sums?"]),
        (["run", "enw.py:Sums"], ["enw.py", "did you mean env.py?"]),
        (["run", "syntax.py"], ["SyntaxError", "syntax.py:1"]),
        (["run", "env.py:Sums?top=3"], ["top"]),
        (["run", "env.py:Twins"], ["'a'", "unique"]),
        (["run", "env.py:Nobody"], ["no tasks"]),
        (["run", "env.py:Raises"], ["KeyError", "env.py"]),
        (["run", "env.py:Leaves"], ["SystemExit"]),
        (["run", "env.py:LeavesAtBirth"], ["SystemExit"]),
        (["run", "env.py:Unjson"], ["'a'", "JSON"]),
        (["run", "env.py:Blind"], ["verify"]),
        (["run", "gsm8k", "--data", "rows.jsonl"], ["rows.jsonl:2"]),
        (["run", "gsm8k", "--data", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["run", "env.py:Sums", "-k", "0"], ["-k", "Input should be"]),
        (["run", "env.py:Sums", "-k", "two"], ["-k", "this is not a whole number"]),
        (["run", "env.py:Sums", "-n", "-1"], ["-n", "Input should be"]),
        (["run", "env.py:Sums", "-c", "0"], ["-c", "0"]),
        (["run", "env.py:Sums", "-c", "many"], ["-c", "many"]),
        (["run", "env.py:Sums", "--timeout", "inf"], ["--timeout", "inf"]),
        (["run", "env.py:Sums", "--call-timeout", "nan"], ["--call-timeout", "Input should be"]),
        (["run", "env.py:Sums", "--outage", "-5"], ["--outage", "Input should be"]),
        (["run", "env.py:Sums", "--workers", "0"], ["--workers", "Input should be"]),
        (["run", "env.py:Sums", "--task", "c"], ["--task c"]),
        (["run", "env.py:Sums", "--sample", "1"], ["--task"]),
        (["run", "env.py:Sums", "--sampling", "top_k"], ["--sampling top_k", "key=value"]),
        (["run", "env.py:Sums", "--sampling", "n=4"], ["n=4"]),
        (["run", "env.py:Sums", "--max-failures", "some"], ["--max-failures some", "1%"]),
        (["run", "env.py:Sums", "--max-failure", "1"], ["--max-failure", "--help"]),
        (["rum", "env.py:Sums"], ["rum"]),
        (["run", "env.py:Sums", "-m", "not a url"], ["not a url", "PROVIDER/NAME", "-m URL"]),
        (["run", "env.py:Sums", "-m", "http://host:99999/v1"], ["http://host:99999/v1"]),
        (["run", "env.py:Sums", "-m", "http://me:secret@host/v1"], ["OPENAI_API_KEY"]),
        (["run", "env.py:Sums", "-m", "scripted:nowhere.jsonl"], ["nowhere.jsonl"]),
        (["run", "env.py:Sums", "-m", "scripted:script.jsonl"], ["script.jsonl:2", "answr"]),
        (["run", "env.py:Sums", "--model-name", "moc"], ["moc", "did you mean mock?"]),
        (["run", "env.py:Sums", "-o", "env.py/run"], ["env.py"]),
        (["resume", "nowhere"], ["nowhere", "does not exist"]),
        (["report", "env.py"], ["env.py", "is a file"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    words: list[str], said: list[str], rollbook: Commands, folder: Path, url: str
) -> None:
    before = {p.name for p in folder.iterdir()}
    model = ["-m", url] if words[0] in ("run", "plan") and "-m" not in words else []
    out = ["-o", "run"] if words[0] in ("run", "plan") and "-o" not in words else []
    done = rollbook.run(*words, *model, *out)
    assert_refused(done, folder, before, *said)
    assert "secret" not in done.stderr


def test_a_key_that_is_missing_or_wrong_is_named_by_its_variable_and_never_shown(
    rollbook: Commands, serve: Callable[..., Served], folder: Path
) -> None:
    before, endpoint = {p.name for p in folder.iterdir()}, serve("--mode", "401")
    words = ("run", "env.py:Sums", "-m", endpoint.url, "-o", "run")
    assert_refused(rollbook.run(*words, OPENAI_API_KEY=""), folder, before, "401", "set OPENAI_API_KEY")
    wrong = rollbook.run(*words, "--api-key-env", "MY_KEY", MY_KEY="sk-hush")
    assert_refused(wrong, folder, before, "401", "the key in MY_KEY was not accepted")
    assert "sk-hush" not in wrong.stderr


def test_an_occupied_out_is_refused_with_the_ways_out(rollbook: Commands, folder: Path, url: str) -> None:
    words = ("run", "env.py:Sums", "-m", url, "-o", "run")
    assert rollbook.run(*words).code == 0
    kept = {p: p.read_bytes() for p in (folder / "run").rglob("*") if p.is_file()}
    before = {p.name for p in folder.iterdir()} - {".said", "__pycache__"}
    done = rollbook.run(*words)
    assert_refused(done, folder, before, "rollbook resume run", "--out")
    assert kept == {p: p.read_bytes() for p in (folder / "run").rglob("*") if p.is_file()}
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("precious")
    done = rollbook.run("run", "env.py:Sums", "-m", url, "-o", "mine")
    assert_refused(done, folder, before | {"mine"}, "mine is not empty")
    assert (folder / "mine" / "thesis.txt").read_text() == "precious"


def test_resume_refuses_another_model_and_an_unknown_failure_kind(
    rollbook: Commands, folder: Path, url: str, serve: Callable[..., Served]
) -> None:
    assert rollbook.run("run", "env.py:Sums", "-m", url, "-o", "run").code == 0
    rounds = list((folder / "run" / "rounds").iterdir())
    for words, said in (
        (("--retry", "verifier_eror"), "verifier_eror"),
        (("-m", "scripted:nowhere.jsonl"), "nowhere.jsonl"),
        (("-m", serve("--names", "other").url), "other"),
    ):
        (folder / "run" / "done" / "00000.json").unlink(missing_ok=True)
        done = rollbook.run("resume", "run", *words)
        assert done.code == 2, done.stderr
        assert said in done.complaint
    assert len(rounds) == 1


def test_a_run_directory_of_another_time_is_refused_by_name(rollbook: Commands, folder: Path, url: str) -> None:
    assert rollbook.run("run", "env.py:Sums", "-m", url, "-o", "run").code == 0
    manifest = folder / "run" / "run.json"
    whole = manifest.read_text()
    for text, said in (
        (json.dumps({**json.loads(whole), "schema": 99}), "schema 99"),
        (whole[:40], "run.json"),
        ("[]", "run.json"),
    ):
        manifest.write_text(text)
        for command in ("status", "resume"):
            done = rollbook.run(command, "run")
            assert done.code == 2, done.stderr
            assert said in done.complaint
