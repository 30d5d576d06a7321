"""Chat messages and Responses items are converted both ways."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.core import Function, Message, ToolCall, Turn
from rollbook.errors import UsageError
from rollbook.models.chat_protocol import prepare_messages
from rollbook.models.responses_api import make_items, read_items, read_output

TEXT = st.text(max_size=12)
PARTS = st.lists(
    st.one_of(
        TEXT.map(lambda text: {"type": "text", "text": text}),
        TEXT.map(lambda url: {"type": "image_url", "image_url": {"url": url, "detail": "low"}}),
        TEXT.map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
        TEXT.map(lambda url: {"type": "video_url", "video_url": {"url": url}}),
        st.just({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
    ),
    min_size=1,
    max_size=3,
)
CONTENT = st.one_of(TEXT, PARTS)
CALLS = st.lists(st.builds(ToolCall, TEXT, st.builds(Function, TEXT, TEXT)), min_size=1, max_size=3)
NAMES = st.one_of(st.none(), TEXT)
GIVEN = st.builds(Message, st.sampled_from(["user", "system", "developer"]), CONTENT, name=NAMES)
RESULTS = st.builds(Message, st.just("tool"), CONTENT, tool_call_id=TEXT, name=NAMES)
SAID = st.builds(
    Message,
    st.just("assistant"),
    st.one_of(st.none(), CONTENT),
    reasoning=NAMES,
    tool_calls=st.one_of(st.none(), CALLS),
    name=NAMES,
    written=NAMES,
)
FOREIGN = st.sampled_from(["web_search_call", "mcp_call", "computer_call_output"]).map(
    lambda kind: {"type": kind, "id": "x", "action": {"query": "q"}}
)
CONVERSATIONS = st.lists(st.one_of(GIVEN, SAID, RESULTS), max_size=8)
IDS = st.lists(st.integers(0, 9), max_size=4)


@st.composite
def exact_turns(draw: st.DrawFn, message: Message) -> Turn:
    """A turn as a server with tokens reports it."""
    prompt, ids = draw(IDS), draw(IDS)
    logprobs = [-float(number) for number in ids]
    cut = draw(st.booleans()) and not (isinstance(message.content, list) and not message.tool_calls)
    reason = "length" if cut else "tool_calls" if message.tool_calls else "stop"
    return Turn(prompt, ids, logprobs, len(prompt), len(ids), reason)


@given(CONVERSATIONS)
@settings(max_examples=150)
def test_messages_come_back_as_they_were(messages: list[Message]) -> None:
    assert read_items(make_items(messages)) == messages


@given(CONVERSATIONS, st.data())
@settings(max_examples=100)
def test_turns_come_back_with_their_tokens(messages: list[Message], data: st.DataObject) -> None:
    turns = [data.draw(exact_turns(m)) for m in messages if m.role == "assistant"]
    assert read_output(make_items(messages, turns)) == (messages, turns)


@given(CONVERSATIONS, st.data())
def test_items_that_we_wrote_come_back_as_they_were(messages: list[Message], data: st.DataObject) -> None:
    turns = [data.draw(exact_turns(m)) for m in messages if m.role == "assistant"]
    items = make_items(messages, turns, "t_")
    assert make_items(*read_output(items), "t_") == items


@given(st.lists(FOREIGN, max_size=4))
def test_items_that_chat_has_no_word_for_are_kept(items: list[dict[str, object]]) -> None:
    messages, turns = read_output(items)
    assert turns == []
    assert make_items(messages) == items


def test_a_whole_turn_in_order() -> None:
    call = ToolCall("call_1", Function("add", '{"a": 1}'))
    messages = [Message("assistant", "Let me see.", "hm", [call]), Message("tool", "1", tool_call_id="call_1")]
    turn = Turn([1, 2], [3], [-0.5], 2, 1, "tool_calls")
    assert make_items(messages, [turn], "q_") == [
        {"type": "reasoning", "id": "rs_q_0", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_q_0",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "call_1",
            "call_id": "call_1",
            "name": "add",
            "arguments": '{"a": 1}',
            "status": "completed",
            "prompt_token_ids": [1, 2],
            "generation_token_ids": [3],
            "generation_log_probs": [-0.5],
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
    ]


def test_text_alone_is_a_users_message() -> None:
    assert read_items("hello") == [Message("user", "hello")]


def test_an_item_without_a_type_is_a_message_by_its_role() -> None:
    assert read_items([{"role": "developer", "content": "be kind"}]) == [Message("developer", "be kind")]


def test_parallel_calls_are_one_message() -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(2)]
    results = [{"type": "function_call_output", "call_id": f"c{n}", "output": "ok"} for n in range(2)]
    first, *others = read_items([*calls, *results])
    assert [call.id for call in first.tool_calls or []] == ["c0", "c1"]
    assert first.items is None  # the message says it all
    assert [m.role for m in others] == ["tool", "tool"]


def test_an_empty_text_before_calls_only_keeps_two_messages_apart() -> None:
    call = ToolCall("c", Function("f", "{}"))
    items = make_items([Message("assistant", None, tool_calls=[call])] * 2)
    assert [item["type"] for item in items] == ["function_call", "message", "function_call"]
    assert read_items(items) == [Message("assistant", None, tool_calls=[call])] * 2
    assert read_items(items[1:2]) == [Message("assistant", None)]


TEXT_PART, REFUSAL = {"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}


@pytest.mark.parametrize(
    ("fields", "parts", "content"),
    [
        ({}, [TEXT_PART, REFUSAL], "ano"),
        ({"id": "m"}, [REFUSAL], "no"),
        ({}, [REFUSAL], [REFUSAL]),  # not of a server: those have ids
        ({"id": "m"}, [TEXT_PART, {"type": "odd"}], [{"type": "text", "text": "a"}, {"type": "odd"}]),
    ],
)
def test_texts_and_refusals_of_a_server_are_one_text(
    fields: dict[str, str], parts: list[dict[str, str]], content: object
) -> None:
    (message,) = read_items([{"type": "message", "role": "assistant", **fields, "content": parts}])
    assert message.content == content


def test_several_thoughts_before_one_answer_are_one_message() -> None:
    thoughts = [{"type": "reasoning", "id": f"rs_{n}", "summary": [{"text": f"t{n}"}]} for n in range(2)]
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    items = [*thoughts, answer]
    assert read_items(items) == [Message("assistant", "x", "t0\nt1", items=items)]


def test_what_was_thought_word_for_word_is_preferred_to_its_summary() -> None:
    item = {"type": "reasoning", "summary": [{"text": "short"}], "content": [{"type": "reasoning_text", "text": "all"}]}
    assert read_items([item])[0].reasoning == "all"


def test_tokens_end_a_message() -> None:
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [0.0]}
    thought = {"type": "reasoning", "id": "a", "summary": [{"type": "summary_text", "text": "t"}]}
    messages, turns = read_output([{**thought, **tokens}, thought])
    assert len(messages) == 2
    assert [turn.has_tokens for turn in turns] == [True, False]


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        ("text", "input[0] is not an object"),
        ({}, "input[0] has neither a type nor a role"),
        ({"type": 5, "role": "user", "content": "x"}, "input[0]: its type is not text but 5"),
        ({"type": ["message"], "role": "user"}, "input[0]: its type is not text but ['message']"),
        ({"role": "user", "content": [{"type": ["x"]}]}, "input[0]: content is neither text nor a list of parts"),
        ({"role": "assistant", "content": [{"type": 3}]}, "input[0]: content is neither text nor a list of parts"),
        ({"role": "robot", "content": "x"}, "input[0]: role 'robot'"),
        ({"role": "user", "content": 3}, "input[0]: content is neither text nor a list of parts"),
        ({"role": "user"}, "input[0]: content is neither"),
        ({"role": "assistant", "content": 3}, "input[0]: content is neither"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0]: a function_call needs its arguments"),
        ({"type": "function_call_output", "output": "x"}, "input[0]: a function_call_output needs its call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": 3}, "input[0]: output is neither"),
        ({"type": "reasoning", "summary": "x"}, "input[0]: summary is not a list of parts"),
        ({"type": "reasoning", "content": "x"}, "input[0]: content is not a list of parts"),
        ({"type": "reasoning", "content": ["x"]}, "input[0]: content is not a list of parts"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[0]: a function_call needs its call_id"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[0]: a function_call needs its name"),
        ({"role": "assistant", "content": "x", "prompt_token_ids": [1]}, "input[0]: prompt_token_ids"),
        (
            {
                "role": "assistant",
                "content": "x",
                "prompt_token_ids": [1],
                "generation_token_ids": [-3],
                "generation_log_probs": [-0.5],
            },
            "input[0]: a token id is negative",
        ),
        (
            {
                "role": "assistant",
                "content": "x",
                "prompt_token_ids": [],
                "generation_token_ids": [1],
                "generation_log_probs": [],
            },
            "input[0]: 1 generation_token_ids but 0",
        ),
    ],
)
def test_a_wrong_item_is_named(item: object, problem: str) -> None:
    with pytest.raises(UsageError) as error:
        read_items([item])
    assert str(error.value).startswith(problem)


def test_items_must_be_a_list_or_text() -> None:
    with pytest.raises(UsageError, match="input is neither text nor a list"):
        read_items({"role": "user"})


FOREIGN_WORDS = [
    [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"}],
    [{"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": t} for t in ("one", "two")]}],
    [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "b"}]},
    ],
    [
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "see", "annotations": [{"type": "url_citation", "url": "u"}]},
                {"type": "output_text", "text": "also", "annotations": []},
            ],
        }
    ],
    [{"type": "message", "role": "assistant", "id": "m", "content": [{"type": "refusal", "refusal": "no"}]}],
    [{"role": "user", "content": "hi", "id": "u_1", "metadata": {"a": 1}}],
    [{"type": "function_call_output", "call_id": "c", "output": "1", "id": "o", "status": "completed", "x": 2}],
    [{"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}", "status": "in_progress"}],
]


@pytest.mark.parametrize("items", FOREIGN_WORDS)
def test_what_chat_completions_cannot_say_comes_back_all_the_same(items: list[dict[str, object]]) -> None:
    messages, turns = read_output(items)
    assert make_items(messages, turns) == items
    assert all(message.items for message in messages)


def test_no_model_is_sent_the_items_that_a_message_was_read_from() -> None:
    [message] = read_items(FOREIGN_WORDS[5])
    assert [*prepare_messages([message])] == [Message("user", "hi")]


def test_items_that_say_no_more_than_the_message_are_not_kept_twice() -> None:
    raw = [{"type": "message", "id": "other", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}]
    plain = [{**raw[0], "content": [{"type": "output_text", "text": "a", "annotations": []}], "status": "completed"}]
    assert read_items(raw)[0].items is None
    assert read_items(plain)[0].items is None


@pytest.mark.parametrize(
    ("item", "quoted"), [("x" * 200, "'" + "x" * 79), ({"type": ["x" * 200]}, "['" + "x" * 78)], ids=["item", "type"]
)
def test_what_an_error_quotes_of_an_item_is_cut(item: object, quoted: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_items([item])
    assert str(caught.value).endswith(f" but {quoted}")
