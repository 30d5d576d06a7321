"""`--judge` is short for `--role judge=`: the same behaviour, and the same books."""

import json
from pathlib import Path

import msgspec
import pytest

from rollbook import Shortfall, UsageError, plan, reverify, run
from rollbook.book import Book, rollouts
from rollbook.core import Manifest, Settings
from support.commands import Commands
from support.judge import JudgeServer
from support.role_server import RoleServer

TWO = {frozenset({"2", "two"})}


@pytest.fixture
def problems(tmp_path):
    rows = [{"id": name, "problem": f"1 + 1 ({name})?", "answer": "2"} for name in ("right", "word")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [{"task": "right", "answer": "\\boxed{2}"}, {"task": "word", "answer": "\\boxed{two}"}]
    (tmp_path / "script.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def play(folder: Path, out: str, **options):
    script = f"scripted:{folder / 'script.jsonl'}"
    return run("math", script, out=folder / out, data=str(folder / "rows.jsonl"), progress=False, **options)


def stable(path: Path) -> tuple[Manifest, Settings, list[object]]:
    """What a run means, how it was started, and its rollouts, without what differs between any two runs."""
    book = Book(path)
    manifest = msgspec.structs.replace(book.manifest, run="", created=0.0)
    found = [
        (r.task.id, r.score, sorted((call.number, call.seed, call.text) for call in r.role_calls))
        for r in sorted(rollouts(book), key=lambda r: r.key)
    ]
    return manifest, book.rounds()[0].settings, found


def test_both_ways_give_the_same_book(problems):
    with JudgeServer(same=TWO) as judge:
        play(problems, "a", judge=judge.url)
        play(problems, "b", roles={"judge": judge.url})
    assert stable(problems / "a") == stable(problems / "b")


def test_the_calls_of_a_judge_are_recorded_and_counted(problems):
    with JudgeServer(same=TWO) as judge:
        result = play(problems, "a", judge=judge.url)
    found = {r.task.id: r for r in rollouts(Book(problems / "a"))}
    assert found["right"].role_calls == []
    assert [(c.role, c.text, c.in_verification) for c in found["word"].role_calls] == [
        ("judge", "I compare.\n\nVerdict: same", True)
    ] * 2
    assert {c.seed for c in found["word"].role_calls} == {found["word"].seed}
    assert result.report.roles["judge"].calls == 2


@pytest.mark.parametrize("given", [{"judge": "embedded"}, {"roles": {"judge": "embedded"}}], ids=["judge", "role"])
def test_the_embedded_model_can_judge(problems, given):
    script = f"scripted:{problems / 'script.jsonl'}"
    path = plan("math", script, out=problems / "a", data=str(problems / "rows.jsonl"), **given)
    book = Book(path)
    assert book.manifest.judge.kind == "embedded"
    assert book.rounds()[0].settings.judge_urls == ["embedded"]


def test_giving_both_is_refused(problems):
    with pytest.raises(UsageError, match=r"--role judge=http.*: --judge http.* is the same role; give one of them"):
        play(problems, "a", judge="http://127.0.0.1:9/v1", roles={"judge": "http://127.0.0.1:9/v1"})


@pytest.mark.parametrize("value", ["abc", -3])
def test_its_sampling_is_checked_as_that_of_other_roles(problems, value):
    given = {"judge": {"model": "http://127.0.0.1:9/v1", "sampling": {"temperature": value}}}
    with pytest.raises(UsageError, match=f"--role judge.sampling.temperature={value}: give a number from 0 on"):
        play(problems, "a", roles=given)


def test_the_name_of_its_key_variable_is_that_of_the_role(problems):
    with pytest.raises(UsageError, match="no user or password in the URL; the key goes into JUDGE_API_KEY"):
        play(problems, "a", judge="http://u:p@127.0.0.1:9/v1")


def test_the_command_line_takes_it_too(problems):
    commands = Commands(problems)
    words = ["math", "--data", str(problems / "rows.jsonl"), "-m", f"scripted:{problems / 'script.jsonl'}"]
    with JudgeServer(same=TWO, name="judge-2") as judge:
        done = commands.run("run", *words, "-o", str(problems / "a"), "--role", f"judge={judge.url}")
        assert done.code == 0, done.stderr
        again = commands.run("reverify", str(problems / "a"), "-o", str(problems / "b"), "--role", f"judge={judge.url}")
        assert again.code == 0, again.stderr
        assert Book(problems / "b").manifest.judge.name == "judge-2"
    assert "role judge: 2 calls, 0 prompt tokens, 0 completion tokens" in done.stdout
    status = commands.run("status", str(problems / "a"), "--exact")
    assert "role judge: 2 calls" in status.stdout


ASKED = """
from rollbook import Environment, Task

class Kind(Environment):
    roles = ("judge",)

    def tasks(self):
        yield Task(id="t", prompt="Be kind.")

    def verify(self, task, rollout):
        return self.model("judge").ask_blocking(rollout.text).text == "Yes."
"""


def test_an_environment_may_ask_the_judge_by_its_role(tmp_path):
    (tmp_path / "kind.py").write_text(ASKED)
    (tmp_path / "said.jsonl").write_text(json.dumps({"answer": "Hello dear."}))
    env, model = f"{tmp_path / 'kind.py'}:Kind", f"scripted:{tmp_path / 'said.jsonl'}"
    with pytest.raises(UsageError, match="Kind cannot score without a judge: give --judge URL"):
        run(env, model, out=tmp_path / "a", progress=False)
    with RoleServer() as judge, RoleServer(lambda _: "No.", name="other") as other:
        judge.status = 400
        with pytest.raises(Shortfall) as caught:
            run(env, model, out=tmp_path / "a", judge=judge.url, progress=False, attempts={"judge_error": 1})
        assert caught.value.failed == {"judge_error": 1}
        judge.status = 200
        with pytest.raises(UsageError, match="Kind cannot score without a judge: give --judge URL"):
            reverify(tmp_path / "a", tmp_path / "b", judge="none")
        assert not (tmp_path / "b").exists()
        assert reverify(tmp_path / "a", tmp_path / "b", judge=judge.url).report.overall.mean == 1.0
        assert reverify(tmp_path / "a", tmp_path / "c", judge=other.url, judge_name="other").report.overall.mean == 0.0
