"""The token fields that trainers look for: flat on the last item of each model call, all three or none."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.core.json import JSON
from rollbook.core.turn import Turn
from rollbook.errors import UsageError

Tokens = tuple[list[int], list[int], list[float]]
"""What the model saw, what it said, and the logprobs of that."""

FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def token_fields(turn: Turn | None) -> dict[str, JSON]:
    """What an item carries for a turn; nothing where the ids were not recorded."""
    if turn is None or turn.ids is None:
        return {}
    return dict(zip(FIELDS, (turn.prompt_ids, turn.ids, turn.logprobs), strict=True))


def read_tokens(item: Mapping[str, JSON], where: str) -> Tokens | None:
    """The ids and logprobs that an item carries, if any; a part of them, or unequal lengths, is refused."""
    held: list[JSON] = [item.get(name) for name in FIELDS]
    if all(value is None for value in held):
        return None
    prompt, ids, logprobs = held
    if not (_all(prompt, int) and _all(ids, int) and _all(logprobs, (int, float))):
        raise UsageError(f"{where}: {', '.join(FIELDS)} must be three lists of numbers, or none of them there")
    if any(number < 0 for number in (*prompt, *ids)):
        raise UsageError(f"{where}: a token id is negative")
    if len(ids) != len(logprobs):
        raise UsageError(f"{where}: {len(ids)} generation_token_ids but {len(logprobs)} generation_log_probs")
    return prompt, ids, [float(number) for number in logprobs]


def _all(value: JSON, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in value)


def without_token_fields(item: Mapping[str, JSON]) -> dict[str, JSON]:
    """An item as others know it."""
    return {name: value for name, value in item.items() if name not in FIELDS}
