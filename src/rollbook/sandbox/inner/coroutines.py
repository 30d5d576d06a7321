"""Coroutines run where they are, to their end: nobody but their own process could."""

from types import CoroutineType
from typing import Any

_runner: list[Any] = []


def is_coroutine(value: Any) -> bool:
    """What an `async def` gives when it is called."""
    return issubclass(type(value), CoroutineType)


def awaited(value: Any) -> Any:
    """What a coroutine comes to, all of them in one loop; every other value as it is."""
    if not is_coroutine(value):
        return value
    if not _runner:
        from asyncio import Runner  # not before: it takes longer than most programs

        _runner.append(Runner())
    return _runner[0].run(value)
