"""A rollout in NeMo Gym's form: chat messages as Responses items, tokens flat on the last item of each model call."""

from __future__ import annotations

from collections.abc import Iterator

from rollbook.core.json import JSON
from rollbook.core.message import Message
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.core.turn import Turn


def input_items(messages: list[Message]) -> list[dict[str, JSON]]:
    """What the model was shown, as input items."""
    return [{"role": m.role, "content": m.content, "type": "message"} for m in messages]


def answer_items(message: Message, name: str) -> Iterator[dict[str, JSON]]:
    """What the model said in one turn: its reasoning, its text, its tool calls."""
    if message.reasoning:
        summary = [{"type": "summary_text", "text": message.reasoning}]
        yield {"id": f"rs_{name}", "type": "reasoning", "summary": summary}
    if message.text or not message.tool_calls:
        content = [{"type": "output_text", "text": message.text, "annotations": []}]
        yield {"id": f"msg_{name}", "type": "message", "role": "assistant", "status": "completed", "content": content}
    for call in message.tool_calls or []:
        yield {
            "type": "function_call",
            "id": f"fc_{call.id}",
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
            "status": "completed",
        }


def output_items(rollout: Rollout) -> list[dict[str, JSON]]:
    """Everything after the prompt, in order; the ids of each turn ride on its last item."""
    items: list[dict[str, JSON]] = []
    turns = iter(rollout.turns)
    for number, message in enumerate(rollout.messages[len(rollout.task.messages) :]):
        if message.role == "assistant":
            items += answer_items(message, f"{rollout.task.id}_{rollout.sample}_{number}")
            items[-1] |= token_fields(next(turns, None))
        elif message.role == "tool":
            items.append({"type": "function_call_output", "call_id": message.tool_call_id, "output": message.text})
        else:
            items.append({"role": message.role, "content": message.content, "type": "message"})
    return items


def token_fields(turn: Turn | None) -> dict[str, JSON]:
    """The three lists NeMo RL looks for: all or none."""
    if turn is None or turn.ids is None:
        return {}
    return {
        "prompt_token_ids": turn.prompt_ids,
        "generation_token_ids": turn.ids,
        "generation_log_probs": turn.logprobs,
    }


def task_fields(task: Task) -> dict[str, JSON]:
    """A task as a dataset row: what is shown, and what the verifier knows."""
    answer = {} if task.answer is None else {"expected_answer": task.answer}
    return {"id": task.id, "responses_create_params": {"input": input_items(task.messages)}, **answer, **task.fields}


def gym_row(rollout: Rollout, row: int, model: str) -> dict[str, JSON]:
    """A scored rollout as Gym's collection writes it."""
    score = rollout.score
    assert score is not None
    usage = rollout.usage
    response = {
        "id": f"resp_{rollout.task.id}_{rollout.sample}",
        "created_at": rollout.timing.start,
        "model": model,
        "object": "response",
        "output": output_items(rollout),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "incomplete" if rollout.truncated else "completed",
        "usage": {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        },
    }
    return {
        **task_fields(rollout.task),
        "response": response,
        "reward": score.reward,
        "extracted_answer": score.answer,
        "reward_components": score.parts,
        "_ng_task_index": row,
        "_ng_rollout_index": rollout.sample,
        "agent_ref": {"name": rollout.task.env},
    }
