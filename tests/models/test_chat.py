import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.errors import ContextFull, EndpointDown, RolloutFailed, UsageError
from rollbook.models.chat import ChatModel, EndpointModels, _add_advice, _max_tokens_error, check_model_name
from rollbook.models.model import Completion, Model
from support.alive import eventually, open_fds
from support.endpoint import END, Endpoint, answer_to, logprob_of, prompt_ids

ASK = [Message("user", "What is 12 + 30?")]


def settings(*urls: str, **changes: Any) -> Settings:
    return Settings(urls=list(urls), **{"outage_s": 5.0, "call_s": 5.0, "api_key_env": "ROLLBOOK_TEST_KEY", **changes})


@asynccontextmanager
async def opened(
    *endpoints: Endpoint, name: str = "", tokens: bool | None = None, **changes: Any
) -> AsyncIterator[ChatModel]:
    model = ChatModel(ModelSpec(name), settings(*(e.url for e in endpoints), **changes), tokens=tokens)
    await model.open()
    try:
        yield model
    finally:
        await model.close()


async def ask(model: Model, seed: int = 1, rollout: str = "t#0", **sampling: Any) -> Completion:
    return await model.complete(ASK, Sampling(**sampling), seed=seed, rollout=rollout)


def test_an_answer_comes_with_its_turn() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint) as model:
            model.version = "step-3"
            completion = await ask(model, seed=5)
            assert completion.message == Message("assistant", answer_to([{"content": ASK[0].text}], 5))
            turn = completion.turn
            assert (turn.finish_reason, turn.model_version, turn.has_tokens) == ("stop", "step-3", False)
            assert turn.completion_tokens == len(completion.message.text) + 1
            assert 0 < turn.seconds < 5
            assert endpoint.bodies[0]["seed"] == 5

    asyncio.run(main())


def test_the_only_served_name_is_taken() -> None:
    async def main() -> None:
        async with Endpoint(names=("org/tiny",)) as endpoint, opened(endpoint) as model:
            assert model.spec == ModelSpec("org/tiny")
            await ask(model)
            assert endpoint.bodies[0]["model"] == "org/tiny"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("names", "name", "says"),
    [
        (("a", "b"), "", "serves a, b; choose the model with --model-name"),
        (("org/tiny-8b",), "tiny-8b", "did you mean org/tiny-8b"),
        ((), "x", "only nothing"),
    ],
)
def test_a_name_that_cannot_be_meant_is_one_line(names: tuple[str, ...], name: str, says: str) -> None:
    async def main() -> None:
        async with Endpoint(names=names) as endpoint:
            with pytest.raises(UsageError, match=says):
                await ChatModel(ModelSpec(name), settings(endpoint.url)).open()

    asyncio.run(main())


@pytest.mark.parametrize(("models", "why"), [("404", "HTTP 404"), ("html", "an HTML page")])
def test_an_endpoint_that_lists_no_models_needs_a_name_and_then_works(models: str, why: str) -> None:
    async def main() -> None:
        async with Endpoint(models=models) as endpoint:
            async with opened(endpoint, name="mock") as model:
                assert (await ask(model)).turn.finish_reason == "stop"
            with pytest.raises(UsageError, match=f"{why}.*--model-name"):
                await ChatModel(ModelSpec(""), settings(endpoint.url)).open()

    asyncio.run(main())


def test_a_forgotten_v1_is_guessed() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint:
            with pytest.raises(UsageError, match=r"did you mean http://127.0.0.1:\d+/v1\?"):
                await ChatModel(ModelSpec("mock"), settings(endpoint.url.removesuffix("/v1"))).open()

    asyncio.run(main())


def test_the_key_is_sent_but_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBOOK_TEST_KEY", "sk-hunter2")

    async def main() -> None:
        async with Endpoint(key="sk-hunter2") as endpoint, opened(endpoint) as model:
            await ask(model)
            assert endpoint.headers[0]["Authorization"] == "Bearer sk-hunter2"
            assert "hunter2" not in repr(model)
        async with Endpoint(key="another") as endpoint:
            with pytest.raises(UsageError, match="ROLLBOOK_TEST_KEY was not accepted") as caught:
                await ChatModel(ModelSpec(""), settings(endpoint.url)).open()
            assert "hunter2" not in str(caught.value)
        for mode in ("echo_400", "echo_500", "echo_200"):
            async with Endpoint(mode, models="ok", times=1) as endpoint, opened(endpoint) as model:
                with pytest.raises(RolloutFailed, match=r"you sent Bearer \[key\]") as failed:
                    await ask(model)
                assert "hunter2" not in str(failed.value)

    asyncio.run(main())


