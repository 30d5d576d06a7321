"""Handles of the tests' to what a function gives back that is not plain data: of these only data is believed.

An object that answers by its own code (`float(x)`, `len(x)`, `x.startswith("a")`) can answer differently each time, by
what it has been asked: the code would judge itself, so that each such answer is a claim. What the candidate's end calls
an object is its own word too: each kind does what such a thing can do, and no more.
"""

from collections.abc import Iterator
from typing import Any

from .coroutines import is_coroutine
from .handle import COMPUTING, DECIDING, TELLING, Handle, claimed, walked

_OF_ALL = ("__eq__", "__ne__", "__setattr__", "__delattr__")


class Returned(Handle):
    """An attribute is data, and stays what it was at the first look until the code is at work again."""

    def _attribute(self, name: str) -> Any:
        return self._peer.look(self._number, name)


class ReturnedFunction(Returned):
    """It can be called."""

    def __call__(self, /, *given: Any, **named: Any) -> Any:
        return self._peer.ask("call", self._number, given, named)


class ReturnedIterator(Returned):
    """It can be iterated, and has ended once it says so."""

    _ended = False

    def _attribute(self, name: str) -> Any:
        return self._peer.claim("attribute", self._number, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        try:
            return self._do("__next__")
        except StopIteration:
            object.__setattr__(self, "_ended", True)
            raise


class ReturnedObject(Returned):
    """It holds data."""

    def __iter__(self) -> Iterator[Any]:
        return walked(self._peer.claim("iterate", self._number))


for _name in _OF_ALL:
    setattr(Returned, _name, claimed(_name))
for _name in {**TELLING, **DECIDING, **COMPUTING}:
    setattr(ReturnedObject, _name, claimed(_name))

RETURNED = {"function": ReturnedFunction, "iterator": ReturnedIterator, "object": ReturnedObject}


def is_data(value: Any) -> bool:
    """Whether an attribute is something that the object holds, and nothing that runs its code."""
    return not (issubclass(type(value), (ReturnedFunction, ReturnedIterator)) or is_coroutine(value))
