"""Runs whose environment asks models in roles, on the loop and from its processes: calls are recorded, never scored."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from rollbook import Collector, EndpointDown, Shortfall, UsageError, compare, export, load, plan, reverify, run
from rollbook.book import Book, rollouts
from rollbook.core import Limits, StartOptions, derive_role_seed
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.runs import extend, resume
from support.commands import Commands
from support.role_server import RoleServer

ASYNC = """
from rollbook import Environment, Task

class Talk(Environment):
    roles = ("user",)

    def tasks(self):
        for number in range(3):
            yield Task(id=f"t{number}", prompt="Greet the user.")

    async def reply(self, task, rollout, state):
        said = [m for m in rollout.messages if m.role == "user"]
        if len(said) == 3:
            return None
        call = await self.model("user").ask([{"role": "user", "content": rollout.text}], temperature=0.5, max_tokens=9)
        return call.text

    async def verify(self, task, rollout):
        return len(rollout.messages) == 6
"""
SYNC = ASYNC.replace("async def", "def").replace("await self", "self").replace(".ask(", ".ask_blocking(")
FORMS = {"async": ASYNC, "sync": SYNC}


@pytest.fixture(params=FORMS)
def talk(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return write(tmp_path, FORMS[request.param])


def write(folder: Path, source: str) -> str:
    (folder / "talk.py").write_text(source)
    (folder / "said.jsonl").write_text(json.dumps({"answer": "Good day."}))
    return f"{folder / 'talk.py'}:Talk"


def play(env: str, out: Path, **options):
    options = {"outage_s": 0.3, "attempts": {"role_error": 1}, "progress": False, **options}
    return run(env, f"scripted:{Path(env.rpartition(':')[0]).parent / 'said.jsonl'}", out=out, **options)


def calls_of(path: Path):
    return {r.task.id: r.role_calls for r in rollouts(Book(path))}


def test_every_call_is_recorded_with_its_role_seed_and_tokens_apart_from_the_policy(talk, tmp_path):
    with RoleServer(lambda messages: f"You said: {messages[-1]['content']}") as user:
        result = play(talk, tmp_path / "a", roles={"user": user.url})
        asked = user.asked
    found = {r.task.id: r for r in rollouts(Book(tmp_path / "a"))}
    assert {r.reward for r in found.values()} == {1.0}
    for one in found.values():
        assert [m.role for m in one.messages] == ["user", "assistant"] * 3
        assert one.messages[2].text == "You said: Good day."
        assert [(c.role, c.number, c.text) for c in one.role_calls] == [
            ("user", 0, "You said: Good day."),
            ("user", 1, "You said: Good day."),
        ]
        assert [c.seed for c in one.role_calls] == [derive_role_seed(one.seed, "user", n) for n in (0, 1)]
        assert [(c.prompt_tokens, c.completion_tokens) for c in one.role_calls] == [(10, 4)] * 2
        assert len(one.turns) == 3
    assert {(body["temperature"], body["max_tokens"]) for body in asked} == {(0.5, 9)}
    assert {body["seed"] for body in asked} == {c.seed for one in found.values() for c in one.role_calls}
    assert result.report.roles["user"].calls == 6
    assert (result.report.roles["user"].prompt_tokens, result.report.roles["user"].completion_tokens) == (60, 24)


def test_what_a_role_means_is_in_run_json_and_its_address_is_not(talk, tmp_path, monkeypatch):
    monkeypatch.setenv("USER_API_KEY", "a-secret-key")
    with RoleServer() as user:
        given = {"user": {"model": user.url, "sampling": {"temperature": 0.25, "top_k": 3}, "price": "in=1,out=100"}}
        result = play(talk, tmp_path / "a", roles=given)
        port = user.url.split(":")[2].partition("/")[0]
        assert {body["temperature"] for body in user.asked} == {0.25}
        assert {body["top_k"] for body in user.asked} == {3}
        assert set(user.keys) == {"Bearer a-secret-key"}
    book = Book(tmp_path / "a")
    assert book.manifest.roles["user"].model.name == "actor-1"
    assert book.manifest.roles["user"].sampling == {"temperature": 0.25, "top_k": 3}
    assert port not in (tmp_path / "a" / "run.json").read_text()
    assert port in book.rounds()[0].settings.roles["user"].urls[0]
    written = [p.read_bytes() for p in (tmp_path / "a").rglob("*") if p.is_file()]
    assert not any(b"a-secret-key" in content for content in written)
    assert result.report.roles["user"].cost == pytest.approx(6 * (10 + 100) / 1e6)
    assert result.report.cost is None


def test_the_environments_deadline_stands_still_while_a_model_is_asked(talk, tmp_path):
    with RoleServer(delay_s=0.7) as user:
        result = play(talk, tmp_path / "a", roles={"user": user.url}, limits=Limits(tool_s=0.5, verify_s=0.5), limit=1)
    assert result.report.scored == 1


def test_a_role_that_does_not_answer_is_a_role_error_and_never_a_score(talk, tmp_path):
    with RoleServer() as user:
        user.status = 400
        with pytest.raises(Shortfall) as caught:
            play(talk, tmp_path / "a", roles={"user": user.url})
        assert (caught.value.scored, caught.value.failed) == (0, {"role_error": 3})
        user.status = 200
        resume(tmp_path / "a", {}, None, SilentDisplay(), StartOptions())
    assert load(tmp_path / "a").report.scored == 3


ASYNC_GRADED = """
from rollbook import Environment, Task

