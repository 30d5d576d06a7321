"""The files for Gym: written, and refused where Gym would refuse them."""

from __future__ import annotations

import copy
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from rollbook.core import Limits
from rollbook.errors import UsageError
from rollbook.gym.config import (
    PORT_RANGE,
    check_gym_config,
    choose_port,
    generate_gym_config,
    write_deployment,
    write_gym_config,
)
from rollbook.gym.rows import read_task
from rollbook.gym.server.serve import ServeOptions, digest_server, load_served_environment

ENVIRONMENTS = """
from rollbook import Environment, Task, tool

class Sums(Environment):
    def tasks(self):
        for i in range(3):
            yield Task(id=f"sum-{i}", prompt=f"{i} + {i}?", answer=str(2 * i), level=i)

    def verify(self, task, rollout):
        return rollout.text == task.answer

class Tools(Sums):
    @tool
    def add(self, a: int) -> int:
        "Add."
        return a

class Talks(Sums):
    def reply(self, task, rollout, state):
        return None

class Offering(Sums):
    def offers(self, task):
        return [{"type": "function", "function": {"name": f"tool_{task.level}"}}]

    async def use(self, name, arguments, state):
        return name

    async def verify(self, task, rollout):
        return True

class Empty(Sums):
    def tasks(self):
        return []
"""


def config(**options: Any) -> dict[str, Any]:
    return generate_gym_config("127.0.0.1", 9400, "data", "my sums", "http://localhost:8000/v1", "my-model", **options)


def test_a_configuration_names_server_agent_model_and_rows() -> None:
    result = config()
    assert list(result) == ["my_sums", "my_sums_agent", "policy_model"]
    server = result["my_sums"]["resources_servers"]["my_sums"]
    assert (server["host"], server["port"], server["domain"]) == ("127.0.0.1", 9400, "other")
    agent = result["my_sums_agent"]["responses_api_agents"]["simple_agent"]
    assert agent["resources_server"] == {"type": "resources_servers", "name": "my_sums"}
    assert agent["datasets"][0]["jsonl_fpath"] == "data/my_sums.jsonl"
    model = result["policy_model"]["responses_api_models"]["vllm_model"]
    assert (model["base_url"], model["model"]) == ("http://localhost:8000/v1", "my-model")
    assert model["api_key"] == "${oc.env:OPENAI_API_KEY,EMPTY}"


def test_it_is_written_and_read_back(tmp_path: Path) -> None:
    path = write_gym_config(config(), tmp_path / "deep" / "config.yaml")
    assert yaml.safe_load(Path(path).read_text()) == config()
    unnamed = write_gym_config(config())
    assert yaml.safe_load(Path(unnamed).read_text()) == config()
    os.unlink(unnamed)
    with pytest.raises(UsageError, match=r"config.yaml: (Not a directory|File exists)"):
        write_gym_config(config(), Path(path) / "config.yaml")


def changed(path: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config())
    *names, last = path.split("/")
    inner: Any = result
    for name in names:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return result


