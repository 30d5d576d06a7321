"""What a model says is shown and does nothing."""

from pathlib import Path
from urllib.parse import quote

import pytest

from rollbook.book import BookDraft
from rollbook.core import Task, make_part
from rollbook.reports import RunData, build_report
from rollbook.viewer.export import export_run, write_report_page
from rollbook.viewer.run_cache import RunFolder
from support.sample_runs import HOSTILE, Pen, make, rollout
from support.viewing import Served

ADDRESSES = ("#/run/hostile/task/area-0/sample/0", "#/run/hostile/task/area-0", "#/run/hostile")


def harmless(looked, page):
    page.wait_for_timeout(300)
    assert page.evaluate("window.harmed") is None
    assert looked.elsewhere == []
    assert (
        page.locator("main a[href^='http'], main a[href^='javascript'], main img, main script, main style").count() == 0
    )
    assert page.evaluate("getComputedStyle(document.body).display") != "none"


def test_scripts_beacons_and_links_do_nothing(look):
    for address in ADDRESSES:
        looked = look()
        harmless(looked, looked.go(address))


def test_what_was_said_can_still_be_read(look):
    looked = look()
    page = looked.go(ADDRESSES[0])
    said = page.locator(".talk").inner_text()
    assert '<script>window.harmed = true; fetch("http://beacon.invalid/script")</script>' in said
    assert "click me" in said
    for dead in page.locator(".dead").all():
        dead.click()
    harmless(looked, page)
    assert "sample/0" in page.url


def test_what_is_made_to_be_slow_is_shown_all_the_same(look, tmp_path):
    floods = [
        "\\(" * 60_000,
        "\\[" * 60_000,
        "$$" * 60_000,
        "$a" * 60_000,
        "$x$ " * 30_000,
        "> " * 40_000,
        "[" * 60_000,
        "*a_" * 50_000,
        "`" * 90_000,
        "|a" * 40_000,
    ]
    pen = Pen(make(tmp_path / "runs" / "slow", tasks=1, samples=len(floods)))
    for sample, text in enumerate(floods):
        pen.score(rollout(pen.book, 0, sample, text=text))
    with Served(tmp_path / "runs") as server:
        looked = look(server)
        for sample in range(len(floods)):
            page = looked.go(f"#/run/slow/task/area-0/sample/{sample}")
            assert page.locator(".message.assistant").count() >= 1
        looked.context.close()


def test_an_exported_file_does_nothing_either(look, tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=1, samples=1))
    pen.score(rollout(pen.book, 0, 0, text=HOSTILE + "</script><script>window.harmed = true</script>"))
    export_run(RunFolder(tmp_path / "run"), tmp_path / "run.html")
    looked = look()
    page = looked.page
    page.goto(f"{Path(tmp_path / 'run.html').as_uri()}#/run/run/task/area-0/sample/0")
    looked.there()
    assert "click me" in page.locator(".talk").inner_text()
    harmless(looked, page)
    assert [url for url in looked.asked if not url.startswith("file:")] == []
    assert looked.complaints == []


def test_an_exported_file_has_the_pages_of_its_run(look, viewer, tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=7, samples=2))
    for row in range(7):
        pen.score(rollout(pen.book, row, 0))
    export_run(RunFolder(tmp_path / "run"), tmp_path / "run.html")
    looked = look()
    page = looked.page
    page.goto((tmp_path / "run.html").as_uri())
    page.wait_for_selector("table.tasks tbody tr")
    assert "7 of 7 finished rollouts. Left out: nothing" in page.locator(".note").inner_text()
    page.click("table.tasks >> text=area-6")
    page.click(".card a >> text=sample 0")
    page.click("a.button:has-text('Tokens')")
    page.wait_for_selector(".token.trained")
    assert looked.complaints == []


