"""The pages of tasks: a page of the table, and one task with its samples side by side."""

from __future__ import annotations

from itertools import takewhile

import msgspec

from rollbook.core import JSON, Message, ScoredLine
from rollbook.viewer.snapshot import MAX_STRIP, Snapshot

SHOWN_COLUMNS = ("n", "failed", "pending", "mean", "std", "majority", "majority_share", "completion_tokens", "turns")
PROMPT_CHARS = 240
CHARS_BEFORE, CHARS_AFTER = 120, 500
"""The characters shown before and after the first difference."""

MAX_SAMPLES = 64

_line_decoder = msgspec.json.Decoder(ScoredLine)


def make_task_rows(
    snapshot: Snapshot, keep: str, sort: str, descending: bool, offset: int, limit: int
) -> dict[str, JSON]:
    """Return one page of the table: the rows for which `keep` is true, sorted, and their number."""
    table = snapshot.table
    kept = table.filter_rows(keep)
    rows = table.sort_rows(kept, sort, descending)[offset : offset + limit]
    return {
        "version": snapshot.version,
        "scale": snapshot.scale,
        "tasks": len(table),
        "kept": len(kept),
        "offset": offset,
        "rows": [make_task_row(snapshot, row) for row in rows],
    }


def make_task_row(snapshot: Snapshot, row: int) -> dict[str, JSON]:
    """Return one row of the table."""
    task, samples = snapshot.task(row), snapshot.samples(row)
    return {
        "id": task.id,
        "env": snapshot.reading.task_groups.name_of(row),
        "prompt": task.prompt[:PROMPT_CHARS],
        "strip": snapshot.strip(row, task.id),
        "samples": samples[:MAX_STRIP],
        "asked": len(samples),
        **snapshot.table.values(row, SHOWN_COLUMNS),
    }


def make_task_page(snapshot: Snapshot, row: int, offset: int = 0) -> dict[str, JSON]:
    """Return a task with the verifier's data and its samples: each output, and where they begin to differ."""
    task, samples = snapshot.task(row), snapshot.samples(row)
    shown = samples[offset : offset + MAX_SAMPLES]
    texts = {sample: output for sample in shown if (output := _read_output(snapshot, row, sample)) is not None}
    same = count_shared_prefix(list(texts.values()))
    return {
        "version": snapshot.version,
        "id": task.id,
        "env": snapshot.reading.task_groups.name_of(row),
        "scale": snapshot.scale,
        "messages": task.messages,
        "verifier": {"answer": task.answer, "fields": task.fields},
        "numbers": {name: values[row] for name, values in snapshot.table.columns.items()},
        "shared": same,
        "equal": len(texts) > 1 and len(set(texts.values())) == 1,
        "asked": len(samples),
        "offset": offset,
        "samples": [
            _make_scored(snapshot, row, sample) | _make_excerpt(texts[sample], same)
            if sample in texts
            else _make_unscored(snapshot, task.id, sample)
            for sample in shown
        ],
    }


def _read_output(snapshot: Snapshot, row: int, sample: int) -> str | None:
    """Return the model's output in a scored sample; None for one without a score."""
    place = snapshot.located.find(row, sample)
    if place is None:
        return None
    asked = len(snapshot.task(row).messages)
    return join_model_text(_line_decoder.decode(snapshot.located.line(place)).messages[asked:])


def _make_unscored(snapshot: Snapshot, task: str, sample: int) -> dict[str, JSON]:
    failure = snapshot.failure(task, sample)
    return {"sample": sample, "status": "failed" if failure else "pending", "failure": failure}


def _make_scored(snapshot: Snapshot, row: int, sample: int) -> dict[str, JSON]:
    place, columns = snapshot.located.find(row, sample), snapshot.located.columns
    assert place is not None
    return {
        "sample": sample,
        "status": "scored",
        "reward": float(columns.reward[place]),
        "parts": snapshot.parts(place),
        "answer": snapshot.answer(place),
        "prompt_tokens": int(columns.prompt_tokens[place]),
        "completion_tokens": int(columns.completion_tokens[place]),
        "turns": int(columns.turns[place]),
        "truncated": bool(columns.truncated[place]),
        "seconds": float(columns.seconds[place]),
    }


def _make_excerpt(text: str, shared: int) -> dict[str, JSON]:
    """Return the text before and after the place where the samples begin to differ."""
    return {
        "before": text[max(0, shared - CHARS_BEFORE) : shared],
        "after": text[shared : shared + CHARS_AFTER],
        "cut": (shared > CHARS_BEFORE, len(text) > shared + CHARS_AFTER),
        "characters": len(text),
    }


def count_shared_prefix(texts: list[str]) -> int:
    """Return the length of the common prefix of several texts.

    >>> count_shared_prefix(["2 + 2 is 4", "2 + 2 is 5"])
    9
    """
    if len(texts) < 2:
        return 0
    low, high = min(texts), max(texts)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(low, high, strict=False)))


def join_model_text(messages: list[Message]) -> str:
    """Return all output of the model, including tool calls."""
    output = []
    for message in messages:
        if message.role == "assistant":
            output += [message.reasoning or "", message.text]
            output += [f"{call.function.name}({call.function.arguments})" for call in message.tool_calls or []]
    return "\n".join(text for text in output if text)
