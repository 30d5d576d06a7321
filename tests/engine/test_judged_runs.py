"""Runs with a judge: its verdicts are scores, its failures are not, and both are kept."""

import asyncio
import json
from pathlib import Path

import pytest

from rollbook import Collector, Shortfall, UsageError, run
from rollbook.book import Book, rollouts
from rollbook.core import Settings
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.reverification import reverify
from rollbook.engine.runs import resume
from support.judge import JudgeServer
from support.sums import write_sums

SAID = {"right": "\\boxed{2}", "word": "\\boxed{two}", "wrong": "\\boxed{3}", "silent": "Hm."}
TWO = {frozenset({"2", "two"})}
QUICK = {"outage_s": 0.3, "attempts": {"judge_error": 1}}


@pytest.fixture
def problems(tmp_path):
    """Four problems whose answer is 2, and a script that answers each in its own way."""
    rows = [{"id": name, "problem": f"1 + 1 ({name})?", "answer": "2"} for name in SAID]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines = [{"task": name, "answer": text} for name, text in SAID.items()]
    (tmp_path / "script.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return tmp_path


def played(folder: Path, out: str = "a", **options):
    script = f"scripted:{folder / 'script.jsonl'}"
    return run("math", script, out=folder / out, data=str(folder / "rows.jsonl"), **QUICK, **options)


def kept(path: Path):
    return {r.task.id: r for r in rollouts(Book(path))}


def test_where_the_rule_says_no_the_judge_is_asked_and_both_are_kept(problems):
    with JudgeServer(same=TWO) as judge:
        played(problems, judge=judge.url)
        asked = sorted(judge.asked)
    found = kept(problems / "a")
    assert {name: (r.reward, r.score.parts) for name, r in found.items()} == {
        "right": (1.0, {"rule": 1.0}),
        "word": (1.0, {"rule": 0.0, "judge": 1.0}),
        "wrong": (0.0, {"rule": 0.0, "judge": 0.0}),
        "silent": (0.0, {"rule": 0.0}),
    }
    assert asked == [("2", "3"), ("2", "two"), ("3", "2"), ("two", "2")]
    assert found["word"].score.info["judge"] == ["I compare.\n\nVerdict: same"] * 2


def test_the_judges_name_is_meaning_and_its_address_is_not(problems, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "a-secret-key")
    with JudgeServer(same=TWO) as judge:
        played(problems, judge=judge.url)
        port = judge.url.split(":")[2]
    book = Book(problems / "a")
    assert book.manifest.judge.name == "judge-1"
    assert port not in (problems / "a" / "run.json").read_text()
    assert book.rounds()[0].settings.judge_urls[0].endswith(port)
    written = [p.read_bytes() for p in (problems / "a").rglob("*") if p.is_file()]
    assert not any(b"a-secret-key" in content for content in written)


@pytest.mark.parametrize("mode", ["nonsense", "broken"])
def test_a_judge_that_gives_no_verdict_is_a_failure_and_never_a_zero(problems, mode):
    with JudgeServer(mode) as judge, pytest.raises(Shortfall) as caught:
        played(problems, judge=judge.url)
    assert (caught.value.scored, caught.value.failed) == (2, {"judge_error": 2})
    assert {name for name, r in kept(problems / "a").items() if r.score} == {"right", "silent"}


def test_a_judge_that_came_back_is_asked_again_by_resume(problems):
    with JudgeServer("broken", same=TWO) as judge:
        with pytest.raises(Shortfall):
            played(problems, judge=judge.url)
        judge.mode = "honest"
        result = resume(problems / "a", {}, None, SilentDisplay())
    assert (result.report.scored, result.report.failed) == (4, {})


def test_a_judge_that_is_down_is_refused_before_there_is_a_run(problems):
    with JudgeServer() as judge:
        url = judge.url
    with pytest.raises(UsageError, match=r"judge: .* connection refused; start the server"):
        played(problems, judge=url, judge_name="judge-1")
    assert not (problems / "a").exists()


def test_reverify_asks_a_judge_again_without_the_model(problems):
    with JudgeServer("broken", same=TWO) as judge:
        with pytest.raises(Shortfall):
            played(problems, judge=judge.url)
        judge.mode = "honest"
        settings = Settings(retry=[], judge_urls=[judge.url], outage_s=0.3)
        done = asyncio.run(reverify(problems / "a", problems / "b", (), "failed", SilentDisplay(), settings))
    assert (done.report.scored, done.verified) == (4, 2)
    assert Book(problems / "b").manifest.judge.name == "judge-1"
    assert kept(problems / "b")["word"].reward == 1.0


def test_a_judged_run_is_not_scored_again_without_its_judge_unless_that_is_said(problems):
    with JudgeServer(same=TWO) as judge:
        played(problems, judge=judge.url)

    def again(only, *urls, name=""):
        settings = Settings(retry=[], judge_urls=list(urls), outage_s=0.3)
        return asyncio.run(reverify(problems / "a", problems / "b", (), only, SilentDisplay(), settings, name))

    with pytest.raises(UsageError, match="was judged by judge-1: give --judge URL again, or --judge none"):
        again("all")
    with pytest.raises(UsageError, match=r"--only failed: the other scores are by judge-1, not by no judge"):
        again("failed", "none")
    assert [(c.task, c.after) for c in again("all", "none").changes] == [("word", 0.0)]
    assert Book(problems / "b").manifest.judge is None


def test_a_run_goes_on_with_its_own_judge(problems):
    with JudgeServer("broken", same=TWO) as judge, pytest.raises(Shortfall):
        played(problems, judge=judge.url)
    with JudgeServer(same=TWO, name="judge-2") as other, pytest.raises(UsageError, match="does not serve 'judge-1'"):
        resume(problems / "a", {"judge_urls": [other.url]}, None, SilentDisplay())
    with JudgeServer(same=TWO) as moved:
        assert resume(problems / "a", {"judge_urls": [moved.url]}, None, SilentDisplay()).report.scored == 4


def test_a_judge_that_nobody_would_ask_is_refused(tmp_path):
    with pytest.raises(UsageError, match="Sums uses no judge"):
        run(write_sums(tmp_path), "http://localhost:1/v1", out=tmp_path / "a", judge="http://localhost:1/v1")
    with pytest.raises(UsageError, match="--judge-name x: give --judge URL as well"):
        run("gsm8k", "http://localhost:1/v1", out=tmp_path / "a", judge_name="x")
    with pytest.raises(UsageError, match="--judge nowhere: write PROVIDER/NAME"):
        run("gsm8k", "http://localhost:1/v1", out=tmp_path / "a", judge="nowhere")


JUDGED = """
from rollbook import Environment, Score, Task

class Taste(Environment):
    needs_judge = True

    def tasks(self):
        yield Task("poem", "Write a poem.")

    def verify(self, task, rollout):
        return Score(0.0, parts={"long": float(len(rollout.text) > 3)})

    async def appeal(self, task, rollout, score, judge):
        ruling = await judge.same(task.prompt, "roses", rollout.text)
        return Score(ruling.share, {**score.parts, "taste": ruling.share})
"""


def test_an_environment_of_ones_own_may_live_by_a_judge(tmp_path):
    (tmp_path / "taste.py").write_text(JUDGED)
    (tmp_path / "said.jsonl").write_text('{"answer": "violets"}\n')
    env, model = f"{tmp_path}/taste.py", f"scripted:{tmp_path}/said.jsonl"
    with pytest.raises(UsageError, match="Taste cannot score without a judge: give --judge URL"):
        run(env, model, out=tmp_path / "a")

    async def collect(url):
        async with Collector(env, model, judge=url) as collector:
            return [group.rollouts[0].score async for group in collector.groups()]

    with JudgeServer(same={frozenset({"roses", "violets"})}) as judge:
        (score,) = asyncio.run(collect(judge.url))
    assert (score.reward, score.parts) == (1.0, {"long": 1.0, "taste": 1.0})


def test_an_appeal_that_is_late_is_a_judge_error(tmp_path):
    (tmp_path / "taste.py").write_text(
        JUDGED.replace("ruling = await", "import asyncio; await asyncio.sleep(9)\n        ruling = await")
    )
    (tmp_path / "said.jsonl").write_text('{"answer": "violets"}\n')
    with JudgeServer() as judge, pytest.raises(Shortfall) as caught:
        run(
            f"{tmp_path}/taste.py",
            f"scripted:{tmp_path}/said.jsonl",
            out=tmp_path / "a",
            judge=judge.url,
            judge_s=0.2,
            attempts={"judge_error": 1},
        )
    assert caught.value.failed == {"judge_error": 1}


def test_an_appeal_that_cannot_wait_is_refused(tmp_path):
    (tmp_path / "taste.py").write_text(JUDGED.replace("async def appeal", "def appeal").replace("await ", ""))
    with pytest.raises(UsageError, match=r"Taste.appeal must be async def"):
        run(f"{tmp_path}/taste.py", "http://localhost:1/v1", out=tmp_path / "a")
