import json
import os
import shutil
import time
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.book import read_status
from rollbook.core import add_crc
from support.sample_runs import Pen, make, rollout
from support.viewing import Served

NAMES = ["runs", "run", "tasks", "task", "rollout", "tokens", "compare", "nothing", "../run", "%2e%2e/run"]
KEYS = ["run", "a", "b", "task", "sample", "attempt", "sequence", "keep", "sort", "desc", "offset", "limit", "common"]
GOOD = ["baseline", "tuned", "stopped", "area-3", "0", "3", "1", "mean", "n > 2", "level == 1", "id", "majority"]
BAD = [
    "..",
    "../..",
    "/etc/passwd",
    "%2e%2e",
    "%00",
    "\0",
    "baseline/..",
    "baseline/run.json",
    "1e9",
    "-1",
    "٣",
    "9" * 40,
]
SECRET = Path("/etc/passwd").read_bytes().splitlines()[0]  # all of a line: what was asked is said in a refusal
values = st.one_of(st.sampled_from(GOOD), st.sampled_from(BAD), st.text(max_size=30))
queries = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(NAMES), queries)
def test_no_request_breaks_it_or_leads_out(served, name, query):
    text = urlencode(query, errors="replace")
    status, headers, body = served.ask(f"/api/{name}?{text}")
    assert status in (200, 400, 404, 409), (status, body)
    assert SECRET not in body
    assert headers["Content-Type"].startswith("application/json")
    json.loads(body)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40))
def test_no_path_breaks_it_or_leads_out(served, raw):
    status, _, body = served.ask("/" + quote(raw))
    assert status in (200, 404), (status, raw)
    assert status == 404 or b"<title>Rollbook" in body


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/js/../../api.py", "/%2e%2e/guard.py", "/js/%2e%2e/%2e%2e/guard.py", "//etc/passwd"]
)
def test_assets_are_those_of_the_page_alone(served, path):
    assert served.ask(path)[0] == 404


def test_runs_are_listed_with_their_counts(served):
    listed = {row["run"]: row for row in served.get("/api/runs")["runs"]}
    assert set(listed) == {"baseline", "tuned", "stopped"}
    for row in listed.values():
        assert row["scored"] + row["failed"] + row["pending"] == row["requested"] == 48
    assert listed["stopped"]["state"] == "interrupted"
    assert 0 < listed["baseline"]["pass@1"] < listed["tuned"]["pass@1"] < 1


def test_a_run_has_its_numbers_and_charts(served):
    page = served.get("/api/run?run=stopped")
    report = page["report"]
    assert report["scored"] + sum(report["failed"].values()) + report["pending"] == report["requested"]
    assert sum(page["histogram"]["counts"]) == page["timeline"]["counts"][0] == report["scored"]
    assert [point["k"] for point in page["curve"]] == [1, 2, 4]
    assert all(point["low"] <= point["pass"] <= point["high"] for point in page["curve"] if point["low"] is not None)


def test_the_walk_from_run_to_token(served):
    row = served.get("/api/tasks?run=baseline&keep=turns+%3E+1&sort=mean&desc=1&limit=1")["rows"][0]
    task = served.get(f"/api/task?run=baseline&task={row['id']}")
    sample = next(each["sample"] for each in task["samples"] if each["status"] == "scored")
    line = served.get(f"/api/rollout?run=baseline&task={row['id']}&sample={sample}")["raw"]
    tokens = served.get(f"/api/tokens?run=baseline&task={row['id']}&sample={sample}")
    assert sum(each["trained"] for each in tokens["sequences"]) == json.loads(line)["usage"]["completion_tokens"]


def test_what_cannot_be_answered_is_one_line(served):
    status, _, body = served.ask("/api/tasks?run=baseline&keep=meen")
    assert (status, "did you mean mean" in json.loads(body)["error"]) == (400, True)
    status, _, body = served.ask("/api/task?run=baseline")
    assert json.loads(body) == {"error": "the request names no task"}


def test_a_search_streams_its_progress_and_ends(served):
    *steps, end = served.events("/api/search?run=baseline&text=antiderivative", 2)
    assert end == {"end": True}
    assert len(steps[0]["found"]) == served.get("/api/run?run=baseline")["report"]["scored"]
    assert served.events("/api/search?run=nothing&text=x", 1)[0]["error"]
    assert served.events("/api/search?run=baseline&text=%FF%00", 1)


def test_a_run_that_grows_says_so(tmp_path):
    pen = Pen(make(tmp_path / "runs" / "growing", tasks=3, samples=2))
    with Served(tmp_path / "runs") as served:
        first = served.events("/api/live?run=growing", 1)
        assert served.get("/api/run?run=growing")["report"]["scored"] == 0
        pen.score(rollout(pen.book, 0, 0))
        deadline = time.monotonic() + 30
        while served.events("/api/live?run=growing", 1) == first:
            assert time.monotonic() < deadline
        assert served.get("/api/run?run=growing")["report"]["scored"] == 1


def test_a_damaged_book_is_one_line_and_not_the_end(runs, tmp_path):
    make(tmp_path / "runs" / "good", tasks=1, samples=1)
    bad = Pen(make(tmp_path / "runs" / "bad", tasks=1, samples=1))
    bad.scored_file.write_bytes(add_crc(b'{"n":1}') + b"\n")
    with Served(tmp_path / "runs") as served:
        status, _, body = served.ask("/api/run?run=bad")
        assert (status, "malformed" in json.loads(body)["error"]) == (409, True)
        rows = {row["run"]: row for row in served.get("/api/runs")["runs"]}
        assert "malformed" in rows["bad"]["error"]
        assert rows["good"]["state"] == "planned"