class Talk(Environment):
    roles = ("grader",)

    def tasks(self):
        yield Task(id="t", prompt="Greet.")

    async def verify(self, task, rollout):
        try:
            call = await self.model("grader").ask(rollout.text)
        except Exception:
            return 0.0
        return call.text == "Yes."
"""
GRADED = {
    "async": ASYNC_GRADED,
    "sync": ASYNC_GRADED.replace("async ", "").replace("await ", "").replace(".ask(", ".ask_blocking("),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_environment_that_catches_the_failure_still_has_no_score(tmp_path, form):
    env = write(tmp_path, GRADED[form])
    with RoleServer() as grader:
        grader.status = 400
        with pytest.raises(Shortfall) as caught:
            play(env, tmp_path / "a", roles={"grader": grader.url})
        assert caught.value.failed == {"role_error": 1}
        grader.status = 200
        assert play(env, tmp_path / "b", roles={"grader": grader.url}).report.overall.mean == 1.0
    (call,) = calls_of(tmp_path / "b")["t"]
    assert call.in_verification


def test_a_run_without_the_role_that_its_environment_asks_is_refused_in_one_line(talk, tmp_path):
    with pytest.raises(UsageError, match=r"^Talk asks a model in the role user: give --role user=URL$"):
        play(talk, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (
            {"user": "scripted:SAID", "usr": "scripted:SAID"},
            "--role usr: Talk asks no model of that role; it asks",
        ),
        ({"user": "nowhere/model"}, "--role user=nowhere/model: "),
        ({"User": "scripted:SAID"}, "a role is named with small letters"),
        ({"user": {"url": "x"}}, "roles: user: url is unknown; a role has model, name"),
        ({"user": {"model": 3}}, "roles: user: 3 is not a model; write a URL"),
        ("scripted:SAID", "give models by role"),
        ({"user": {"model": "scripted:SAID", "price": "free"}}, "roles: user.price=free: write the prices"),
        ({"user": {"model": "scripted:SAID", "sampling": {"seed": 3}}}, "--role user.sampling seed=3"),
        ({"user": {"sampling": {"top_k": 3}}}, "--role user: give its model as well"),
        ({"user": "scripted:SAID", "judge": "scripted:SAID"}, "--judge: Talk uses no judge"),
    ],
)
def test_a_wrong_role_is_refused_in_one_line(tmp_path, roles, words):
    env = write(tmp_path, ASYNC)
    given = json.loads(json.dumps(roles).replace("SAID", str(tmp_path / "said.jsonl")))
    with pytest.raises(UsageError) as caught:
        play(env, tmp_path / "a", roles=given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_role_that_cannot_be_reached_is_refused_before_the_start(tmp_path):
    with RoleServer() as user:
        url = user.url
    with pytest.raises(UsageError, match=r"role user: .*refused"):
        play(write(tmp_path, ASYNC), tmp_path / "a", roles={"user": url})


def test_an_environment_that_asks_a_role_which_it_does_not_declare_is_told_so(tmp_path):
    env = write(tmp_path, ASYNC.replace('roles = ("user",)', "pass"))
    with pytest.raises(Shortfall) as caught:
        play(env, tmp_path / "a", attempts={"environment_error": 1})
    assert 'Talk asks the role user, which it does not declare: write roles = ("user",)' in str(caught.value.missing)


@pytest.mark.parametrize(
    ("source", "way"),
    [
        (SYNC.replace("ask_blocking", "ask"), 'in a sync method write self.model("user").ask_blocking()'),
        (
            ASYNC.replace("await self", "self").replace(".ask(", ".ask_blocking("),
            'in an async method write await self.model("user").ask()',
        ),
    ],
)
def test_the_wrong_form_of_asking_names_the_right_one(tmp_path, source, way):
    env = write(tmp_path, source)
    with RoleServer() as user, pytest.raises(Shortfall) as caught:
        play(env, tmp_path / "a", attempts={"environment_error": 1}, roles={"user": user.url})
    assert way in str(caught.value.missing)


def test_another_start_may_have_another_address_but_not_another_model(tmp_path):
    env = write(tmp_path, ASYNC)
    with RoleServer() as user:
        play(env, tmp_path / "a", roles={"user": user.url})
    with RoleServer() as moved, RoleServer(name="actor-2") as other:
        with pytest.raises(UsageError, match=r"role user: .*actor-1"):
            extend(tmp_path / "a", 2, {"roles": {"user": other.url}}, SilentDisplay())
        with pytest.raises(UsageError, match="was planned without the role opponent"):
            extend(tmp_path / "a", 2, {"roles": {"opponent": other.url}}, SilentDisplay())
        extend(tmp_path / "a", 2, {"roles": {"user": moved.url}}, SilentDisplay())
        assert len(moved.asked) == 6
        assert Book(tmp_path / "a").last_settings().roles["user"].urls == [moved.url]


def test_another_address_of_a_role_keeps_its_price_its_key_variable_and_its_headers(tmp_path, monkeypatch):
    monkeypatch.setenv("TEAM", "red-team")
    monkeypatch.setenv("ACTOR_KEY", "k-1")
    commands, env = Commands(tmp_path), write(tmp_path, ASYNC)
    with RoleServer() as one, RoleServer() as two:
        given = [f"user={one.url}", "user.price=in=1000,out=1000", "user.headers.X-Team=TEAM", "user.key_env=ACTOR_KEY"]
        roles = [word for each in given for word in ("--role", each)]
        start = commands.run("run", env, "-m", "scripted:said.jsonl", *roles, "--max-cost", 0.03, "-c", 1, "-o", "a")
        assert start.code == 3, start.stderr
        again = commands.run("resume", "a", "--role", f"user={two.url}", "--max-cost", 1)
        assert again.code == 0, again.stderr
    first, second = (round_.settings.roles["user"] for round_ in Book(tmp_path / "a").rounds())
    assert (second.urls, second.price, second.key_env, second.headers) == (
        [two.url],
        first.price,
        "ACTOR_KEY",
        {"X-Team": "TEAM"},
    )


def test_plan_needs_the_name_of_a_roles_model(tmp_path):
    env = write(tmp_path, ASYNC)
    given = {"model": "http://127.0.0.1:9/v1"}
    with pytest.raises(UsageError, match=r"the name of the role user: give --role user\.name=NAME"):
        plan(env, f"scripted:{tmp_path / 'said.jsonl'}", out=tmp_path / "a", roles={"user": given})
    plan(env, f"scripted:{tmp_path / 'said.jsonl'}", out=tmp_path / "a", roles={"user": {**given, "name": "m"}})
    assert Book(tmp_path / "a").manifest.roles["user"].model.name == "m"


def test_verification_asks_again_with_the_same_seeds(tmp_path):
    env = write(tmp_path, GRADED["async"])
    with RoleServer() as grader, RoleServer(lambda _: "No.", name="actor-2") as other:
        play(env, tmp_path / "a", roles={"grader": grader.url})
        again = reverify(tmp_path / "a", tmp_path / "b", roles={"grader": other.url})
    assert [change.after for change in again.changes] == [0.0]
    (before,), (after,) = calls_of(tmp_path / "a")["t"], calls_of(tmp_path / "b")["t"]
    assert (before.seed, before.text, after.text) == (after.seed, "Yes.", "No.")
    assert Book(tmp_path / "b").manifest.roles["grader"].model.name == "actor-2"


def test_a_collector_has_roles_too(tmp_path):
    env = write(tmp_path, SYNC)

    async def collect(url):
        model = f"scripted:{tmp_path / 'said.jsonl'}"
        async with Collector(env, model, samples=2, roles={"user": url}) as collector:
            return [group async for group in collector.groups()]

    with RoleServer() as user:
        groups = asyncio.run(collect(user.url))
    assert [[len(r.role_calls) for r in group.rollouts] for group in groups] == [[2, 2]] * 3


def test_a_blend_names_its_roles(tmp_path):
    write(tmp_path, ASYNC)
    with RoleServer() as user:
        (tmp_path / "blend.yaml").write_text(f"roles:\n  user: {user.url}\nenvironments:\n- env: talk.py:Talk\n")
        blend = str(tmp_path / "blend.yaml")
        result = run(blend, f"scripted:{tmp_path / 'said.jsonl'}", out=tmp_path / "a", progress=False)
    assert result.report.roles["user"].calls == 6
    (tmp_path / "blend.yaml").write_text("roles:\n  user:\n    modl: x\nenvironments:\n- env: talk.py:Talk\n")
    with pytest.raises(UsageError, match=r"blend\.yaml:2: roles: user: modl is unknown"):
        run(blend, f"scripted:{tmp_path / 'said.jsonl'}", out=tmp_path / "b", progress=False)


@pytest.mark.parametrize("form", FORMS)
def test_the_command_line_plans_works_and_resumes_with_roles(tmp_path, form):
    write(tmp_path, FORMS[form])
    commands = Commands(tmp_path)
    words = ["talk.py:Talk", "-m", "scripted:said.jsonl", "-o", "a"]
    assert commands.run("plan", *words).complaint.endswith("Talk asks a model in the role user: give --role user=URL")
    with RoleServer() as user, RoleServer() as moved:
        role = ["--role", f"user={user.url}", "--role", "user.name=actor-1", "--role", "user.price=in=1,out=100"]
        assert commands.run("plan", *words, *role).code == 0
        worked = commands.run("work", "a", "--role", f"user={moved.url}", "--json")
        assert worked.code == 0, worked.stderr
        assert (len(user.asked), len(moved.asked)) == (0, 6)
        shown = commands.run("report", "a").stdout
        assert "role user: 6 calls, 60 prompt tokens, 6 completion tokens, cost 0.0007" in shown
        two = commands.run("run", *words[:-1], "b", *role, "--workers", "2", "--json")
        assert two.code == 0, two.stderr
        assert two.json["roles"]["user"]["calls"] == 6


def test_the_cost_of_roles_is_limited_with_that_of_the_policy(tmp_path):
    env = write(tmp_path, ASYNC)
    with RoleServer() as user:
        given = {"user": {"model": user.url, "price": "in=1000,out=1000"}}
        with pytest.raises(Shortfall, match=r"stopped by --max-cost 0\.01"):
            play(env, tmp_path / "a", roles=given, samples=200, concurrency=1, max_cost=0.01)
        assert len(user.asked) < 1200
        user.asked.clear()
        user.delay_s = 0.2
        with pytest.raises(Shortfall, match=r"stopped by --max-cost 0\.1"):
            play(env, tmp_path / "b", roles=given, samples=20, concurrency=64, max_cost=0.1)
        assert len(user.asked) in (10, 12), "one rollout makes two calls for 0.022"


def test_a_role_without_a_price_is_named_where_costs_are_limited(tmp_path):
    words = [write(tmp_path, ASYNC), "-m", "scripted:said.jsonl", "--price", "in=1,out=1", "--max-cost", 1]
    with RoleServer() as user:
        done = Commands(tmp_path).run("run", *words, "--role", f"user={user.url}", "-o", "a")
        free = Commands(tmp_path).run("run", *words, "--role", f"user={user.url}", "--role", "user.price=in=1,out=1")
    assert done.code == free.code == 0, done.stderr
    assert (
        done.stderr.count("--max-cost counts no calls of the role user: it has no price; give --role user.price=") == 1
    )
    assert "counts no calls" not in free.stderr


def test_negative_tokens_of_a_role_do_not_lower_the_cost(tmp_path):
    with RoleServer() as user:
        user.usage = {"prompt_tokens": -2000, "completion_tokens": 5}
        given = {"user": {"model": user.url, "price": "in=1000,out=1000"}}
        report = play(write(tmp_path, ASYNC), tmp_path / "a", roles=given, max_cost=0.01).report
    assert (report.roles["user"].prompt_tokens, report.roles["user"].cost) == (0, 0)
    warning = "warning: 3 rollouts report no token counts of roles, so that the cost of these is too low"
    assert report.warnings == [warning]


def test_a_comparison_names_roles_that_differ(tmp_path):
    env = write(tmp_path, ASYNC)
    with RoleServer() as user, RoleServer(name="actor-2") as other:
        play(env, tmp_path / "a", roles={"user": user.url})
        play(env, tmp_path / "b", roles={"user": other.url})
    assert "in the role user A has actor-1, B actor-2" in compare(tmp_path / "a", tmp_path / "b").json()["notes"]


def test_calls_of_roles_are_in_no_export(tmp_path):
    env = write(tmp_path, GRADED["async"].replace('"Yes."', '"Yes, of course."'))
    with RoleServer(lambda _: "Yes, of course.") as grader:
        play(env, tmp_path / "a", roles={"grader": grader.url})
    (one,) = rollouts(Book(tmp_path / "a"))
    assert one.role_calls[0].text == "Yes, of course."
    assert [m.role for m in one.messages] == ["user", "assistant"]
    assert len(one.turns) == 1
    export(tmp_path / "a", tmp_path / "a.jsonl", format="jsonl")
    assert "of course" not in (tmp_path / "a.jsonl").read_text()


ECHO = """
import os
from concurrent.futures import ThreadPoolExecutor

