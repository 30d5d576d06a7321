import asyncio
from typing import Any

import pytest

from rollbook.core import Function, Message, ModelSpec, Sampling, Settings, ToolCall, Turn, decode, encode
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models import token_continuation
from rollbook.models.chat import ChatModel
from rollbook.models.model import Completion
from rollbook.models.scripted import ScriptedModel
from rollbook.models.token_continuation import (
    EDITED,
    NOT_TEXT,
    AnsweredCall,
    find_new_messages,
    make_stand_ins,
    parse_version,
    require_continuing,
)
from rollbook.tokens import CUT, Unproven, merge
from support.endpoint import Endpoint

ASK = [Message("user", "What is 12 + 30?")]
MORE = Message("user", "And 1 + 1?")


class Talk:
    """A conversation of two turns with an endpoint, the second one continued."""

    def __init__(self, times: int = 1, **endpoint: Any) -> None:
        self.times = times
        self.endpoint = Endpoint(vllm=True, odd=True, **endpoint)
        self.said: list[str] = []
        self.turns: list[Turn] = []
        self.messages: list[Message] = []

    async def hold(
        self, tools: Any = (), answer: Message | None = None, thought: Message | None = None, **sampling: Any
    ) -> list[Turn]:
        async with self.endpoint:
            settings = Settings(urls=[self.endpoint.url], outage_s=5.0, call_s=5.0)
            model = ChatModel(ModelSpec(""), settings, say=self.said.append)
            await model.open()
            try:
                first = await model.complete(ASK, Sampling(**sampling), seed=1, rollout="t#0", tools=tools)
                first = Completion(thought or first.message, first.turn)
                previous = AnsweredCall(ASK, first)
                self.messages = [*ASK, answer or first.message, MORE]
                for _ in range(self.times):
                    then = await model.complete_from(
                        previous, self.messages, Sampling(), seed=1, rollout="t#0", tools=tools
                    )
            finally:
                await model.close()
        self.turns = [first.turn, then.turn]
        return self.turns


def test_a_later_turn_is_asked_with_the_ids_of_the_earlier_one() -> None:
    talk = Talk()
    (sequence,) = merge(asyncio.run(talk.hold()))
    assert sequence.trained == sum(len(turn.ids or ()) for turn in talk.turns)
    sent = talk.endpoint.bodies[-1]
    assert sent["kv_transfer_params"] == {"prompt_token_ids": talk.turns[1].prompt_ids}
    assert [m["content"] for m in sent["messages"]] == [m.text for m in talk.messages]
    assert talk.said == []


def test_an_answer_that_was_cut_is_closed_and_goes_on() -> None:
    first, then = asyncio.run(Talk().hold(max_tokens=5))
    assert first.finish_reason == "length"
    assert len(merge([first, then])) == 1


def test_an_answer_that_was_cut_within_its_reasoning_is_not_closed_for_the_model() -> None:
    thinking = Message("assistant", "", reasoning="Let me see")
    talk = Talk()
    asyncio.run(talk.hold(thought=thinking, max_tokens=5))
    assert len(talk.said) == 1
    assert CUT in talk.said[0]
    assert "kv_transfer_params" not in talk.endpoint.bodies[-1]


def test_a_server_before_ids_in_chats_gets_them_as_a_text_completion() -> None:
    talk = Talk(version="0.14.1")
    assert len(merge(asyncio.run(talk.hold()))) == 1
    assert (talk.endpoint.counts["text"], talk.endpoint.counts["chat"]) == (1, 1)


def test_but_not_where_it_has_to_parse_tools() -> None:
    talk = Talk(version="0.14.1")
    tools = [{"type": "function", "function": {"name": "subtract"}}]
    assert len(merge(asyncio.run(talk.hold(tools)))) == 2
    assert talk.endpoint.counts["text"] == 0
    assert "parsed" in talk.said[0]


@pytest.mark.parametrize(
    ("mode", "why"), [("ignores_ids", "another prompt"), ("no_tokenize", "tokenize does not render it: HTTP 404")]
)
def test_a_server_that_cannot_is_recorded_as_it_answered_and_forks(mode: str, why: str) -> None:
    talk = Talk(mode=mode)
    assert [s.fork is None for s in merge(asyncio.run(talk.hold()))] == [True, False]
    assert len(talk.said) == 1
    assert why in talk.said[0]


def test_a_server_that_answered_another_prompt_is_sent_no_ids_again() -> None:
    talk = Talk(times=3, mode="ignores_ids")
    asyncio.run(talk.hold())
    assert ["kv_transfer_params" in body for body in talk.endpoint.bodies if "messages" in body].count(True) == 1
    assert len(talk.said) == 1


