"""A mistake in our own code is raised as it is: never taken for a bad answer, a lost connection or a wrong file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.core import Function, Message, ModelSpec, Sampling, Settings, ToolCall
from rollbook.models import (
    anthropic,
    chat,
    chat_protocol,
    embedded,
    embedded_server,
    model,
    probe,
    providers,
    responses_api,
    router,
    scripted,
    server_errors,
    token_continuation,
    weights,
)
from support.bugs import Bug, break_name, raise_bug, raise_bug_later

URL = "http://127.0.0.1:9/v1"
ASK = [Message("user", "Hi")]


def make_chat(kind: type[chat.ChatModel] = chat.ChatModel) -> Any:
    return kind(ModelSpec("m"), Settings(urls=[URL]))


class Answers:
    """A replica that gives these answers, one after another, and then has a bug."""

    chat = models = text = URL

    def __init__(self, *answers: Any, base: str = URL) -> None:
        self.base, self.in_flight = base, 0
        self._answers = list(answers)

    async def get(self, *_: object) -> Any:
        return self._answers.pop(0) if self._answers else raise_bug()

    post = post_any_status = get


async def complete_with_a_broken_router() -> None:
    opened = make_chat()
    opened._router = SimpleNamespace(send=raise_bug_later)
    await opened.complete(ASK, Sampling(), seed=1, rollout="t#0")


async def ask_for_the_mode_of_logprobs() -> None:
    opened = make_chat()
    opened.tokens, opened.find_logprobs_mode = True, raise_bug_later
    await opened._warn_of_raw_logprobs(Sampling(0.7))


async def use_llama(method: str, *args: object) -> None:
    server: Any = embedded.LlamaServer("http://127.0.0.1:9", None, 1.0)  # type: ignore[arg-type]
    server._replica = Answers(b"{}")
    await getattr(server, method)(*args)


async def restart_embedded(patch: pytest.MonkeyPatch) -> None:
    broken: Any = embedded.EmbeddedModel(ModelSpec("tiny"), Settings())
    broken._llama, broken._session = SimpleNamespace(), SimpleNamespace()
    broken._child, broken._start = SimpleNamespace(returncode=-9), raise_bug_later
    await broken._running_server()


async def find_fault(name: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probe, name, raise_bug_later)
    wrong: Any = SimpleNamespace(close=asyncio.Event().wait, url=URL, open=asyncio.sleep)

    async def close() -> None:
        pass

    wrong.close = close
    wrong.open = close
    await probe._Probe(wrong, Sampling(), 0.0, 1.0, print).find_fault()


async def call_replica(method: str, *args: object) -> None:
    session: Any = SimpleNamespace(post=raise_bug, get=raise_bug)
    replica = router.Replica("http://127.0.0.1:9", session, 5.0, str)
    await getattr(replica, method)(replica.chat, *args)


async def wait_for_a_replica() -> None:
    async def probe_it(replica: object) -> str:
        return "down"

    replica: Any = Answers()
    made = router.Router([replica], probe_it, 0.2)
    made.take_out(replica, "down")
    made._changed = SimpleNamespace(wait=raise_bug_later)  # type: ignore[assignment]
    try:
        await made.send("t#0", raise_bug_later)
    finally:
        await made.close()


async def call_through_a_router() -> None:
    replica: Any = Answers()
    made = router.Router([replica], raise_bug_later, 0.2)
    try:
        await made.send("t#0", raise_bug_later)
    finally:
        assert (made.answered, replica.in_flight) == (False, 0)


class Unreadable:
    """A number that cannot be read."""

    def __float__(self) -> float:
        raise_bug()


ASYNC: dict[str, Callable[[pytest.MonkeyPatch], Awaitable[object]]] = {
    "the list of models": lambda patch: chat.fetch_endpoint_models(Answers((200, b"")), 1.0, ""),  # type: ignore[arg-type]
    "the search for /v1": lambda patch: chat.fetch_endpoint_models(
        Answers((404, b""), base="http://127.0.0.1:9"),  # type: ignore[arg-type]
        1.0,
        "",
    ),
    "a completion": lambda patch: complete_with_a_broken_router(),
    "the mode of logprobs": lambda patch: ask_for_the_mode_of_logprobs(),
    "what a replica serves": lambda patch: make_chat()._fetch_models(Answers()),
    "a probe": lambda patch: make_chat()._probe(Answers((200, b'{"data": [{"id": "m"}]}'))),
    "a reply of llama.cpp": lambda patch: use_llama("_post", "tokenize", {}),
    "a completion of llama.cpp": lambda patch: use_llama("_complete", {}),
    "the restart of llama.cpp": restart_embedded,
    "opening for a probe": lambda patch: find_fault("_open", patch),
    "asking for a probe": lambda patch: find_fault("_ask", patch),
    "a try of a probe": lambda patch: probe._ask(SimpleNamespace(complete=raise_bug_later), Sampling(), inf),  # type: ignore[arg-type]
    "a try to open": lambda patch: probe._open(SimpleNamespace(open=raise_bug_later), inf),  # type: ignore[arg-type]
    "a POST": lambda patch: call_replica("post_any_status", b""),
    "a GET": lambda patch: call_replica("get", 5.0),
    "a call": lambda patch: call_through_a_router(),
    "the wait for a replica": lambda patch: wait_for_a_replica(),
    "ids of a server": lambda patch: token_continuation._tokenize(Answers((200, None, b"{}")), {}),  # type: ignore[arg-type]
}
BROKEN_FOR: dict[str, tuple[Any, str]] = {
    "the list of models": (chat, "read_models"),
    "a probe": (chat, "check_model_name"),
    "a reply of llama.cpp": (embedded, "decode"),
    "a completion of llama.cpp": (embedded, "_llama_decoder"),
    "ids of a server": (token_continuation, "msgspec"),
}


@pytest.mark.parametrize("what", ASYNC)
def test_a_mistake_of_ours_is_no_fault_of_a_server(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what in BROKEN_FOR:
        break_name(monkeypatch, *BROKEN_FOR[what])
    with pytest.raises(Bug):
        asyncio.run(asyncio.wait_for(ASYNC[what](monkeypatch), 10))  # type: ignore[arg-type]


CALL = Message("assistant", None, tool_calls=[ToolCall("c", Function("f", "{}"))])

SYNC: list[tuple[Any, str, Callable[[Path], object]]] = [
    (
        anthropic,
        "_decoder",
        lambda folder: make_chat(anthropic.AnthropicModel)._read_completion(b"{}", 0.0, None, False),
    ),
    (chat, "read_answer", lambda folder: make_chat()._read_completion(b"{}", 0.0, None, False)),
    (chat_protocol, "decode", lambda folder: chat_protocol.prepare_messages([CALL])),
    (chat_protocol, "_chat_decoder", lambda folder: chat_protocol.read_answer(b"{}")),
    (embedded_server, "_read_cpu_ticks", lambda folder: embedded_server.count_idle_cores(0.0)),
    (embedded_server, "Path", lambda folder: embedded_server._read_cpu_quota()),
    (model, "urlsplit", lambda folder: model.normalize_base_url(URL)),
    (providers, "normalize_base_url", lambda folder: model.resolve_model(["openai/gpt-0"], needs_key=False)),
    (responses_api, "decode", lambda folder: responses_api._parse_object("{}", "here")),
    (scripted, "hashlib", lambda folder: scripted.hash_script(make_script(folder))),
    (scripted, "iterate_lines", lambda folder: scripted.read_script(make_script(folder))),
    (scripted, "msgspec", lambda folder: scripted.read_script(make_script(folder))),
    (server_errors, "parsedate_to_datetime", lambda folder: server_errors.parse_retry_after("tomorrow")),
    (server_errors, "JSON_ERRORS", lambda folder: server_errors.parse_retry_after(Unreadable())),  # type: ignore[arg-type]
    (server_errors, "decode", lambda folder: server_errors.read_server_message(b"{}")),
    (token_continuation, "decode", lambda folder: token_continuation.parse_version(b"{}")),
    (weights, "_download", lambda folder: weights.pull_weights(print)),
    (weights.subprocess, "run", lambda folder: weights._download(folder)),
    (weights.zipfile, "ZipFile", lambda folder: weights._unpack(folder / "x", folder)),
    (weights.fcntl, "flock", lambda folder: weights._try_lock(1)),
]


def make_script(folder: Path) -> Path:
    (folder / "script.jsonl").write_text('{"answer": "1"}\n')
    return folder / "script.jsonl"


@pytest.mark.parametrize(("owner", "name", "use"), SYNC, ids=[f"{owner.__name__}.{name}" for owner, name, _ in SYNC])
def test_a_mistake_of_ours_is_no_fault_of_a_text_or_a_file(
    owner: Any, name: str, use: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    break_name(monkeypatch, owner, name)
    with pytest.raises(Bug):
        use(tmp_path)
