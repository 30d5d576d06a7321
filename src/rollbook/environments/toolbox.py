"""The tools of one environment, ready to be used: arguments checked, mistakes answered, output bounded."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

import msgspec

from rollbook.core.json import JSON, encode
from rollbook.environments.offered import misfit
from rollbook.environments.tool import INJECTED, Tool, tools_in
from rollbook.errors import RollbookError, RolloutFailed

NOT_THE_MODELS_DOING = (ConnectionError, TimeoutError, MemoryError, RollbookError)
"""What a tool raises when its world is broken, not its arguments."""


class Misuse(Exception):
    """What the model did wrong with a tool, in the words that it is told."""


class Toolbox:
    """Uses an environment's tools as a model asks: `text` is the arguments as the model wrote them."""

    def __init__(self, environment: object, chars: int) -> None:
        self._environment, self._chars = environment, chars
        self._tools = {tool.name: tool for tool in tools_in(type(environment))}

    def use(self, name: str, text: str, state: object) -> str:
        """What a sync tool says."""
        try:
            value = self._call(name, text, state)()
        except Exception as error:  # noqa: BLE001 - what a tool raises on bad arguments is an answer to the model
            return self._excuse(error)
        return self._show(name, value)

    async def use_async(self, name: str, text: str, state: object) -> str:
        """What an async tool says."""
        try:
            value = await self._call(name, text, state)()
        except Exception as error:  # noqa: BLE001 - likewise
            return self._excuse(error)
        return self._show(name, value)

    async def use_offered(self, offer: JSON, text: str, use: Callable[[dict[str, JSON]], Awaitable[JSON]]) -> str:
        """What a tool that was offered for one task says; `use` carries it out."""
        name = offer["function"]["name"]
        try:
            given = read_arguments(text, f"the arguments of {name}")
            if wrong := misfit(offer["function"]["parameters"], given):
                raise Misuse(f"the arguments of {name} do not fit: {wrong}")
            value = await use(given)
        except Exception as error:  # noqa: BLE001 - likewise
            return self._excuse(error)
        return self._show(name, value)

    def _call(self, name: str, text: str, state: object) -> Callable[[], JSON]:
        tool = self._tools[name]
        given = bound(tool, text)
        hidden = dict.fromkeys(INJECTED & tool.takes, state)
        return partial(getattr(self._environment, name), **given, **hidden)

    def _excuse(self, error: Exception) -> str:
        if isinstance(error, NOT_THE_MODELS_DOING):
            raise error
        words = str(error) if isinstance(error, Misuse) else f"{type(error).__name__}: {error}"
        return cut(whole(f"Error: {words}"), self._chars)

    def _show(self, name: str, value: JSON) -> str:
        try:
            text = value if isinstance(value, str) else encode(value).decode()
        except (TypeError, RecursionError) as error:
            raise RolloutFailed("environment_error", f"tool {name}", f"it returned no JSON: {error}") from None
        except (ValueError, OverflowError) as error:  # a number of 5,000 digits: the tool did as it was told
            text = f"Error: the result cannot be shown: {error}"
        return cut(whole(text), self._chars)


def bound(tool: Tool, text: str) -> dict[str, JSON]:
    """The arguments of a call by name, of the types that the tool asks for; Misuse says what is wrong with them."""
    given = read_arguments(text, f"the arguments of {tool.name}")
    try:
        made = msgspec.convert(given, tool.arguments)
    except msgspec.ValidationError as error:
        raise Misuse(f"the arguments of {tool.name} do not fit: {error}") from None
    return {name: getattr(made, name) for name in given}


def read_arguments(text: str, what: str) -> dict[str, JSON]:
    """A JSON object as a model writes it; nothing at all is an empty one. Misuse says where it is broken."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant) if text.strip() else {}
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise Misuse(f"{what} are not valid JSON at {place}: {error.msg}; write a JSON object") from None
    except (RecursionError, ValueError) as error:
        raise Misuse(f"{what} cannot be read: {error}; write a JSON object") from None
    if not isinstance(value, dict):
        raise Misuse(f"{what} are no JSON object but {_named(value)}; write a JSON object")
    return {whole(k): _whole_values(v) for k, v in value.items()} if "\\u" in text else value


def cut(text: str, chars: int) -> str:
    """The text up to so many characters, and a mark of how many were left out.

    >>> cut("0123456789", 4)
    '0123\\n[cut here: 6 of 10 characters left out]'
    """
    if len(text) <= chars:
        return text
    return f"{text[:chars]}\n[cut here: {len(text) - chars} of {len(text)} characters left out]"


def whole(text: str) -> str:
    """The text without halves of characters, which no file and no server takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _whole_values(value: JSON) -> JSON:
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, list):
        return [_whole_values(item) for item in value]
    if isinstance(value, dict):
        return {whole(k): _whole_values(v) for k, v in value.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _named(value: JSON) -> str:
    kinds = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
