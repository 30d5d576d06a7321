"""`rollbook serve` and `rollbook gym-config`, as people run them."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest
import yaml

from rollbook.cli import serve_commands
from rollbook.errors import UsageError
from support.alive import eventually
from support.commands import SOURCE, Process
from support.gym_client import response, text

ENVIRON = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONWARNINGS": "ignore"}


def started(folder: Path, *words: str) -> Process:
    command = [sys.executable, "-c", "from rollbook.cli.main import main; main()", "serve", *words]
    return Process(command, folder, ENVIRON)


def url_of(process: Process) -> str:
    assert eventually(lambda: process.stdout.endswith("\n") or process.code is not None, 60), process.stderr
    return process.stdout.strip()


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, {"Content-Type": "application/json"})
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=30) as answer:
            return json.load(answer)
    except HTTPError as error:
        return json.load(error)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_prints_its_address_answers_and_ends_on_a_signal(sums, tmp_path: Path, number: signal.Signals) -> None:
    process = started(tmp_path, "sums.py:Picky", "--data-dir", "rows")
    try:
        url = url_of(process)
        first, second, *_ = [json.loads(line) for line in (tmp_path / "rows" / "Picky.jsonl").read_text().splitlines()]
        good = ask(f"{url}/verify", {**second, "response": response([text("#### 2")])})
        broken = ask(f"{url}/verify", {**first, "response": response([text("#### 0")])})
        assert ask(f"{url}/") == {"status": "ok"}
        os.kill(process.pid, number)
        process.wait()
    finally:
        process.kill()
    assert good["reward"] == 1.0
    assert broken.startswith("verifier_error in verify: RuntimeError: cannot say")
    assert (process.code, process.stdout) == (0, f"{url}\n")
    assert process.stderr == f"/verify: {broken}\n"


def test_an_agent_plays_rows_against_an_endpoint(sums, tmp_path: Path, endpoint) -> None:
    process = started(
        tmp_path, sums, "--as", "agent", "-m", endpoint, "--head", "--data-dir", ".", "--temperature", "0"
    )
    try:
        url = url_of(process)
        row = json.loads((tmp_path / "Sums.jsonl").read_text().splitlines()[1])
        said = ask(f"{url}/run", row)
        config = yaml.safe_load(ask(f"{url}/global_config_dict_yaml"))
    finally:
        process.kill()
    assert said["reward"] in (0.0, 1.0)
    assert said["response"]["output"][0]["role"] == "assistant"
    assert row["agent_ref"]["name"] in config


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"env": "nothing"}, "unknown environment 'nothing'"),
        ({"serve_as": "judge"}, "--as judge: resources or agent"),
        ({"model": ["http://localhost:1/v1"]}, "--model: only an agent calls a model"),
        ({"harness_arg": ["a=1"]}, "--harness-arg: sums.py:Sums is not harness:PACKAGE"),
        ({"env": "harness:nowhere", "harness_arg": ["a"]}, "--harness-arg a: write key=value"),
        ({"env": "harness:nowhere"}, "harness:nowhere: no module nowhere"),
        ({"judge": ["http://localhost:1/v1"]}, "--judge: Sums uses no judge"),
        ({"host": "203.0.113.7"}, "--host 203.0.113.7 --port 0: "),
        ({"data_dir": "sums.py/rows"}, "sums.py/rows: Not a directory"),
    ],
)
def test_a_mistake_is_one_line(
    sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        serve_commands.serve_command(**{"env": sums, **options})
    assert str(error.value).startswith(complaint)
    assert "\n" not in str(error.value)


def test_a_mistake_exits_with_2(rollbook, sums) -> None:
    done = rollbook("serve", sums, "--as", "judge")
    assert (done.returncode, done.stderr) == (2, "rollbook: --as judge: resources or agent\n")


def test_what_gym_needs_is_written_and_its_program_starts_the_server(rollbook, sums, tmp_path: Path) -> None:
    port = free_port()
    words = ("--model", "http://localhost:8000/v1", "--model-name", "m", "-o", "gym/config.yaml", "--port", port)
    done = rollbook("gym-config", sums, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "gym/config.yaml: Sums, Sums_agent and policy_model"
    app = tmp_path / "gym" / "resources_servers" / "Sums" / "app.py"
    first = Process([sys.executable, str(app)], app.parent, dict(ENVIRON))
    second = None
    try:
        assert eventually(lambda: up(port) or first.code is not None, 60), first.stderr
        second = Process([sys.executable, str(app)], app.parent, dict(ENVIRON))
        assert not eventually(lambda: second.code is not None, 0.5), second.stderr
        rows = [json.loads(line) for line in (tmp_path / "gym" / "data" / "Sums.jsonl").read_text().splitlines()]
        said = ask(f"http://127.0.0.1:{port}/verify", {**rows[1], "response": response([text("#### 2")])})
    finally:
        first.kill()
        if second:
            second.kill()
    assert said["reward"] == 1.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def up(port: int) -> bool:
    try:
        return bool(ask(f"http://127.0.0.1:{port}/"))
    except OSError:
        return False


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"model": "localhost"}, "-m localhost: not a URL"),
        ({"domain": "sums"}, "Sums: domain 'sums'"),
        ({"out": Path("sums.py/config.yaml")}, "sums.py/data: Not a directory"),
    ],
)
def test_a_mistake_in_a_gym_configuration_is_one_line(
    sums, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as error:
        serve_commands.gym_config_command(
            **{"env": sums, "model": "http://localhost:8000/v1", "model_name": "m", **options}
        )
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)
