"""Servers of a checkout: started, ready, restarted, ended, and never left behind."""

import asyncio
import json
import os
import signal
import sys

import pytest

from rollbook import Shortfall, run
from rollbook.book import Book, rollouts
from rollbook.errors import UsageError
from rollbook.gym.client import export_gym, fleet
from rollbook.gym.client.config import GymCheckout, ServerBlock
from rollbook.gym.client.fleet import list_required_servers
from rollbook.gym.client.server_env import ManagedServer
from rollbook.reports import make_report
from support.alive import alive, eventually, read_pid
from support.commands import Commands
from support.gym_checkout import make_checkout, toy, write_config
from support.gym_servers import call, row, tool, write_rows, write_said


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOOK_GYM_PYTHON", sys.executable)
    monkeypatch.delenv("ROLLBOOK_GYM", raising=False)
    monkeypatch.chdir(tmp_path)
    return make_checkout(tmp_path)


def drive(home, spec, *rows, turns=({"answer": "x"},), out=None, **settings):
    rows = rows or (row("a", id="a"),)
    script = write_said(home / "s.jsonl", **{one["id"]: list(turns) for one in rows})
    run(spec, script, data=write_rows(home / "rows.jsonl", *rows), out=out or home / "run", **settings)
    return {rollout.task.id: rollout for rollout in rollouts(Book(home / "run"))}


def test_a_server_is_started_for_the_run_and_ended_with_it(home):
    result = drive(home, write_config(home, mine=toy(reward=0.5)))
    assert (result["a"].reward, result["a"].score.info) == (0.5, {"by": "mine"})
    assert not alive(read_pid(home / "mine.pid"))
    config = json.loads((home / "mine.config").read_text())
    assert config["mine"]["resources_servers"]["toy"]["host"] == "127.0.0.1"
    assert config["head_server"]


def test_arguments_override_the_configuration(home):
    spec = f"{write_config(home, mine=toy())}?mine.resources_servers.toy.reward=0.25"
    assert drive(home, spec)["a"].reward == 0.25


def test_what_a_server_calls_is_started_and_agents_are_not(home):
    judge = {"judge": {"type": "responses_api_models", "name": "model"}}
    model = {"responses_api_models": {"toy": {"entrypoint": "app.py"}}}
    agent = {"responses_api_agents": {"simple": {"resources_server": {"type": "resources_servers", "name": "mine"}}}}
    unused = {"responses_api_models": {"toy": {"entrypoint": "app.py", "broken": True}}}
    drive(home, write_config(home, mine=toy(**judge), model=model, agent=agent, unused=unused))
    config = json.loads((home / "mine.config").read_text())
    assert set(config) & {"mine", "model", "agent", "unused"} == {"mine", "model"}
    assert (home / "model.starts").exists()


def agent_of(code, **settings):
    return {"responses_api_agents": {code: {"server": {"type": "resources_servers", "name": "mine"}, **settings}}}


@pytest.mark.parametrize(
    ("agent", "turns", "note"),
    [
        (agent_of("simple_agent"), None, ""),
        (agent_of("simple_agent", max_steps=3), 3, ""),
        (agent_of("tool_simulation_agent"), 1, ""),
        (
            agent_of("planner", max_steps=2),
            2,
            "who is a planner, which Rollbook does not start: the built-in agent runs its rows",
        ),
    ],
)
def test_a_row_gets_as_many_steps_as_its_agent_allows(home, agent, turns, note):
    spec = write_config(home, mine=toy(), who=agent).removeprefix("gym:")
    data = write_rows(home / "rows.jsonl", row("a"), row("b", agent_ref={"name": "who"}))
    server = ManagedServer(spec, data)
    assert [task.max_turns for task in server.tasks()] == [turns, turns]
    assert len(server.notes) == bool(note)
    assert note in "".join(server.notes)


def test_exported_rows_name_the_agent_of_the_configuration(home):
    """By an agent's name `gym eval reverify` and `aggregate` find the server of a rollout."""
    drive(home, write_config(home, mine=toy(), who=agent_of("simple_agent")))
    export_gym(home / "run", home / "out.jsonl")
    for path in (home / "out.jsonl", home / "out_materialized_inputs.jsonl"):
        assert json.loads(path.read_text())["agent_ref"]["name"] == "who"


def test_a_row_that_could_mean_several_agents_is_stored_for_the_first_and_said(home):
    agents = {"first": agent_of("simple_agent"), "second": agent_of("simple_agent")}
    environment = ManagedServer(
        write_config(home, mine=toy(), **agents).partition(":")[2], write_rows(home / "r", row("a"))
    )
    (task,) = environment.tasks()
    assert task.fields["agent_ref"]["name"] == "first"
    assert any("mine has several (first, second)" in note for note in environment.notes)


