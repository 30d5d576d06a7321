"""Messages that are known: conversations in the forms of chat completions, the Responses API and NeMo Gym."""

from __future__ import annotations

import json
import random

from fuzz.cases import Case, JSONValue, MakeCase, draw_json, draw_name, draw_object, draw_text
from rollbook.core import Function, Message, Sampling, Task, ToolCall, Turn
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gym.responses import ResponseContent, read_response
from rollbook.gym.rows import make_row
from rollbook.gym.rows import read_task as read_gym_task
from rollbook.models.chat_protocol import (
    chat_body,
    make_message,
    prepare_messages,
    read_answer,
    without_reasoning,
)
from rollbook.models.responses_api import (
    make_create_params,
    make_items,
    make_response,
    read_create_params,
    read_items,
    read_output,
    to_chat_tools,
    to_response_tools,
)

UNFINISHED = "bad_completion"
INVALID = "it is refused, and named"


def draw_content(draw: random.Random) -> str | list[dict[str, JSONValue]]:
    """Return a text, or parts with a text and a picture."""
    if draw.random() < 0.7:
        return draw_text(draw)
    url = f"https://example.org/{draw_name(draw)}.png"
    return [{"type": "text", "text": draw_text(draw)}, {"type": "image_url", "image_url": {"url": url}}]


def draw_prompt(draw: random.Random) -> list[Message]:
    system = [Message(draw.choice(("system", "developer")), draw_text(draw))] if draw.random() < 0.5 else []
    return [*system, Message("user", draw_content(draw), name=draw.choice((None, draw_name(draw))))]


def draw_answer(draw: random.Random) -> Message:
    calls = [
        ToolCall(f"call_{draw_name(draw)}{n}", Function(draw_name(draw), json.dumps(draw_object(draw))))
        for n in range(draw.choice((0, 0, 1, 2)))
    ]
    content = None if calls and draw.random() < 0.5 else draw_text(draw)
    return Message("assistant", content, draw.choice((None, draw_text(draw))), calls or None)


def draw_conversation(draw: random.Random) -> list[Message]:
    """Return what follows a prompt: answers, each followed by the results of its calls, or by a user."""
    messages = []
    for _ in range(draw.randint(1, 3)):
        answer = draw_answer(draw)
        messages.append(answer)
        results = [Message("tool", draw_text(draw), tool_call_id=call.id) for call in answer.tool_calls or ()]
        messages += results or [Message("user", draw_text(draw))]
    return [*messages, draw_answer(draw)]


def draw_turn(draw: random.Random, answer: Message, *, tokens: bool) -> Turn:
    reason = "length" if draw.random() < 0.3 else "tool_calls" if answer.tool_calls else "stop"
    if not tokens:
        return Turn(finish_reason=reason)
    ids = [draw.randint(0, 150_000) for _ in range(draw.randint(1, 5))]
    prompt = [draw.randint(0, 150_000) for _ in range(draw.randint(0, 5))]
    return Turn(prompt, ids, [-draw.random() for _ in ids], len(prompt), len(ids), reason)


def make_conversation(draw: random.Random) -> Case:
    messages = [*draw_prompt(draw), *draw_conversation(draw)]
    items = make_items(messages)
    return Case(items, read_items(json.loads(json.dumps(items))), messages)


def make_item_forms(draw: random.Random) -> Case:
    """Items that were written by hand, as the Responses API has them."""
    texts = [draw_text(draw) or "x" for _ in range(5)]
    arguments, call = json.dumps(draw_object(draw)), draw_name(draw)
    items = [
        {"role": "user", "content": texts[0]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": texts[1]}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": texts[2]}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": texts[3]}]},
        {"type": "function_call", "call_id": call, "name": "add", "arguments": arguments},
        {"type": "function_call_output", "call_id": call, "output": texts[4]},
    ]
    found = [
        (m.role, m.text, m.reasoning, [(c.id, c.function.name, c.function.arguments) for c in m.tool_calls or ()])
        for m in read_items(items)
    ]
    answer = ("assistant", texts[3], texts[2], [(call, "add", arguments)])
    return Case(
        items, found, [("user", texts[0], None, []), ("user", texts[1], None, []), answer, ("tool", texts[4], None, [])]
    )


