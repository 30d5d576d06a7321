"""Tool calls of a model: its own mistakes are returned to it, failures of the tool are not blamed on it."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import JSON
from rollbook.environments.tools import Toolbox, tool, truncate
from rollbook.errors import RolloutFailed


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Kit:
    @tool
    def move(self, state: list[object], to: Point, fast: bool = False) -> dict[str, object]:
        """Go there."""
        state.append(to)
        return {"x": to.x, "fast": fast}

    @tool
    def say(self, text: str = "nothing") -> str:
        """Say it."""
        return text

    @tool
    def give(self, what: str) -> object:
        """Give something back."""
        return {"none": None, "list": [1, "a"], "object": object(), "huge": 10**5000, "half": "\ud800"}[what]

    @tool
    def fail(self, kind: str) -> None:
        """Raise."""
        raise {"value": ValueError, "lost": ConnectionResetError, "late": TimeoutError, "full": MemoryError}[kind]("so")


class Later:
    @tool
    async def say(self, text: str) -> str:
        """Say it."""
        await asyncio.sleep(0)
        if not text:
            raise ValueError("empty")
        return text


def use(name: str, arguments: JSON = None, state: object = None, chars: int = 1000) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return Toolbox(Kit(), chars).use(name, text, state)


def test_arguments_come_as_the_types_that_were_written_and_the_state_is_handed_in() -> None:
    state: list[object] = []
    assert use("move", {"to": {"x": 1}}, state) == '{"x":1,"fast":false}'
    assert state == [Point(1)]


def test_no_arguments_at_all_are_an_empty_object() -> None:
    assert use("say", "") == use("say", "  ") == use("say", "{}") == "nothing"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{", "not valid JSON at line 1 column 2"),
        ('{"to": {"x": 1}', "line 1 column 16: Expecting ',' delimiter"),
        ("null", "not a JSON object but null"),
        ('"x"', "not a JSON object but a string"),
        ("[" * 100_000, "cannot be read"),
        ('{"to": {"x": NaN}}', "NaN is not JSON"),
        ('{"to": {"x": "1"}}', "Expected `int`, got `str` - at `$.to.x`"),
        ('{"to": {"x": 1}, "state": []}', "unknown field `state`"),
        ("{}", "missing required field `to`"),
    ],
)
def test_broken_arguments_are_told_to_the_letter(arguments: str, words: str) -> None:
    result = use("move", arguments, [])
    assert result.startswith("Error: the arguments of move ")
    assert words in result


@pytest.mark.parametrize(("what", "text"), [("none", "null"), ("list", '[1,"a"]'), ("half", "�")])
def test_what_is_no_text_is_shown_as_json(what: str, text: str) -> None:
    assert use("give", {"what": what}) == text


def test_what_json_cannot_hold_is_the_environments_mistake() -> None:
    with pytest.raises(RolloutFailed, match="it did not return JSON") as caught:
        use("give", {"what": "object"})
    assert (caught.value.kind, caught.value.where) == ("environment_error", "tool give")


def test_a_result_that_is_too_large_to_show_is_told_to_the_model() -> None:
    assert use("give", {"what": "huge"}).startswith("Error: the result cannot be shown: ")


def test_an_exception_answers_the_model_unless_the_world_is_broken() -> None:
    assert use("fail", {"kind": "value"}) == "Error: ValueError: so"
    for kind in ("lost", "late", "full"):
        with pytest.raises((ConnectionError, TimeoutError, MemoryError)):
            use("fail", {"kind": kind})


def test_half_a_character_in_arguments_does_not_reach_the_state() -> None:
    assert use("say", '{"text": "a\\ud800b"}') == "a�b"
    assert use("say", '{"text": "\\ud83d\\ude00"}') == "\U0001f600"


@given(st.text(), st.integers(1, 50))
def test_output_is_bounded_and_says_so(text: str, chars: int) -> None:
    shown = truncate(text, chars)
    assert shown.startswith(text[:chars])
    assert ("[cut here: " in shown.removeprefix(text[:chars])) == (len(text) > chars)


def test_async_tools_are_awaited_and_answer_alike() -> None:
    toolbox = Toolbox(Later(), 3)
    assert asyncio.run(toolbox.use_async("say", '{"text": "abc"}', None)) == "abc"
    assert asyncio.run(toolbox.use_async("say", '{"text": ""}', None)).startswith("Err\n[cut here")