def test_a_missing_key_is_named_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLBOOK_TEST_KEY", raising=False)

    async def main() -> None:
        async with Endpoint(key="x") as endpoint:
            with pytest.raises(UsageError, match="set ROLLBOOK_TEST_KEY"):
                await ChatModel(ModelSpec(""), settings(endpoint.url)).open()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("500", "model_unavailable"),
        ("503", "model_unavailable"),
        ("429", "model_unavailable"),
        ("401", "model_unavailable"),
        ("404", "model_unavailable"),
        ("cut", "model_unavailable"),
        ("hang", "model_timeout"),
        ("400", "model_rejected"),
        ("garbage", "bad_completion"),
        ("truncated", "bad_completion"),
        ("empty", "bad_completion"),
        ("error_body", "bad_completion"),
        ("no_message", "bad_completion"),
        ("unfinished", "bad_completion"),
        ("aborted", "bad_completion"),
    ],
)
def test_each_way_of_not_answering_has_its_kind_and_the_next_call_works(mode: str, kind: str) -> None:
    async def main() -> None:
        async with Endpoint(mode, models="ok", times=1) as endpoint, opened(endpoint, call_s=1.0) as model:
            with pytest.raises(RolloutFailed) as caught:
                await ask(model)
            assert caught.value.kind == kind
            assert caught.value.message
            assert (await ask(model)).message.text

    asyncio.run(main())


def test_the_servers_own_message_is_in_the_failure() -> None:
    async def main() -> None:
        for mode, message in [("400", "temperature must be non-negative"), ("error_body", "the engine is dead")]:
            async with Endpoint(mode) as endpoint, opened(endpoint) as model:
                with pytest.raises(RolloutFailed, match=message):
                    await ask(model)

    asyncio.run(main())


def test_retry_after_reaches_the_caller() -> None:
    async def main() -> None:
        async with Endpoint("429", retry_after="7") as endpoint, opened(endpoint) as model:
            with pytest.raises(RolloutFailed) as caught:
                await ask(model)
            assert caught.value.retry_after_s == 7.0

    asyncio.run(main())


def test_a_full_context_is_policy_but_too_large_a_max_tokens_is_not() -> None:
    async def main() -> None:
        async with Endpoint("context") as endpoint, opened(endpoint) as model:
            with pytest.raises(ContextFull, match="maximum context length is 2048"):
                await ask(model, max_tokens=1024)
            for too_many in (2048, 4096):
                with pytest.raises(RolloutFailed, match=f"--max-tokens {too_many} leaves no room") as caught:
                    await ask(model, max_tokens=too_many)
                assert caught.value.kind == "model_rejected"
            with pytest.raises(ContextFull):
                await ask(model, max_tokens=2047)

    asyncio.run(main())


def test_no_content_and_no_tool_call_is_an_empty_answer() -> None:
    async def main() -> None:
        async with Endpoint("null_content") as endpoint, opened(endpoint) as model:
            assert (await ask(model)).message == Message("assistant", "")

    asyncio.run(main())


def test_tool_calls_and_reasoning_are_kept() -> None:
    async def main() -> None:
        async with Endpoint("tool_call", times=1) as endpoint, opened(endpoint) as model:
            completion = await ask(model)
            assert completion.turn.finish_reason == "tool_calls"
            assert completion.message.tool_calls
            assert completion.message.tool_calls[0].function.arguments == '{"a":1}'
            await endpoint.switch("reasoning")
            assert (await ask(model)).message.reasoning == "hm"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "tools", "extra", "advice"),
    [
        ("no_tools", [{"type": "function", "function": {"name": "f"}}], {}, "--tool-format schema"),
        ("no_schema", [], {"response_format": {"type": "json_schema"}}, "--tool-format text"),
        ("400", [{"type": "function", "function": {"name": "f"}}], {}, None),
    ],
)
def test_a_server_that_takes_no_tools_or_no_schema_is_told_apart(
    mode: str, tools: list[Any], extra: dict[str, Any], advice: str | None
) -> None:
    async def main() -> None:
        async with Endpoint(mode) as endpoint, opened(endpoint) as model:
            with pytest.raises(RolloutFailed) as caught:
                await model.complete(ASK, Sampling(extra=extra), seed=1, rollout="t#0", tools=tools)
            assert caught.value.kind == "model_rejected"
            assert ("for a server that cannot do this: " in caught.value.message) == bool(advice)
            assert (advice or "temperature") in caught.value.message

    asyncio.run(main())