from rollbook import Environment, Task

class Talk(Environment):
    roles = ("echo",)

    def tasks(self):
        for number in range(12):
            yield Task(id=f"t{number}", prompt="Greet.")

    def verify(self, task, rollout):
        ask = self.model("echo").ask_blocking
        with ThreadPoolExecutor(2) as threads:
            both = [call.text for call in threads.map(ask, [f"{task.id} a", f"{task.id} b"])]
        return both == [f"{task.id} a", f"{task.id} b"] and ask(task.id).text == task.id
"""


def test_calls_that_were_sent_ahead_wait_and_threads_ask_one_after_another(tmp_path):
    env = write(tmp_path, ECHO)
    with RoleServer(lambda messages: messages[-1]["content"]) as echo:
        result = play(env, tmp_path / "a", roles={"echo": echo.url}, hosts=1)
    assert result.report.overall.mean == 1.0
    for task, calls in calls_of(tmp_path / "a").items():
        assert sorted(call.text for call in calls) == [task, f"{task} a", f"{task} b"]
        assert sorted(call.number for call in calls) == [0, 1, 2]


def test_a_forked_child_cannot_ask_in_the_name_of_its_parent(tmp_path):
    forked = """
        child = os.fork()
        if not child:
            try:
                self.model("echo").ask_blocking("x")
            except Exception:
                os._exit(7)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    start = ECHO.index('        ask = self.model("echo")')
    env = write(tmp_path, ECHO[:start] + forked.lstrip("\n"))
    with RoleServer() as echo:
        result = play(env, tmp_path / "a", roles={"echo": echo.url}, limit=1)
        assert echo.asked == []
    assert result.report.overall.mean == 1.0


