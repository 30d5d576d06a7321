"""What a model says is shown and does nothing."""

from pathlib import Path

from rollbook.view.export import export_run
from rollbook.view.folder import Folder
from support.showcase import HOSTILE, Pen, make, rollout
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
    export_run(Folder(tmp_path / "run"), tmp_path / "run.html")
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
    export_run(Folder(tmp_path / "run"), tmp_path / "run.html")
    looked = look()
    page = looked.page
    page.goto((tmp_path / "run.html").as_uri())
    page.wait_for_selector("table.tasks tbody tr")
    assert "14 of 14 rollouts" in page.locator(".note").inner_text()
    page.click("text=area-6")
    page.click(".card a >> text=sample 0")
    page.click("a.button:has-text('Tokens')")
    page.wait_for_selector(".token.trained")
    assert looked.complaints == []