def test_what_the_model_thought_is_sent_back_only_on_demand() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint) as model:
            thought = [*ASK, Message("assistant", "42", "hm"), *ASK]
            await model.complete(thought, Sampling(), seed=1, rollout="t#0")
            model.send_reasoning = True
            await model.complete(thought, Sampling(), seed=1, rollout="t#0")
            assert [body["messages"][1].get("reasoning") for body in endpoint.bodies] == [None, "hm"]

    asyncio.run(main())


def test_a_vllm_is_recognised_and_reports_exact_tokens() -> None:
    async def main() -> None:
        async with Endpoint(vllm=True) as endpoint, opened(endpoint) as model:
            assert model.tokens
            first = await ask(model)
            assert endpoint.bodies[0]["return_token_ids"] is endpoint.bodies[0]["logprobs"] is True
            turn = first.turn
            assert turn.prompt_ids == prompt_ids([{"role": "user", "content": ASK[0].text}])
            assert turn.ids == [*first.message.text.encode(), END]
            assert turn.logprobs == [logprob_of(i) for i in turn.ids]
            assert (turn.prompt_tokens, turn.completion_tokens) == (len(turn.prompt_ids), len(turn.ids))
            second = (await model.complete([*ASK, first.message, *ASK], Sampling(), seed=1, rollout="t#0")).turn
            assert second.prompt_ids is not None
            assert second.prompt_ids[: len(turn.prompt_ids) + len(turn.ids)] == turn.prompt_ids + turn.ids

    asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("null_logprob", "nonfinite_logprobs"), ("nan_logprob", "nonfinite_logprobs"), ("mismatch", "token_mismatch")],
)
def test_tokens_that_do_not_add_up_are_a_failure(mode: str, kind: str) -> None:
    async def main() -> None:
        async with Endpoint(mode, vllm=True) as endpoint, opened(endpoint) as model:
            with pytest.raises(RolloutFailed) as caught:
                await ask(model)
            assert caught.value.kind == kind

    asyncio.run(main())


def test_tokens_can_be_forced_on_and_off() -> None:
    async def main() -> None:
        async with Endpoint("no_ids", vllm=True) as endpoint:
            async with opened(endpoint) as model:
                assert not (await ask(model)).turn.has_tokens
            async with opened(endpoint, tokens=True) as model:
                with pytest.raises(RolloutFailed) as caught:
                    await ask(model)
                assert caught.value.kind == "token_mismatch"
            await endpoint.switch("ok")
            async with opened(endpoint, tokens=False) as model:
                assert not (await ask(model)).turn.has_tokens
                assert "return_token_ids" not in endpoint.bodies[-1]

    asyncio.run(main())


def test_usage_may_be_missing() -> None:
    async def main() -> None:
        async with Endpoint("no_usage", vllm=True) as endpoint, opened(endpoint) as model:
            turn = (await ask(model)).turn
            assert turn.ids is not None
            assert turn.completion_tokens == len(turn.ids)

    asyncio.run(main())


def test_a_server_that_is_not_up_yet_is_waited_for() -> None:
    async def main() -> None:
        async with Endpoint("refuse") as endpoint:
            said: list[str] = []
            model = ChatModel(ModelSpec(""), settings(endpoint.url, outage_s=20.0), say=said.append)
            opening = asyncio.create_task(model.open())
            await asyncio.sleep(0.4)
            assert not opening.done()
            assert said == [f"waiting for the model, 20 s at most: {endpoint.url}: connection refused"]
            await endpoint.switch("ok")
            await asyncio.wait_for(opening, 8)
            assert (await ask(model)).message.text
            await model.close()

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["refuse", "500", "hang"])
def test_a_server_that_never_comes_up_is_an_outage_in_one_line(mode: str) -> None:
    async def main() -> None:
        async with Endpoint(mode) as endpoint:
            started = time.monotonic()
            with pytest.raises(EndpointDown, match=r"http://127.*check the server, then try again") as caught:
                await ChatModel(ModelSpec(""), settings(endpoint.url, outage_s=0.6, connect_s=0.3)).open()
            assert time.monotonic() - started < 4
            assert "\n" not in str(caught.value)

    asyncio.run(main())


