"""Tokens used: as chat completions counts them, and as the Responses API does."""

from __future__ import annotations

from rollbook.core.json import JSON
from rollbook.core.rollout import Usage
from rollbook.errors import UsageError


def usage_fields(usage: Usage) -> dict[str, JSON]:
    """A response's `usage`; what nobody counted is null, not nought."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": None},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": None},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def read_usage(value: JSON) -> Usage:
    """What a response's `usage` says; none at all is nothing counted."""
    if value is None:
        return Usage()
    if not isinstance(value, dict):
        raise UsageError(f"usage is no object but {value!r:.80}")
    counts = [value.get(name) or 0 for name in ("input_tokens", "output_tokens")]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise UsageError(f"usage counts no tokens: {value!r:.200}")
    return Usage(*counts)