def test_an_environment_that_asks_without_end_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("rollbook.environments.roles.caller.MAX_CALLS", 20)
    endless = """        while True:
            self.model("echo").ask_blocking("x")
"""
    env = write(tmp_path, ECHO[: ECHO.index('        ask = self.model("echo")')] + endless)
    with RoleServer() as echo, pytest.raises(Shortfall) as caught:
        play(env, tmp_path / "a", roles={"echo": echo.url}, limit=1, attempts={"environment_error": 1})
    assert "asked models of roles more than 20 times" in str(caught.value.missing)


@pytest.mark.parametrize("form", FORMS)
def test_the_limit_of_the_rollout_counts_calls_that_hang_in_verification(tmp_path, form):
    env = write(tmp_path, GRADED[form])
    with RoleServer(delay_s=20) as grader:
        began = time.monotonic()
        with pytest.raises(Shortfall, match="the model of the role grader") as caught:
            play(env, tmp_path / "a", roles={"grader": grader.url}, limits=Limits(rollout_s=1.0))
        assert time.monotonic() - began < 10
    assert caught.value.failed == {"rollout_timeout": 1}


APPEALING = """
from rollbook import Environment, Task

class Talk(Environment):
    def tasks(self):
        yield Task(id="t", prompt="Greet.")

    def verify(self, task, rollout):
        return False

    async def appeal(self, task, rollout, score, judge):
        return await judge.ask(rollout.text) == "Yes."
"""


