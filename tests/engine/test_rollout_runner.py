"""Attempts with tools, state and replies: what the policy did is scored, what broke has no score, states are closed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rollbook import Collector, Environment, Rollout, Task, run, tool
from rollbook.book import Book, rollouts
from rollbook.core import JSON, Limits
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.reverification import reverify
from rollbook.engine.rollout_runner import task_limits
from rollbook.engine.runs import RunResult
from rollbook.errors import Shortfall, UsageError
from rollbook.tokens import merge
from support.endpoint import Endpoint
from support.tool_environment import ASYNC, SYNC, call, life, write_desk, write_talk

both = pytest.mark.parametrize("source", [SYNC, ASYNC], ids=["sync", "async"])
ONE = [call("add", {"a": 1, "b": 1}), "2"]


def play(folder: Path, talks: dict[str, list[object]], source: str = SYNC, name: str = "Desk", **more: JSON) -> Path:
    """Run a script of conversations, one for each task."""
    env, script = write_desk(folder, source, name, tasks=len(talks)), write_talk(folder, talks)
    result = run(env, script, out=folder / "run", **more)  # type: ignore[arg-type]
    assert isinstance(result, RunResult)
    return folder / "run"


def played(folder: Path, said: list[object], source: str = SYNC, name: str = "Desk", **more: JSON) -> Rollout:
    """The rollout that a script of one conversation makes."""
    (found,) = rollouts(Book(play(folder, {"desk-0": said}, source, name, **more)))
    return found


def told(rollout: Rollout) -> list[str]:
    """What the tools said."""
    return [m.text for m in rollout.messages if m.role == "tool"]


@both
def test_tools_change_a_state_that_is_scored_by_its_outcome(tmp_path: Path, source: str) -> None:
    talks = {
        f"desk-{i}": [[call("add", {"a": i}), call("add", {"a": i}, 1), call("whose", number=2)], "so"]
        for i in range(4)
    }
    found = list(rollouts(Book(play(tmp_path, talks, source))))
    assert {r.task.id: r.outcome["total"] for r in found} == {f"desk-{i}": 2 * i for i in range(4)}
    assert all(r.reward == 1.0 and r.text == "so" and r.ended == "" and len(r.turns) == 2 for r in found)
    assert {r.task.id: told(r)[2] for r in found} == {f"desk-{i}": f"desk-{i}" for i in range(4)}
    assert all(m.tool_call_id for r in found for m in r.messages if m.role == "tool")
    opened, closed = life(tmp_path)
    assert opened == closed == Counter(talks.keys())


@both
def test_what_the_model_does_wrong_is_told_to_it_and_scored(tmp_path: Path, source: str) -> None:
    wrong = [
        call("ad", {"a": 1}),
        call("add", '{"a": 1,', 1),
        call("add", {"a": "one"}, 2),
        call("add", {"b": 1}, 3),
        call("add", {"a": 1, "c": 2}, 4),
        call("add", "[1]", 5),
        call("fail", {"how": "value"}, 6),
        call("fail", {"how": "key"}, 7),
    ]
    found = played(tmp_path, [wrong, "0"], source)
    assert found.reward == 1.0
    words = told(found)
    assert words[0] == "Error: there is no tool called 'ad'; there are add, echo, whose, hang, die, fail, thing, flood"
    assert words[1].startswith("Error: the arguments of add are not valid JSON at line 1 column 9: ")
    assert "Expected `int`, got `str` - at `$.a`" in words[2]
    assert "missing required field `a`" in words[3]
    assert "unknown field `c`" in words[4]
    assert "not a JSON object but a list" in words[5]
    assert words[6:] == ["Error: ValueError: so it is", "Error: KeyError: 'so it is'"]


@both
def test_a_long_output_is_cut_where_the_model_can_see_it(tmp_path: Path, source: str) -> None:
    (said,) = told(played(tmp_path, [call("flood"), "0"], source, limits=Limits(tool_chars=100)))
    assert said == "x" * 100 + "\n[cut here: 9999900 of 10000000 characters left out]"


@both
@pytest.mark.parametrize(
    ("poison", "where", "words"),
    [
        (call("fail", {"how": "lost"}), "tool fail", "ConnectionError: so it is"),
        (call("fail", {"how": "exit"}), "tool fail", "SystemExit: so it is"),
        (call("thing"), "tool thing", "did not return JSON"),
        (call("hang"), "tool hang", "tool hang took longer than 0.5 s"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_the_environment_does_wrong_is_a_failure_after_three_attempts(
    tmp_path: Path, source: str, poison: object, where: str, words: str
) -> None:
    with pytest.raises(Shortfall) as caught:
        play(tmp_path, {"desk-0": [poison]}, source, limits=Limits(tool_s=0.5))
    assert caught.value.failed == {"environment_error": 1}
    (path,) = (tmp_path / "run" / "journals").glob("*.failures.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["attempt"] for line in lines] == [1, 2, 3]
    assert {line["failure"]["where"] for line in lines} == {where}
    assert all(words in line["failure"]["message"] and len(line["turns"]) == 1 for line in lines)
    opened, closed = life(tmp_path)
    killed = source is SYNC and where == "tool hang"
    assert opened["desk-0"] == 3
    assert closed["desk-0"] == (0 if killed else 3)


@both
def test_the_last_turn_is_carried_out_and_its_end_is_marked(tmp_path: Path, source: str) -> None:
    again = [call("add", {"a": 0})] * 9
    found = played(tmp_path, again, source, limits=Limits(max_turns=3))
    assert (len(found.turns), found.ended, found.truncated) == (3, "max_turns", True)
    assert (found.outcome["calls"], found.reward) == (3, 1.0)


def test_the_same_calls_running_end_it_where_that_is_asked_for(tmp_path: Path) -> None:
    said = [call("add", {"a": 1, "b": 2}), call("add", {"a": 9}), call("add", '{"b": 2, "a": 1}')]
    said += [call("add", '{"a": 1,   "b": 2}'), call("add", {"a": 1, "b": 2})]
    found = played(tmp_path, said, limits=Limits(stop_repeats=3))
    assert (len(found.turns), found.ended, found.outcome["calls"]) == (5, "repeats", 4)


@both
def test_a_rollout_that_takes_too_long_has_failed_and_its_state_is_closed(tmp_path: Path, source: str) -> None:
    env, script = write_desk(tmp_path, source, tasks=1), write_talk(tmp_path, {"desk-0": ONE}, delay_s=0.6)
    with pytest.raises(Shortfall) as caught:
        run(env, script, out=tmp_path / "run", limits=Limits(rollout_s=1.0))
    assert caught.value.failed == {"rollout_timeout": 1}
    assert life(tmp_path) == (Counter({"desk-0": 1}), Counter({"desk-0": 1}))


def test_what_ended_by_a_limit_is_counted_as_truncated(tmp_path: Path) -> None:
    talks = {"desk-0": [call("add", {"a": 0})] * 4, "desk-1": ONE}
    result = run(
        write_desk(tmp_path, tasks=2), write_talk(tmp_path, talks), out=tmp_path / "run", limits=Limits(max_turns=2)
    )
    assert isinstance(result, RunResult)
    assert result.report.json()["environments"]["Desk"]["truncated"] == 1
    assert {r.task.id: r.truncated for r in rollouts(Book(tmp_path / "run"))} == {"desk-0": True, "desk-1": False}


def test_a_stored_conversation_can_be_scored_again(tmp_path: Path) -> None:
    path = play(tmp_path, {"desk-0": ["0"], "desk-1": ONE, "desk-2": ["4"]})
    again = asyncio.run(reverify(path, tmp_path / "again", (), "all", SilentDisplay()))
    assert (again.verified, again.changed, again.report.scored) == (3, 0, 3)
    before, after = ({r.key: (r.outcome, r.ended, r.reward) for r in rollouts(Book(p))} for p in (path, again.path))
    assert before == after


@both
def test_an_environment_that_replies_is_answered_until_it_is_silent(tmp_path: Path, source: str) -> None:
    found = played(tmp_path, ["5", "7", "0"], source, "Talking")
    assert [m.role for m in found.messages] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert found.messages[2].text == "No. Once more: What is 0 + 0?"
    assert (found.reward, found.outcome["asked"], found.ended) == (1.0, 3, "")


def test_tools_and_replies_go_together(tmp_path: Path) -> None:
    found = played(tmp_path, [call("add", {"a": 1}), "1", call("add", {"a": 1}), "0"], name="Talking")
    roles = [m.role for m in found.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]
    assert (found.reward, found.outcome["total"]) == (1.0, 2)


def test_the_environment_hears_the_last_answer_that_is_allowed(tmp_path: Path) -> None:
    found = played(tmp_path, ["5"] * 9, name="Talking", limits=Limits(max_turns=2))
    assert (len(found.turns), found.ended, found.outcome["asked"], found.reward) == (2, "max_turns", 2, 0.0)


def test_a_reply_that_is_none_of_the_kinds_it_may_be_is_a_failure(tmp_path: Path) -> None:
    source = SYNC.replace('return f"No. Once more: {task.prompt}"', "return 7")
    with pytest.raises(Shortfall, match="environment_error"):
        play(tmp_path, {"desk-0": ["5"]}, source, "Talking")
    text = next((tmp_path / "run" / "journals").glob("*.failures.jsonl")).read_text()
    assert '"where":"reply"' in text
    assert "reply returned a int; it must be text" in text


def test_the_tokens_of_all_answers_are_bounded_together(tmp_path: Path) -> None:
    ids = {"prompt_ids": [1], "ids": [2, 3, 4, 5], "logprobs": [-1.0] * 4}
    script = write_talk(tmp_path, {"desk-0": [call("add", {"a": 1})] * 9}, **ids)
    result = run(write_desk(tmp_path, tasks=1), script, out=tmp_path / "run", limits=Limits(max_tokens_total=10))
    assert isinstance(result, RunResult)
    (found,) = rollouts(Book(tmp_path / "run"))
    assert (len(found.turns), found.ended) == (3, "max_tokens_total")


def test_no_call_asks_for_more_tokens_than_are_left() -> None:
    async def go() -> tuple[Rollout, list[int]]:
        async with Endpoint() as endpoint:
            limits = Limits(max_tokens_total=60)
            async with Collector(Calculator(), endpoint.url, limits=limits) as collector:
                (found,) = [r async for g in collector.groups() for r in g.rollouts]
            return found, [body["max_tokens"] for body in endpoint.bodies]

    found, asked = asyncio.run(go())
    assert asked[0] == 60
    assert asked[1] == 60 - found.turns[0].completion_tokens


@pytest.mark.parametrize("extra", [0, 1])
def test_no_call_asks_for_more_tokens_than_are_left_of_a_response_which_includes_what_tools_said(extra: int) -> None:
    async def go(allowed: int) -> tuple[Rollout, list[int]]:
        async with Endpoint() as endpoint:
            limits = Limits(max_response_tokens=allowed)
            async with Collector(Calculator(), endpoint.url, limits=limits) as collector:
                (found,) = [r async for g in collector.groups() for r in g.rollouts]
            return found, [body["max_tokens"] for body in endpoint.bodies]

    free, _ = asyncio.run(go(1000))
    first, last = free.turns
    needed = last.prompt_tokens + last.completion_tokens - first.prompt_tokens
    found, asked = asyncio.run(go(needed - extra))
    said = next(message.text for message in found.messages if message.role == "tool")
    assert asked == [needed - extra, needed - extra - first.completion_tokens - len(said) // 4]
    assert (len(found.turns), found.ended) == ((1, "max_response_tokens") if extra else (2, ""))


def test_a_bound_on_tokens_that_nobody_counts_is_no_score(tmp_path: Path) -> None:
    with pytest.raises(Shortfall, match="model_rejected"):
        play(tmp_path, {"desk-0": ONE}, limits=Limits(max_tokens_total=10))


def test_the_limits_the_tools_and_their_format_are_part_of_the_meaning(tmp_path: Path) -> None:
    limits = Limits(max_turns=5, max_tokens_total=None, tool_chars=99, stop_repeats=4, tool_s=7.0)
    path = play(tmp_path, {"desk-0": ONE}, limits=limits, tool_format="native")
    manifest = Book(path).manifest
    assert (manifest.limits, manifest.tool_format) == (limits, "native")
    (spec,) = manifest.environments.values()
    assert [tool["function"]["name"] for tool in spec.tools][:2] == ["add", "echo"]
    assert not spec.replies


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"limits": Limits(max_turns=0)}, "--max-turns 0"),
        ({"limits": Limits(stop_repeats=1)}, "--stop-repeats 1"),
        ({"limits": Limits(tool_chars=0)}, "--tool-chars 0"),
        ({"limits": Limits(max_tokens_total=0)}, "--max-tokens-total 0"),
        ({"tool_format": "xml"}, "--tool-format xml: known are auto, native, schema, text"),
    ],
)
def test_limits_that_make_no_sense_are_refused(tmp_path: Path, more: dict[str, JSON], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        play(tmp_path, {"desk-0": ONE}, **more)


def test_the_embedded_model_is_not_asked_to_parse_calls(tmp_path: Path) -> None:
    from rollbook.core import ModelSpec
    from rollbook.engine.planning import choose_tool_format
    from rollbook.engine.request import Request

    embedded, endpoint = ModelSpec("m", "embedded"), ModelSpec("m", "chat")
    request = Request(env="x", out=str(tmp_path))
    assert (choose_tool_format(request, embedded), choose_tool_format(request, endpoint)) == ("schema", "native")
    with pytest.raises(UsageError, match="use schema or text"):
        choose_tool_format(Request(env="x", out=str(tmp_path), tool_format="native"), embedded)


def test_calls_written_as_text_make_the_same_record(tmp_path: Path) -> None:
    written = ['Let me see. {"calls": [{"name": "add", "arguments": {"a": 0, "b": 0}}]}', '{"answer": "nothing"}']
    found = played(tmp_path, list(written), tool_format="text")
    calls = found.messages[1].tool_calls
    assert calls is not None
    assert (calls[0].function.name, told(found), found.text) == ("add", ["0"], "nothing")
    assert [m.written for m in found.messages if m.role == "assistant"] == written
    assert found.reward == 1.0


def met(*, samples: int = 1, **more: JSON) -> tuple[list[Rollout], Endpoint]:
    """Rollouts of an async desk with an endpoint that calls `add`."""

    async def go() -> tuple[list[Rollout], Endpoint]:
        mode, settings = more.pop("mode", "ok"), more.pop("endpoint", {})
        async with (
            Endpoint(mode, vllm=True, **settings) as endpoint,
            Collector(Calculator(), endpoint.url, samples=samples, **more) as collector,
        ):
            return [r async for g in collector.groups() for r in g.rollouts], endpoint

    return asyncio.run(go())


def test_a_server_that_parses_calls_is_spoken_to_in_its_own_fields() -> None:
    (found,), endpoint = met()
    assert (found.text, found.reward) == ("The answer is 42.", 1.0)
    first, then = endpoint.bodies
    assert [tool["function"]["name"] for tool in first["tools"]] == ["add"]
    assert first["tools"] == then["tools"]
    assert then["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 20, "b": 22}'}
    assert then["messages"][2] == {"role": "tool", "content": "42", "tool_call_id": "call_1"}
    assert "response_format" not in first
    assert [turn.finish_reason for turn in found.turns] == ["tool_calls", "stop"]


def test_turns_that_continue_each_other_are_one_sequence() -> None:
    (found,), _ = met()
    (sequence,) = merge(found.turns)
    first, then = found.turns
    assert first.ids is not None
    assert then.ids is not None
    assert then.prompt_ids is not None
    assert sequence.prompt_ids + sequence.response_ids == then.prompt_ids + then.ids
    assert sum(sequence.mask) == len(first.ids) + len(then.ids)
    assert 0 in sequence.mask


def test_broken_arguments_go_back_as_json_and_the_sequence_forks() -> None:
    (found,), endpoint = met(mode="bad_arguments", endpoint={"times": 1})
    calls = found.messages[1].tool_calls
    assert calls is not None
    assert calls[0].function.arguments == '{"a": 1, "b"'
    assert found.messages[2].text.startswith("Error: the arguments of add are not valid JSON at line 1 column 13")
    sent = endpoint.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"unreadable": '{"a": 1, "b"'}
    assert len(merge(found.turns)) == 2


def test_a_schema_is_sent_where_calls_are_text() -> None:
    (found,), endpoint = met(tool_format="schema")
    (body,) = endpoint.bodies
    assert body["response_format"]["type"] == "json_schema"
    assert body["messages"][0]["role"] == "system"
    assert '"name":"add"' in body["messages"][0]["content"]
    assert "tools" not in body
    assert found.messages[0].role == "user"


def test_a_call_that_fails_in_the_middle_is_made_again_and_costs_no_turn() -> None:
    async def go() -> tuple[Rollout, Endpoint]:
        async with Endpoint() as endpoint:
            environment = Calculator()
            environment.during_add = lambda: endpoint.switch("503", times=2, retry_after="0")
            async with Collector(environment, endpoint.url) as collector:
                (found,) = [r async for g in collector.groups() for r in g.rollouts]
            return found, endpoint

    found, endpoint = asyncio.run(go())
    assert (found.attempt, found.reward, len(found.turns)) == (1, 1.0, 2)
    assert (endpoint.counts["503"], endpoint.counts["chat"]) == (2, 4)


def test_a_rollout_stays_on_its_replica_and_every_turn_has_its_version() -> None:
    async def go() -> tuple[list[Rollout], list[Endpoint]]:
        async with Endpoint() as one, Endpoint() as other:
            urls = [one.url, other.url]
            async with Collector(Calculator(), urls, samples=8, concurrency=8, routing="least-loaded") as collector:
                collector.resume("v7")
                found = [r async for g in collector.groups() for r in g.rollouts]
            return found, [one, other]

    found, endpoints = asyncio.run(go())
    assert {turn.model_version for r in found for turn in r.turns} == {"v7"}
    for endpoint in endpoints:
        assert endpoint.seeds
        assert set(endpoint.seeds.values()) == {2}


def test_a_full_context_in_the_middle_is_a_score() -> None:
    async def go() -> Rollout:
        async with Endpoint() as endpoint:
            environment = Calculator()
            environment.during_add = lambda: endpoint.switch("context")
            async with Collector(environment, endpoint.url) as collector:
                (found,) = [r async for g in collector.groups() for r in g.rollouts]
            return found

    found = asyncio.run(go())
    assert (found.reward, found.ended, found.truncated, len(found.turns)) == (0.0, "context_length", True, 2)


class Calculator(Environment):
    """Async, so that it may live in a test."""

    during_add: Callable[[], Awaitable[None]] | None = None

    def tasks(self) -> list[Task]:
        return [Task(id="sum", prompt="What is 20 + 22?", answer="42")]

    async def verify(self, task: Task, rollout: Rollout) -> bool:
        return str(task.answer) in rollout.text

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add."""
        if self.during_add:
            await self.during_add()
        return a + b