def write_prompt(home, name, user):
    (home / name).write_text(json.dumps({"system": "Be brief.", "user": user}))
    return {"name": name, "type": "benchmark", "jsonl_fpath": "x", "prompt_config": name}


def read_prompts(home, data, **blocks):
    spec = write_config(home, mine=toy(), **blocks).partition(":")[2]
    return [[m.text for m in task.messages] for task in ManagedServer(spec, data).tasks()]


def test_a_row_without_a_prompt_gets_that_of_its_benchmark(home):
    who = agent_of("simple_agent", datasets=[write_prompt(home, "p.yaml", "Solve: {question}")])
    data = write_rows(home / "r", {"question": "1 + 1?"}, {"question": "q", **row("mine")})
    assert read_prompts(home, data, who=who) == [["Be brief.", "Solve: 1 + 1?"], ["mine"]]
    other = agent_of("simple_agent", datasets=[write_prompt(home, "q.yaml", "{question}!")])
    data = write_rows(home / "r", {"question": "1", "agent_ref": {"name": "other"}})
    assert read_prompts(home, data, who=who, other=other) == [["Be brief.", "1!"]]
    data = write_rows(home / "r", {"question": "1"})
    assert read_prompts(home, data, who=who, other=other, prompt_config="q.yaml") == [["Be brief.", "1!"]]
    with pytest.raises(UsageError, match=r"r:1: no input, and several prompt_config"):
        read_prompts(home, data, who=who, other=other)
    with pytest.raises(UsageError, match="the row does not fit: KeyError: 'question'"):
        read_prompts(home, write_rows(home / "r", {"problem": "1"}), who=who)


def test_a_server_that_is_called_and_not_there_is_said(home):
    judge = {"judge": {"type": "responses_api_models", "name": "nobody"}}
    spec = write_config(home, mine=toy(**judge)).removeprefix("gym:")
    (note,) = ManagedServer(spec, write_rows(home / "rows.jsonl", row("a"))).notes
    assert note.endswith("mine calls nobody, which is not in it")


def test_rows_are_routed_to_the_server_of_their_agent(home):
    def agent(server):
        return {"responses_api_agents": {"simple": {"server": {"type": "resources_servers", "name": server}}}}

    spec = write_config(home, one=toy(reward=1), two=toy(reward=0), a1=agent("one"), a2=agent("two"))
    rows = [row("a", id=name, agent_ref={"name": name}) for name in ("a1", "a2")]
    result = drive(home, spec, *rows)
    assert {task: rollout.score.info["by"] for task, rollout in result.items()} == {"a1": "one", "a2": "two"}
    assert {name: part.mean for name, part in make_report(home / "run").environments.items()} == {"a1": 1.0, "a2": 0.0}
    data = write_rows(home / "rows.jsonl", row("a", agent_ref={"name": "a3"}))
    with pytest.raises(UsageError, match=r"rows\.jsonl:1: agent_ref a3: with several servers.*: a1, a2"):
        list(ManagedServer(spec.removeprefix("gym:"), data).tasks())


def test_a_server_that_dies_is_started_again_and_the_rollout_with_it(home):
    spec = write_config(home, mine=toy())
    requested = row("a", [tool("dies")], id="a")
    result = drive(home, spec, requested, turns=(call("dies"), {"answer": "x"}))
    assert (home / "mine.starts").read_text() == "xx"
    assert (result["a"].reward, result["a"].attempt) == (1.0, 2)


def test_a_server_that_dies_again_and_again_is_given_up_and_leaves_no_reward(home, monkeypatch):
    monkeypatch.setattr(fleet, "MAX_RESTARTS", 0)
    spec, requested = write_config(home, mine=toy()), row("a", [tool("dies")], id="a")
    with pytest.raises(Shortfall) as caught:
        drive(home, spec, requested, turns=(call("dies"),), attempts={"environment_error": 2})
    assert caught.value.failed == {"environment_error": 1}
    journals = "".join(path.read_text() for path in (home / "run" / "journals").glob("*.failures.jsonl"))
    assert "mine ended 1 times; last: (mine) starting on" in journals


def test_a_taken_port_is_another_port(home, monkeypatch):
    assert drive(home, write_config(home, mine=toy(taken=1)))["a"].reward == 1.0
    assert (home / "mine.starts").read_text() == "xx"
    monkeypatch.setattr(fleet, "START_ATTEMPTS", 2)
    with pytest.raises(UsageError, match="2 times in a row, another program took the port"):
        drive(home, write_config(home, mine=toy(taken=99)), out=home / "other")


def test_somebody_else_who_answers_on_the_port_is_not_ours(home, monkeypatch):
    monkeypatch.setattr(fleet, "START_ATTEMPTS", 1)
    with pytest.raises(UsageError, match="another program took the port"):
        drive(home, write_config(home, mine=toy(cookie="theirs")))


