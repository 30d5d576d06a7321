"""An outside program as an agent: its environment, its permissions, and the meaning of its exit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import rollbook
from rollbook.agents import check_agent_unchanged, choose_agent, make_agent, resolve_agent
from rollbook.agents.program import ANSWER_LIMIT, Program, resolve_command
from rollbook.book import Book, rollouts
from rollbook.core import JSON, AgentSpec, EnvironmentSpec, Limits, Message, Rollout, Sampling, Task, Turn
from rollbook.environments.session import StatelessSession
from rollbook.errors import ContextFull, EndpointDown, LimitReached, RolloutFailed, Shortfall, UsageError
from rollbook.gateway import LocalGateway
from rollbook.models import Completion
from rollbook.tokens import merge
from support.alive import alive, open_fds
from support.endpoint import Endpoint
from support.sums import write_script, write_sums

ASK = """
import json, os, sys, urllib.error, urllib.request

def ask(*messages, **fields):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    said = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
    body = json.dumps({"model": "any", "messages": said, **fields}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, body)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

task = json.load(open(os.environ["ROLLBOOK_TASK"]))
"""


class Told:
    """A model that says, or raises, one thing after the other."""

    sampling = Sampling()

    def __init__(self, *told: str | Exception) -> None:
        self._told, self.asked = list(told), list[Sequence[Message]]()

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        self.asked.append(messages)
        told = self._told.pop(0)
        if isinstance(told, Exception):
            raise told
        return Completion(Message("assistant", told), Turn())


def write_agent(folder: Path, code: str) -> str:
    """An agent as a file; gives its command."""
    path = folder / "agent.py"
    path.write_text(ASK + textwrap.dedent(code))
    return f"{sys.executable} {path}"


def blank() -> Rollout:
    return Rollout(task=Task("t", "What is 1 + 1?", answer="2"), sample=3, seed=5, messages=[], turns=[])


def played(folder: Path, code: str, *told: str | Exception, rollout: Rollout | None = None) -> Rollout:
    rollout = rollout or blank()
    agent = Program(write_agent(folder, code), LocalGateway())
    asyncio.run(agent.play(rollout, Told(*told), StatelessSession()))
    return rollout


def test_it_is_told_the_task_but_not_the_answer_and_its_calls_are_recorded(tmp_path: Path) -> None:
    rollout = played(
        tmp_path,
        """
        assert task["id"] == "t" and task["sample"] == 3 and task["prompt"] == "What is 1 + 1?"
        assert "answer" not in task and os.environ["OPENAI_API_KEY"] == "rollbook"
        assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == os.environ["OPENAI_BASE_URL"]
        assert os.listdir() == [] and sys.stdin.read() == ""
        first = ask(*task["messages"])
        ask(*task["messages"], {"role": "assistant", "content": first}, "Sure?")
        """,
        "2",
        "Yes.",
    )
    assert [m.text for m in rollout.messages] == ["What is 1 + 1?", "2", "Sure?", "Yes."]
    assert len(rollout.turns) == 2


def test_it_does_not_see_the_keys_of_real_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    monkeypatch.setenv("MY_NAME", "no secret")
    command = write_agent(tmp_path, "assert 'MY_KEY' not in os.environ and 'MY_NAME' in os.environ; ask('hm')")
    spec = AgentSpec(resolve_command(command), "")
    rollout, program = blank(), make_agent(spec, {"MY_KEY"})
    assert program
    asyncio.run(program.play(rollout, Told("2"), StatelessSession()))
    assert rollout.text == "2"


def test_what_it_leaves_as_its_answer_is_the_last_message_under_a_name_of_its_own(tmp_path: Path) -> None:
    code = "ask('hm'); open(os.environ['ROLLBOOK_ANSWER'], 'w').write('42')"
    rollout = played(tmp_path, code, "I call a tool.")
    assert rollout.text == "42"
    assert rollout.messages[-1] == Message("assistant", "42", name="program")
    assert len(rollout.turns) == 1


FAILURES = {
    "import sys; print('to no avail'); print('I gave up', file=sys.stderr); sys.exit(3)": "exit 3: (?s:.*)I gave up",
    "print('only this'); sys.exit(4)": "exit 4: only this",
    "os.kill(os.getpid(), 9)": "killed by signal 9: it printed nothing",
    "print('hello')": "it ended without calling the model: hello",
    "raise ValueError('broken')": r"exit 1: Traceback(?s:.*)ValueError: broken",
    f"ask('x'); open(os.environ['ROLLBOOK_ANSWER'], 'w').write('x' * {ANSWER_LIMIT + 1})": "is not a file of at most",
    "ask('x'); os.mkfifo(os.environ['ROLLBOOK_ANSWER'])": "is not a file of at most",
    "ask('x'); sys.exit(255)": "exit 255: it printed nothing",
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_program_that_fails_is_an_agent_error_with_its_last_words(code: str, tmp_path: Path) -> None:
    with pytest.raises(RolloutFailed, match=FAILURES[code]) as caught:
        played(tmp_path, code, "a")
    assert caught.value.kind == "agent_error"


TRIES = """
try:
    ask("hm")
except urllib.error.HTTPError as error:
    print(error.code, error.read())