def make_output(draw: random.Random) -> Case:
    messages = draw_conversation(draw)
    tokens = draw.random() < 0.7
    turns = [draw_turn(draw, message, tokens=tokens) for message in messages if message.role == "assistant"]
    items = json.loads(json.dumps(make_items(messages, turns)))
    return Case(items, read_output(items), (messages, turns))


def make_whole_response(draw: random.Random) -> Case:
    """A response has the messages and tokens of a rollout, and the limit that ended it."""
    messages, ended = draw_conversation(draw), draw.choice(("", "max_turns"))
    turns = [draw_turn(draw, message, tokens=True) for message in messages if message.role == "assistant"]
    response = make_response(messages, turns, name="x", model="m", ended=ended)
    found = read_response(json.loads(json.dumps(response)))
    usage = response["usage"]
    counted = sum(turn.prompt_tokens for turn in turns), sum(turn.completion_tokens for turn in turns)
    return Case(
        response,
        (found, usage["input_tokens"], usage["output_tokens"]),
        (ResponseContent(messages, turns, ended), *counted),
    )


def make_counted_response(draw: random.Random) -> Case:
    """Without tokens, the last turn has the counts of the whole response, and the reason why it was cut."""
    text, counts = draw_text(draw), (draw.randint(0, 99), draw.randint(0, 99))
    reason, cut = draw.choice(((None, "stop"), ("max_output_tokens", "length"), ("content_filter", "content_filter")))
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    usage = {"input_tokens": counts[0], "output_tokens": counts[1]}
    details = {"incomplete_details": {"reason": reason}} if reason else {}
    found = read_response({"output": [item], "usage": usage, **details})
    turn = found.turns[-1]
    return Case(
        (item, usage, details),
        (found.messages[-1].text, turn.prompt_tokens, turn.completion_tokens, turn.finish_reason),
        (text, *counts, cut),
    )


def make_invalid_tokens(draw: random.Random) -> Case:
    """Token fields are all three or none, of ids and numbers, as many ids as logprobs; others are refused."""
    ids = [draw.randint(0, 150_000) for _ in range(draw.randint(1, 5))]
    fields: dict[str, JSONValue] = {
        "prompt_token_ids": [draw.randint(0, 150_000) for _ in range(draw.randint(1, 5))],
        "generation_token_ids": ids,
        "generation_log_probs": [-draw.random() for _ in ids],
    }
    name = draw.choice(list(fields))
    wrong: list[JSONValue] = ["x", "1", None, True, [1], {}]
    if name != "generation_log_probs":
        wrong = [-1, -1, -draw.randint(1, 1 << 40), 1.5, *wrong]
    changed = list(fields[name])
    changed[draw.randrange(len(changed))] = draw.choice(wrong)
    instead: list[JSONValue] = [changed, changed, changed, None, 7, "1", {}]
    if name != "prompt_token_ids":
        instead += [fields[name][1:], fields[name] + fields[name][:1]]
    fields[name] = draw.choice(instead)
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": draw_text(draw)}]}
    items = [{"role": "user", "content": "x"}, item | fields]
    read = draw.choice((read_items, read_output, lambda items: read_response({"output": items})))
    try:
        found: object = read(json.loads(json.dumps(items)))
    except UsageError as error:
        found = INVALID if str(error).startswith(("input[1]: ", "output[1]: ", "response.output[1]: ")) else str(error)
    return Case(items, found, INVALID)


def make_request(draw: random.Random) -> Case:
    messages = draw_prompt(draw)
    sampling = Sampling(round(draw.random(), 3), round(draw.random(), 3), draw.randint(1, 999))
    tool = {"name": draw_name(draw), "description": draw_text(draw), "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": tool}]
    seed = draw.choice((None, draw.randint(0, 99)))
    params = make_create_params(messages, tools, sampling)
    if seed is not None:
        params["metadata"] = {"extra_body": json.dumps({"seed": seed, "top_k": 5})}
    found = read_create_params(json.loads(json.dumps(params)))
    values = found.messages, found.tools, found.temperature, found.top_p, found.max_tokens, found.seed, found.extra
    extra = {} if seed is None else {"top_k": 5}
    numbers = sampling.temperature, sampling.top_p, sampling.max_tokens
    return Case(params, values, (messages, tools, *numbers, seed, extra))