def test_an_exported_file_never_shows_one_thing_for_another(look, tmp_path, monkeypatch):
    monkeypatch.setattr("rollbook.viewer.rollout_pages.MAX_TOKENS", 10)
    pen = Pen(make(tmp_path / "run", tasks=2, samples=2))
    pen.fail(rollout(pen.book, 1, 0, failure="model_timeout"), False)
    pen.score(rollout(pen.book, 1, 0, attempt=2))
    pen.fail(rollout(pen.book, 1, 1, failure="model_timeout"), True)
    export_run(RunFolder(tmp_path / "run"), tmp_path / "run.html")
    looked = look()
    page = looked.page
    address = (tmp_path / "run.html").as_uri()
    for left_out in ("sample/0?attempt=0", "sample/0/tokens?offset=4000", "sample/0/tokens?attempt=0"):
        page.goto("about:blank")
        page.goto(f"{address}#/run/run/task/area-1/{left_out}")
        assert "left out of the exported file" in page.wait_for_selector("[role=alert]").inner_text()
    page.goto("about:blank")
    page.goto(f"{address}#/run/run/task/area-1/sample/1?attempt=0")
    assert "failed: model_timeout" in page.wait_for_selector(".badge").inner_text()


def test_a_report_shows_its_numbers_and_charts_and_asks_nobody(look, tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=3, samples=2))
    for row in range(2):
        pen.score(rollout(pen.book, row, 0, text=HOSTILE))
    pen.fail(rollout(pen.book, 2, 0, failure="model_timeout"), True)
    read = RunData([tmp_path / "run"])
    looked = look()
    page = looked.page
    page.goto(write_report_page(read, build_report(read)).as_uri())
    page.wait_for_selector("table[aria-label='Slowest tasks']")
    text = page.locator("main").inner_text()
    for words in ("pass@1", "2 of 6", "model_timeout", "is computed from 2 of 3 tasks", "95%"):
        assert words in text
    assert page.locator("figure canvas").count() == 4
    harmless(looked, page)
    assert [url for url in looked.asked if not url.startswith("file:")] == []
    assert looked.complaints == []


NAMES = {
    "long": "word" * 300,
    "marks": "e" + "\u0301" * 300,
    "turned": "abc\u202edef",
    "cjk": "题" * 1200,
}


@pytest.fixture(scope="module")
def strange(tmp_path_factory):
    """A run whose tasks have ids that do not fit, climb or turn."""
    folder = tmp_path_factory.mktemp("strange") / "runs"
    made = make(folder / "made", tasks=1, samples=1)
    with BookDraft(folder / "a-run-with-a-name-of-27-letters") as draft:
        count = draft.add_tasks(
            (Task(name, prompt="What?", answer="1", huge=12345678901234567891) for name in NAMES.values()), "Calculus"
        )
        pen = Pen(draft.finish(made.manifest, [make_part((0, count), (0, 2), 1)]))
    for row in range(len(NAMES)):
        pen.score(rollout(pen.book, row, 0))
    return folder


RUN = "#/run/a-run-with-a-name-of-27-letters"


def test_a_name_stays_in_its_row(look, strange):
    with Served(strange) as server:
        looked = look(server)
        page = looked.go(RUN)
        rows = page.locator("table.tasks tbody tr")
        assert rows.count() == len(NAMES)
        for cell in rows.locator("th").all():
            assert cell.evaluate("e => getComputedStyle(e).overflow") == "hidden"
            assert cell.bounding_box()["width"] < 700
        assert "abc‹U+202E›def" in page.locator("table.tasks").inner_text()
        for name in NAMES.values():
            page = looked.go(f"{RUN}/task/{quote(name)}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280
            assert page.locator("h1").evaluate("e => getComputedStyle(e).overflow") == "clip"
            assert "12345678901234567891" in page.locator(".secret").inner_text()
        looked.context.close()


@pytest.mark.parametrize(("width", "column"), [(390, "pass@1"), (1280, "Age")])
def test_every_column_of_the_runs_is_on_the_screen(look, strange, width, column):
    with Served(strange) as server:
        looked = look(server)
        looked.page.set_viewport_size({"width": width, "height": 844})
        page = looked.go()
        box = page.locator(f"th:text-is('{column}')").bounding_box()
        assert box["x"] + box["width"] <= width
        looked.context.close()
