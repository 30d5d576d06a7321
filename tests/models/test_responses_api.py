"""Tools in the form of the Responses API."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import UsageError
from rollbook.models.responses_api import to_chat_tools, to_response_tools

JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)),
    max_leaves=4,
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.text(max_size=5)},
    optional={
        "description": st.text(max_size=5),
        "parameters": st.dictionaries(st.text(max_size=5), JSONS, max_size=3),
        "strict": st.just(True),
    },
)
TOOLS = st.lists(
    st.one_of(FUNCTIONS.map(lambda f: {"type": "function", "function": f}), st.just({"type": "web_search"})), max_size=3
)


@given(TOOLS)
def test_tools_come_back_as_they_were(tools: list[dict[str, object]]) -> None:
    assert to_chat_tools(to_response_tools(tools)) == tools


def test_a_flat_tool_says_all_that_gym_requires() -> None:
    assert to_response_tools([{"type": "function", "function": {"name": "f"}}]) == [
        {"type": "function", "name": "f", "parameters": None, "strict": False}
    ]


@pytest.mark.parametrize("tool", ["f", {"type": "function"}])
def test_a_wrong_tool_is_named(tool: object) -> None:
    with pytest.raises(UsageError, match=r"tools\[0\]"):
        to_chat_tools([tool])


def test_a_tool_without_a_type_is_a_function() -> None:
    assert to_response_tools([{"function": {"name": "f", "strict": True, "parameters": {}}}]) == [
        {"type": "function", "name": "f", "strict": True, "parameters": {}}
    ]
    assert to_chat_tools([{"name": "f", "strict": True}]) == [
        {"type": "function", "function": {"name": "f", "strict": True}}
    ]
