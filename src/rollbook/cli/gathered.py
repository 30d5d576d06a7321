"""Options said once: a command that takes what some function makes of them has that function's options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

R = TypeVar("R")


def gathered(name: str, make: Callable[..., object]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Put the parameters of `make` in the place of the parameter `name`, which becomes what it makes of them.

    >>> @gathered("full_name", lambda first, last: f"{first} {last}")
    ... def greet(full_name, loudly=False):
    ...     return f"Hello {full_name}"
    >>> list(inspect.signature(greet).parameters), greet(first="Ada", last="Lovelace")
    (['first', 'last', 'loudly'], 'Hello Ada Lovelace')
    """
    taken = inspect.signature(make, eval_str=True).parameters

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def called(**values: object) -> R:
            made = make(**{option: values.pop(option) for option in taken if option in values})
            return command(**values, **{name: made})

        _declare(called, command, name, list(taken.values()))
        return called

    return decorate


def _declare(
    called: Callable[..., object], command: Callable[..., object], name: str, taken: list[inspect.Parameter]
) -> None:
    """Give a function the signature that typer and the next `gathered` read."""
    own = inspect.signature(command, eval_str=True)
    spread = [p for mine in own.parameters.values() for p in (taken if mine.name == name else [mine])]
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in spread]
    called.__annotations__ = {p.name: p.annotation for p in named}
    called.__signature__ = own.replace(parameters=named, return_annotation=None)  # type: ignore[attr-defined]