def damaged(runs, folder, change):
    """A copy of a run whose first journal of scored lines was changed behind its seals."""
    copy = folder / "copied"
    shutil.copytree(runs / "baseline", copy)
    shutil.rmtree(copy / "index", ignore_errors=True)
    journal = min((copy / "journals").glob("*.1.jsonl"))
    journal.write_bytes(change(journal.read_bytes()))
    return copy


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b'"reward":0.0', b'"reward":1.0', 1),
        lambda data: data.replace(b"What", b"Wh\xff\xfe", 1),
    ],
)
def test_a_journal_that_is_not_what_was_sealed_is_refused_here_too(runs, tmp_path, change):
    with Served(damaged(runs, tmp_path, change)) as server:
        for name in ("run", "tasks", "task", "rollout"):
            status, _, body = server.ask(f"/api/{name}?run=copied&task=area-0&sample=0")
            assert status == 409, (name, body)
            assert json.loads(body)["error"]


def test_a_report_that_is_none_harms_no_other_run(runs, tmp_path):
    for name in ("baseline", "stopped"):
        shutil.copytree(runs / name, tmp_path / name)
    scored = read_status(runs / "baseline").scored
    (tmp_path / "baseline" / "metrics.json").write_text(json.dumps({"scored": scored, "overall": [1, 2]}))
    with Served(tmp_path) as server:
        listed = {row["run"]: row for row in server.get("/api/runs")["runs"]}
    assert listed["baseline"]["pass@1"] is None
    assert listed["stopped"]["state"] == "interrupted"


def test_k_is_what_is_asked_for_by_now(tmp_path):
    book = make(tmp_path / "runs" / "grown", tasks=2, samples=2)
    book.extend(6, 1)
    with Served(tmp_path / "runs") as server:
        (listed,) = server.get("/api/runs")["runs"]
        assert (listed["samples"], listed["state"]) == (6, "planned")
        assert server.get("/api/run?run=grown")["samples"] == 6
        assert server.get("/api/run?run=grown")["state"] == "planned"


def test_a_folder_whose_name_is_no_text_is_listed_and_harms_no_other(tmp_path):
    make(tmp_path / "runs" / "good", tasks=1, samples=1)
    os.rename(make(tmp_path / "bad", tasks=1, samples=1).path, os.fsencode(tmp_path / "runs") + b"/bad\xff")
    with Served(tmp_path / "runs") as server:
        listed = {row["run"]: row for row in server.get("/api/runs")["runs"]}
        assert listed["good"]["state"] == "planned"
        assert "rename it" in listed["bad\ufffd"]["error"]
        assert server.ask("/api/run?run=bad%ff")[0] == 400
        assert server.events("/api/live", 1)[0]["runs"]


def test_a_run_in_a_folder_whose_name_is_no_text_is_shown(tmp_path):
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xff")
    folder = tmp_path / "bad\udcff"
    make(folder / "good", tasks=1, samples=1)
    with Served(folder) as server:
        assert server.get("/api/runs")["folder"] == "bad\ufffd"
        assert server.get("/api/run?run=good")["report"]["requested"] == 1
    os.rename(folder / "good", folder / "run\udcff")
    with Served(folder / "run\udcff") as server:
        (listed,) = server.get("/api/runs")["runs"]
        assert server.get("/api/run?" + urlencode({"run": listed["run"]}))["report"]["requested"] == 1


def test_a_name_with_a_backslash_is_a_name(tmp_path):
    make(tmp_path / "runs" / "a\\b", tasks=1, samples=1)
    with Served(tmp_path / "runs") as server:
        (listed,) = server.get("/api/runs")["runs"]
        assert server.get("/api/run?" + urlencode({"run": listed["run"]}))["run"] == "a\\b"


def test_a_run_that_was_put_in_anothers_place_is_listed_as_itself(tmp_path):
    make(tmp_path / "runs" / "x", tasks=1, samples=1, model="old")
    make(tmp_path / "other", tasks=1, samples=1, model="new")
    with Served(tmp_path / "runs") as server:
        assert server.get("/api/runs")["runs"][0]["model"] == "old"
        shutil.rmtree(tmp_path / "runs" / "x")
        os.rename(tmp_path / "other", tmp_path / "runs" / "x")
        assert server.get("/api/runs")["runs"][0]["model"] == "new"
        assert server.get("/api/run?run=x")["model"] == "new"


def test_damaged_tokens_do_not_close_the_page_of_a_run(runs, tmp_path):
    shutil.copytree(runs / "baseline", tmp_path / "copied")
    shutil.rmtree(tmp_path / "copied" / "index", ignore_errors=True)
    tokens = min((tmp_path / "copied" / "journals").glob("*.tokens"))
    os.truncate(tokens, 100)
    with Served(tmp_path / "copied") as server:
        report = server.get("/api/run?run=copied")["report"]
    assert report["scored"] + sum(report["failed"].values()) == 48
    assert "cut short" in report["token_damage"]
    assert str(tokens.parent) in report["token_damage"]


def test_damaged_lines_are_counted_and_named_on_the_page_of_a_run(runs, tmp_path):
    copy = damaged(runs, tmp_path, lambda data: data.replace(b"\n{", b"\n\0\0\0\0{", 1))
    for seal in (copy / "done").iterdir():
        seal.unlink()
    with Served(copy) as server:
        page = server.get("/api/run?run=copied")
    assert len(page["report"]["damaged"]) == 1
    (note,) = [each for each in page["notes"] if "damaged" in each]
    assert note.startswith("1 damaged journal lines do not count, resume runs what they lost: ")
    assert ".1.jsonl" in note
