"""An error that no code of ours expects, raised where a test says: handlers of errors must let it through."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest


class Bug(Exception):
    """A mistake in our own code."""


def raise_bug(*_: object, **__: object) -> NoReturn:
    """Raise it, whatever is given; its text looks like a server's, so that nothing is concluded from words."""
    raise Bug("maximum context length is 10")


async def raise_bug_later(*_: object, **__: object) -> NoReturn:
    """Raise it where the call is awaited."""
    raise_bug()


class Buggy:
    """An object of which every use raises it: reading an attribute, calling, iterating."""

    def __getattr__(self, name: str) -> NoReturn:
        raise_bug()

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise_bug()

    def __iter__(self) -> NoReturn:
        raise_bug()

    def __truediv__(self, other: object) -> NoReturn:
        raise_bug()

    def __fspath__(self) -> NoReturn:
        raise_bug()


def break_name(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Put a buggy object in the place of a name of a module, of a class or of an object."""
    monkeypatch.setattr(owner, name, Buggy())
