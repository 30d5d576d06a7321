"""The leaderboard of a folder that run --each has made."""

import json

import pytest

from rollbook.viewer import RunCache, RunFolder
from rollbook.viewer.run_overview import LeaderboardPage
from support.sample_runs import showcase
from support.viewing import Served


@pytest.fixture
def folder(tmp_path):
    path = showcase(tmp_path / "runs", tasks=12, samples=2)
    names = ["baseline", "tuned", "later"]
    (path / "models.json").write_text(json.dumps({"schema": 2, "models": [{"name": name} for name in names]}))
    return path


def test_the_page_has_the_rows_and_the_models_that_were_not_started(folder):
    with Served(folder) as server:
        assert server.get("/api/runs")["models"] is True
        board = server.get("/api/leaderboard")
    assert {row["name"] for row in board["rows"]} == {"baseline", "tuned", "later"}
    assert board["rows"][2]["problem"] == "not started"
    assert board["rows"][1]["differences"]["mean"]["interval"]


def test_a_run_that_cannot_be_read_does_not_hide_the_others(folder):
    (folder / "baseline" / "plan.json").write_text("{")
    board = LeaderboardPage(RunCache(RunFolder(folder))).read()
    problems = {row["name"]: row["problem"] for row in board["rows"]}
    assert problems["tuned"] == ""
    assert "plan.json" in problems["baseline"]


def test_other_folders_have_none(tmp_path):
    with Served(showcase(tmp_path / "runs", tasks=6, samples=2)) as server:
        assert server.get("/api/runs")["models"] is False
        assert server.ask("/api/leaderboard")[0] == 409
