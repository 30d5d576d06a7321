"""`rollbook gateway` and `--agent`, as people type them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from support.sums import write_script, write_sums

_open = build_opener(ProxyHandler({})).open


@pytest.fixture
def gateway(tmp_path):
    """Start `rollbook gateway` in front of a script; gives the process."""
    started = []

    def start(*words, **environ):
        command = [sys.executable, "-m", "rollbook", "gateway", "--model", write_script(tmp_path), *words]
        told = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), **environ}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environ, **told))
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.communicate(timeout=30)


def asked(url, body=None, method="POST", key=""):
    data = None if body is None else json.dumps(body).encode()
    with _open(Request(url, data, {"Authorization": f"Bearer {key}"}, method=method), timeout=30) as answer:
        return json.load(answer)


def test_it_prints_its_address_and_a_key_records_and_ends_on_a_signal(gateway, tmp_path):
    child = gateway("-o", "records", "--max-tokens", "7")
    url = child.stdout.readline().strip()
    said = child.stderr.readline()
    assert url.startswith("http://127.0.0.1:")
    assert "ROLLBOOK_GATEWAY_KEY" in said
    place = asked(f"{url}/rollout", {"name": "mine"}, key=said.split()[-1])
    answer = asked(
        f"{place['openai_base_url']}/chat/completions", {"messages": [{"role": "user", "content": "What is 1 + 1?"}]}
    )
    assert answer["choices"][0]["message"]["content"] == "2"
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 0
    record = json.loads((tmp_path / "records" / f"{place['rollout']}.json").read_text())
    assert (record["name"], record["open"], len(record["branches"])) == ("mine", False, 1)


def test_a_key_of_ones_own_is_not_printed(gateway):
    child = gateway(ROLLBOOK_GATEWAY_KEY="secret")
    place = asked(f"{child.stdout.readline().strip()}/rollout", key="secret")
    assert place["openai_base_url"].endswith(f"/rollout/{place['rollout']}/v1")
    child.terminate()
    assert "secret" not in child.communicate(timeout=30)[1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "ftp://x"], "ftp://x: only http and https work"),
        (["--model", "scripted:none.jsonl"], "none.jsonl"),
        (["--model", "scripted:script.jsonl", "-o", "script.jsonl"], "-o script.jsonl: File exists"),
        (["--model", "scripted:script.jsonl", "--timeout", "inf"], "--timeout inf: not a finite number"),
        (["--rollouts", "0"], "--rollouts"),
    ],
)
def test_a_mistake_is_one_line(words, complaint, rollbook, tmp_path):
    write_script(tmp_path)
    done = rollbook("gateway", *words)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("agent", "complaint"),
    [
        ("claude", "--agent claude: write program:COMMAND"),
        ("program:", "give a command"),
        ("program:no-such-thing", "program:no-such-thing: there is no such program"),
    ],
)
def test_a_mistake_in_the_agent_is_one_line_and_makes_no_run(agent, complaint, rollbook, tmp_path):
    done = rollbook("run", write_sums(tmp_path), "-m", write_script(tmp_path), "--agent", agent, "-o", "run")
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_an_edited_agent(rollbook, tmp_path):
    agent = tmp_path / "agent.sh"
    agent.write_text("exit 1\n")
    model = ("-m", write_script(tmp_path), "--agent", "program:sh agent.sh")
    assert rollbook("plan", write_sums(tmp_path), *model, "-o", "run").returncode == 0
    agent.write_text("exit 0\n")
    done = rollbook("work", "run")
    assert done.returncode == 2
    assert f"{agent} was edited since the run was planned" in done.stderr
