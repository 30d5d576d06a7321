"""Whatever was said can be read: rendered where nothing is lost by it, as it was written elsewhere and on demand."""

import json

import pytest

from rollbook.core import Function, Message, ToolCall
from support.sample_runs import Pen, make, rollout
from support.viewing import Served

AS_WRITTEN = [
    "> " * 60 + "the answer is 41",
    "- " * 60 + "x",
    "```\nleft\n```\n" + "> " * 60 + "gone",
    "| a |\n| --- |\n| b | the answer is 41 |",
    "---",
]
READABLE = [
    ("[note]: http://x 'secret'", "[note]: http://x 'secret'"),
    ("a[i](j)", "a[i](j)"),
    ("[click](http://x.invalid/y 'title')", "click ‹http://x.invalid/y title›"),
    ("`a` __init__ and a_b_c", "__init__ and a_b_c"),
    ("2*3*4 and 2**3**4", "2*3*4 and 2**3**4"),
    ("C:\\\\dir \\* and \\_", "C:\\\\dir \\* and \\_"),
    ("&lt;b&gt; &amp;", "&lt;b&gt; &amp;"),
    ("```the answer is 41\nx = 1\n```", "the answer is 41"),
    ("$x \\phantom{the answer is 41}$", "\\phantom{the answer is 41}"),
    ("$\\color{white}{41}$", "\\color{white}{41}"),
    ("$x \\label{the answer is 41}$", "\\label{the answer is 41}"),
    ("$\\def\\a{the answer is 41} x$", "\\def\\a{the answer is 41}"),
    ("$x % the answer is 41\n$", "% the answer is 41"),
    ("3. three\n7. seven", "seven"),
]
MATHS = ["so \\boxed{\\frac{1}{2}}.", "\\begin{align}\na &= b \\\\\n&= c\n\\end{align}"]
WRITTEN = '{"a": 12345678901234567891, "b": 1.0, "c": {}, "d": ["x", {"e": "\\u00e9 \\" ,:{}"}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("said") / "runs"
    texts = [*AS_WRITTEN, *(text for text, _ in READABLE), *MATHS]
    pen = Pen(make(folder / "said", tasks=2, samples=len(texts)))
    for sample, text in enumerate(texts):
        pen.score(rollout(pen.book, 1, sample, text=text))
    called = rollout(pen.book, 0, 0)
    call = ToolCall("c", Function("look_up", WRITTEN))
    called.messages += [Message("assistant", None, tool_calls=[call]), Message("tool", WRITTEN, tool_call_id="c")]
    called.score.info["huge"] = 12345678901234567891
    pen.score(called)
    with Served(folder) as served:
        yield served


def said(look, server, sample, task="area-1"):
    page = look(server).go(f"#/run/said/task/{task}/sample/{sample}")
    return page, page.locator(".message.assistant").first


def test_what_would_be_hidden_is_shown_as_it_was_written(look, server):
    looked = look(server)
    for sample, text in enumerate(AS_WRITTEN):
        message = looked.go(f"#/run/said/task/area-1/sample/{sample}").locator(".message.assistant")
        assert text in message.locator("pre.plain:visible").inner_text(), text


def test_what_is_rendered_loses_nothing(look, server):
    looked = look(server)
    for sample, (text, expected) in enumerate(READABLE, len(AS_WRITTEN)):
        message = looked.go(f"#/run/said/task/area-1/sample/{sample}").locator(".message.assistant .shown:visible")
        assert expected in message.inner_text(), text
    assert message.locator("li").evaluate_all("all => all.map(each => each.value)") == [3, 7]


def test_bare_boxes_and_environments_are_formulas(look, server):
    for sample, text in enumerate(MATHS, len(AS_WRITTEN) + len(READABLE)):
        _, message = said(look, server, sample)
        assert message.locator("math").count() == 1, text
        assert message.locator(".tex").count() == 0, text


def test_everything_is_shown_as_written_on_demand_and_that_is_remembered(look, server):
    page, message = said(look, server, len(AS_WRITTEN) + 3)
    assert page.locator("#written").get_attribute("aria-pressed") == "false"
    page.keyboard.press("w")
    assert message.locator(".written").last.is_visible()
    assert not message.locator(".shown").last.is_visible()
    page.reload()
    page.wait_for_selector(".said > .written:visible")
    page.click("#written")
    assert message.locator(".shown").last.is_visible()
    page.goto(f"{server.url}#/run/said")
    page.wait_for_selector(".page-run")
    assert not page.locator("#written").is_visible()


def test_numbers_keep_every_digit(look, server):
    page, _ = said(look, server, 0, "area-0")
    for shown in (page.locator(".call .code").last, page.locator(".message.tool .code").last):
        assert "12345678901234567891" in shown.inner_text()
        assert '"b": 1.0' in shown.inner_text()
        assert json.loads(shown.inner_text()) == json.loads(WRITTEN)
    page.click("summary:text-is('Info')")
    assert "12345678901234567891" in page.locator("details:has-text('Info') .code").first.inner_text()
    page.click("summary:text-is('Raw JSON')")
    raw = page.wait_for_selector("details:has-text('Raw JSON') .code").inner_text()
    stored = server.get("/api/rollout?run=said&task=area-0&sample=0")["raw"]
    assert json.loads(raw) == json.loads(stored)
    assert "".join(raw.split()) == "".join(stored.split())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-149.9, "-149.9"),
        (120.4, "120.4"),
        (99.96, "99.96"),
        (1e-10, "1e-10"),
        (1 / 3, "0.333"),
        (0.5, "0.5"),
        (100, "100"),
        (0.99999, "0.99999"),
        (0.9999999999, "0.9999999999"),
        (-0.25, "-0.25"),
    ],
)
def test_rewards_are_shown_as_they_are(formats, value, shown):
    assert formats.evaluate("async value => (await import('./js/format.js')).reward(value)", value) == shown


@pytest.fixture(scope="module")
def formats(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    yield page
    context.close()
