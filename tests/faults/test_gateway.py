"""Agents and upstreams that misbehave: the gateway answers every one of them, and nothing of them is left."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import textwrap
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from rollbook.core import Limits
from rollbook.gateway import RolloutDefaults, server
from support.alive import alive, eventually, read_pid
from support.book_assertions import assert_complete
from support.commands import Commands, Process, Served
from support.endpoint import Endpoint
from support.gateways import Gate

ASK = """
import json, os, sys, time, urllib.request

def ask(text, url=None):
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open((url or os.environ["OPENAI_BASE_URL"]) + "/chat/completions", body) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

task = json.load(open(os.environ["ROLLBOOK_TASK"]))
"""


def write_agent(folder: Path, code: str) -> str:
    """An agent as a file; gives what goes behind --agent."""
    path = folder / "agent.py"
    path.write_text(ASK + textwrap.dedent(code))
    return f"program:{sys.executable} {path}"


def failures(run: Path) -> list[dict]:
    """Every failed attempt on record."""
    lines = [path.read_text().splitlines() for path in sorted((run / "journals").glob("*.failures.jsonl"))]
    return [json.loads(line)["failure"] for some in lines for line in some]


HI = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_an_upstream_that_dies_in_the_middle_shows_the_agent_an_error_and_no_part_of_an_answer(path: str) -> None:
    async def main() -> None:
        async with Endpoint("cut", models="ok", vllm=True) as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            body = {**HI, "input": "hi", "max_tokens": 9, "stream": True}
            async with gate.http.post(f"{place.openai_base_url}/{path}", json=body) as answer:
                assert answer.status == 503
                assert "error" in await answer.json()
            record = await gate.record(place, "DELETE")
            assert (record.failure.kind, record.branches) == ("model_unavailable", [])

    asyncio.run(main())


def test_an_upstream_that_dies_while_a_stream_waits_ends_it_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)

    async def main() -> None:
        async with Endpoint("hang", models="ok") as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            async with gate.http.post(
                f"{place.openai_base_url}/chat/completions", json={**HI, "stream": True}
            ) as answer:
                assert answer.status == 200
                assert await answer.content.readline() == b": waiting\n"
                await endpoint.switch("ok")
                last = (await answer.text()).strip().splitlines()[-1]
                assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_unavailable"
            assert (await gate.record(place, "DELETE")).failure.kind == "model_unavailable"

    asyncio.run(main())


def test_a_client_that_hangs_up_ends_the_call_and_leaves_no_turn() -> None:
    async def main() -> None:
        async with Endpoint("hang", models="ok") as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            for stream in (False, True):
                call = asyncio.create_task(gate.chat(place, "hi", stream=stream))
                while endpoint._at_once == 0:
                    await asyncio.sleep(0.01)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                async with asyncio.timeout(5):
                    while gate.under_way(place):
                        await asyncio.sleep(0.01)
                await endpoint.switch("hang", models="ok")
            await endpoint.switch("ok")
            assert (await gate.chat(place, "hi"))[0] == 200
            record = await gate.record(place, "DELETE")
            assert (len(record.turns), record.failure) == (1, None)

    asyncio.run(main())


BAD = {
    b"": "the body is not JSON",
    b"{": "the body is not JSON",
    b"[1]": "the body is not a JSON object",
    b"\xff\xfe": "the body is not JSON",
    b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}": "",
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}': "the body is not JSON",
}


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_a_malformed_request_is_answered_with_what_is_wrong(path: str) -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            for body, words in BAD.items():
                status, answer = await gate.post(place, path, data=body)
                assert status == 400, (body, answer)
                assert words in answer["error"]["message"]
            assert (await gate.record(place)).failure is None
            assert endpoint.counts["chat"] == 0

    asyncio.run(main())


def test_a_giant_body_is_refused() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            giant = BytesIO(b"x" * (server.BODY_LIMIT + 1))
            status, answer = await gate.post(place, "chat/completions", data=giant)
            assert (status, answer["error"]["code"]) == (413, "request_too_large")
            assert (await gate.chat(place, "hi"))[0] == 200

    asyncio.run(main())


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_TIMEOUT_S", 0.2)

    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open()
            path = f"/rollout/{place.rollout}/v1/chat/completions"
            reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.rpartition(":")[2]))
            writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
            async with asyncio.timeout(10):
                assert b"408" in await reader.readline()
            writer.close()

    asyncio.run(main())


def test_nobody_speaks_for_a_rollout_whose_name_they_do_not_know() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gate:
            place = await gate.open(name="mine")
            for guess in ("mine", "1", place.rollout[:-1], place.rollout.swapcase(), "%00", "../rollout"):
                url = f"{gate.url}/rollout/{guess}/v1/chat/completions"
                async with gate.http.post(url, json=HI) as answer:
                    assert answer.status == 404, guess
            assert len(place.rollout) >= 24
            assert (await gate.record(place)).branches == []

    asyncio.run(main())


def test_a_rollout_that_asks_without_end_is_ended() -> None:
    async def main() -> None:
        defaults = RolloutDefaults(limits=Limits(max_turns=3))
        async with Endpoint() as endpoint, Gate(endpoint.url, defaults=defaults) as gate:
            place = await gate.open()
            statuses = [(await gate.chat(place, str(number)))[0] for number in range(8)]
            assert statuses == [200] * 3 + [400] * 5
            assert endpoint.counts["chat"] == 3

    asyncio.run(main())


def start(rollbook: Commands, endpoint: Served, env: str, run: Path, agent: str, *more: object) -> Process:
    return rollbook.start("run", f"{env}?tasks=1", "-m", endpoint.url, "--agent", agent, "-o", run, *more)


@pytest.mark.slow
def test_an_agent_that_hangs_is_late_and_gone(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    code = f"""
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ask(task["prompt"])
    open({str(pid)!r}, "w").write(f"{{os.getpid()}}\\n")
    time.sleep(600)
    """
    done = start(rollbook, serve(), sums, tmp_path / "run", write_agent(tmp_path, code), "--timeout", 3).wait()
    assert done.code == 3, done.stderr
    assert [failure["kind"] for failure in failures(tmp_path / "run")] == ["rollout_timeout"]
    assert not alive(read_pid(pid))
    assert rollbook.nothing_left()


@pytest.mark.slow
def test_what_an_agent_leaves_running_does_not_outlive_it(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    code = f"""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            env = {{}}
            os.execve(sys.executable, [sys.executable, "-c", '''
    import os, time
    open({str(pid)!r}, "w").write(f"{{os.getpid()}}\\\\n")
    time.sleep(600)'''.replace("\\n    ", "\\n")], env)
        os._exit(0)
    ask(task["prompt"])
    while not os.path.exists({str(pid)!r}): time.sleep(0.01)
    """
    done = start(rollbook, serve("--right", "1"), sums, tmp_path / "run", write_agent(tmp_path, code)).wait()
    assert done.code == 0, done.stderr
    assert eventually(lambda: not alive(read_pid(pid)), 5)


@pytest.mark.slow
def test_an_agent_that_floods_its_output_is_neither_stopped_nor_kept(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    code = """
    ask(task["prompt"])
    for _ in range(256):
        sys.stdout.write("x" * (1 << 19))
        sys.stderr.write("x" * (1 << 19))
    sys.exit("I am done flooding")
    """
    agent = write_agent(tmp_path, code)
    done = start(rollbook, serve(), sums, tmp_path / "run", agent, "--fail-fast").wait()
    assert done.code == 3, done.stderr
    found = failures(tmp_path / "run")
    assert {failure["kind"] for failure in found} == {"agent_error"}
    assert all(len(failure["message"]) <= 2000 for failure in found)
    assert all(failure["message"].endswith("I am done flooding") for failure in found)


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_its_agents_along_and_resume_finishes(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    pid, go = tmp_path / "pid", tmp_path / "go"
    code = f"""
    ask(task["prompt"])
    open({str(pid)!r}, "w").write(f"{{os.getpid()}}\\n")
    while not os.path.exists({str(go)!r}): time.sleep(0.01)
    """
    run = tmp_path / "run"
    worker = start(rollbook, serve("--right", "1"), sums, run, write_agent(tmp_path, code))
    agent = read_pid(pid, 30)
    worker.kill()
    assert eventually(lambda: not alive(agent), 10)
    go.touch()
    done = rollbook.run("resume", run)
    assert done.code == 0, done.stderr
    assert_complete(run)
    assert rollbook.nothing_left()


@pytest.mark.slow
def test_an_agent_whose_model_goes_away_costs_no_rollout(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--right", "1"), tmp_path / "run"
    agent = write_agent(tmp_path, "ask(task['prompt'])")
    endpoint.switch("500", models="ok")
    done = start(rollbook, endpoint, sums, run, agent, "--outage", 1, "--no-probe").wait()
    assert done.code == 75, done.stderr
    assert rollbook.run("status", run, "--json").json["failed"] == {}
    endpoint.switch("ok")
    assert rollbook.run("resume", run).code == 0
    assert_complete(run)


def test_ports_of_programs_are_closed_again() -> None:
    from rollbook.core import Rollout, Task
    from rollbook.gateway import LocalGateway

    async def main() -> int:
        rollout = Rollout(task=Task("t", "x"), sample=0, seed=0, messages=[], turns=[])
        async with LocalGateway().open(rollout, None) as door:
            return int(door.url.split(":")[2].partition("/")[0])

    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", asyncio.run(main()))) != 0
