"""A row of a dataset: one task, as NeMo Gym keeps it and sends it along with every request about it.

The prompt stands in `responses_create_params.input`, the answer in `expected_answer`, and everything else that only the
verifier may see in `verifier_metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b

from rollbook.core.json import JSON, encode
from rollbook.core.task import Task
from rollbook.errors import UsageError
from rollbook.wire.gym.params import KEY, params_of, read_params

METADATA = "verifier_metadata"
ANSWERS = ("expected_answer", "answer")
IDS = ("id", "unique_id", "uuid", "task_id")
TASK_INDEX, ROLLOUT_INDEX = "_ng_task_index", "_ng_rollout_index"
AGENT = "agent_ref"

_NOT_THE_TASKS = {KEY, METADATA, AGENT, "skills_ref", "response", "id", *ANSWERS}


def row_of(task: Task, tools: Sequence[JSON] = (), agent: str = "") -> dict[str, JSON]:
    """The row of a task; `tools` in the form of chat completions, `agent` the name of the one who plays it."""
    row: dict[str, JSON] = {"id": task.id, KEY: params_of(task.messages, tools)}
    if task.answer is not None:
        row["expected_answer"] = task.answer
    if task.fields:
        row[METADATA] = task.fields
    return {**row, AGENT: {"type": "responses_api_agents", "name": agent}} if agent else row


def task_of(row: Mapping[str, JSON], env: str = "") -> Task:
    """The task of a row, also of one that others wrote; UsageError says what is wrong with it."""
    metadata = row.get(METADATA)
    if metadata is not None and not isinstance(metadata, dict):
        raise UsageError(f"{METADATA} is no object but {metadata!r:.80}")
    params = read_params(row.get(KEY))
    own = {name: value for name, value in row.items() if name not in _NOT_THE_TASKS and not name.startswith("_ng_")}
    answer = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
    task = Task(id_of(row), messages=params.messages, answer=answer, env=env)
    task.fields = {**own, **(metadata or {})}
    return task


def id_of(row: Mapping[str, JSON]) -> str:
    """The row's own name; one without is called after what it asks, for its place in a file is not part of it."""
    given = next((row[name] for name in IDS if row.get(name) is not None), None)
    if given is not None:
        return str(given)
    return f"row-{blake2b(encode(row.get(KEY)), digest_size=8).hexdigest()}"


def has_id(row: Mapping[str, JSON]) -> bool:
    """Whether a row has a name of its own."""
    return any(row.get(name) is not None for name in IDS)


def sample_of(row: Mapping[str, JSON]) -> int:
    """Which try at its task a row is."""
    index = row.get(ROLLOUT_INDEX)
    return index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else 0
