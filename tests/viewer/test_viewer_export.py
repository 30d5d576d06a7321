import json
import re

import pytest

from rollbook.errors import UsageError
from rollbook.viewer.export import collect_data, export_run, make_document
from rollbook.viewer.run_cache import CachedRun, RunFolder
from support.sample_runs import HOSTILE, Pen, make, rollout


def held_in(text):
    return json.loads(re.search(r'id="rollbook-data">(.*?)</script>', text, re.DOTALL)[1])


def test_one_file_holds_the_run(runs, tmp_path):
    said = export_run(RunFolder(runs / "baseline"), tmp_path / "run.html")
    data = held_in((tmp_path / "run.html").read_text())
    assert "48 of 48 finished rollouts" in said
    assert "Left out: 6 failed tries" in said
    assert set(data["rollouts"]) == {f"area-{i}" for i in range(12)}
    assert data["tokens"]["area-6"]["0"][1]["sequences"][1]["fork"]


def test_what_was_left_out_is_said(baseline):
    data = collect_data("baseline", baseline, max_tasks=5, max_bytes=100_000)
    assert data["left"].startswith("5 of 12 tasks in the table")
    assert f"the rollouts of {12 - len(data['pages'])} tasks" in data["left"]
    assert 0 < len(data["pages"]) < 5


def test_nothing_is_loaded_and_nothing_else_may_run(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=1, samples=1))
    pen.score(rollout(pen.book, 0, 0, text=HOSTILE + "</script><script>alert(1)</script>"))
    text = make_document(collect_data("run", CachedRun(tmp_path / "run").take_snapshot()))
    shell = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<[^>]* src=|<link", shell)
    assert "alert(1)</script>" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert text.count("<script>") == policy.split("style-src")[0].count("sha256-") == 5
    said = json.loads(held_in(text)["rollouts"]["area-0"]["0"]["raw"])["messages"][-1]["content"]
    assert said.startswith("<script>window.harmed")


def test_a_folder_of_runs_is_not_one_run(runs, tmp_path):
    with pytest.raises(UsageError, match="writes one run"):
        export_run(RunFolder(runs), tmp_path / "run.html")
    with pytest.raises(UsageError, match="ending must be"):
        export_run(RunFolder(runs / "tuned"), tmp_path / "run.txt")
    with pytest.raises(UsageError, match="choose another file"):
        export_run(RunFolder(runs / "tuned"), tmp_path / "nowhere" / "run.html")


def test_a_run_that_was_never_played_holds_no_rollouts(tmp_path):
    make(tmp_path / "run", tasks=3, samples=20)
    data = collect_data("run", CachedRun(tmp_path / "run").take_snapshot())
    assert data["left"].startswith("3 of 3 tasks in the table, 0 of 0 finished rollouts. Left out: nothing.")


def test_everything_that_is_left_out_is_named(tmp_path, monkeypatch):
    pen = Pen(make(tmp_path / "run", tasks=2, samples=66))
    pen.fail(rollout(pen.book, 1, 0, failure="model_timeout"), False)
    pen.score(rollout(pen.book, 1, 0, attempt=2))
    for attempt in (1, 2):
        pen.fail(rollout(pen.book, 1, 1, attempt=attempt, failure="model_timeout"), attempt == 2)
    monkeypatch.setattr("rollbook.viewer.rollout_pages.MAX_TOKENS", 10)
    monkeypatch.setattr("rollbook.viewer.export.MAX_TOKENS", 10)
    left = collect_data("run", CachedRun(tmp_path / "run").take_snapshot())["left"]
    assert "2 of 2 finished rollouts" in left
    assert "4 samples after the first 64 of a task" in left
    assert "2 failed tries at rollouts that were tried again" in left
    assert "the tokens of 1 sequences after their first 10" in left
