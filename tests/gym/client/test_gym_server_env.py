"""Using a resources server: sessions, tools and verdicts, and everything that can go wrong with each."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from rollbook import Shortfall, run_async
from rollbook.book import Book, rollouts
from rollbook.core import Limits
from rollbook.engine import load_environment as environment_of
from rollbook.engine import open_scorer, reverify
from rollbook.engine.progress import SilentDisplay
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gym.client.http_client import VERIFY_PATH, ConnectedServer, GymClient
from rollbook.gym.client.server_env import RemoteServer
from rollbook.gym.rows import make_row
from rollbook.gym.server.resources import ResourcesServer
from support.gym_servers import (
    COOKIE,
    COUNTED_DETAILS,
    COUNTING,
    OPTIONAL_DETAILS,
    Agent,
    Counter,
    call,
    row,
    write_rows,
    write_said,
)
from support.sums import write_script, write_sums

AWAY_S = 6.0
"""How long a server is away: longer than a rollout's attempts last without waiting."""

ADDS = [call("increment_counter", count=1), call("increment_counter", count=2), {"answer": "6"}]


def rows_for(folder, *more, **fields):
    one = row("add 1 then 2", COUNTING, id="a", initial_count=3, expected_count=6, **fields)
    return write_rows(folder / "rows.jsonl", one, *more)


def played(out):
    return {rollout.key: rollout for rollout in rollouts(Book(out))}


def drive(server, folder, answers, data=None, **settings):
    """Run the server's rows with a script; gives the rollouts that were scored."""

    async def main():
        async with server:
            return await run_async(server.url, answers, data=data or rows_for(folder), out=folder / "run", **settings)

    asyncio.run(main())
    return played(folder / "run")


def kinds_of(server, folder, **settings):
    """The failures of a run of one row, none of which may have left a reward."""
    with pytest.raises(Shortfall) as caught:
        drive(server, folder, write_said(folder / "s.jsonl", a=ADDS), attempts={"environment_error": 1}, **settings)
    assert not played(folder / "run")
    return caught.value.failed, caught.value


def test_a_rollout_is_seeded_played_with_its_tools_and_verified_in_one_session(tmp_path):
    server = Counter()
    by_key = drive(server, tmp_path, write_said(tmp_path / "s.jsonl", a=ADDS))
    assert by_key["a", 0].reward == 1.0
    assert [m.text for m in by_key["a", 0].messages if m.role == "tool"] == ['{"success": true}'] * 2
    assert server.paths == ["/seed_session", "/increment_counter", "/increment_counter", "/verify"]
    assert server.cookies == [None, "session-1", "session-1", "session-1"]
    assert by_key["a", 0].outcome["cookies"] == {COOKIE: "session-1"}


def test_every_field_of_a_row_goes_along_and_so_does_what_was_said(tmp_path):
    server = Counter()
    data = rows_for(tmp_path, strange={"deep": [1, None]}, agent_ref={"name": "someone"})
    drive(server, tmp_path, write_said(tmp_path / "s.jsonl", a=ADDS), data)
    rows = json.loads(Path(data).read_text())
    for body in (server.bodies[0], server.bodies[-1]):
        assert {**body, **rows} == body
        assert body["_ng_task_index"] == 0
    output = server.bodies[-1]["response"]["output"]
    assert [item["type"] for item in output] == [*["function_call", "function_call_output"] * 2, "message"]
    assert server.bodies[-1]["_ng_rollout_index"] == 0


@pytest.mark.parametrize(("schemas", "counted"), [(COUNTED_DETAILS, False), (OPTIONAL_DETAILS, True), ({}, True)])
def test_usage_is_left_out_where_the_servers_types_insist_on_counts_that_nobody_made(tmp_path, schemas, counted):
    server = Counter()
    server.schemas = schemas
    by_key = drive(server, tmp_path, write_said(tmp_path / "s.jsonl", a=ADDS))
    assert by_key["a", 0].reward == 1.0
    usage = server.bodies[-1]["response"]["usage"]
    assert (usage is not None) == counted
    assert usage is None or usage["input_tokens_details"] == {"cached_tokens": None}


