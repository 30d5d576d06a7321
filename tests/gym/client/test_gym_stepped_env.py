"""Running a server step by step: observations, the reward of each step, and how it ends."""

import asyncio

import pytest
from aiohttp import web

from rollbook import Shortfall, run_async
from rollbook.book import Book, rollouts
from rollbook.core import Limits
from rollbook.engine import load_environment, open_scorer
from rollbook.errors import UsageError
from rollbook.gym.rows import make_row
from rollbook.gym.server.resources import ResourcesServer
from support.gym_servers import COOKIE, Counter, Steps, call, row, tool, write_rows, write_said


def drive(server, folder, *turns, requested=None, **settings):
    data = write_rows(folder / "rows.jsonl", requested or row("a number from 1 to 9", id="a", number="7"))
    script = write_said(folder / "s.jsonl", a=list(turns))

    async def main():
        async with server:
            await run_async(f"gym+step://{server.host}", script, data=data, out=folder / "run", **settings)

    asyncio.run(main())
    return {rollout.task.id: rollout for rollout in rollouts(Book(folder / "run"))}


def test_every_answer_is_a_step_and_the_reward_is_their_sum(tmp_path):
    server = Steps()
    result = drive(server, tmp_path, {"answer": "3"}, {"answer": "7"})["a"]
    shown = [(m.role, m.text) for m in result.messages]
    assert shown == [
        ("user", "a number from 1 to 9"),
        ("user", "guess"),
        ("assistant", "3"),
        ("user", "again"),
        ("assistant", "7"),
    ]
    assert result.reward == 1.25
    assert result.score.info == {"terminated": True, "truncated": False, "guesses": 2}
    assert server.paths == ["/reset", "/step", "/step", "/close"]
    assert server.cookies == [None, *["episode-1"] * 3]
    assert server.bodies[1]["number"] == "7"
    assert COOKIE not in str(result.outcome)


def test_tools_are_carried_out_by_the_server(tmp_path):
    requested = row("a number", [tool("warmer", than="integer")], id="a", number="7")
    result = drive(Steps(), tmp_path, call("warmer", than=5), {"answer": "7"}, requested=requested)["a"]
    assert [(m.role, m.text) for m in result.messages[2:]] == [("assistant", ""), ("tool", "cold"), ("assistant", "7")]
    assert result.reward == 1.25


def test_a_row_needs_no_prompt_where_the_server_says_what_there_is_to_see(tmp_path):
    requested = {"responses_create_params": {"input": []}, "id": "a", "number": "7"}
    result = drive(Steps(), tmp_path, {"answer": "7"}, requested=requested)["a"]
    assert [m.text for m in result.messages] == ["guess", "7"]


def test_a_limit_ends_it_and_what_there_is_counts(tmp_path):
    result = drive(Steps(), tmp_path, {"answer": "3"}, {"answer": "4"}, limits=Limits(max_turns=2))["a"]
    assert (result.reward, result.ended) == (0.5, "max_turns")


@pytest.mark.parametrize(
    ("mode", "kind"), [("500", "environment_error"), ("nan", "invalid_reward"), ("string", "invalid_reward")]
)
def test_a_step_that_goes_wrong_is_a_failure_and_closes_the_episode(tmp_path, mode, kind):
    server = Steps(mode)
    with pytest.raises(Shortfall) as caught:
        drive(server, tmp_path, {"answer": "3"}, attempts={"environment_error": 1})
    assert caught.value.failed == {kind: 1}
    assert server.paths[-1] == "/close"


def test_the_other_kind_of_server_is_told(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a", id="a"))
    script = write_said(tmp_path / "s.jsonl", a=[{"answer": "x"}])

    async def main():
        async with Steps() as steps, Counter() as counter:
            with pytest.raises(UsageError, match=r"its rollouts run step by step; write gym\+step"):
                await run_async(steps.url, script, data=data, out=tmp_path / "one")
            counter.routes = {"/verify": {}}
            with pytest.raises(UsageError, match="do not run step by step; write http"):
                await run_async(f"gym+step://{counter.host}", script, data=data, out=tmp_path / "two")

    asyncio.run(main())


GUESS = '''
from rollbook import Environment, Score, Task, tool


class Guess(Environment):
    def tasks(self):
        for number in range(3):
            yield Task(id=f"g{number}", prompt="Guess a number.", answer=str(number))

    def open(self, task):
        return {"hints": 0}

    @tool
    def hint(self, state) -> str:
        """Ask for a hint."""
        state["hints"] += 1
        return f"hint {state['hints']}"

    def reply(self, task, rollout, state):
        return None if rollout.text == task.answer else "no, again"

    def outcome(self, state):
        return state

    def verify(self, task, rollout):
        right = float(rollout.text == task.answer)
        return Score(right, {"hints": rollout.outcome["hints"] / 10}, answer=rollout.text, info={"tries": 1})
'''


def test_an_environment_that_speaks_back_gives_the_same_book_here_and_there(tmp_path):
    (tmp_path / "guess.py").write_text(GUESS)
    loaded = load_environment(f"{tmp_path}/guess.py:Guess")
    data = write_rows(tmp_path / "rows.jsonl", *(make_row(task, loaded.spec.tools) for task in loaded.instance.tasks()))
    turns = [call("hint"), {"answer": "1"}, {"answer": "2"}]
    script = write_said(tmp_path / "s.jsonl", g0=turns, g1=turns, g2=turns)

    async def main():
        limits = Limits(max_turns=4)
        await run_async(f"{tmp_path}/guess.py:Guess", script, out=tmp_path / "here", limits=limits)
        async with open_scorer(loaded, limits) as on:
            runner = web.AppRunner(ResourcesServer("Guess", on._environment, limits).make_app())
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            spec = f"gym+step://127.0.0.1:{runner.addresses[0][1]}"
            await run_async(spec, script, data=data, out=tmp_path / "there", limits=limits)
            await runner.cleanup()

    asyncio.run(main())
    here, there = ({r.key: r for r in rollouts(Book(tmp_path / name))} for name in ("here", "there"))
    assert {key: r.score for key, r in here.items()} == {key: r.score for key, r in there.items()}
    assert {key for key, r in here.items() if r.truncated} == {key for key, r in there.items() if r.truncated}
    assert {key: [m.text for m in r.messages] for key, r in here.items()} == {
        key: [m.text for m in r.messages] for key, r in there.items()
    }
    assert here["g2", 0].reward == 1.0
