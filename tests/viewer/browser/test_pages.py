"""Every page as people use it: opened, sorted, filtered, walked through from the run to the token."""

import re
from itertools import pairwise

import pytest

WIDE, PHONE = 1280, 390
ADDRESSES = {
    "runs": "#/",
    "run": "#/run/stopped",
    "task": "#/run/stopped/task/area-3",
    "rollout": "#/run/baseline/task/area-6/sample/1",
    "tokens": "#/run/baseline/task/area-6/sample/1/tokens?sequence=1",
    "compare": "#/compare/baseline/tuned",
    "pair": "#/compare/baseline/tuned/task/area-6/0/1",
}


def means(page):
    cells = page.locator("table.tasks tbody tr td.strong").all_inner_texts()
    return [float(text) for text in cells if text != "–"]


def test_the_token_leaves_the_address_and_the_page_opens(look):
    page = look().go()
    assert "token" not in page.url
    assert page.locator("table tbody tr").count() == 4
    page.reload()
    page.wait_for_selector("table tbody tr")


def test_a_stranger_sees_nothing(look, viewer):
    page = look().page
    answer = page.goto(f"http://127.0.0.1:{viewer.port}/")
    assert answer.status == 401


@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ADDRESSES)
def test_every_page_fits_and_complains_of_nothing(look, name, width, scheme):
    looked = look(color_scheme=scheme)
    looked.page.set_viewport_size({"width": width, "height": 844})
    page = looked.go(ADDRESSES[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("h1").count() >= 1
    assert page.locator("header, main, nav[aria-label]").count() >= 3
    assert looked.complaints == []
    assert looked.elsewhere == []
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back))) < 200) == (scheme == "dark")


def test_sorting_is_by_the_server_and_turns_round(look):
    page = look().go("#/run/baseline")
    page.click("th a.sort >> text=Mean")
    page.wait_for_selector("th[aria-sort=descending]")
    assert means(page) == sorted(means(page), reverse=True)
    page.click("th a.sort >> text=Mean")
    page.wait_for_selector("th[aria-sort=ascending]")
    assert means(page) == sorted(means(page))


def test_filtering_takes_the_grammar_of_curate(look):
    page = look().go("#/run/baseline")
    page.fill("input[name=keep]", "0 < mean < 1 and level == 2")
    page.press("input[name=keep]", "Enter")
    page.wait_for_selector("#counted:has-text('kept')")
    assert means(page)
    assert all(0 < mean < 1 for mean in means(page))
    page.fill("input[name=keep]", "meen > 0")
    page.press("input[name=keep]", "Enter")
    assert "did you mean mean" in page.wait_for_selector("[role=alert]").inner_text()


def test_pages_of_the_table(look):
    page = look().go("#/run/baseline")
    assert page.locator("table.tasks tbody tr").count() == 50
    page.click("text=Next →")
    page.wait_for_selector("#counted:has-text('51–60 of 60')")
    assert page.locator("table.tasks tbody tr").count() == 10


def test_failed_and_pending_do_not_look_like_zero(look):
    page = look().go("#/run/stopped")
    looks = {
        kind: page.locator(f"table .cell.{kind}").first.evaluate(
            "e => (s => s.backgroundImage + s.borderStyle + s.backgroundColor)(getComputedStyle(e))"
        )
        for kind in ("scored", "failed", "pending")
    }
    assert len(set(looks.values())) == 3
    labels = page.locator("table .strip").all()
    assert any("pending" in (each.get_attribute("aria-label") or "") for each in labels)


def test_the_walk_from_run_to_token_by_keyboard(look):
    looked = look()
    page = looked.go("#/run/baseline")
    for _ in range(7):
        page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".page-task h1:has-text('area-6')")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".page-rollout h1:has-text('#1')")
    page.keyboard.press("t")
    page.wait_for_selector(".page-tokens .token.trained")
    page.hover(".tokens .token.trained >> nth=3")
    about = page.locator(".about").inner_text()
    assert all(word in about for word in ("id", "logprob", "sampled, trained"))
    for expected in ("page-rollout", "page-task", "page-run", "page-runs"):
        page.keyboard.press("Escape")
        page.wait_for_selector(f".{expected}")
    assert looked.complaints == []


def test_a_rollout_shows_what_was_said_and_how(look):
    page = look().go("#/run/baseline/task/area-6/sample/1")
    assert page.locator("math").count() >= 4
    assert page.locator(".prose table").count() == 1
    assert page.locator("code .hl-keyword").count() >= 1
    assert not page.locator(".reasoning .prose").first.is_visible()
    page.click(".reasoning summary")
    assert page.locator(".reasoning .prose").first.is_visible()
    assert page.locator(".timebar i").count() == 4
    assert "rollbook run" in page.locator(".replay").inner_text()
    page.click("text=Raw JSON")
    assert '"completion_tokens"' in page.wait_for_selector("details:has-text('Raw JSON') .code").inner_text()
    page.keyboard.press("j")
    page.wait_for_selector("h1:has-text('#2')")