AGENT = "my_sums_agent/responses_api_agents/simple_agent"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("my_sums/resources_servers/my_sums/domain", "sums", "my_sums: domain 'sums'; known are math"),
        ("my_sums/resources_servers/my_sums/domain", None, "my_sums: domain None"),
        ("my_sums/resources_servers/my_sums/entrypoint", None, "my_sums: Object missing required field `entrypoint`"),
        ("my_sums/resources_servers/my_sums/port", "x", r"my_sums: Expected `int \| null`"),
        ("my_sums/resources_servers/my_sums/port", 70000, r"my_sums: Expected `int` <= 65535"),
        ("my_sums/resources_servers/my_sums/port", 0, r"my_sums: Expected `int` >= 1"),
        ("my_sums/resources_servers/my_sums/host", "", r"my_sums: Expected `str` of length >= 1 - at `\$.host`"),
        ("policy_model/responses_api_models/vllm_model/model", "", r"policy_model: Expected `str` of length >= 1"),
        ("query", {"resources_servers": {}}, "query: Gym has another meaning for that name"),
        ("my_sums/resources_servers/other", {}, "my_sums: a server is one of"),
        ("my_sums", {"servers": {}}, "my_sums: a server is one of"),
        (
            "policy_model",
            None,
            "my_sums_agent: it refers to responses_api_models policy_model, which is not in the configuration",
        ),
        (
            f"{AGENT}/resources_server",
            {"type": "responses_api_models", "name": "my_sums"},
            "which is not in the configuration",
        ),
        (f"{AGENT}/datasets/0/type", "eval", "my_sums_agent: Invalid enum value 'eval'"),
        (f"{AGENT}/datasets/0/license", None, "my_sums_agent: the dataset my_sums needs a license"),
    ],
)
def test_what_gym_would_refuse_is_refused(path: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_gym_config(changed(path, value))


def test_no_server_takes_the_place_of_another() -> None:
    with pytest.raises(UsageError, match="model_server_name 'my_sums_agent': another server"):
        config(model_server_name="my_sums_agent")


@pytest.mark.parametrize("value", [None, {}, []])
def test_no_configuration_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="no servers"):
        check_gym_config(value)