@pytest.mark.parametrize("mode", ["unknown", "stateless"])
def test_tools_that_come_by_mcp_are_offered_and_called(tmp_path, mode):
    server = Counter(reverify=mode)
    server.mcp = {"server_name": "counter", "url_path": "/mcp", "transport": "http"}
    data = write_rows(tmp_path / "rows.jsonl", row("add", id="a", initial_count=3, expected_count=15))
    turns = [call("increment_counter", count=2), call("increment_counter", count=10), {"answer": "15"}]
    result = drive(server, tmp_path, write_said(tmp_path / "s.jsonl", a=turns), data)["a", 0]
    assert [m.text for m in result.messages if m.role == "tool"] == ["it is 5", "Error: it is 15"]
    assert result.reward == 1.0
    asked = ["/mcp tools/list"] if mode == "stateless" else []
    assert server.paths == [*asked, "/seed_session", "/mcp tools/list", *["/mcp tools/call"] * 2, "/verify"]


def test_arguments_that_an_mcp_server_refuses_are_reported_to_the_model(tmp_path):
    server = Counter()
    server.mcp = {"server_name": "counter", "url_path": "/mcp", "transport": "http"}
    data = write_rows(tmp_path / "rows.jsonl", row("add", id="a", initial_count=3, expected_count=4))
    turns = [call("increment_counter", count=-1), call("increment_counter", count=1), {"answer": "4"}]
    result = drive(server, tmp_path, write_said(tmp_path / "s.jsonl", a=turns), data)["a", 0]
    assert [m.text for m in result.messages if m.role == "tool"] == ["Error: count: less than 0", "it is 4"]
    assert result.reward == 1.0


def test_tasks_with_the_same_mcp_tools_share_one_list_of_them(tmp_path):
    async def main():
        server = Counter()
        server.mcp = {"server_name": "counter", "url_path": "/mcp", "transport": "http"}
        async with server:
            environment = RemoteServer(server.url, write_rows(tmp_path / "rows.jsonl", row("a"), row("b")))
            tasks = list(environment.tasks())
            await environment.start()
            for task in tasks:
                await environment.open(task)
            await environment.stop()
            first, second = (environment.offers(task) for task in tasks)
            assert first is second

    asyncio.run(main())


def test_a_row_with_tools_of_its_own_is_played_with_those(tmp_path):
    server = Counter()
    server.mcp = {"server_name": "counter", "url_path": "/mcp", "transport": "http"}
    assert drive(server, tmp_path, write_said(tmp_path / "s.jsonl", a=ADDS))["a", 0].reward == 1.0
    assert server.paths == ["/seed_session", *["/increment_counter"] * 2, "/verify"]


@pytest.mark.parametrize("mcp", [{"transport": "stdio"}, {"url_path": "/increment_counter"}, {"headers": 3}])
def test_mcp_tools_that_cannot_be_brought_are_a_failure_and_never_a_score_without_tools(tmp_path, mcp):
    server = Counter()
    server.mcp = mcp
    data = write_rows(tmp_path / "rows.jsonl", row("add", id="a", initial_count=3, expected_count=3))
    failed, _ = kinds_of(server, tmp_path, data=data)
    assert failed == {"environment_error": 1}


def test_a_verdict_that_is_transient_is_asked_for_again(tmp_path):
    server = Counter("transient")

    async def recover():
        server.mode = "transient" if server.paths.count("/verify") == 1 else "ok"

    server.on_verify = recover
    by_key = drive(server, tmp_path, write_said(tmp_path / "s.jsonl", a=ADDS))
    assert (by_key["a", 0].reward, server.paths.count("/verify")) == (1.0, 2)


