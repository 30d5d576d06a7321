"""We read what NeMo Gym itself has written, and write the fields that it requires."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollbook.core import Function, Message, ToolCall, Turn, Usage
from rollbook.gym.responses import read_response
from rollbook.gym.rows import read_task
from rollbook.models import CREATE_PARAMS, make_create_params, make_response, read_create_params
from rollbook.models.responses_api import make_items, to_response_tools

DATA = Path(__file__).parent / "data"
ROWS = [json.loads(line) for line in (DATA / "rows.jsonl").read_text().splitlines()]
ROLLOUTS = [json.loads(line) for line in (DATA / "rollouts.jsonl").read_text().splitlines()]

REQUIRED = {
    "message": {"id", "content", "role", "status", "type"},
    "reasoning": {"id", "summary", "type"},
    "function_call": {"arguments", "call_id", "name", "type"},
    "function_call_output": {"call_id", "output", "type"},
}
"""Fields without which Gym's models do not take an item of a response."""

RESPONSE = {"id", "created_at", "model", "object", "output", "parallel_tool_calls", "tool_choice", "tools"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: next(iter(row)))
def test_rows_of_gyms_datasets_are_tasks(row: dict[str, Any]) -> None:
    task = read_task(row)
    assert task.prompt == row[CREATE_PARAMS]["input"][-1]["content"]
    assert [m.role for m in task.messages] == [item["role"] for item in row[CREATE_PARAMS]["input"]]
    assert task.answer == row.get("expected_answer", row.get("answer"))
    assert CREATE_PARAMS not in task.fields


def test_tools_of_gyms_rows_come_back_as_they_were() -> None:
    for row in ROWS:
        original = row[CREATE_PARAMS].get("tools", [])
        assert to_response_tools(read_create_params(row[CREATE_PARAMS]).tools) == [
            {**tool, "strict": tool["strict"]} for tool in original
        ]


@pytest.mark.parametrize("rollout", ROLLOUTS, ids=["mcqa", "workplace"])
def test_rollouts_of_gyms_collector_are_conversations(rollout: dict[str, Any]) -> None:
    reply = read_response(rollout["response"])
    output = rollout["response"]["output"]
    calls = [item for item in output if item["type"] == "function_call"]
    results = [item for item in output if item["type"] == "function_call_output"]
    assert [c.function.arguments for m in reply.messages for c in m.tool_calls or []] == [c["arguments"] for c in calls]
    assert [m.content for m in reply.messages if m.role == "tool"] == [item["output"] for item in results]
    assert reply.messages[-1].content == output[-1]["content"][0]["text"]
    assert len(reply.turns) == len(results) + 1
    usage = rollout["response"]["usage"]
    counted = Usage(sum(t.prompt_tokens for t in reply.turns), sum(t.completion_tokens for t in reply.turns))
    assert counted == Usage(usage["input_tokens"], usage["output_tokens"])


@pytest.mark.parametrize("rollout", ROLLOUTS, ids=["mcqa", "workplace"])
def test_items_of_gyms_collector_come_back_but_for_their_ids(rollout: dict[str, Any]) -> None:
    def bare(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ids = ("id", "status")
        return [{k: v for k, v in item.items() if k not in ids and k != "content"} | text(item) for item in items]

    def text(item: dict[str, Any]) -> dict[str, Any]:
        return {"text": [part["text"] for part in item["content"]]} if "content" in item else {}

    output = rollout["response"]["output"]
    assert bare(make_items(read_response(rollout["response"]).messages)) == bare(output)


def test_what_we_write_has_every_field_that_gym_insists_on() -> None:
    call = ToolCall("c", Function("f", "{}"))
    messages = [Message("assistant", "a", "thought", [call]), Message("tool", "1", tool_call_id="c")]
    messages.append(Message("assistant", "done"))
    turn = Turn([1], [2], [-0.5], 1, 1, "tool_calls")
    tools = [{"type": "function", "function": {"name": "f"}}]
    response = make_response(messages, [turn, turn], name="t", model="m", tools=tools)
    assert response.keys() >= RESPONSE
    for item in response["output"]:
        assert REQUIRED[item["type"]] <= item.keys()
    assert all({"name", "parameters", "strict", "type"} <= tool.keys() for tool in response["tools"])
    assert {"input_tokens_details", "output_tokens_details", "total_tokens"} <= response["usage"].keys()
    known = {"input", "tools", "temperature", "top_p", "max_output_tokens"}
    assert make_create_params(messages, tools).keys() <= known