def deployed(folder: Path, name: str, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    (folder / "served.py").write_text(ENVIRONMENTS)
    serve_options = ServeOptions(env=f"{folder}/served.py:{name}", port=9400)
    result = write_deployment(serve_options, folder / "out" / "config.yaml", "http://localhost:8000/v1", "m", **options)
    rows = [json.loads(line) for line in result.data.read_text().splitlines()]
    assert len(rows) == result.rows
    return yaml.safe_load((folder / "out" / "config.yaml").read_text()), rows, (result.shim / "app.py").read_text()


def test_rows_and_the_servers_folder_lie_beside_it(tmp_path: Path) -> None:
    result, rows, app = deployed(tmp_path, "Sums", judges=["http://localhost:8001/v1"])
    dataset = result["Sums_agent"]["responses_api_agents"]["simple_agent"]["datasets"][0]
    assert Path(dataset["jsonl_fpath"]) == tmp_path / "out" / "data" / "Sums.jsonl"
    assert [read_task(row).answer for row in rows] == ["0", "2", "4"]
    assert rows[1]["verifier_metadata"] == {"level": 1}
    assert {row["agent_ref"]["name"] for row in rows} == {"Sums_agent"}
    compile(app, "app.py", "exec")
    assert f"'{tmp_path}/served.py:Sums', '--host', '127.0.0.1', '--port', '9400', '--reuse', '--judge'" in app
    assert (tmp_path / "out" / "resources_servers" / "Sums" / "requirements.txt").exists()


def test_gym_installs_nothing_for_the_server(tmp_path: Path) -> None:
    """Gym uses a virtual environment that is there already, if the configuration says so."""
    result, _, _ = deployed(tmp_path, "Sums")
    assert result["skip_venv_if_present"] is True
    folder = tmp_path / "out" / "resources_servers" / "Sums"
    (folder / "app.py").write_text("print('started')")
    command = f"source {folder}/.venv/bin/activate && cd {folder} && python app.py"
    started = subprocess.run(["/bin/bash", "-c", command], env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert started.stdout == "started\n", started.stderr


@contextmanager
def started(folder: Path, app: Path) -> Iterator[subprocess.Popen[str]]:
    """The server's program, as Gym starts it: in its folder, by its own Python; ended with the block."""
    process = subprocess.Popen(
        [sys.executable, app.name], cwd=app.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def deploy(folder: Path, env: str, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "served.py").write_text(ENVIRONMENTS)
    monkeypatch.chdir(folder)
    options = ServeOptions(env=env, port=port)
    return write_deployment(options, folder / "out" / "config.yaml", "http://localhost:8000/v1", "m").shim / "app.py"


def test_a_server_of_the_same_name_is_never_taken_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    first = deploy(tmp_path / "a", "served.py:Sums", port, monkeypatch)
    same = deploy(tmp_path / "a", "served.py:Sums", port, monkeypatch)
    other = deploy(tmp_path / "b", "served.py:Sums", port, monkeypatch)
    (tmp_path / "b" / "served.py").write_text(ENVIRONMENTS.replace("return rollout.text == task.answer", "return True"))
    with started(tmp_path, first) as serving:
        assert serving.stdout
        assert serving.stdout.readline() == f"http://127.0.0.1:{port}\n"
        with started(tmp_path, other) as refused:
            _, log = refused.communicate(timeout=60)
        assert refused.returncode == 2
        assert f"http://127.0.0.1:{port}: another server is there (Sums, " in log
        with started(tmp_path, same) as beside:
            assert beside.stderr
            assert "Sums is served there already" in beside.stderr.readline()
            assert beside.poll() is None
            serving.terminate()
            beside.wait(60)
        assert beside.returncode == 0


def test_what_does_not_say_what_it_serves_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever).start()
        (tmp_path / "openapi.json").write_text(json.dumps({"info": {"title": "Sums"}}))
        app = deploy(tmp_path / "a", "served.py:Sums", server.server_port, monkeypatch)
        with started(tmp_path, app) as refused:
            _, log = refused.communicate(timeout=60)
        server.shutdown()
    assert refused.returncode == 2
    assert "another server is there (an unidentified one)" in log


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_the_digest_of_a_server_depends_on_source_arguments_and_rows(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(ENVIRONMENTS)
    (tmp_path / "template.txt").write_text("{{ prompt }}")
    plain = ServeOptions(env=f"{tmp_path}/served.py:Sums")

    def digest(options: ServeOptions) -> str:
        return digest_server(options, load_served_environment(ServeOptions(env=options.env)))

    options = [
        plain,
        replace(plain, limits=Limits(max_turns=3)),
        replace(plain, judge_name="j"),
        replace(plain, data="x"),
    ]
    templated = replace(plain, template=str(tmp_path / "template.txt"))
    digests = [*map(digest, [*options, replace(plain, env=f"{tmp_path}/served.py:Tools"), templated])]
    (tmp_path / "template.txt").write_text("Say {{ prompt }}")
    digests.append(digest(templated))
    assert digest(replace(plain, host="0.0.0.0", port=9, data_dir="d", reuse=True)) == digests[0]
    (tmp_path / "served.py").write_text(ENVIRONMENTS + "# changed")
    digests.append(digest(plain))
    assert len({*digests}) == len(digests)


def test_an_environment_with_tools_is_played_within_its_turns(tmp_path: Path) -> None:
    result, rows, _ = deployed(tmp_path, "Tools", limit=1)
    assert result["Tools_agent"]["responses_api_agents"]["simple_agent"]["max_steps"] == 32
    assert [row["responses_create_params"]["tools"][0]["name"] for row in rows] == ["add"]


def test_an_environment_that_speaks_back_is_played_by_the_gymnasium_agent(tmp_path: Path) -> None:
    result, _, _ = deployed(tmp_path, "Talks")
    assert result["Talks_agent"]["responses_api_agents"]["gymnasium_agent"]["max_steps"] == 32


def test_tools_that_are_offered_for_a_task_are_in_its_row(tmp_path: Path) -> None:
    _, rows, _ = deployed(tmp_path, "Offering")
    tool_names = [[tool["name"] for tool in row["responses_create_params"]["tools"]] for row in rows]
    assert tool_names == [["tool_0"], ["tool_1"], ["tool_2"]]


def test_an_environment_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Empty has no tasks"):
        deployed(tmp_path, "Empty")


def test_servers_of_other_environments_folders_or_arguments_are_at_other_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [("mcqa",), ("gsm8k",), ("sums.py:Sums",), ("sums.py:Sums", "--judge", "http://localhost:1/v1")]
    ports = [*map(choose_port, arguments)]
    assert [*map(choose_port, arguments)] == ports
    monkeypatch.chdir(tmp_path)
    ports += map(choose_port, arguments)
    assert len({*ports}) == len(ports)
    assert {*ports} <= {*PORT_RANGE}
