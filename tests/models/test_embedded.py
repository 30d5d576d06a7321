import asyncio
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollbook.core import JSON, Message, Sampling, Settings
from rollbook.errors import ContextFull, RolloutFailed, UsageError
from rollbook.models.embedded import EmbeddedModel
from rollbook.models.model import resolve_model
from support.alive import alive, eventually, read_pid

real = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is missing: pip install 'rollbook[local]'"
    ),
]
ASK = [Message("user", "What is 3 + 4?")]
EOS = 2


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[EmbeddedModel]:
    spec, _ = resolve_model([])
    model = EmbeddedModel(spec, Settings(), log=tmp_path / "server.log", threads=1, say=lambda line: None)
    await model.open()
    try:
        yield model
    finally:
        await model.close()


def post(url: str, body: JSON) -> JSON:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class TestTheRealModel:
    pytestmark = real

    def test_answers_with_exact_tokens_and_ends_with_its_parent(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async def main() -> None:
            async with opened(tmp_path) as model:
                await exact_tokens(model)
                await the_same_as_the_chat_endpoint(model)
                await every_token_has_a_logprob_though_characters_are_cut(model)
                await limits_and_refusals(model)
                await a_crash_costs_one_attempt(model)
                assert model._child is not None
                pid = model._child.pid
            assert not alive(pid)

        asyncio.run(main())
        assert capfd.readouterr() == ("", "")

    def test_the_server_does_not_outlive_a_killed_parent(self, tmp_path: Path) -> None:
        code = (
            "import asyncio, sys, time\nfrom rollbook.models.model import *\nfrom rollbook.models.embedded import *\n"
        )
        code += "async def main():\n model = EmbeddedModel(resolve_model([])[0], Settings(), threads=1)\n"
        code += " await model.open()\n open(sys.argv[1], 'w').write(f'{model._child.pid}\\n')\n time.sleep(60)\n"
        code += "asyncio.run(main())"
        with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "pid")]) as parent:
            try:
                pid = read_pid(tmp_path / "pid", within_s=120)
                assert alive(pid)
            finally:
                parent.send_signal(signal.SIGKILL)
        assert eventually(lambda: not alive(pid))


async def exact_tokens(model: EmbeddedModel) -> None:
    model.version = "v7"
    completion = await model.complete(ASK, Sampling(0.7, max_tokens=48), seed=3, rollout="t#0")
    turn = completion.turn
    assert turn.prompt_ids is not None
    assert turn.ids is not None
    assert turn.logprobs is not None
    assert turn.prompt_tokens == len(turn.prompt_ids) > 30
    assert turn.completion_tokens == len(turn.ids) == len(turn.logprobs)
    assert all(math.isfinite(p) and p <= 0 for p in turn.logprobs)
    assert turn.finish_reason == ("stop" if turn.ids[-1] == EOS else "length")
    assert turn.model_version == "v7"
    again = await model.complete(ASK, Sampling(0.7, max_tokens=48), seed=3, rollout="t#0")
    assert again.turn.ids == turn.ids
    other = await model.complete(ASK, Sampling(0.7, max_tokens=48), seed=4, rollout="t#1")
    assert other.turn.ids != turn.ids


async def the_same_as_the_chat_endpoint(model: EmbeddedModel) -> None:
    """Greedy, so that both must say the same: our rendering and tokenisation are the server's own."""
    talk = [*ASK, Message("assistant", "7 <|im_end|> ÿ 漢"), Message("user", "And 5 + 5? \n")]
    body = {
        "messages": [{"role": m.role, "content": m.content} for m in talk],
        "max_tokens": 24,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 1,
        "return_tokens": True,
        "verbose": True,
    }
    chat = await asyncio.to_thread(post, f"{model.url}/v1/chat/completions", body)
    ours = (await model.complete(talk, Sampling(0.0, max_tokens=24), seed=1, rollout="t#0")).turn
    assert ours.prompt_tokens == chat["usage"]["prompt_tokens"]
    assert ours.ids == chat["__verbose"]["tokens"]
    theirs = [entry["logprob"] for entry in chat["choices"][0]["logprobs"]["content"]]
    assert ours.logprobs == pytest.approx(theirs, abs=0.05)