def test_a_server_that_does_not_start_is_told_with_its_last_words(home, monkeypatch):
    with pytest.raises(UsageError, match=r"mine ended \(exit 1\) before it answered: .*ValueError: this server"):
        drive(home, write_config(home, mine=toy(broken=True)))
    monkeypatch.setattr(fleet, "READY_TIMEOUT_S", 0.3)
    (home / "resources_servers" / "toy" / "app.py").write_text("import time\nprint('thinking')\ntime.sleep(60)\n")
    with pytest.raises(UsageError, match=r"mine did not answer within 0\.3 s"):
        drive(home, write_config(home, mine=toy()), out=home / "other")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym", "which configuration"),
        ("gym:nowhere.yaml", "no such file, and ROLLBOOK_GYM names no checkout"),
        ("gym:config.yaml?policy_api_key=x", "secrets must not be in a run directory"),
        ("gym:lost.yaml", "is not in a checkout"),
        ("gym:Gym/empty.yaml", "names no resources server"),
    ],
)
def test_a_mistake_in_what_is_named_is_one_line(home, tmp_path, spec, message):
    (tmp_path / "lost.yaml").write_text("a: 1\n")
    (home / "empty.yaml").write_text("a: 1\n")
    with pytest.raises(UsageError, match=message):
        run(spec, data="rows.jsonl", out=tmp_path / "run")


def test_a_missing_folder_entry_or_python_is_named(home, monkeypatch):
    checkout = GymCheckout(home / "config.yaml")
    with pytest.raises(UsageError, match="no folder resources_servers/none"):
        checkout.folder(ServerBlock("a", "resources_servers", "none", {}))
    with pytest.raises(UsageError, match=r"its entrypoint .* is not a file"):
        checkout.entry(ServerBlock("a", "resources_servers", "toy", {"entrypoint": "main.py"}))
    monkeypatch.delenv("ROLLBOOK_GYM_PYTHON")
    with pytest.raises(UsageError, match=r"\.venv/bin/python; name a Python that has Gym with ROLLBOOK_GYM_PYTHON"):
        checkout.python(ServerBlock("a", "resources_servers", "toy", {}))


def test_ray_is_started_only_for_servers_whose_own_source_imports_it(home):
    block = ServerBlock("a", "resources_servers", "toy", {"entrypoint": "app.py"})
    folder, checkout = home / "resources_servers" / "toy", GymCheckout(home / "config.yaml")
    (folder / "app.py").write_text("import nemo_gym\nfrom inner.work import go\n")
    (folder / "inner").mkdir()
    (folder / "inner" / "work.py").write_text("go = 1\n")
    assert not checkout.needs_ray(block)
    (folder / "inner" / "work.py").write_text("def go():\n    import ray\n")
    assert checkout.needs_ray(block)


def test_the_servers_that_are_needed_are_found_through_each_other():
    def block(name, kind, *refers):
        refs = {str(n): {"type": "responses_api_models", "name": other} for n, other in enumerate(refers)}
        return ServerBlock(name, kind, "x", refs)

    known = [
        block("r", "resources_servers", "m", "absent"),
        block("m", "responses_api_models", "n"),
        block("n", "responses_api_models", "m"),
        block("o", "responses_api_models"),
    ]
    assert list_required_servers({b.name: b for b in known}) == ["r", "m", "n"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind_however_the_run_ends(home, number):
    spec = write_config(home, mine=toy())
    data = write_rows(home / "rows.jsonl", row("a", id="a"))
    (home / "s.jsonl").write_text('{"answer": "x", "delay_s": 60}\n')
    commands = Commands(home)
    started = commands.start("run", spec, "-m", f"scripted:{home / 's.jsonl'}", "--data", data, "-o", home / "run")
    try:
        pid = read_pid(home / "mine.pid", 30)
        assert eventually(lambda: (home / "run" / "workers").is_dir() and any((home / "run" / "workers").iterdir()), 30)
        started.signal(number)
        if number == signal.SIGINT:
            started.signal(number)
        started.wait(30)
        assert commands.nothing_left(15), commands.left()
        assert not alive(pid)
    finally:
        commands.close()


def test_the_environment_can_be_used_again_after_it_was_stopped(home):
    async def main():
        env = ManagedServer(write_config(home, mine=toy()).removeprefix("gym:"), write_rows(home / "r.jsonl", row("a")))
        for _ in range(2):
            await env.start()
            (task,) = env.tasks()
            assert (await env.open(task)).cookies
            os.kill(read_pid(home / "mine.pid"), 0)
            await env.stop()

    asyncio.run(main())
