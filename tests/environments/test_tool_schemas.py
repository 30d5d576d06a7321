from typing import Annotated, Literal

import jsonschema
import msgspec
import pytest

from rollbook.environments.tools import read_docstring, tool, tool_schemas
from rollbook.errors import UsageError


class Point(msgspec.Struct):
    x: int
    y: int = 0


class Tools:
    @tool
    def look(self, word: str, limit: int = 5) -> str:
        """Look a word up.

        The dictionary is small.

        Args:
            word: What to find,
                exactly as written.
            limit (int): How many at most.

        Returns:
            The entries.
        """

    @tool
    async def move(self, state: list, to: Point, mode: Literal["walk", "run"] = "walk") -> None:
        """Go somewhere."""

    @tool
    def many(
        self,
        tags: list[str] = ["a"],  # noqa: B006
        level: Annotated[int, msgspec.Meta(ge=0)] = 1,
        note: str | None = None,
    ) -> None:
        """All kinds."""

    @tool
    def stop(self):
        """End it."""

    def helper(self, unseen: int) -> None: ...


def schema(name):
    return next(t["function"] for t in tool_schemas(Tools) if t["function"]["name"] == name)


def test_only_marked_methods_are_tools_in_their_order():
    assert [t["function"]["name"] for t in tool_schemas(Tools)] == ["look", "move", "many", "stop"]
    assert all(t["type"] == "function" for t in tool_schemas(Tools))


def test_signature_and_docstring_become_the_schema():
    assert schema("look") == {
        "name": "look",
        "description": "Look a word up.\n\nThe dictionary is small.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "What to find, exactly as written."},
                "limit": {"type": "integer", "default": 5, "description": "How many at most."},
            },
            "required": ["word"],
            "additionalProperties": False,
        },
    }


def test_the_state_is_not_shown_and_structs_are_defined():
    parameters = schema("move")["parameters"]
    assert list(parameters["properties"]) == ["to", "mode"]
    assert parameters["properties"]["to"] == {"$ref": "#/$defs/Point"}
    assert parameters["properties"]["mode"]["enum"] == ["run", "walk"]
    assert parameters["$defs"]["Point"]["required"] == ["x"]


def test_a_tool_without_parameters_takes_an_empty_object():
    assert schema("stop")["parameters"]["properties"] == {}


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("look", {"word": "a"}, True),
        ("look", {"word": 1}, False),
        ("look", {"word": "a", "other": 1}, False),
        ("look", {}, False),
        ("move", {"to": {"x": 1}}, True),
        ("move", {"to": {}}, False),
        ("move", {"to": {"x": 1}, "mode": "fly"}, False),
        ("many", {}, True),
        ("many", {"tags": ["b"], "level": 0, "note": None}, True),
        ("many", {"level": -1}, False),
        ("stop", {}, True),
    ],
)
def test_the_schema_judges_arguments_as_an_independent_validator_reads_it(name, arguments, right):
    validator = jsonschema.Draft202012Validator(schema(name)["parameters"])
    assert validator.is_valid(arguments) is right


def test_inherited_tools_are_kept_and_overridden_ones_replaced():
    class Small(Tools):
        @tool
        def look(self, word: str) -> str:
            """Briefly."""

        def stop(self):
            """No longer a tool."""

    found = {t["function"]["name"]: t["function"]["description"] for t in tool_schemas(Small)}
    assert found == {"look": "Briefly.", "move": "Go somewhere.", "many": "All kinds."}


def test_a_parameter_without_a_type_is_named():
    class Bad:
        @tool
        def look(self, word):
            """Look."""

    with pytest.raises(UsageError, match=r"tool Bad.look: parameter 'word' has no type"):
        tool_schemas(Bad)


def test_a_parameter_that_cannot_be_named_is_refused():
    class Bad:
        @tool
        def look(self, *words: str):
            """Look."""

    with pytest.raises(UsageError, match=r"tool Bad.look: parameter \*words"):
        tool_schemas(Bad)


def test_a_type_that_json_cannot_hold_is_refused():
    class Bad:
        @tool
        def look(self, where: complex):
            """Look."""

    with pytest.raises(UsageError, match=r"tool Bad.look: .*JSON"):
        tool_schemas(Bad)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("", {})),
        ("One line.", ("One line.", {})),
        ("Do.\n\nArgs:\n    a: first\n    b (int, optional): second", ("Do.", {"a": "first", "b": "second"})),
        ("Do.\n\nArguments:\n  a: see http://x: y\n", ("Do.", {"a": "see http://x: y"})),
        ("Do.\n\nReturns:\n    a: nothing", ("Do.", {})),
    ],
)
def test_google_style_docstrings_are_read(text, expected):
    assert read_docstring(text) == expected