def test_calls_that_wait_for_a_server_can_be_told_to_give_up() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint, outage_s=60.0) as model:
            await endpoint.switch("refuse")
            with pytest.raises(RolloutFailed):
                await ask(model)
            waiting = asyncio.create_task(ask(model))
            await asyncio.sleep(0.1)
            assert model.describe_outage() == ""  # too short to be shown
            model.stop_waiting()
            with pytest.raises(EndpointDown):
                await asyncio.wait_for(waiting, 5)

    asyncio.run(main())
    assert ChatModel(ModelSpec(""), settings("http://host/v1")).describe_outage() == ""


def test_a_model_that_was_told_not_to_wait_does_not_wait_when_it_opens() -> None:
    async def main() -> None:
        async with Endpoint("refuse") as down, Endpoint() as up:
            model = ChatModel(ModelSpec(""), settings(down.url, outage_s=60.0))
            model.stop_waiting()
            with pytest.raises(EndpointDown):
                await asyncio.wait_for(model.open(), 5)
            other = ChatModel(ModelSpec(""), settings(up.url, outage_s=60.0))
            other.stop_waiting()
            await other.open()
            await up.switch("refuse")
            for error in (RolloutFailed, EndpointDown):
                with pytest.raises(error):
                    await asyncio.wait_for(ask(other), 5)
            await other.close()

    asyncio.run(main())


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.models.router.RESPONSE_LIMIT", 100)

    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint, name="mock") as model:
            with pytest.raises(RolloutFailed, match="more than 100 bytes") as caught:
                await ask(model)
            assert caught.value.kind == "bad_completion"

    asyncio.run(main())


def test_a_long_conversation_is_sent_without_complaint() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, opened(endpoint, call_s=20.0) as model:
            long = [Message("user", "x" * 2_000_000)]
            assert (await model.complete(long, Sampling(), seed=1, rollout="t#0")).message.text == "ok"

    asyncio.run(main())


