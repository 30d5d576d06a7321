"""Convert between tasks and NeMo Gym's rows, and between verified rows and scores or failures. No I/O.

A row is one task as Gym stores it and sends it with every request about it. The prompt is in
`responses_create_params.input`, the answer in `expected_answer`, and everything else that only the verifier may see in
`verifier_metadata`. A verified row is the request again, with the reward; `read_score` and `read_failure` read one that
a server returned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TypeGuard

import msgspec

from rollbook.core import FAILURE_KINDS, JSON, Score, Task, encode
from rollbook.errors import InvalidReward, RolloutFailed, UsageError
from rollbook.models import CREATE_PARAMS, make_create_params, read_create_params

VERIFIER_METADATA = "verifier_metadata"
ANSWER_KEYS = ("expected_answer", "answer")
ID_KEYS = ("id", "unique_id", "uuid", "task_id")
TASK_INDEX, ROLLOUT_INDEX = "_ng_task_index", "_ng_rollout_index"
AGENT_REF = "agent_ref"
AGENT_FIELD = f"{AGENT_REF}.name"
RESOURCES, AGENTS, MODELS = "resources_servers", "responses_api_agents", "responses_api_models"
SERVER_KINDS = (RESOURCES, AGENTS, MODELS)

_PROTOCOL_KEYS = {CREATE_PARAMS, VERIFIER_METADATA, AGENT_REF, "skills_ref", "response", "id", *ANSWER_KEYS}


def make_row(task: Task, tools: Sequence[JSON] = (), agent: str = "") -> dict[str, JSON]:
    """Return the row of a task; `tools` are in chat completions form, `agent` names the agent that runs the row."""
    row: dict[str, JSON] = {"id": task.id, CREATE_PARAMS: make_create_params(task.messages, tools)}
    if task.answer is not None:
        row["expected_answer"] = task.answer
    if task.fields:
        row[VERIFIER_METADATA] = task.fields
    return {**row, **make_agent_ref(agent)}


def make_agent_ref(agent: str) -> dict[str, JSON]:
    """Return the field of a row that names its agent; empty without a name."""
    return {AGENT_REF: {"type": AGENTS, "name": agent}} if agent else {}


def read_task(row: Mapping[str, JSON], env: str = "") -> Task:
    """Return the task of a row, of any origin; UsageError explains what is wrong with the row."""
    metadata = row.get(VERIFIER_METADATA)
    if metadata is not None and not isinstance(metadata, dict):
        raise UsageError(f"{VERIFIER_METADATA} is not an object but {metadata!r:.80}")
    params = read_create_params(row.get(CREATE_PARAMS))
    extra = {name: value for name, value in row.items() if name not in _PROTOCOL_KEYS and not name.startswith("_ng_")}
    task = Task(read_row_id(row), messages=params.messages, answer=read_expected_answer(row), env=env)
    task.fields = {**extra, **(metadata or {})}
    return task


def read_expected_answer(row: Mapping[str, JSON]) -> JSON:
    """Return the expected answer of a row; None if it has none."""
    return next((row[name] for name in ANSWER_KEYS if row.get(name) is not None), None)


def read_row_id(row: Mapping[str, JSON]) -> str:
    """Return the id in a row, or one derived from its prompt: the position in a file is not part of a row."""
    row_id = next((row[name] for name in ID_KEYS if row.get(name) is not None), None)
    if row_id is not None:
        return str(row_id)
    return f"row-{blake2b(encode(row.get(CREATE_PARAMS)), digest_size=8).hexdigest()}"


def read_sample_index(row: Mapping[str, JSON]) -> int:
    """Return the sample number of a row."""
    index = row.get(ROLLOUT_INDEX)
    return index if is_index(index) else 0


def is_index(value: JSON) -> TypeGuard[int]:
    """Whether a value is a whole number from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


REWARD_COMPONENTS, EXTRACTED_ANSWER = "reward_components", "extracted_answer"
ROLLBOOK_KEY = "rollbook"
"""The key of everything that Gym has no field for: the whole score, and the outcome it was computed from."""

FAILURE_CLASS, FAILURE_MESSAGE, FAILURE_TERMINAL = "_ng_failure_class", "_ng_failure_message", "_ng_failure_terminal"
JUDGE_FAILED, JUDGE_ERROR = "judge_failed", "_ng_failure_judge_error"
MASK_SAMPLE, NO_PERSIST = "mask_sample", "_ng_no_persist"


def make_scored_row(body: Mapping[str, JSON], score: Score, outcome: JSON = None) -> dict[str, JSON]:
    """Return the request with its score. Parts are top-level numbers, where Gym's statistics look for them."""
    parts = {name: value for name, value in score.parts.items() if name not in body}
    components = {REWARD_COMPONENTS: score.parts} if _is_sum_of_parts(score) else {}
    own = {"score": msgspec.to_builtins(score), "outcome": outcome}
    result = {"reward": score.reward, EXTRACTED_ANSWER: score.answer}
    return {**parts, **body, **components, **result, ROLLBOOK_KEY: own}