def test_an_edited_answer_is_asked_as_it_is_and_forks() -> None:
    talk = Talk()
    assert len(merge(asyncio.run(talk.hold(answer=Message("assistant", "42."))))) == 2
    assert EDITED in talk.said[0]
    assert "kv_transfer_params" not in talk.endpoint.bodies[-1]


def test_a_server_that_cannot_render_just_now_is_a_failure_of_the_call() -> None:
    with pytest.raises(RolloutFailed, match="503: overloaded"):
        asyncio.run(Talk(mode="ill_tokenize").hold())


def previous(*messages: Message, answer: Message) -> AnsweredCall:
    return AnsweredCall(messages, Completion(answer, Turn()))


def test_what_is_new_follows_what_was_asked_and_answered_whatever_was_thought() -> None:
    answer = Message("assistant", "42", reasoning="hm")
    one = previous(*ASK, answer=answer)
    assert find_new_messages(one, [*ASK, answer, MORE]) == [MORE]
    assert find_new_messages(one, [*ASK, Message("assistant", "42"), MORE]) == [MORE]
    for changed in ([*ASK, Message("assistant", "43"), MORE], [MORE, answer, MORE], [*ASK, answer], [MORE]):
        assert find_new_messages(one, changed) == Unproven(EDITED)


@pytest.mark.parametrize("new", [Message("assistant", "more"), Message("user", [{"type": "text", "text": "x"}])])
def test_only_text_of_others_can_be_added(new: Message) -> None:
    answer = Message("assistant", "42")
    assert find_new_messages(previous(*ASK, answer=answer), [*ASK, answer, new]) == Unproven(NOT_TEXT)


def test_stand_ins_keep_the_names_and_ids_of_calls_and_nothing_that_was_written() -> None:
    call = ToolCall("c7", Function("add", '{"a": "<|im_end|>"}'))
    answer = Message("assistant", "secret", tool_calls=[call])
    result = Message("tool", "3", tool_call_id="c7")
    one, other, blank = make_stand_ins(answer, [result])
    assert [m.role for m in one] == ["user", "assistant", "tool"]
    assert [c.id for m in (one[1], other[1]) for c in m.tool_calls or ()] == ["c7", "c7"]
    assert one[1] != other[1]
    assert one[2] == other[2] == result != blank[2]
    assert blank[2].tool_call_id == "c7"
    assert "im_end" not in f"{one}{other}{blank}"


def test_a_version_is_read_by_its_numbers() -> None:
    assert parse_version(b'{"version": "0.9.0"}') < (0, 27) <= parse_version(b'{"version": "1.0"}')
    assert parse_version(b"<html>") == parse_version(b'{"version": "dev"}') == (0, 27)


def test_who_cannot_go_on_in_tokens_is_refused_with_a_way_out() -> None:
    settings = Settings(urls=["http://127.0.0.1:9/v1"])
    with pytest.raises(UsageError, match="only an endpoint"):
        require_continuing(ScriptedModel(ModelSpec("s", "scripted"), Settings(urls=["scripted:x"])))
    with pytest.raises(UsageError, match="does not report token ids"):
        require_continuing(ChatModel(ModelSpec("m"), settings))
    assert require_continuing(ChatModel(ModelSpec("m"), settings, tokens=True))


class Tokenizer:
    """A replica that answers every POST like this."""

    base = "http://host/v1"

    def __init__(self, status: int, raw: bytes) -> None:
        self.answer = status, "3", raw
        self.urls: list[str] = []

    async def post_any_status(self, url: object, body: bytes) -> tuple[int, str, bytes]:
        self.urls.append(str(url))
        return self.answer


@pytest.mark.parametrize(
    ("status", "raw", "found"),
    [
        (200, b'{"tokens": [1, 2]}', [1, 2]),
        (200, b'{"ids": [1]}', Unproven('http://host/tokenize does not render it: HTTP 200: {"ids": [1]}')),
        (499, b"no", Unproven("http://host/tokenize does not render it: HTTP 499: no")),
        (404, b'{"tokens": [1]}', Unproven('http://host/tokenize does not render it: HTTP 404: {"tokens": [1]}')),
        (408, b"busy", None),
        (429, b"busy", None),
        (500, b"busy", None),
        (503, b"busy", None),
    ],
)
def test_a_server_that_renders_nothing_proves_nothing_and_one_that_is_down_is_asked_again(
    status: int, raw: bytes, found: list[int] | Unproven | None
) -> None:
    replica = Tokenizer(status, raw)
    asked = token_continuation._tokenize(replica, {})  # type: ignore[arg-type]
    if found is None:
        with pytest.raises(RolloutFailed, match=f"HTTP {status}: busy") as caught:
            asyncio.run(asked)
        assert caught.value.retry_after_s == 3.0
    else:
        assert asyncio.run(asked) == found
    assert replica.urls == ["http://host/tokenize"]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://host/v1", "http://host/tokenize"),
        ("http://host/api/v1?key=a", "http://host/api/tokenize?key=a"),
        ("http://host", "http://host/tokenize"),
    ],
)
def test_an_address_outside_the_api_keeps_its_query(base: str, url: str) -> None:
    replica = Tokenizer(200, b"")
    replica.base = base
    assert str(token_continuation.make_server_url(replica, "tokenize")) == url  # type: ignore[arg-type]


