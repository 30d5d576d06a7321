import json
import re

import pytest

from rollbook.errors import UsageError
from rollbook.view.export import document, export_run, gathered
from rollbook.view.folder import Folder
from rollbook.view.opened import Opened
from support.showcase import HOSTILE, Pen, make, rollout


def held_in(text):
    return json.loads(re.search(r'id="rollbook-data">(.*?)</script>', text, re.DOTALL)[1])


def test_one_file_holds_the_run(runs, tmp_path):
    said = export_run(Folder(runs / "baseline"), tmp_path / "run.html")
    data = held_in((tmp_path / "run.html").read_text())
    assert "48 of 48 rollouts" in said
    assert "left out" not in said
    assert set(data["rollouts"]) == {f"area-{i}" for i in range(12)}
    assert data["tokens"]["area-6"]["0"][1]["sequences"][1]["fork"]


def test_what_was_left_out_is_said(baseline):
    data = gathered("baseline", baseline, most_tasks=5, most_bytes=100_000)
    assert data["left"].startswith("5 of 12 tasks in the table")
    assert "left out" in data["left"]
    assert 0 < len(data["pages"]) < 5


def test_nothing_is_loaded_and_nothing_else_may_run(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=1, samples=1))
    pen.score(rollout(pen.book, 0, 0, text=HOSTILE + "</script><script>alert(1)</script>"))
    text = document(gathered("run", Opened(tmp_path / "run").look()))
    shell = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"<[^>]* src=|<link", shell)
    assert "alert(1)</script>" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert text.count("<script>") == policy.split("style-src")[0].count("sha256-") == 5
    said = held_in(text)["rollouts"]["area-0"]["0"]["line"]["messages"][-1]["content"]
    assert said.startswith("<script>window.harmed")


def test_a_folder_of_runs_is_not_one_run(runs, tmp_path):
    with pytest.raises(UsageError, match="writes one run"):
        export_run(Folder(runs), tmp_path / "run.html")
    with pytest.raises(UsageError, match="ending must be"):
        export_run(Folder(runs / "tuned"), tmp_path / "run.txt")
    with pytest.raises(UsageError, match="choose another file"):
        export_run(Folder(runs / "tuned"), tmp_path / "nowhere" / "run.html")
