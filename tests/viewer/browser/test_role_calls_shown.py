"""The page of a rollout has a section with the calls of models in roles, apart from the conversation."""

import pytest

from rollbook.core import RoleCall
from support.sample_runs import HOSTILE, Pen, make, rollout
from support.viewing import Served


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles") / "runs"
    pen = Pen(make(folder / "asked", tasks=2, samples=1))
    asked = rollout(pen.book, 0, 0)
    asked.role_calls = [
        RoleCall("user", 0, 17, "I would like a refund.", 120, 6, 0.5),
        RoleCall("judge", 0, 18, HOSTILE, 300, 40, 1.5, "length", in_verification=True, cost=0.0123),
    ]
    pen.score(asked)
    pen.score(rollout(pen.book, 1, 0))
    with Served(folder) as served:
        yield served


def test_calls_are_listed_with_role_tokens_cost_and_answer(look, server):
    looked = look(server)
    page = looked.go("#/run/asked/task/area-0/sample/0")
    shown = page.locator("section", has=page.get_by_role("heading", name="Role calls"))
    lines = shown.locator("li")
    assert lines.count() == 2
    first, second = lines.nth(0).inner_text(), lines.nth(1).inner_text()
    assert "user 1" in first
    assert "120 → 6 tokens" in first
    assert "I would like a refund." in first
    assert "verification" not in first
    assert "judge 1" in second
    assert "verification" in second
    assert "length" in second
    assert "cost 0.0123" in second
    assert "seed 18" in second
    lines.nth(1).locator("summary").click()
    assert HOSTILE[:40] in lines.nth(1).locator("pre").inner_text()
    assert not looked.complaints
    assert not looked.elsewhere


def test_a_rollout_without_calls_has_no_such_section(look, server):
    page = look(server).go("#/run/asked/task/area-1/sample/0")
    assert page.get_by_role("heading", name="Role calls").count() == 0