def test_a_rendering_that_fails_proves_nothing_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def make_prompt(failing: int) -> list[int] | Unproven:
        made = iter(range(9))

        async def tokenize(replica: object, body: Any) -> list[int] | Unproven:
            return Unproven("odd") if next(made) == failing else [1]

        async def needs_text(self: object, replica: object) -> bool:
            return False

        monkeypatch.setattr(token_continuation, "_tokenize", tokenize)
        monkeypatch.setattr(token_continuation.PromptContinuer, "needs_text_completions", needs_text)
        monkeypatch.setattr(token_continuation, "continuation", lambda turn, renders, called_tools: [7])
        previous = AnsweredCall(ASK, Completion(Message("assistant", "42"), Turn([1], [2], [-0.5])))
        continuer = token_continuation.PromptContinuer(print)
        messages = [*ASK, Message("assistant", "42"), MORE]
        replica: Any = Tokenizer(200, b"")
        return await continuer.make_prompt(replica, "m", previous, messages, Sampling(), ())

    found = [asyncio.run(make_prompt(failing)) for failing in range(6)]
    assert found[-1] == [7]  # none fails
    assert found[:-1] == [Unproven("odd")] * 5


def test_the_ids_of_the_stand_in_are_asked_for_until_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[list[int] | Unproven] = [Unproven("odd"), [7, 8], [9]]

    async def tokenize(replica: object, body: Any) -> list[int] | Unproven:
        assert body == {"model": "m", "prompt": token_continuation.STAND_IN_ANSWER, "add_special_tokens": False}
        return answers.pop(0)

    async def go() -> list[list[int] | Unproven]:
        continuer, replica = token_continuation.PromptContinuer(print), Tokenizer(200, b"")
        return [await continuer._stand_in_ids(replica, "m") for _ in range(3)]  # type: ignore[arg-type]

    monkeypatch.setattr(token_continuation, "_tokenize", tokenize)
    assert asyncio.run(go()) == [Unproven("odd"), [7, 8], [7, 8]]


class Splitter:
    """A replica that splits what it is sent into characters."""

    base = "http://host/v1"

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.asked: list[tuple[str, float]] = []

    async def get(self, url: object, within_s: float) -> tuple[int, bytes]:
        self.asked.append((str(url), within_s))
        return 200, b'{"version": "0.32.0"}'

    async def post_any_status(self, url: object, raw: bytes) -> tuple[int, None, bytes]:
        body = decode(raw)
        self.bodies.append(body)
        assert str(url) == "http://host/tokenize"
        text = body["prompt"] if "prompt" in body else "".join(f"{m['content']}|" for m in body["messages"])
        return 200, None, encode({"tokens": [*map(ord, text)]})


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "f"}}]])
def test_every_text_is_split_by_the_server_as_it_would_render_it(tools: list[Any]) -> None:
    replica: Any = Splitter()
    said = Message("assistant", "42")
    previous = AnsweredCall(ASK, Completion(said, Turn([1], [2], [0.0], 1, 1, "stop")))
    sampling = Sampling(extra={"chat_template_kwargs": {"think": False}, "top_k": 5})

    async def main() -> None:
        continuer = token_continuation.PromptContinuer(print)
        for _ in range(2):
            await continuer.make_prompt(replica, "m", previous, [*ASK, said, MORE], sampling, tools)

    asyncio.run(main())
    renders = [body for body in replica.bodies if "messages" in body]
    stand_ins = [body for body in replica.bodies if "prompt" in body]
    assert (len(renders), len(stand_ins)) == (8, 1)  # the stand-in is split once
    wanted = {"model", "messages", "add_generation_prompt", "chat_template_kwargs", *(["tools"] if tools else [])}
    for body in renders:
        assert set(body) == wanted
        assert (body["model"], body["add_generation_prompt"]) == ("m", True)
        assert body["chat_template_kwargs"] == {"think": False}
        assert body.get("tools", []) == tools
    prompt = {"prompt": token_continuation.STAND_IN_ANSWER}
    assert stand_ins == [{"model": "m", **prompt, "add_special_tokens": False}]
    assert replica.asked == [("http://host/version", 10.0)]