def test_the_limit_of_the_rollout_counts_a_judge_that_hangs_and_reverify_can_score_it(tmp_path):
    env = write(tmp_path, APPEALING)
    with RoleServer(delay_s=20) as judge:
        began = time.monotonic()
        with pytest.raises(Shortfall, match="the model of the role judge") as caught:
            play(env, tmp_path / "a", judge=judge.url, limits=Limits(rollout_s=1.0))
        assert time.monotonic() - began < 10
        assert caught.value.failed == {"rollout_timeout": 1}
        judge.delay_s = 0.0
        assert reverify(tmp_path / "a", tmp_path / "b", judge=judge.url).report.overall.mean == 1.0


@pytest.mark.parametrize("form", FORMS)
def test_a_role_that_goes_away_stops_the_run_and_costs_no_attempt(tmp_path, form):
    env = write(tmp_path, FORMS[form])
    user = RoleServer()
    with user:
        user.answer = lambda _: stop_listening(user)
        with pytest.raises(EndpointDown, match=r"the model of the role user: no model answered for 0.5 s .*refused"):
            play(env, tmp_path / "a", roles={"user": user.url}, outage_s=0.5, attempts={})
    assert load(tmp_path / "a").report.failed == {}
    with RoleServer() as back:
        resume(tmp_path / "a", {"roles": {"user": back.url}}, None, SilentDisplay(), StartOptions())
    assert load(tmp_path / "a").report.scored == 3


