"""Tools: nested in `function` for chat completions, flat for the Responses API."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.core.json import JSON
from rollbook.errors import UsageError


def flat_tools(tools: Sequence[JSON]) -> list[JSON]:
    """Chat tools as Responses tools. `strict` must be said there, and is not what chat completions assumes."""
    return [_flat(tool) for tool in tools]


def chat_tools(tools: Sequence[JSON]) -> list[JSON]:
    """The way back; a tool that is no function stays as it is."""
    return [_nested(tool, number) for number, tool in enumerate(tools)]


def _flat(tool: JSON) -> JSON:
    if tool.get("type", "function") != "function":
        return tool
    return {"type": "function", "parameters": None, "strict": False, **tool["function"]}


def _nested(tool: JSON, number: int) -> JSON:
    if not isinstance(tool, dict):
        raise UsageError(f"tools[{number}] is no object but {tool!r:.80}")
    if tool.get("type", "function") != "function" or "function" in tool:
        return tool
    if not isinstance(tool.get("name"), str):
        raise UsageError(f"tools[{number}] has no name")
    function = {name: value for name, value in tool.items() if name != "type"}
    for name, default in (("strict", (False, None)), ("parameters", (None,))):
        if function.get(name) in default:
            function.pop(name, None)
    return {"type": "function", "function": function}
