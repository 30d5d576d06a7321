"""Handles: what one end of an examination holds of the other's objects. Using one asks the other end.

A handle of the tests' does what can be told from outside: calls, attributes, items, iteration, numbers made of it.
What the candidate's own class would decide about something of the tests' (`==`, `in`, `+`) is a claim, and what no
handle can tell (its class, whether it has a special method) is refused: either would have the code judge itself.

Where the tests expect plain data, they believe less: of what a function gives back that is not plain data (`Returned`),
only data is believed. An object that answers by its own code (`float(x)`, `len(x)`, `x.startswith("a")`) can answer
differently each time, by what it has been asked: the code would judge itself, so each such answer is a claim. What the
candidate's end calls an object is its own word too: each kind does what such a thing can do, and no more.

Coroutines are run to their end where they are: only their own process can.
"""

import operator
import sys
from collections.abc import Callable, Iterator
from types import CoroutineType
from typing import Any

_runners: list[Any] = []


def is_coroutine(value: Any) -> bool:
    """What an `async def` gives when it is called."""
    return issubclass(type(value), CoroutineType)


def run_coroutine(value: Any) -> Any:
    """What a coroutine comes to, all of them in one loop; every other value as it is."""
    if not is_coroutine(value):
        return value
    if not _runners:
        from asyncio import Runner  # not before: it takes longer than most programs

        _runners.append(Runner())
    return _runners[0].run(value)


COMPARISONS: dict[str, Callable[..., Any]] = {
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "__contains__": operator.contains,
    "__instancecheck__": lambda target, value: isinstance(value, target),
}
"""What the candidate's own objects decide: a verdict must not rest on it."""

_ARITHMETIC = {
    name: getattr(operator, name)
    for name in (
        "add",
        "sub",
        "mul",
        "matmul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "lshift",
        "rshift",
        "and_",
        "or_",
        "xor",
    )
} | {"divmod": divmod}
ARITHMETIC_METHODS: dict[str, Callable[..., Any]] = {
    f"__{name.strip('_')}__": doing for name, doing in _ARITHMETIC.items()
}
ARITHMETIC_METHODS |= {
    f"__r{name.strip('_')}__": lambda target, other, doing=doing: doing(other, target)
    for name, doing in _ARITHMETIC.items()
}
"""The same with something of the tests': `f(x) - 5` could be 0 whatever stands there."""


SELF_METHODS: dict[str, Callable[..., Any]] = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
    "__delitem__": operator.delitem,
    "__setattr__": setattr,
    "__delattr__": delattr,
    "__len__": len,
    "__next__": next,
    "__reversed__": reversed,
    "__bool__": bool,
    "__str__": str,
    "__repr__": repr,
    "__format__": format,
    "__int__": int,
    "__index__": operator.index,
    "__float__": float,
    "__round__": round,
    "__abs__": abs,
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__invert__": operator.invert,
}
"""What an object does or says of itself, without a look at what is expected of it."""

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *given, **named: target(*given, **named),
    "attribute": getattr,
    "iterate": iter,
    "await": run_coroutine,
    "__hash__": hash,
    **SELF_METHODS,
    **COMPARISONS,
    **ARITHMETIC_METHODS,
}

REFUSED_METHODS = (
    "enter",
    "exit",
    "aenter",
    "aexit",
    "aiter",
    "anext",
    "await",
    "reduce_ex",
    "reduce",
    "bytes",
    "subclasscheck",
)
"""A block of the tests that the code may end as it likes, an endless conversation, a copy: nothing for a handle."""

PLAIN_ATTRIBUTES = frozenset(
    f"__{name}__" for name in ("name", "qualname", "doc", "module", "annotations", "type_params", "wrapped", "dict")
)
"""Attributes like others, for all their underscores."""
FUNCTION_ATTRIBUTES = frozenset({"__name__", "__qualname__", "__doc__"})
"""What the tests' functions tell of themselves: `functools.wraps` asks for it."""

_OWN = frozenset({"_peer", "_number", "_do", "_attribute", "_ended"})
_PROBED = frozenset({"__copy__", "__deepcopy__"})
_BROWSER = "unittest.loader"
"""It asks of everything in the tests' module whether it is a class of tests: no verdict rests on that."""


