"""Agents found by a head server: every row to the agent it names."""

import asyncio
import re

import pytest
import yaml

from rollbook import Shortfall, run
from rollbook.book import Book, rollouts
from rollbook.cli.job_commands import status_command
from rollbook.core import Rollout, Sampling
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gym.client.agents import RoutedAgents, find_agents, read_head_config
from rollbook.reports import make_report
from rollbook.viewer.run_cache import CachedRun
from rollbook.viewer.run_overview import make_run_page
from rollbook.viewer.task_pages import make_task_row
from support.gym_servers import Agent, Head, row, write_rows


class Asking:
    sampling = Sampling()


def ref(name):
    return {"agent_ref": {"name": name}}


async def refused(head, data, message):
    env = RoutedAgents(f"gym+head://{head.host}", data)
    with pytest.raises(UsageError, match=message):
        await asyncio.to_thread(lambda: list(env.tasks()))


def test_rows_go_to_the_agents_they_name(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a", id="a", **ref("one")), row("b", id="b", **ref("two")))

    async def main():
        async with Agent(answer="1") as one, Agent(answer="2") as two, Head({"one": one.host, "two": two.host}) as head:
            work = asyncio.to_thread(run, f"gym+head://{head.host}", data=data, out=tmp_path / "run")
            await work
            assert [body["id"] for body in one.bodies] == ["a"]
            assert [body["id"] for body in two.bodies] == ["b"]

    asyncio.run(main())
    assert {r.task.id: r.text for r in rollouts(Book(tmp_path / "run"))} == {"a": "1", "b": "2"}
    assert "sk-very-secret" not in "".join(p.read_text() for p in (tmp_path / "run").rglob("*.json*"))


def test_a_row_for_nobody_is_named_by_its_line(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a", **ref("one")), row("b", **ref("tow")))
    other = write_rows(tmp_path / "other.jsonl", row("a"))

    async def main():
        async with Head({"one": "h:1", "two": "h:2"}) as head:
            await refused(head, data, "rows.jsonl:2: agent_ref: no agent is called tow; did you mean two")
            await refused(head, other, "other.jsonl:1: no agent_ref, and there are 2 agents: one, two")

    asyncio.run(main())


def test_a_lone_agent_plays_rows_that_name_none(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a"))

    async def main():
        async with Head({"one": "h:1"}) as head:
            env = RoutedAgents(f"gym+head://{head.host}", data)
            (task,) = await asyncio.to_thread(lambda: list(env.tasks()))
            assert task.fields["agent_ref"] == {"name": "one"}

    asyncio.run(main())


def test_two_servers_of_one_name_are_refused(tmp_path):
    async def main():
        async with Head({"one": "h:1"}, ["one", "two", "two"]) as head:
            with pytest.raises(UsageError, match="two servers are called two"):
                await asyncio.to_thread(find_agents, head.url)

    asyncio.run(main())


def test_an_agent_that_moved_is_found_again(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a"))

    async def main():
        async with Agent() as old, Agent() as new, Head({"one": old.host}) as head:
            env = RoutedAgents(f"gym+head://{head.host}", data)
            (task,) = await asyncio.to_thread(lambda: list(env.tasks()))
            await env.start()
            await old.go_away()
            head.agents = {"one": new.host}
            rollout = Rollout(task=task, sample=0, seed=7)
            with pytest.raises(RolloutFailed, match=r"environment_error in /run: .* connection refused"):
                await env.play(task, rollout, Asking, {})
            await env.play(task, rollout, Asking, {})
            await env.stop()
            assert (len(new.bodies), rollout.text) == (1, "42")

    asyncio.run(main())


def test_an_agent_that_dies_costs_its_rows_and_no_others(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", row("a", id="a", **ref("one")), row("b", id="b", **ref("two")))

    async def main():
        async with Agent() as one, Agent() as two, Head({"one": one.host, "two": two.host}) as head:
            await two.go_away()
            settings = {"attempts": {"environment_error": 2}, "outage_s": 0.2}
            with pytest.raises(Shortfall) as caught:
                await asyncio.to_thread(run, f"gym+head://{head.host}", data=data, out=tmp_path / "run", **settings)
            assert (caught.value.scored, caught.value.failed) == (1, {"environment_error": 1})

    asyncio.run(main())


class WrongAgent(Agent):
    def says(self, body):
        return super().says(body) | {"reward": 0.0}


def test_report_status_and_viewer_have_numbers_for_each_agent(tmp_path, capsys):
    rows = [row("a", id="a", **ref("one")), row("b", id="b", **ref("two")), row("c", id="c", **ref("two"))]
    data = write_rows(tmp_path / "rows.jsonl", *rows)

    async def main():
        async with Agent() as one, WrongAgent() as two, Head({"one": one.host, "two": two.host}) as head:
            await asyncio.to_thread(run, f"gym+head://{head.host}", data=data, samples=2, out=tmp_path / "run")

    asyncio.run(main())
    report = make_report(tmp_path / "run")
    means = {name: (part.tasks, part.scored, part.mean) for name, part in report.environments.items()}
    assert means == {"one": (1, 2, 1.0), "two": (2, 4, 0.0)}
    assert (report.overall.env, report.overall.scored, round(report.overall.mean, 3)) == ("all", 6, 0.333)
    status_command(tmp_path / "run")
    assert re.search(r"one +2 +2 +0 +0\s.*two +4 +4 +0 +0\s", capsys.readouterr().out, re.DOTALL)
    snapshot = CachedRun(tmp_path / "run").take_snapshot()
    assert list(make_run_page("run", snapshot)["report"]["environments"]) == ["one", "two"]
    assert [make_task_row(snapshot, number)["env"] for number in range(3)] == ["one", "two", "two"]


def test_rows_of_one_agent_are_selected_by_its_name(tmp_path):
    rows = [row("a", id="a", **ref("one")), row("b", id="b", **ref("two")), row("c", id="c", **ref("two"))]
    data = write_rows(tmp_path / "rows.jsonl", *rows)

    async def main():
        async with Agent() as one, Agent() as two, Head({"one": one.host, "two": two.host}) as head:
            with pytest.raises(UsageError, match="agent=three: the head server lists one, two"):
                await asyncio.to_thread(lambda: [*RoutedAgents(f"gym+head://{head.host}?agent=three", data).tasks()])
            blend = tmp_path / "blend.yaml"
            envs = [
                {"env": f"gym+head://{head.host}?agent={name}", "name": name, "data": data} for name in ("one", "two")
            ]
            blend.write_text(yaml.safe_dump({"environments": envs}))
            await asyncio.to_thread(run, str(blend), out=tmp_path / "run")

    asyncio.run(main())
    assert {name: part.scored for name, part in make_report(tmp_path / "run").environments.items()} == {
        "one": 1,
        "two": 2,
    }


def test_nobody_there_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="is a head server there"):
        find_agents("http://127.0.0.1:9")


@pytest.mark.parametrize("raw", [b"{", b'"a: [b"', b'"just words"', b"3"])
def test_what_is_no_configuration_is_said(raw):
    with pytest.raises(UsageError, match="not a head server's configuration"):
        read_head_config(raw, "http://h/global_config_dict_yaml")


def test_a_head_server_that_lists_its_servers_as_something_else_is_refused(tmp_path):
    async def main():
        async with Head({"one": "h:1"}) as head:
            head.text = "<html>starting"
            with pytest.raises(UsageError, match="server_instances: not a list of servers"):
                await asyncio.to_thread(find_agents, head.url)

    asyncio.run(main())
