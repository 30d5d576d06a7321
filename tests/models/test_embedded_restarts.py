"""The embedded model's own server, with processes that pretend: started, restarted after a crash, ended."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from rollbook.core import ModelSpec, Settings
from rollbook.errors import ChildFailed, EndpointDown, RolloutFailed, UsageError
from rollbook.models import embedded
from rollbook.models.embedded import MAX_RESTARTS, EmbeddedModel, LlamaPrompt, mark_recently_used


class Child:
    """A server that runs until a test says that it has crashed."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.killed = 0

    def last_log_line(self) -> str:
        return "out of luck"

    async def kill_tree(self) -> None:
        self.killed += 1


class Servers:
    """Starts servers; `fault` is why the next one does not start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: list[Child] = []
        self.commands: list[list[str]] = []
        self.fault: Exception | None = None
        monkeypatch.setattr(embedded, "start_ready", self.start)
        monkeypatch.setattr(embedded, "ensure_weights", lambda offline, say: Path("weights.gguf"))
        monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: name)

    async def start(self, argv: list[str], **_: Any) -> tuple[Child, dict[str, str]]:
        self.commands.append(argv)
        await asyncio.sleep(0)
        if self.fault:
            raise self.fault
        self.children.append(Child())
        return self.children[-1], {"url": f"http://host/{len(self.children)}"}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    return Servers(monkeypatch)


def make_model(**settings: Any) -> EmbeddedModel:
    return EmbeddedModel(ModelSpec("tiny"), Settings(**settings), threads=3, say=lambda line: None)


def test_a_server_is_started_and_ended_with_its_model(servers: Servers) -> None:
    async def go() -> None:
        model = make_model()
        await model.open()
        session = model._session
        assert session
        assert model.url == "http://host/1"
        (command,) = servers.commands
        assert command[-8:-4] == ["--weights", "weights.gguf", "--threads", "3"]
        assert command[-4:] == ["--slots", str(embedded.SLOTS), "--context", "2048"]
        assert await model._running_server() is model._server
        await model.close()
        assert (session.closed, servers.children[0].killed) == (True, 1)
        await model.close()
        assert servers.children[0].killed == 1

    asyncio.run(go())


def test_a_server_of_another_process_is_joined(servers: Servers) -> None:
    async def go() -> None:
        model = make_model(urls=["http://other"])
        await model.open()
        assert (model.url, servers.commands) == ("http://other", [])
        assert await model._running_server() is model._server
        await model.close()

    asyncio.run(go())


def test_a_server_that_crashed_is_restarted_once_for_all_calls_and_three_times_at_most(servers: Servers) -> None:
    async def go() -> None:
        model = make_model()
        await model.open()
        for count in range(2, MAX_RESTARTS + 2):
            servers.children[-1].returncode = -9
            found = await asyncio.gather(*(model._running_server() for _ in range(4)))
            assert {server.url for server in found} == {f"http://host/{count}"}
            assert len(servers.children) == count
        servers.children[-1].returncode = -9
        with pytest.raises(EndpointDown, match=r"^the embedded model crashed 4 times: out of luck$"):
            await model._running_server()
        await model.close()

    asyncio.run(go())


def test_a_restart_that_fails_costs_one_attempt(servers: Servers) -> None:
    async def go() -> None:
        model = make_model()
        await model.open()
        servers.children[-1].returncode = -9
        servers.fault = ChildFailed("it did not start")
        with pytest.raises(RolloutFailed, match="it did not start") as caught:
            await model._running_server()
        assert caught.value.kind == "model_unavailable"
        servers.fault = None
        assert (await model._running_server()).url == "http://host/2"
        await model.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("fault", "kind", "why"),
    [
        (
            ChildFailed("no room"),
            UsageError,
            r"the embedded model did not start \(no room\); give -m URL to use another",
        ),
        (UsageError("odd"), UsageError, "^odd$"),
    ],
)
def test_a_model_that_does_not_open_leaves_no_session(
    servers: Servers, fault: Exception, kind: type[Exception], why: str
) -> None:
    async def go() -> None:
        servers.fault = fault
        model = make_model()
        with pytest.raises(kind, match=why):
            await model.open()
        assert model._session is None
        with pytest.raises(RuntimeError, match="the model is not open"):
            _ = model.url

    asyncio.run(go())


def test_the_prompt_that_was_not_used_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "MAX_CACHED_PROMPTS", 2)
    cache: OrderedDict[str, LlamaPrompt] = OrderedDict()
    for key in ("a", "b", "a", "c"):
        cache.setdefault(key, LlamaPrompt(key, []))
        mark_recently_used(cache, key)
    assert list(cache) == ["a", "c"]


def test_prompts_that_are_rendered_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "MAX_CACHED_PROMPTS", 2)

    async def go() -> list[str]:
        server, rendered = embedded.LlamaServer("http://host", None, 1.0), list[str]()  # type: ignore[arg-type]

        async def render(messages: list[str]) -> str:
            rendered.append(messages[0])
            return messages[0]

        async def tokenize(text: str, **_: object) -> list[int]:
            return [len(text)]

        server._render, server._tokenize = render, tokenize  # type: ignore[assignment, method-assign]
        for text in ("a", "b", "a", "c", "a", "b"):
            assert (await server.make_prompt([text])).text == text  # type: ignore[list-item]
        return rendered

    assert asyncio.run(go()) == ["a", "b", "c", "b"]


def test_notes_go_to_standard_error_where_nobody_else_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    EmbeddedModel(ModelSpec("tiny"), Settings())._say("fetching")
    assert (capsys.readouterr().err, sys.stderr is not None) == ("fetching\n", True)
