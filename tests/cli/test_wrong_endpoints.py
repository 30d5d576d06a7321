"""A wrong endpoint ends `run`, `resume` and `extend` in one true line before anything is written."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rollbook
from rollbook.errors import UsageError
from support.commands import Commands, Served
from support.hosted import HostedServer, Recorded, Reply, chat_completion
from support.sums import write_sums


@pytest.fixture
def sums(tmp_path: Path) -> str:
    return write_sums(tmp_path)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


WRONG = {
    "refused key, list of models too": (
        ("401", {}),
        [],
        "HTTP 401; set OPENAI_API_KEY to the key, or name another variable with --api-key-env",
    ),
    "refused key, list of models open": (
        ("401", {"models": "ok"}),
        [],
        "HTTP 401: bad key; set OPENAI_API_KEY to the key, or name another variable with --api-key-env",
    ),
    "no access": (("403", {"models": "ok"}), [], "HTTP 403: no access; set OPENAI_API_KEY to the key"),
    "no such path": (
        ("404", {"models": "404"}),
        ["--model-name", "mock"],
        "HTTP 404: not found; check the path of the URL: most endpoints end in /v1",
    ),
    "no such path and no name": (
        ("404", {"models": "404"}),
        [],
        "/v1/models: HTTP 404; check the path of the URL: most endpoints end in /v1; one that lists no models needs",
    ),
    "no such model": (("no_model", {"models": "404"}), ["--model-name", "mock"], "check the model name (--model-name)"),
    "another name than listed": (("ok", {}), ["--model-name", "mok"], "does not serve 'mok', only mock; did you mean"),
    "a page": (
        ("html", {"models": "html"}),
        ["--model-name", "mock"],
        'an HTML page, "Welcome", not a chat completion: check the path of the URL',
    ),
    "a page and no name": (("html", {"models": "html"}), [], '/v1/models: an HTML page, "Welcome"; check the path'),
    "a redirect": (
        ("redirect", {"models": "404"}),
        ["--model-name", "mock"],
        "the endpoint is elsewhere: give its new URL with -m",
    ),
    "a server that is broken": (("503", {"models": "ok"}), [], "HTTP 503: overloaded; start the server first, or wait"),
    "no completion": (("garbage", {"models": "ok"}), [], "not a chat completion"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_endpoint_is_one_line_and_leaves_no_run(
    case: str, commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    (mode, settings), words, expected = WRONG[case]
    endpoint = serve()
    endpoint.switch(mode, **settings)
    done = commands.run("run", sums, "-m", endpoint.url, *words, "-o", "run", within_s=20, OPENAI_API_KEY="")
    assert done.code == 2, done.stderr
    assert expected in done.complaint
    assert endpoint.url in done.complaint
    assert not (tmp_path / "run").exists()
    assert len(done.stderr.splitlines()) == 1


def test_a_key_that_is_refused_is_named_by_its_variable_and_never_shown(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve()
    endpoint.switch("echo_401", models="ok")
    words = ("run", sums, "-m", endpoint.url, "--api-key-env", "MY_KEY", "-o", "run")
    done = commands.run(*words, within_s=20, MY_KEY="sk-secret-123")
    assert done.code == 2
    assert "the key in MY_KEY was not accepted" in done.complaint
    assert "sk-secret-123" not in done.stderr


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:{port}/v1", "connection refused; start the server first, or wait for one that is starting"),
        ("http://nowhere.invalid/v1", "the name nowhere.invalid is not known: check the host in the URL"),
    ],
)
def test_a_host_that_does_not_answer_is_one_line(url: str, expected: str, commands: Commands, sums: str) -> None:
    done = commands.run("run", sums, "-m", url.format(port=free_port()), "-o", "run", within_s=20)
    assert done.code == 2, done.stderr
    assert expected in done.complaint


def test_tls_to_a_server_without_it_says_so(commands: Commands, serve: Callable[..., Served], sums: str) -> None:
    url = serve().url.replace("http://", "https://")
    done = commands.run("run", sums, "-m", url, "-o", "run", within_s=20)
    assert done.code == 2, done.stderr
    assert "give http:// instead of https://" in done.complaint


def test_wait_waits_for_a_server_that_starts_later(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve()
    endpoint.kill()
    starting = threading.Timer(3.0, endpoint.start)
    starting.start()
    done = commands.run("run", sums, "-m", endpoint.url, "--wait", 20, "-o", "run")
    starting.join()
    assert done.code == 0, done.stderr
    assert "waiting for the model, 20 s at most" in done.stderr
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["scored"] == 10


@pytest.mark.parametrize("mode", ["503", "404"])
def test_wait_waits_for_a_server_that_is_loading(
    mode: str, commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve()
    endpoint.switch(mode, models=mode)
    loaded = threading.Timer(2.0, lambda: endpoint.switch("ok"))
    loaded.start()
    done = commands.run("run", sums, "-m", endpoint.url, "--wait", 30, "-o", "run")
    loaded.join()
    assert done.code == 0, done.stderr


def test_wait_does_not_wait_for_a_key(commands: Commands, serve: Callable[..., Served], sums: str) -> None:
    endpoint = serve("--mode", "401")
    began = time.monotonic()
    done = commands.run("run", sums, "-m", endpoint.url, "--wait", 300, "-o", "run")
    assert done.code == 2
    assert time.monotonic() - began < 60


def test_the_probe_sends_the_sampling_of_the_run_with_few_tokens_and_is_not_counted(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve()
    words = ("-m", endpoint.url, "--sampling", "top_k=7", "--temperature", "0.5", "-o", "run")
    assert commands.run("run", f"{sums}?tasks=3", *words).code == 0
    first, *others = endpoint.bodies
    assert (first["max_tokens"], first["top_k"], first["temperature"]) == (16, 7, 0.5)
    assert [body["max_tokens"] for body in others] == [1024] * 3


def test_no_probe_asks_nothing_before_the_run(commands: Commands, serve: Callable[..., Served], sums: str) -> None:
    endpoint = serve()
    assert commands.run("run", f"{sums}?tasks=3", "-m", endpoint.url, "--no-probe", "-o", "run").code == 0
    assert len(endpoint.bodies) == 3


def test_plan_and_work_ask_nothing_beforehand(commands: Commands, serve: Callable[..., Served], sums: str) -> None:
    endpoint = serve()
    words = ("-m", endpoint.url, "--model-name", "mock", "-o", "run")
    assert commands.run("plan", f"{sums}?tasks=3", *words).code == 0
    assert endpoint.calls == 0
    assert commands.run("work", "run").code == 0
    assert endpoint.calls == 3


def test_the_parent_of_several_workers_probes_once(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve()
    endpoint.switch("401", models="ok")
    words = ("run", sums, "-m", endpoint.url, "--workers", 2, "-o", "run")
    done = commands.run(*words, within_s=20)
    assert done.code == 2, done.stderr
    assert "HTTP 401" in done.complaint
    assert not (tmp_path / "run").exists()
    endpoint.switch("ok")
    assert commands.run(*words).code == 0
    assert [body["max_tokens"] for body in endpoint.bodies].count(16) == 4, "three tries with the wrong key, one right"


@pytest.mark.parametrize("command", [["resume"], ["extend", "-k", "2"]])
def test_resume_and_extend_ask_before_they_open_a_round(
    command: list[str], commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve(), tmp_path / "run"
    words = ("-m", endpoint.url, "--model-name", "mock", "-o", "run")
    assert commands.run("plan", sums, *words).code == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    endpoint.switch("401", models="ok")
    done = commands.run(command[0], "run", *command[1:], within_s=20)
    assert done.code == 2, done.stderr
    assert "HTTP 401" in done.complaint
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    endpoint.switch("ok")
    assert commands.run(command[0], "run", *command[1:]).code == 0


def test_a_finished_run_is_resumed_without_its_endpoint(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve()
    assert commands.run("run", sums, "-m", endpoint.url, "-o", "run").code == 0
    endpoint.kill()
    assert commands.run("resume", "run", within_s=20).code == 0


def test_a_replica_that_is_down_is_a_note(commands: Commands, serve: Callable[..., Served], sums: str) -> None:
    dead = f"http://127.0.0.1:{free_port()}/v1"
    done = commands.run("run", sums, "-m", serve().url, "-m", dead, "-o", "run")
    assert done.code == 0, done.stderr
    assert f"{dead}: connection refused; the other replicas answer" in done.stderr


def test_python_raises_the_same_line(serve: Callable[..., Served], sums: str, tmp_path: Path) -> None:
    endpoint = serve()
    endpoint.switch("404", models="404")
    with pytest.raises(UsageError, match="HTTP 404: not found; check the path of the URL"):
        rollbook.run(sums, endpoint.url, model_name="mock", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_limit_of_output_that_the_thoughts_reach_is_an_answer(
    commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve()
    endpoint.switch("thinks", times=1)
    done = commands.run("run", sums, "-m", endpoint.url, "-o", "run")
    assert done.code == 0, done.stderr


def test_an_endpoint_that_never_answers_is_one_line(
    commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve()
    endpoint.switch("hang", models="ok")
    done = commands.run("run", sums, "-m", endpoint.url, "--call-timeout", 2, "-o", "run", within_s=30)
    assert done.code == 2, done.stderr
    advice = "a server that loads its weights at the first call needs --wait 600; --no-probe skips this check"
    assert done.complaint.endswith(f"{endpoint.url}: no answer to a first short completion in 2 s; {advice}")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_first_answer_has_a_limit_of_its_own(
    serve: Callable[..., Served], sums: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.models.probe.PROBE_ANSWER_S", 1.0)
    endpoint = serve()
    endpoint.switch("hang", models="ok")
    with pytest.raises(UsageError, match="no answer to a first short completion in 1 s"):
        rollbook.run(sums, endpoint.url, out=tmp_path / "run")


def test_wait_gives_a_first_answer_more_time(commands: Commands, serve: Callable[..., Served], sums: str) -> None:
    endpoint = serve()
    endpoint.switch("slow", delay_s=3.0)
    words = ("run", f"{sums}?tasks=1", "-m", endpoint.url, "--call-timeout", 1, "--outage", 1, "-o", "run")
    assert commands.run(*words).code == 2
    done = commands.run(*words, "--wait", 30)
    assert "no answer to a first short completion" not in done.stderr
    assert done.code != 2, done.stderr


class Refuses(HostedServer):
    """Serves the model `mock`, but refuses one parameter, or nothing."""

    def __init__(self, parameter: str = "") -> None:
        super().__init__()
        self.parameter = parameter

    def reply(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return 200, {"object": "list", "data": [{"id": "mock", "object": "model"}]}
        if self.parameter in request.body:
            return 400, {"error": {"message": f"Unsupported parameter: '{self.parameter}' is not supported"}}
        return chat_completion(request.body)


@pytest.mark.parametrize("wrong_first", [False, True])
@pytest.mark.parametrize("case", ["html", "redirect", "401", "403", "404", "garbage"])
def test_a_wrong_replica_is_named_wherever_it_stands(
    case: str, wrong_first: bool, commands: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    good, wrong = serve(), serve()
    wrong.switch(case, models="404" if case in ("html", "redirect") else "ok")
    urls = (wrong.url, good.url) if wrong_first else (good.url, wrong.url)
    words = ("-m", urls[0], "-m", urls[1], "--model-name", "mock", "-o", "run")
    done = commands.run("run", sums, *words, within_s=30)
    assert done.code == 2, done.stderr
    assert wrong.url in done.complaint
    assert good.url not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong_first", [False, True])
def test_a_replica_that_refuses_a_parameter_is_named_wherever_it_stands(
    wrong_first: bool, commands: Commands, sums: str, tmp_path: Path
) -> None:
    with Refuses() as good, Refuses("seed") as wrong:
        urls = (wrong.url, good.url) if wrong_first else (good.url, wrong.url)
        done = commands.run("run", sums, "-m", urls[0], "-m", urls[1], "-o", "run", within_s=30)
        assert done.code == 2, done.stderr
        assert f"{wrong.url} refuses seed" in done.complaint
        assert "--sampling seed=null" in done.complaint
        assert good.url not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mode", ["hang", "503"])
def test_a_replica_that_may_come_back_is_a_note(
    mode: str, commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    good, other = serve(), serve()
    other.switch(mode, models="ok")
    words = ("-m", other.url, "-m", good.url, "--call-timeout", 2, "-o", "run")
    done = commands.run("run", f"{sums}?tasks=2", *words)
    assert done.code in (0, 3), done.stderr
    notes = [line for line in done.stderr.splitlines() if line.endswith("; the other replicas answer")]
    assert len(notes) == 1
    assert other.url in notes[0]


def test_wait_does_not_wait_for_a_second_replica(commands: Commands, serve: Callable[..., Served], sums: str) -> None:
    dead = f"http://127.0.0.1:{free_port()}/v1"
    done = commands.run("run", sums, "-m", serve().url, "-m", dead, "--wait", 300, "-o", "run")
    assert done.code == 0, done.stderr
    assert f"{dead}: connection refused; the other replicas answer" in done.stderr


@pytest.mark.parametrize("models", ["ok", "401"])
@pytest.mark.parametrize("header", ["Authorization", "api-key"])
def test_a_refused_key_in_a_header_is_named_by_its_variable(
    header: str, models: str, commands: Commands, serve: Callable[..., Served], sums: str
) -> None:
    endpoint = serve()
    endpoint.switch("401", models=models)
    words = ("run", sums, "-m", endpoint.url, "--header", f"{header}=TEAM_KEY", "-o", "run")
    done = commands.run(*words, within_s=20, TEAM_KEY="Bearer sk-team-1", OPENAI_API_KEY="sk-other-1")
    assert done.code == 2, done.stderr
    assert "the key in TEAM_KEY was not accepted (--header names another variable)" in done.complaint
    assert "OPENAI_API_KEY" not in done.stderr


class Refusing(HostedServer):
    """Serves the model `mock`, and answers every completion with one refusal."""

    def __init__(self, status: int, body: object) -> None:
        super().__init__()
        self.refusal = (status, body)

    def reply(self, request: Recorded) -> Reply:
        if request.method == "GET":
            return 200, {"object": "list", "data": [{"id": "mock", "object": "model"}]}
        return self.refusal


QUOTA = {"error": {"message": "You have run out.", "type": "insufficient_quota", "code": "insufficient_quota"}}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"error": "temperature must be 1"}, "pass --sampling temperature=null to omit it"),
        (400, {"error": {"message": "for this model top_p is 1"}}, "pass --sampling top_p=null to omit it"),
        (429, QUOTA, "You have run out.; the account has no credit or quota left: check its billing"),
        (
            402,
            {"error": {"message": "Insufficient credits"}},
            "the account has no credit or quota left: check its bill",
        ),
    ],
)
def test_a_refusal_in_words_of_its_own_is_one_line_after_one_call(
    status: int, body: object, expected: str, commands: Commands, sums: str
) -> None:
    with Refusing(status, body) as server:
        done = commands.run("run", sums, "-m", server.url, "-o", "run", within_s=20)
        assert done.code == 2, done.stderr
        assert expected in done.complaint
        assert server.url in done.complaint
        assert len(server.calls) == 1