class Handle:
    """Something of the other end."""

    def __init__(self, peer: Any, number: int) -> None:
        object.__getattribute__(self, "__dict__").update(_peer=peer, _number=number)

    def _do(self, what: str, *given: Any) -> Any:
        return self._peer.ask(what, self._number, given, {})

    def _attribute(self, name: str) -> Any:
        return self._do("attribute", name)

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN:
            return object.__getattribute__(self, name)
        if name[:2] == name[-2:] == "__" and name not in PLAIN_ATTRIBUTES:
            return _read_special(self, name)
        if name in PLAIN_ATTRIBUTES - FUNCTION_ATTRIBUTES and not self._peer.guarded:
            return object.__getattribute__(self, name)
        return self._attribute(name)

    def __hash__(self) -> int:
        return hash(("rollbook", self._number))


class RemoteObject(Handle):
    """An object, and what it can do."""

    def __iter__(self) -> Iterator[Any]:
        return as_iterator(self._do("iterate"))

    def __hash__(self) -> int:
        return int(self._do("__hash__"))


class RemoteFunction(RemoteObject):
    """One that can be called."""

    def __call__(self, /, *given: Any, **named: Any) -> Any:
        return self._peer.ask("call", self._number, given, named)


def kind_of(value: Any) -> str:
    """What is announced of an object: what can be done with it from without."""
    if callable(value):
        return "function"
    return "iterator" if hasattr(type(value), "__next__") else "object"


REMOTE_KINDS = {"function": RemoteFunction, "iterator": RemoteObject, "object": RemoteObject}


def as_iterator(held: Any) -> Iterator[Any]:
    """What came of asking for an iterator, as one."""
    return iter(held) if not issubclass(type(held), Handle) else held


def _read_special(remote: Handle, name: str) -> Any:
    """A special attribute that somebody names; Python itself looks on the class. `isinstance` asks for `__class__`."""
    if not remote._peer.guarded or (name == "__class__" and sys._getframe(2).f_globals.get("__name__") == _BROWSER):
        return object.__getattribute__(remote, name)
    if name in _PROBED:
        raise AttributeError(name)
    return remote._peer.refuse("isinstance" if name == "__class__" else name)


def _make_forward(what: str) -> Callable[..., Any]:
    return lambda self, *given: self._do(what, *given)


def make_claim(what: str) -> Callable[..., Any]:
    """A method that asks for the object's word, where that will do."""
    return lambda self, *given: self._peer.claim(what, self._number, *given)


def _make_arithmetic(what: str) -> Callable[..., Any]:
    def compute(self: RemoteObject, *given: Any) -> Any:
        if all(issubclass(type(value), Handle) for value in given):  # two objects of the code: nothing to look at
            return self._do(what, *given)
        return self._peer.claim(what, self._number, *given)

    return compute


def _make_refusal(what: str) -> Callable[..., Any]:
    def refuse(self: Handle, *_: Any) -> Any:
        return self._peer.refuse(what)

    return refuse


for _name in SELF_METHODS:
    setattr(RemoteObject, _name, _make_forward(_name))
for _name in COMPARISONS:
    setattr(RemoteObject, _name, make_claim(_name))
for _name in ARITHMETIC_METHODS:
    setattr(RemoteObject, _name, _make_arithmetic(_name))
for _name in REFUSED_METHODS:
    setattr(Handle, f"__{_name}__", _make_refusal(f"__{_name}__"))


_COMMON_CLAIMS = ("__eq__", "__ne__", "__setattr__", "__delattr__")


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
        return as_iterator(self._peer.claim("iterate", self._number))


for _name in _COMMON_CLAIMS:
    setattr(Returned, _name, make_claim(_name))
for _name in {**SELF_METHODS, **COMPARISONS, **ARITHMETIC_METHODS}:
    setattr(ReturnedObject, _name, make_claim(_name))

RETURNED_KINDS = {"function": ReturnedFunction, "iterator": ReturnedIterator, "object": ReturnedObject}


def is_data(value: Any) -> bool:
    """Whether an attribute is something that the object holds, and nothing that runs its code."""
    return not (issubclass(type(value), (ReturnedFunction, ReturnedIterator)) or is_coroutine(value))