def test_a_prompt_that_the_model_of_a_role_never_answers_fails_only_its_rollout(tmp_path):
    env = write(tmp_path, ASYNC.replace('"content": rollout.text', '"content": task.id'))
    with RoleServer() as user:
        user.refuses = "t1"
        with pytest.raises(Shortfall) as caught:
            play(env, tmp_path / "a", roles={"user": user.url}, outage_s=60)
    assert (caught.value.scored, caught.value.failed) == (2, {"role_error": 1})


def stop_listening(server: RoleServer) -> str:
    server.close()
    return "Bye."


THREE = APPEALING.replace('yield Task(id="t"', "for i in range(3):\n            yield Task(id=f't{i}'")


def test_a_judge_that_goes_away_stops_the_run_and_costs_no_attempt(tmp_path):
    env = write(tmp_path, THREE)
    judge = RoleServer()
    with judge:
        judge.answer = lambda _: stop_listening(judge)
        with pytest.raises(EndpointDown, match=r"the judge: no model answered for 0.5 s .*refused"):
            play(env, tmp_path / "a", judge=judge.url, outage_s=0.5, concurrency=1)
    assert load(tmp_path / "a").report.failed == {}


def test_a_judge_that_only_refuses_stops_run_and_reverify_and_costs_no_attempt(tmp_path):
    env = write(tmp_path, THREE)
    with RoleServer() as judge:
        judge.status = 503
        with pytest.raises(EndpointDown, match=r"the judge: no model answered for 2 s .*HTTP 503"):
            play(env, tmp_path / "a", judge=judge.url, outage_s=2, probe=False)
        assert load(tmp_path / "a").report.pending == 3
        judge.status = 200
        resume(tmp_path / "a", {}, None, SilentDisplay(), StartOptions())
        judge.answer = lambda _: refuse_from_now_on(judge)
        with pytest.raises(EndpointDown, match=r"HTTP 503.*; check the server, then run the same command again"):
            reverify(tmp_path / "a", tmp_path / "b", judge=judge.url, outage_s=2)
        judge.status, judge.answer = 200, lambda _: "Yes."
        assert reverify(tmp_path / "a", tmp_path / "b", judge=judge.url).report.overall.mean == 1.0