def _is_sum_of_parts(score: Score) -> bool:
    """Whether the reward is the sum of its parts, which is how NeMo RL reads `reward_components`."""
    return bool(score.parts) and math.isclose(sum(score.parts.values()), score.reward, abs_tol=1e-9)


def make_judge_failed_row(body: Mapping[str, JSON], error: RolloutFailed) -> dict[str, JSON]:
    """Return a row whose judge failed. Gym's agents require a number as reward; its collector ignores the row."""
    return {**body, "reward": 0.0, FAILURE_CLASS: JUDGE_FAILED, JUDGE_ERROR: error.message}


def make_failed_row(body: Mapping[str, JSON], kind: str, message: str) -> dict[str, JSON]:
    """Return a rollout without a score as a row for Gym's failures: no reward, and masked from training.

    It is not an HTTP error, because an HTTP error ends Gym's whole collection.
    """
    failure = {FAILURE_CLASS: JUDGE_FAILED, JUDGE_ERROR: message} if kind == "judge_error" else {FAILURE_CLASS: kind}
    terminal = {FAILURE_TERMINAL: True} if FAILURE_KINDS[kind].side == "data" else {}
    return {**body, **failure, FAILURE_MESSAGE: message, MASK_SAMPLE: True, **terminal}


TERMINAL_KIND = "verifier_error"
"""The kind of a failure that, according to the server, would happen again."""

_STANDARD_FIELDS = frozenset(
    (CREATE_PARAMS, "response", "reward", REWARD_COMPONENTS, EXTRACTED_ANSWER, AGENT_REF, ROLLBOOK_KEY)
)


def read_failure(verdict: Mapping[str, JSON], where: str, default_kind: str) -> RolloutFailed | None:
    """Return the failure that a reply has instead of a verdict, whatever reward it also has."""
    kind = verdict.get(FAILURE_CLASS)
    if kind is None:
        return _read_exclusion(verdict, where)
    if kind == JUDGE_FAILED:
        return RolloutFailed("judge_error", where, str(verdict.get(JUDGE_ERROR) or "the judge failed"))
    message = str(verdict.get(FAILURE_MESSAGE) or verdict.get("error") or "no message")
    if kind in FAILURE_KINDS:
        return RolloutFailed(str(kind), where, message)
    return RolloutFailed(
        TERMINAL_KIND if verdict.get(FAILURE_TERMINAL) is True else default_kind, where, f"{kind}: {message}"
    )


def _read_exclusion(verdict: Mapping[str, JSON], where: str) -> RolloutFailed | None:
    """Return the failure of a reward that does not count: to be run again, or excluded from training."""
    if verdict.get(NO_PERSIST) is True:
        return RolloutFailed("environment_error", where, f"it must run again ({NO_PERSIST})")
    if verdict.get(MASK_SAMPLE) is True:
        return RolloutFailed(TERMINAL_KIND, where, f"it must not be trained on ({MASK_SAMPLE})")
    return None


def read_score(verdict: Mapping[str, JSON], row: Mapping[str, JSON]) -> Score:
    """Return the score in a verdict, with the server's extra fields as `info`; InvalidReward if there is none.

    `reward` decides; the whole score that our own servers also send adds detail, or contradicts it.
    """
    if "reward" not in verdict:
        raise InvalidReward("the server's answer has no reward")
    own = verdict.get(ROLLBOOK_KEY)
    if isinstance(own, dict) and isinstance(own.get("score"), dict) and own != row.get(ROLLBOOK_KEY):
        return _read_own_score(own["score"], verdict["reward"])
    parts = verdict.get(REWARD_COMPONENTS) or {}
    if not isinstance(parts, dict):
        raise InvalidReward(f"{REWARD_COMPONENTS} is {parts!r:.80}, not a number for each name")
    return Score(verdict["reward"], parts, _to_text(verdict.get(EXTRACTED_ANSWER)), _read_extra_fields(verdict, row))


def _read_own_score(value: JSON, reward: JSON) -> Score:
    try:
        score = msgspec.convert(value, Score)
    except msgspec.ValidationError as error:
        raise InvalidReward(f"the score is invalid: {error}") from None
    if isinstance(reward, bool) or score.reward != reward:
        raise InvalidReward(f"the reward is {reward!r:.80}, and {score.reward:g} in {ROLLBOOK_KEY}.score")
    return score


def _to_text(value: JSON) -> str | None:
    return value if value is None or isinstance(value, str) else encode(value).decode()


def _read_extra_fields(verdict: Mapping[str, JSON], row: Mapping[str, JSON]) -> dict[str, JSON]:
    """Return the fields that the server added to the row or changed."""
    return {
        name: value
        for name, value in verdict.items()
        if name not in _STANDARD_FIELDS and not name.startswith("_ng_") and (name not in row or row[name] != value)
    }