def test_a_task_allows_fewer_turns_than_the_run_but_not_more() -> None:
    task = Task("a", "p", max_turns=2)
    assert task_limits(task, Limits(max_turns=5)).max_turns == 2
    assert task_limits(task, Limits(max_turns=1)).max_turns == 1
    assert task_limits(Task("a", "p"), Limits(max_turns=5)).max_turns == 5


SLOW_DESK = '''
import time
from rollbook import Environment, Score, Task, tool


class Slow(Environment):
    def tasks(self):
        yield Task(id="desk-0", prompt="?")

    def open(self, task):
        time.sleep(0.2)
        return {}

    @tool
    def wait(self, state) -> str:
        """Wait."""
        time.sleep(0.3)
        return "done"

    def verify(self, task, rollout):
        time.sleep(0.1)
        return Score(1.0)
'''


def test_time_in_the_environment_is_its_opening_and_its_tools_and_not_its_verifier(tmp_path: Path) -> None:
    (tmp_path / "slow_desk.py").write_text(SLOW_DESK)
    script = write_talk(tmp_path, {"desk-0": [call("wait"), "so"]})
    run(f"{tmp_path}/slow_desk.py:Slow", script, out=tmp_path / "run")
    (found,) = rollouts(Book(tmp_path / "run"))
    timing = found.timing
    assert timing.environment_s >= 0.5  # sleeps are never shorter than asked; how much longer depends on the machine
    assert timing.verify_s >= 0.1
    assert timing.environment_s + timing.verify_s + timing.model_s <= timing.seconds + 1e-3