async def every_token_has_a_logprob_though_characters_are_cut(model: EmbeddedModel) -> None:
    smile = (await asyncio.to_thread(post, f"{model.url}/tokenize", {"content": "😀"}))["tokens"]
    assert len(smile) == 3
    # Only the first third of the character may come: the server reports none of these tokens' logprobs by itself.
    sampling = Sampling(1.0, max_tokens=3, extra={"logit_bias": [[smile[0], 1000.0]]})
    turn = (await model.complete(ASK, sampling, seed=1, rollout="t#0")).turn
    assert turn.ids == [smile[0]] * 3
    assert turn.logprobs is not None
    assert all(math.isfinite(p) and p < 0 for p in turn.logprobs)
    # A token that is reported, asked for in the same roundabout way, has the logprob that was reported.
    plain = (await model.complete(ASK, Sampling(1.0, max_tokens=4), seed=1, rollout="t#0")).turn
    assert plain.prompt_ids is not None
    assert plain.ids is not None
    assert plain.logprobs is not None
    pending = await model._server._find_logprob([*plain.prompt_ids, *plain.ids[:2]], plain.ids[2])
    assert pending == pytest.approx(plain.logprobs[2], abs=0.05)


async def limits_and_refusals(model: EmbeddedModel) -> None:
    cut = await model.complete(ASK, Sampling(0.0, max_tokens=3), seed=1, rollout="t#0")
    assert (cut.turn.finish_reason, cut.turn.completion_tokens) == ("length", 3)
    stopped = await model.complete(ASK, Sampling(0.0, extra={"stop": [" ="]}), seed=1, rollout="t#0")
    assert stopped.turn.finish_reason == "stop"
    assert "=" not in stopped.message.text
    assert stopped.turn.completion_tokens > 0
    with pytest.raises(ContextFull, match="context size"):
        await model.complete([Message("user", "one two " * 2000)], Sampling(), seed=1, rollout="t#0")
    for refused in ({"messages": ASK, "tools": [{}]}, {"messages": [Message("user", [{"type": "image_url"}])]}):
        with pytest.raises(RolloutFailed) as caught:
            await model.complete(sampling=Sampling(), seed=1, rollout="t#0", **refused)  # type: ignore[arg-type]
        assert caught.value.kind == "model_rejected"


async def a_crash_costs_one_attempt(model: EmbeddedModel) -> None:
    assert model._child is not None
    pending = asyncio.create_task(
        model.complete(ASK, Sampling(1.0, max_tokens=1500, extra={"ignore_eos": True}), seed=1, rollout="t#0")
    )
    await asyncio.sleep(0.2)
    os.kill(model._child.pid, signal.SIGKILL)
    with pytest.raises(RolloutFailed) as caught:
        await pending
    assert caught.value.kind == "model_unavailable"
    await model._child.wait(10)
    assert (await model.complete(ASK, Sampling(max_tokens=2), seed=1, rollout="t#0")).turn.completion_tokens == 2


def test_without_the_runtime_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"rollbook\[local\]"):
        asyncio.run(EmbeddedModel(resolve_model([])[0], Settings()).open())


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is missing")
def test_offline_without_weights_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="rollbook local pull"):
        asyncio.run(EmbeddedModel(resolve_model([])[0], Settings(offline=True)).open())


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is missing")
def test_weights_that_do_not_load_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF, or so it says")
    monkeypatch.setattr("rollbook.models.embedded.ensure_weights", lambda offline, say: broken)
    with pytest.raises(UsageError, match="did not start") as caught:
        asyncio.run(EmbeddedModel(resolve_model([])[0], Settings()).open())
    assert "\n" not in str(caught.value)