"""


def test_a_model_that_failed_is_the_failure_however_the_program_took_it(tmp_path: Path) -> None:
    away = RolloutFailed("model_timeout", "model", "no answer")
    for ending in ("", "sys.exit(1)"):
        with pytest.raises(RolloutFailed, match="no answer") as caught:
            played(tmp_path, TRIES + ending, away)
        assert caught.value.kind == "model_timeout"


@pytest.mark.parametrize("end", [LimitReached("max_turns"), ContextFull("too long")])
def test_a_limit_is_no_failure_of_the_program(end: Exception, tmp_path: Path) -> None:
    rollout = blank()
    code = "ask('one'); open(os.environ['ROLLBOOK_ANSWER'], 'w').write('so far'); ask('two')"
    with pytest.raises(type(end)):
        played(tmp_path, code, "a", end, rollout=rollout)
    assert rollout.text == "so far"


def test_an_outage_kills_the_program_at_once(tmp_path: Path) -> None:
    code = TRIES + "import time; open(task['id'], 'w'); time.sleep(600)"
    with pytest.raises(EndpointDown):
        played(tmp_path, code, EndpointDown("gone"))


def test_tools_that_it_cannot_call_are_refused() -> None:
    session = StatelessSession()
    session.tools = [{"function": {"name": "add"}}]
    with pytest.raises(UsageError, match="cannot call the tools"):
        asyncio.run(Program("true").play(blank(), Told(), session))


def test_nothing_is_left_of_a_program_that_is_cancelled(tmp_path: Path) -> None:
    agent = Program(write_agent(tmp_path, f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); ask('x')"))
    rollout = Rollout(task=Task("t", "x"), sample=0, seed=0, messages=[], turns=[])

    class Never(Told):
        async def __call__(self, *_: object, **__: object) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        playing = asyncio.create_task(agent.play(rollout, Never(), StatelessSession()))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.01)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    before = open_fds()
    asyncio.run(main())
    assert not alive(int((tmp_path / "pid").read_text()))
    assert len(open_fds()) <= len(before)


def test_a_command_is_checked_and_its_files_are_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.py").write_text("")
    (tmp_path / "python3").write_text("")
    monkeypatch.chdir(tmp_path)
    assert resolve_command("python3 agent.py --fast 'two words'") == [
        "python3",
        str(tmp_path / "agent.py"),
        "--fast",
        "two words",
    ]
    for command, message in {"": "give a command", "no-such-program x": "no such program", "'": "No closing"}.items():
        with pytest.raises(UsageError, match=message):
            Program(command)


def test_the_choice_is_checked_against_the_environment_and_against_edits(tmp_path: Path) -> None:
    plain = {"sums": EnvironmentSpec("sums", "m:C")}
    assert resolve_agent("", plain) is None
    assert make_agent(None, ()) is None
    assert choose_agent(plain["sums"], Limits(), "native").__class__.__name__ == "SingleAnswer"
    result = resolve_agent(f"program:{write_agent(tmp_path, '')}", plain)
    check_agent_unchanged(result)
    write_agent(tmp_path, "# edited")
    with pytest.raises(
        UsageError, match=r"agent.py was edited since the run was planned, or no longer exists: start a new run"
    ):
        check_agent_unchanged(result)
    with pytest.raises(UsageError, match=r"--agent x: write program:COMMAND.*oracle or nop"):
        resolve_agent("x", plain)
    for field, has in {
        "tools": "has tools",
        "replies": "replies to the model",
        "plays": "runs its rollouts itself",
    }.items():
        spec = EnvironmentSpec("e", "m:C", **{field: [{}] if field == "tools" else True})
        with pytest.raises(UsageError, match=f"e {has}, which only the built-in agent supports"):
            resolve_agent("program:true", {"e": spec})


def test_a_run_by_a_program_is_journaled_scored_and_has_its_tokens(tmp_path: Path) -> None:
    command = write_agent(tmp_path, "ask('Think about ' + task['prompt']); ask(*task['messages'])")

    async def main() -> Path:
        async with Endpoint(vllm=True, right=1.0) as endpoint:
            result = await rollbook.run_async(
                f"{write_sums(tmp_path)}?tasks=1",
                endpoint.url,
                agent=f"program:{command}",
                samples=2,
                out=tmp_path / "run",
                concurrency=2,
            )
            return result.path

    book = Book(asyncio.run(main()))
    assert json.loads((book.path / "run.json").read_text())["agent"]["command"] == command.split()
    recorded = list(rollouts(book, tokens=True))
    assert len(recorded) == 2
    for rollout in recorded:
        assert [len(s.response_ids) == s.trained for s in merge(rollout.turns)] == [True, True]
        assert [m.role for m in rollout.messages] == ["user", "user", "assistant", "user", "assistant"]


def test_a_failing_program_is_a_shortfall_with_its_words(tmp_path: Path) -> None:
    command = write_agent(tmp_path, "sys.exit('no luck today')")
    with pytest.raises(Shortfall, match="1 failed: agent_error") as caught:
        rollbook.run(
            f"{write_sums(tmp_path)}?tasks=1",
            write_script(tmp_path),
            agent=f"program:{command}",
            out=tmp_path / "run",
            attempts={"agent_error": 1},
        )
    assert "exit 1: no luck today" in str(caught.value)
    assert os.environ.get("ROLLBOOK_TASK") is None