def make_instructions(draw: random.Random) -> Case:
    """Instructions precede the system messages, in one message with them."""
    first, second, asked = (draw_text(draw) or "x" for _ in range(3))
    items = [{"role": "system", "content": second}, {"role": "user", "content": asked}]
    skip = draw.randint(0, 1)
    found = read_create_params({"instructions": first, "input": items[skip:]}).messages
    system = first if skip else f"{first}\n\n{second}"
    return Case((first, items[skip:]), found, [Message("system", system), Message("user", asked)])


def make_tools(draw: random.Random) -> Case:
    functions = [{"name": draw_name(draw), "parameters": {"a": draw_json(draw)}} for _ in range(draw.randint(0, 3))]
    chat = [{"type": "function", "function": function} for function in functions]
    flat = [{"type": "function", "strict": False, **function} for function in functions]
    return Case(chat, (to_response_tools(chat), to_chat_tools(flat)), (flat, chat))


def draw_count(draw: random.Random) -> tuple[float | None, int | None]:
    """Return a count of tokens as a server sends it, and what is believed of it: nothing that cannot be true."""
    count = draw.randint(0, 99)
    wrong = draw.choice((-1, -count - 1, -0.5, count + 0.5, 1e30, (1 << 40) + 1, -(1 << 70)))
    return draw.choice(((count, count), (count, count), (float(count), count), (None, None), (wrong, None)))


def make_chat_answer(draw: random.Random) -> Case:
    """An answer of a server, with its tokens and counts; some servers send arguments as an object, and no id."""
    calls = [(draw_name(draw), draw_object(draw)) for _ in range(draw.choice((0, 0, 1, 2)))]
    as_text, named = draw.random() < 0.5, draw.random() < 0.5
    text, reasoning = draw_text(draw), draw.choice((None, draw_text(draw) or "x"))
    ids = [draw.randint(0, 9999) for _ in range(draw.randint(1, 5))]
    logprobs, reason = [-draw.random() for _ in ids], draw.choice(("stop", "length", "tool_calls"))
    sent, known_counts = zip(*(draw_count(draw) for _ in range(3)), strict=True)
    is_wrong = any(known is None and count is not None for count, known in zip(sent[:2], known_counts, strict=False))
    counts = (None, None) if is_wrong else known_counts[:2]  # one that cannot be true makes the other unknown
    written = [
        {"function": {"name": name, "arguments": json.dumps(arguments) if as_text else arguments}}
        | ({"id": f"id-{n}"} if named else {})
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"content": text, draw.choice(("reasoning", "reasoning_content")): reasoning, "tool_calls": written}
    choice = {"message": message, "finish_reason": reason, "token_ids": ids}
    choice["logprobs"] = {"content": [{"logprob": number, "token": "?"} for number in logprobs]}
    usage = {
        "prompt_tokens": sent[0],
        "completion_tokens": sent[1],
        "prompt_tokens_details": {"cached_tokens": sent[2]},
    }
    body = {"choices": [choice], "usage": usage, "prompt_token_ids": ids[:2]}
    answer, found, why = read_answer(json.dumps(body).encode())
    assert answer.usage
    assert found.message
    assert found.logprobs
    made = make_message(found.message)
    values = (
        made.content,
        made.reasoning,
        [(call.id, call.function.name, json.loads(call.function.arguments)) for call in made.tool_calls or ()],
        [each.logprob for each in found.logprobs.content or ()],
        (why, found.token_ids, answer.prompt_token_ids, answer.usage.read_counts(), answer.usage.read_cached()),
    )
    known = [(f"id-{n}" if named else f"call_{n}", *call) for n, call in enumerate(calls)]
    return Case(body, values, (text, reasoning, known, logprobs, (reason, ids, ids[:2], counts, known_counts[2])))