def test_the_replay_command_is_copied(look):
    looked = look(permissions=["clipboard-read", "clipboard-write"])
    page = looked.go("#/run/baseline/task/area-6/sample/1")
    page.click(".copy")
    page.wait_for_selector(".copy:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()").startswith("rollbook run calculus.py:Calculus --task area-6")


def test_forks_are_marked_among_the_tokens(look):
    page = look().go("#/run/baseline/task/area-6/sample/1/tokens?sequence=1")
    assert "Forked at turn 2" in page.locator(".sequences").inner_text()
    assert page.locator(".tokens .forked").count() == 1
    assert page.locator(".tokens .token:not(.trained)").count() > 3


def test_two_runs_are_chosen_and_compared(look):
    page = look().go()
    page.check("tr[data-run=baseline] input")
    page.check("tr[data-run=tuned] input")
    page.click("text=Compare baseline with tuned")
    page.wait_for_selector(".page-compare table.tasks")
    flips = page.locator("table.tasks tbody tr").evaluate_all("rows => rows.map(row => !!row.querySelector('.tag'))")
    assert True in flips
    assert flips == sorted(flips, reverse=True)
    page.click("table.tasks tbody tr th a")
    page.wait_for_selector(".page-pair section[aria-label^='B:'] .message")
    left = page.locator("section[aria-label^='A:'] h1").inner_text()
    badges = page.locator(".page-pair .badge").all_inner_texts()
    assert len(set(badges)) == 2
    picks = page.locator("section[aria-label^='B:'] .pick").all()
    assert all(re.search(r"sample \d: (-?\d|failed|pending)", pick.get_attribute("title")) for pick in picks)
    page.click("section[aria-label^='B:'] .pick[title^='sample 2']")
    page.wait_for_selector("section[aria-label^='B:'] h1:has-text('#2')")
    assert page.locator("section[aria-label^='A:'] h1").inner_text() == left
    page.keyboard.press("Escape")
    page.wait_for_selector(".page-compare tr.at")
    page.keyboard.press("Escape")
    page.wait_for_selector("tr[data-run=tuned] input:checked")
    assert page.locator("input:checked").count() == 2


def test_runs_that_cannot_be_compared_say_why(look):
    page = look().go("#/compare/baseline/hostile")
    assert "do not have the same tasks" in page.locator("[role=alert]").inner_text()
    page.click("text=Compare the tasks that both have")
    page.wait_for_selector(".page-compare table.tasks tbody tr")


def test_a_search_finds_and_leads_there(look):
    page = look().go("#/run/baseline")
    page.fill("input[name=text]", "area up to 17.")
    page.press("input[name=text]", "Enter")
    page.wait_for_selector(".hits li")
    page.wait_for_selector("text=/\\d rollouts/")
    page.click(".hits li a")
    page.wait_for_selector(".page-rollout h1:has-text('area-17')")
    page.go_back()
    page.wait_for_selector(".hits li a:has-text('area-17')")
    assert page.locator("input[name=text]").input_value() == "area up to 17."
    page.click("button[title=Close]")
    page.wait_for_selector(".page-run:not(:has(.hits))")


def test_esc_goes_back_to_the_table_as_it_was(look):
    page = look().go("#/run/baseline?keep=mean+%3E+0&sort=mean")
    page.keyboard.press("j")
    page.keyboard.press("j")
    task = page.locator("tr.at th a").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector(".page-task")
    page.keyboard.press("Escape")
    page.wait_for_selector(f"tr.at th a:text-is('{task}')")
    assert "keep=mean" in page.url
    assert "sort=mean" in page.url


def test_a_long_address_is_answered_or_plainly_refused(look, viewer):
    page = look().go("#/run/baseline")
    page.evaluate("location.hash = '#/run/baseline?keep=' + encodeURIComponent('题'.repeat(20000))")
    said = page.wait_for_selector("[role=alert]").inner_text()
    assert "is the address too long?" in said


def test_the_bars_of_time_fill_their_axis(look):
    page = look().go("#/run/baseline")
    times = page.locator("figure").nth(2)
    assert re.search("per (second|minute)$", times.locator("figcaption").inner_text())
    edges = page.evaluate("fetch('api/run?run=baseline').then(r => r.json()).then(each => each.timeline.edges)")
    widths = {round(b - a, 3) for a, b in pairwise(edges)}
    assert len(widths) == 1


def test_light_and_dark_by_hand(look):
    page = look(color_scheme="light").go("#/run/baseline")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
