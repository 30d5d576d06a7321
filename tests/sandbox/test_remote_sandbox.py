"""A sandbox over HTTP: what is sent to a server, and what its answers mean, with a connection that pretends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from rollbook.errors import SandboxError, SandboxFull, TestsBroken, UsageError
from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.backends import remote
from rollbook.sandbox.backends.remote import CONNECT_S, QUEUE_S, RemoteSandbox
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.inner.plain_data import unpack
from rollbook.sandbox.isolation import FULL_LAYERS
from rollbook.sandbox.outputs import Rule

HEALTH = {"isolation": ["pid"], "packages": ["numpy"]}
RESULT = {"status": "ok", "isolation": ["pid"]}
LIMITS = Limits(seconds=2.0)


class Connection:
    """Answers from a list, and keeps what was asked."""

    answers: ClassVar[list[tuple[int, Any] | Exception]]
    asked: ClassVar[list[tuple[Any, ...]]]

    def __init__(self, host: str, port: int | None, timeout: float) -> None:
        self.where = host, port, timeout

    def request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.asked.append((*self.where, method, path, json.loads(body) if body else None))

    def getresponse(self) -> Connection:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        self.status, self.body = answer
        return self

    def read(self, size: int) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Connection]]:
    for name in ("HTTPConnection", "HTTPSConnection"):
        monkeypatch.setattr(remote, name, Connection)
    Connection.answers, Connection.asked = [(200, HEALTH)], []
    yield Connection
    assert Connection.answers == []


def open_remote(*answers: tuple[int, Any] | Exception, url: str = "http://host:81/token/") -> RemoteSandbox:
    Connection.answers += answers
    return RemoteSandbox(url, ["numpy"])


@pytest.mark.parametrize("url", ["ftp://host/token", "host:80", "http://", "https:///token", ""])
def test_an_address_without_scheme_or_host_is_refused(url: str) -> None:
    Connection.answers.clear()
    with pytest.raises(UsageError, match="a sandbox is addressed as http://HOST:PORT/TOKEN"):
        RemoteSandbox(url)


def test_a_server_is_asked_what_it_has_before_anything_runs() -> None:
    assert open_remote().isolation == ("remote", "pid")
    assert Connection.asked == [("host", 81, CONNECT_S, "GET", "/token/health", None)]


def test_a_package_that_the_server_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        RemoteSandbox("http://host:81/token", ["scipy", "numpy", "pandas"])
    assert str(caught.value) == ("the sandbox at host:81 has no package pandas: serve it with --package pandas")


def test_a_server_with_less_isolation_than_is_required_is_refused() -> None:
    with pytest.raises(SandboxError, match=r'^require="full": this machine has no .*, no landlock$'):
        Sandbox(LIMITS, provider="http://host:81/token", require="full").__enter__()


def test_a_server_with_full_isolation_is_accepted() -> None:
    Connection.answers[:] = [(200, HEALTH | {"isolation": [*sorted(FULL_LAYERS), "landlock-4"]})]
    with Sandbox(LIMITS, provider="http://host:81/token", require="full") as box:
        assert set(box.isolation) > FULL_LAYERS


def test_runs_and_sessions_are_requests_with_their_limits_and_deadlines() -> None:
    box = open_remote((200, RESULT), (200, {"session": "s1"}), (200, RESULT), (200, {}))
    Connection.asked.clear()
    assert box.run("code", b"in\xff", {"a": b"x"}, LIMITS).isolation == ("remote", "pid")
    state = box.open_session(LIMITS, True, {})
    assert state.run_turn({"code": "turn"}, LIMITS).isolation == ("remote", "pid")
    state.close()
    run, opened, turn, ended = Connection.asked
    assert run[2:5] == (LIMITS.wall_s + QUEUE_S, "POST", "/token/run")
    assert (run[5]["code"], run[5]["stdin"], run[5]["files"]) == ("code", "in\ufffd", {"a": "eA=="})
    assert run[5]["limits"]["seconds"] == 2.0
    assert opened[2:5] == (QUEUE_S, "POST", "/token/sessions")
    assert opened[5]["snapshot"] is True
    assert turn[2:5] == (LIMITS.wall_s + QUEUE_S, "POST", "/token/sessions/s1/run")
    assert turn[5]["code"] == "turn"
    assert ended[2:] == (CONNECT_S, "DELETE", "/token/sessions/s1", None)


def test_grading_may_take_as_many_runs_as_there_are() -> None:
    box = open_remote((200, {"passed": True, "reason": "passed", "isolation": ["pid"]}))
    verdict = box.grade("function", "code", {"name": "f"}, LIMITS, 3)
    assert (verdict.passed, verdict.isolation) == (True, ("remote", "pid"))
    asked = Connection.asked[-1]
    assert asked[2:5] == (3 * LIMITS.wall_s + QUEUE_S, "POST", "/token/grade/function")
    assert (asked[5]["code"], asked[5]["name"]) == ("code", "f")


EXAM = {"tests": "assert f()", "entry": "f", "check": "", "setup": "", "weak": False}


@pytest.mark.parametrize(
    ("how", "given", "runs", "sent"),
    [
        ("function", {}, 4, EXAM),
        ("function", {"in_place": True}, 4, EXAM | {"in_place": True}),
        ("function", {"is_class": False}, 4, EXAM | {"is_class": False}),
        (
            "function",
            {"check": "c", "setup": "s", "allow_weak": True},
            4,
            {**EXAM, "check": "c", "setup": "s", "weak": True},
        ),
        (
            "inputs",
            {"cases": [("1", "2"), ("3", "4")], "rule": Rule("words", 0.5, False), "all_of_them": True},
            2,
            {
                "cases": [["1", "2"], ["3", "4"]],
                "rule": {"spaces": "words", "tolerance": 0.5, "case": False},
                "all_of_them": True,
            },
        ),
        (
            "calls",
            {"entry": "f", "cases": [([1], 2)]},
            1,
            {"entry": "f", "cases": [[[1], 2]], "tolerance": 1e-9, "all_of_them": False},
        ),
    ],
)
def test_a_grader_sends_what_was_asked_for_and_nothing_that_an_older_server_does_not_know(
    how: str, given: dict[str, Any], runs: int, sent: dict[str, Any]
) -> None:
    Connection.answers.append((200, {"passed": True, "reason": "passed"}))
    words = ("assert f()", "f") if how == "function" else ()
    with Sandbox(LIMITS, provider="http://host:81/token") as box:
        assert getattr(Grader(box), f"{how}_sync")("code", *words, **given).passed
    asked = Connection.asked[-1]
    assert asked[2:5] == (runs * LIMITS.wall_s + QUEUE_S, "POST", f"/token/grade/{how}")
    body = {name: value for name, value in asked[5].items() if name not in ("code", "limits")}
    if how == "calls":
        body["cases"] = unpack(body["cases"], lambda _: None)
        body["cases"] = [[list(args), expected] for args, expected in body["cases"]]
    assert body == sent


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ((400, {"error": "odd"}), UsageError, "the sandbox at host:81: HTTP 400: odd"),
        ((429, {"error": "full"}), SandboxFull, "the sandbox at host:81: HTTP 429: full"),
        ((422, {"error": "tests"}), TestsBroken, "tests"),
        ((503, {"error": "gone"}), SandboxError, "the sandbox at host:81: HTTP 503: gone"),
        ((404, b"<html>"), SandboxError, "the sandbox at host:81: HTTP 404: no sandbox answers there"),
        ((201, RESULT), SandboxError, "the sandbox at host:81: HTTP 201: no sandbox answers there"),
        (OSError("refused"), SandboxError, "the sandbox at host:81: refused"),
    ],
)
def test_what_goes_wrong_is_one_line_without_the_token(
    answer: tuple[int, Any] | Exception, kind: type[Exception], message: str
) -> None:
    box = open_remote(answer)
    with pytest.raises(kind) as caught:
        box.run("1", b"", {}, LIMITS)
    assert str(caught.value) == message


def test_an_answer_that_is_no_result_is_an_error_of_the_sandbox() -> None:
    box = open_remote((200, {"other": 1}))
    with pytest.raises(SandboxError, match="the sandbox's answer is invalid: "):
        box.run("1", b"", {}, LIMITS)


def test_a_session_that_cannot_be_ended_expires_by_itself() -> None:
    box = open_remote((503, {"error": "gone"}), (400, {"error": "unknown"}))
    Connection.asked.clear()
    box.end_session("s1")
    box.end_session("s1")
    assert Connection.asked == [("host", 81, CONNECT_S, "DELETE", "/token/sessions/s1", None)] * 2


def test_a_server_has_time_for_every_case_and_for_tests_that_are_run_again() -> None:
    verdict = (200, {"passed": True, "reason": "passed", "isolation": ["pid"]})
    Connection.answers += [verdict] * 3
    with Sandbox(LIMITS, provider="http://host:81/token", size=1) as box:
        grader = Grader(box)
        assert grader.function_sync("code", "tests", "f").passed
        assert grader.inputs_sync("code", [("", "1")] * 3).passed
        assert grader.calls_sync("code", "f", [([1], 2)] * 2).passed
    asked = [(each[4].rpartition("/")[2], each[2]) for each in Connection.asked[1:]]
    runs = {"function": 4, "inputs": 3, "calls": 2}  # tests may take twice as long as the code, and run twice
    assert asked == [(how, count * LIMITS.wall_s + QUEUE_S) for how, count in runs.items()]