def test_closing_leaves_nothing_open() -> None:
    async def main() -> None:
        async with Endpoint(delay_s=0.1) as endpoint:
            before = open_fds()
            async with opened(endpoint) as model:
                await asyncio.gather(*(ask(model, i, f"t{i}#0") for i in range(8)))
                assert endpoint.most_at_once > 1
            assert await asyncio.to_thread(eventually, lambda: len(open_fds()) <= len(before) + 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_no_url_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(UsageError, match="-m"):
        ChatModel(ModelSpec("m"), Settings())
    with pytest.raises(UsageError, match="not a URL"):
        ChatModel(ModelSpec("m"), Settings(urls=["host:8000"]))


def test_the_fault_endpoint_runs_as_a_process_of_its_own() -> None:
    script = Path(__file__).parent.parent / "support" / "endpoint.py"
    with subprocess.Popen([sys.executable, str(script), "--vllm"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            ports = json.loads(process.stdout.readline())
            control = f"http://127.0.0.1:{ports['control']}"

            async def main() -> None:
                model = ChatModel(ModelSpec(""), settings(f"http://127.0.0.1:{ports['port']}/v1", outage_s=20.0))
                await model.open()
                assert (await ask(model)).turn.has_tokens
                gone = urllib.request.Request(f"{control}/mode", b'{"mode": "gone", "seconds": 1}')
                urllib.request.urlopen(gone, timeout=5).close()
                kinds = set()
                for _ in range(3):  # one falls with its connection, one is refused, one waits
                    try:
                        assert (await ask(model)).turn.has_tokens
                        break
                    except RolloutFailed as error:
                        kinds.add(error.kind)
                assert kinds == {"model_unavailable"}
                await model.close()

            asyncio.run(main())
            with urllib.request.urlopen(f"{control}/counts", timeout=5) as counts:
                assert json.load(counts)["ok"] == 2
        finally:
            process.terminate()


def read(raw: object, **more: Any) -> Completion:
    model = ChatModel(ModelSpec("m"), settings("http://127.0.0.1:9/v1"), **more)
    data = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    return model._read_completion(data, 0.5, "v1", False)


def make_answer(**more: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "42"}}
    return {"choices": [choice], **more}


def test_what_a_server_does_not_count_is_none_or_zero() -> None:
    turn = read(make_answer()).turn
    assert (turn.prompt_tokens, turn.completion_tokens, turn.cached_tokens) == (0, 0, None)
    assert (turn.seconds, turn.model_version, turn.finish_reason) == (0.5, "v1", "stop")
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    turn = read(make_answer(usage=usage)).turn
    assert (turn.prompt_tokens, turn.completion_tokens, turn.cached_tokens) == (7, 3, 2)


def test_an_error_inside_of_an_answer_has_the_servers_words() -> None:
    with pytest.raises(RolloutFailed) as caught:
        read({"error": {"message": "the GPU is gone"}})
    assert caught.value.kind == "bad_completion"
    assert caught.value.message.endswith("HTTP 200 with an error: the GPU is gone")
    with pytest.raises(ContextFull):
        read(
            {"error": {"message": "This model's maximum context length is 8 tokens", "code": "context_length_exceeded"}}
        )
    with pytest.raises(RolloutFailed) as caught:
        read({"other": 1})
    assert (caught.value.kind, "HTTP 200" in caught.value.message) == ("bad_completion", False)
    with pytest.raises(RolloutFailed) as caught:  # far behind its beginning an error is part of something else
        read(b'{"x": "' + b"y" * 4096 + b'", "error": {"message": "no"}}')
    assert "HTTP 200" not in caught.value.message


@pytest.mark.parametrize(
    ("kind", "message", "tools", "schema", "advice"),
    [
        ("model_rejected", "no tools here", True, False, "; for a server that cannot do this: --tool-format schema"),
        ("model_rejected", "no Schema here", False, True, "; for a server that cannot do this: --tool-format text"),
        ("model_rejected", "no tools here", False, False, ""),
        ("model_rejected", "no schema here", True, False, ""),
        ("model_timeout", "no tools here", True, True, ""),
    ],
)
def test_a_server_without_tools_or_schemas_is_explained(
    kind: str, message: str, tools: bool, schema: bool, advice: str
) -> None:
    error = _add_advice(RolloutFailed(kind, "model", message), tools, schema)
    assert (error.kind, error.message) == (kind, message + advice)


@pytest.mark.parametrize(
    ("max_tokens", "omitted", "refused"), [(99, False, False), (100, False, True), (100, True, False)]
)
def test_max_tokens_that_fill_the_context_alone_are_a_mistake(max_tokens: int, omitted: bool, refused: bool) -> None:
    sampling = Sampling(max_tokens=max_tokens, extra={"max_tokens": None} if omitted else {})
    error = _max_tokens_error("This model's maximum context length is 100 tokens.", sampling)
    assert (error is not None) is refused
    if error:
        assert error.message.endswith(f"--max-tokens {max_tokens} leaves no room for a prompt: lower it")
    assert _max_tokens_error("something else", sampling) is None


def test_an_empty_list_of_models_and_a_long_one_are_one_line() -> None:
    for names, shown in (
        ([], "only nothing"),
        ([f"m{i}" for i in range(12)], "m10, m11"),
        ([f"m{i}" for i in range(13)], "m10, m11 and 1 more"),
    ):
        with pytest.raises(UsageError) as caught:
            check_model_name("zzzz", EndpointModels("http://x/v1", names))
        assert shown in str(caught.value)
        assert "did you mean" not in str(caught.value)
    with pytest.raises(UsageError, match=r"; did you mean llama-3\?"):
        check_model_name("lama-3", EndpointModels("http://x/v1", ["llama-3", "qwen"]))
    check_model_name("any", EndpointModels("http://x/v1", None))
    check_model_name("mine", EndpointModels("http://x/openai/deployments/mine?api-version=1", ["gpt"]))
    check_model_name("mine", EndpointModels("http://x/openai/v1", ["gpt"]))


def test_a_server_that_is_down_is_asked_again_after_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    async def refuse(*_: object) -> RolloutFailed:
        asked.append(time.monotonic())
        return RolloutFailed("model_unavailable", "connect", "refused")

    monkeypatch.setattr(ChatModel, "_fetch_models", refuse)
    with pytest.raises(EndpointDown, match=r"no model answered for 0\.6 s"):
        asyncio.run(ChatModel(ModelSpec("m"), settings("http://127.0.0.1:9/v1", outage_s=0.6)).open())
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 0.2