def refuse_from_now_on(server: RoleServer) -> str:
    server.status = 503
    return "Yes."


@pytest.mark.parametrize("form", FORMS)
def test_reverify_asks_the_models_of_the_last_start_and_needs_no_option_for_it(tmp_path, form):
    env = write(tmp_path, GRADED[form])
    with RoleServer() as grader, RoleServer(lambda _: "No.", name="strict") as other:
        play(env, tmp_path / "a", roles={"grader": grader.url})
        assert reverify(tmp_path / "a", tmp_path / "b").report.overall.mean == 1.0
        changed = reverify(tmp_path / "a", tmp_path / "c", roles={"grader": other.url})
        assert (changed.report.overall.mean, changed.changed) == (0.0, 1)
        with pytest.raises(UsageError, match="was started with strict as grader: continue with that"):
            reverify(tmp_path / "a", tmp_path / "c")
        with pytest.raises(
            UsageError, match=r"--role user: nothing in .* asks a model of that role; its roles: grader"
        ):
            reverify(tmp_path / "a", tmp_path / "d", roles={"user": other.url})
    names = [Book(tmp_path / run).manifest.roles["grader"].model.name for run in "abc"]
    assert names == ["actor-1", "actor-1", "strict"]
    wanted = r"role grader: .*connection refused; start the server first; if it is elsewhere now, give --role"
    with pytest.raises(UsageError, match=wanted):
        reverify(tmp_path / "a", tmp_path / "e")
    assert not (tmp_path / "e").exists()


def test_reverify_does_not_need_the_models_that_only_took_part_in_the_conversation(talk, tmp_path):
    with RoleServer() as user:
        play(talk, tmp_path / "a", roles={"user": user.url})
    assert reverify(tmp_path / "a", tmp_path / "b").report.overall.mean == 1.0


def test_reverify_finds_the_name_of_another_judge_as_run_does(tmp_path):
    env = write(tmp_path, APPEALING)
    with RoleServer(name="kind") as kind, RoleServer(lambda _: "No.", name="strict") as strict:
        play(env, tmp_path / "a", judge=kind.url)
        assert reverify(tmp_path / "a", tmp_path / "b", judge=kind.url).changed == 0
        assert reverify(tmp_path / "a", tmp_path / "c", judge=strict.url).report.overall.mean == 0.0
        with pytest.raises(UsageError, match="--only failed: the other scores are by kind, not by strict"):
            reverify(tmp_path / "a", tmp_path / "d", judge=strict.url, only="failed")
    assert [Book(tmp_path / run).manifest.judge.name for run in "bc"] == ["kind", "strict"]
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"temperature": "hot"}, "--role user.sampling.temperature=hot: give a number from 0 on"),
        ({"top_p": 2}, "--role user.sampling.top_p=2: give a number from 0 to 1"),
        ({"max_tokens": 1.5}, "--role user.sampling.max_tokens=1.5: give a whole number from 1 on"),
        ({"max_tokens": True}, "give a whole number from 1 on"),
    ],
)
def test_sampling_values_of_a_role_are_checked_before_anything_is_written(talk, tmp_path, sampling, words):
    with RoleServer() as user, pytest.raises(UsageError, match=words):
        play(talk, tmp_path / "a", roles={"user": {"model": user.url, "sampling": sampling}})
    assert not (tmp_path / "a").exists()


def test_a_password_in_the_address_names_the_key_variable_of_the_role(talk, tmp_path):
    with pytest.raises(UsageError, match="no user or password in the URL; the key goes into USER_API_KEY"):
        play(talk, tmp_path / "a", roles={"user": "http://u:p@127.0.0.1:9/v1"})


def test_a_wrong_value_of_the_environment_is_named(tmp_path):
    env = write(tmp_path, ASYNC.replace("temperature=0.5", "temperature=-1"))
    with RoleServer() as user, pytest.raises(Shortfall, match="the role user was asked with temperature=-1: give a"):
        play(env, tmp_path / "a", roles={"user": user.url}, attempts={"environment_error": 1}, limit=1)