def make_text_answer(draw: random.Random) -> Case:
    text, logprobs = draw_text(draw), [-draw.random() for _ in range(3)]
    choice = {"text": text, "finish_reason": "length", "token_ids": [1, 2, 3], "logprobs": {"token_logprobs": logprobs}}
    body = {"choices": [choice | {"prompt_token_ids": [7, 8]}], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
    answer, found, why = read_answer(json.dumps(body).encode(), text=True)
    assert found.message
    assert found.logprobs
    values = found.message.content, [each.logprob for each in found.logprobs.content or ()], found.token_ids, why
    return Case(body, (*values, answer.prompt_token_ids), (text, logprobs, [1, 2, 3], "length", [7, 8]))


def make_unfinished_answer(draw: random.Random) -> Case:
    """An answer that is not whole is a failure of the server, never an empty answer of the model."""
    choice = {"message": {"content": draw_text(draw)}, "finish_reason": draw.choice((None, "", "abort", "error"))}
    body = draw.choice(({"choices": [choice]}, {"choices": []}, {"choices": [{"finish_reason": "stop"}]}, {}, [], "no"))
    try:
        found: object = read_answer(json.dumps(body).encode())
    except RolloutFailed as error:
        found = error.kind
    return Case(body, found, UNFINISHED)


def make_chat_request(draw: random.Random) -> Case:
    """What is sent is the conversation, the sampling in full, and the seed."""
    messages, seed = [Message("user", draw_text(draw)), draw_answer(draw)], draw.randint(0, 1 << 31)
    sampling = Sampling(draw.random(), draw.random(), draw.randint(1, 99), {"stop": draw_text(draw), "top_p": None})
    sent = json.loads(chat_body("m", messages, sampling, seed, [], tokens=draw.random() < 0.5))
    found = [(m["role"], m.get("content"), len(m.get("tool_calls") or ())) for m in sent["messages"]]
    values = sent["model"], sent["temperature"], sent.get("top_p"), sent["max_tokens"], sent["stop"], sent["seed"]
    known = [(m.role, m.content, len(m.tool_calls or ())) for m in messages]
    numbers = "m", sampling.temperature, None, sampling.max_tokens, sampling.extra["stop"], seed
    return Case(messages, (found, values), (known, numbers))


def make_sent_calls(draw: random.Random) -> Case:
    """Arguments that are no JSON object are sent inside of one, others as they are; reasoning is not sent."""
    readable = json.dumps(draw_object(draw))
    odd = draw.choice(("", "  ", '{"a": ', "[1]", "7", "text", '"x"'))
    calls = [ToolCall("a", Function("f", readable)), ToolCall("b", Function("g", odd))]
    message = Message("assistant", None, draw_text(draw) or "x", calls, items=[{"type": "message"}])
    (sent,) = prepare_messages(without_reasoning([message]))
    found = [call.function.arguments for call in sent.tool_calls or ()]
    wrapped = {"unreadable": odd} if odd.strip() else {}
    return Case(calls, (found[0], json.loads(found[1]), sent.reasoning, sent.items), (readable, wrapped, None, None))


def make_gym_row(draw: random.Random) -> Case:
    answer = draw.choice((None, draw_text(draw), draw.randint(0, 9)))
    task = Task(draw_name(draw), messages=draw_prompt(draw), answer=answer, env="e")
    task.fields = draw_object(draw)
    row = json.loads(json.dumps(make_row(task)))
    return Case(row, read_gym_task(row, "e").line(), task.line())


CASES: dict[str, MakeCase] = {
    "responses conversation": make_conversation,
    "responses items": make_item_forms,
    "responses output": make_output,
    "gym response": make_whole_response,
    "gym response without tokens": make_counted_response,
    "invalid tokens": make_invalid_tokens,
    "responses request": make_request,
    "responses instructions": make_instructions,
    "tools": make_tools,
    "chat answer": make_chat_answer,
    "text answer": make_text_answer,
    "unfinished answer": make_unfinished_answer,
    "chat request": make_chat_request,
    "sent calls": make_sent_calls,
    "gym row": make_gym_row,
}