def test_a_tool_that_raises_is_read_by_the_model_and_the_session_survives_its_lost_cookie(tmp_path):
    answers = write_said(tmp_path / "s.jsonl", a=[call("raises"), *ADDS])
    by_key = drive(Counter(), tmp_path, answers)["a", 0]
    assert by_key.messages[2].text == "\"RuntimeError('boom')\""
    assert by_key.reward == 1.0


def test_a_tool_of_ours_that_says_its_world_is_broken_fails_the_rollout(tmp_path):
    answers = write_said(tmp_path / "s.jsonl", a=[call("breaks")])
    with pytest.raises(Shortfall) as caught:
        drive(Counter(), tmp_path, answers, attempts={"environment_error": 1})
    assert caught.value.failed == {"environment_error": 1}


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("500", "verifier_error"),
        ("422", "verifier_error"),
        ("not_json", "verifier_error"),
        ("list", "verifier_error"),
        ("503", "environment_error"),
        ("no_seed", "environment_error"),
        ("no_reward", "invalid_reward"),
        ("null", "invalid_reward"),
        ("string", "invalid_reward"),
        ("nan", "invalid_reward"),
        ("infinite", "invalid_reward"),
        ("bad_part", "invalid_reward"),
        ("judge", "judge_error"),
        ("transient", "environment_error"),
        ("ours", "sandbox_error"),
    ],
)
def test_what_is_no_verdict_is_a_failure_and_never_a_reward(tmp_path, mode, kind):
    settings = {"judge_error": 1, "sandbox_error": 1, "environment_error": 1}
    with pytest.raises(Shortfall) as caught:
        drive(Counter(mode), tmp_path, write_said(tmp_path / "s.jsonl", a=ADDS), attempts=settings)
    assert caught.value.failed == {kind: 1}
    assert not played(tmp_path / "run")


def test_a_slow_verdict_is_a_timeout(tmp_path):
    failed, _ = kinds_of(Counter("slow"), tmp_path, limits=Limits(verify_s=0.2))
    assert failed == {"verifier_timeout": 1}


def test_a_server_that_goes_away_fails_what_it_held_and_gives_no_reward(tmp_path):
    server = Counter()

    async def gone():
        await server.go_away()
        raise ConnectionResetError

    server.on_verify = gone
    data = rows_for(tmp_path, row("again", COUNTING, id="b", expected_count=1))
    answers = write_said(tmp_path / "s.jsonl", a=ADDS, b=[{"answer": "1"}])
    budgets = {"environment_error": 1, "verifier_error": 1}
    with pytest.raises(Shortfall) as caught:
        drive(server, tmp_path, answers, data, concurrency=1, attempts=budgets, outage_s=0.2)
    assert sum(caught.value.failed.values()) == 2
    assert set(caught.value.failed) <= {"environment_error", "verifier_error"}
    assert not played(tmp_path / "run")


def test_a_server_that_is_away_for_a_while_costs_no_rollout(tmp_path):
    """Rollouts wait for it, longer than their attempts alone would last."""
    server = Counter()
    returning = []

    async def leave():
        if not returning:
            await server.go_away()
            returning.append(asyncio.create_task(come_back()))
            raise ConnectionResetError

    async def come_back():
        await asyncio.sleep(AWAY_S)
        await server.listen()

    server.on_verify = leave
    rows = [row("add", COUNTING, id=f"r{n}", initial_count=3, expected_count=6) for n in range(4)]
    answers = write_said(tmp_path / "s.jsonl", **{one["id"]: ADDS * 3 for one in rows})
    data = write_rows(tmp_path / "rows.jsonl", *rows)
    scored = drive(server, tmp_path, answers, data, concurrency=1, attempts={"environment_error": 2})
    assert [r.reward for r in scored.values()] == [1.0] * 4


def test_a_session_does_not_outlive_its_server(tmp_path):
    async def main():
        async with Counter() as server:
            env = RemoteServer(server.url, rows_for(tmp_path))
            await env.start()
            (task,) = env.tasks()
            session = await env.open(task)
            await server.go_away()
            with pytest.raises(RolloutFailed, match="connection refused"):
                await env._servers.server_for(task).client.get("/")
            await server.listen()
            with pytest.raises(
                RolloutFailed, match="environment_error in /get_counter_value: the server was unreachable"
            ):
                await env.use("get_counter_value", {}, session)
            fresh = await env.open(task)
            assert await env.use("get_counter_value", {}, fresh) == '{"count": 3}'
            await env.stop()

    asyncio.run(main())


def test_parts_answer_and_what_the_server_adds_are_kept(tmp_path):
    says = {"reward_components": {"form": 0.25, "count": 0.75}, "extracted_answer": "6", "library": [1], "id": "a"}
    by_key = drive(Counter(says=says), tmp_path, write_said(tmp_path / "s.jsonl", a=ADDS))["a", 0].score
    assert (by_key.parts, by_key.answer) == ({"form": 0.25, "count": 0.75}, "6")
    assert by_key.info == {"library": [1]}


@pytest.mark.parametrize(("reverify_mode", "scored"), [("stateless", 1), ("unknown", 0)])
def test_a_stored_rollout_is_scored_again_only_where_that_needs_no_session(tmp_path, reverify_mode, scored):
    async def main():
        async with Counter(reverify=reverify_mode) as server:
            answers = write_said(tmp_path / "s.jsonl", a=ADDS)
            await run_async(server.url, answers, data=rows_for(tmp_path), out=tmp_path / "run")
            again = await reverify(tmp_path / "run", tmp_path / "again", (), "all", SilentDisplay())
            assert again.report.scored == scored
            assert set(again.report.failed) == (set() if scored else {"verifier_error"})

    asyncio.run(main())


def test_nobody_there_refuses_the_run(tmp_path):
    async def main():
        async with Counter() as server:
            await server.go_away()
            answers = write_said(tmp_path / "s.jsonl", a=ADDS)
            with pytest.raises(UsageError, match="connection refused; is the server up"):
                await run_async(server.url, answers, data=rows_for(tmp_path), out=tmp_path / "run")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"/run": {}}, r"write gym\+agent"),
        ({"/verify": {}, "/reset": {}, "/step": {}}, r"write gym\+step"),
        ({"/x": {}}, "no /verify"),
    ],
)
def test_a_server_that_gives_no_verdicts_is_told_from_its_routes(paths, message):
    class Other(Agent):
        def app(self):
            result = super().app()

            async def routes(_):
                return web.json_response({"paths": paths})

            result.router.add_get("/openapi.json", routes)
            return result

    async def main():
        async with Other() as server:
            client = GymClient(server.url)
            await client.open()
            with pytest.raises(UsageError, match=message):
                await ConnectedServer(client).connect(VERIFY_PATH)
            await client.close()

    asyncio.run(main())


def test_the_same_answers_get_the_same_scores_in_process_and_over_http(tmp_path):
    env, script = write_sums(tmp_path), write_script(tmp_path)
    loaded = environment_of(env)
    data = write_rows(tmp_path / "rows.jsonl", *(make_row(task) for task in loaded.instance.tasks()))

    async def main():
        await run_async(env, script, samples=2, out=tmp_path / "here")
        async with open_scorer(loaded, Limits()) as on:
            runner = web.AppRunner(ResourcesServer("Sums", on._environment).make_app())
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            await run_async(url, script, samples=2, data=data, out=tmp_path / "there")
            await runner.cleanup()

    asyncio.run(main())
    here, there = played(tmp_path / "here"), played(tmp_path / "there")
    assert here.keys() == there.keys()
    for key, rollout in here.items():
        assert there[key].score == rollout.score
        assert (there[key].seed, there[key].messages) == (rollout.seed, rollout.messages)
