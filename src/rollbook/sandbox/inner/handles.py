"""Handles: proxies that one end of an examination has for objects of the other end. Using one sends a request there.

A handle of the tests' end supports what can be observed from outside: calls, attributes, items, iteration, conversion
to numbers. Where the candidate's own class would decide about a value of the tests (`==`, `in`, `+`), the answer is a
claim; what no handle can tell (its class, whether it has a special method) is refused: either would let the code judge
itself.

Where the tests expect plain data, they trust less: of what a function returns that is not plain data (`Returned`), only
data is trusted. An object that answers by its own code (`float(x)`, `len(x)`, `x.startswith("a")`) can answer
differently each time, depending on the question: the code would judge itself, so each such answer is a claim. The kind
of an object is also reported by the candidate's end: each kind supports what such an object can do, and no more.

Coroutines are run to their end where they are: only their own process can do that.
"""

import operator
import sys
from collections.abc import Callable, Iterator
from types import CoroutineType
from typing import Any

_runners: list[Any] = []


def is_coroutine(value: Any) -> bool:
    """Return whether a value is what a call of an `async def` returns."""
    return issubclass(type(value), CoroutineType)


def run_coroutine(value: Any) -> Any:
    """Return the result of a coroutine, all of them in one loop; every other value as it is."""
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
"""Decided by the candidate's own objects: a verdict must not rest on them."""

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
    f"__{name.strip('_')}__": function for name, function in _ARITHMETIC.items()
}
ARITHMETIC_METHODS |= {
    f"__r{name.strip('_')}__": lambda target, other, function=function: function(other, target)
    for name, function in _ARITHMETIC.items()
}
"""Also decided by the candidate's objects: `f(x) - 5` could be 0 whatever the tests subtract."""


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
"""What an object does or reports about itself, without seeing an expected value."""

OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *args, **kwargs: target(*args, **kwargs),
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
"""A block of the tests that the code could end at will, an endless exchange, a copy: not supported by handles."""

PLAIN_ATTRIBUTES = frozenset(
    f"__{name}__" for name in ("name", "qualname", "doc", "module", "annotations", "type_params", "wrapped", "dict")
)
"""Ordinary attributes, in spite of their underscores."""
FUNCTION_ATTRIBUTES = frozenset({"__name__", "__qualname__", "__doc__"})
"""Attributes of the tests' functions that the code may read: `functools.wraps` needs them."""

_OWN = frozenset({"_peer", "_number", "_do", "_attribute", "_ended"})
_PROBED = frozenset({"__copy__", "__deepcopy__"})
_BROWSER = "unittest.loader"
"""It checks for everything in the tests' module whether it is a class of tests: no verdict rests on that."""


class Handle:
    """An object of the other end."""

    def __init__(self, peer: Any, number: int) -> None:
        object.__getattribute__(self, "__dict__").update(_peer=peer, _number=number)

    def _do(self, what: str, *args: Any) -> Any:
        return self._peer.ask(what, self._number, args, {})

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
    """An object, with all its operations."""

    def __iter__(self) -> Iterator[Any]:
        return as_iterator(self._do("iterate"))

    def __hash__(self) -> int:
        return int(self._do("__hash__"))


class RemoteFunction(RemoteObject):
    """An object that can be called."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._peer.ask("call", self._number, args, kwargs)


def kind_of(value: Any) -> str:
    """Return the kind of an object that is reported to the other end: what can be done with it from outside."""
    if callable(value):
        return "function"
    return "iterator" if hasattr(type(value), "__next__") else "object"


REMOTE_KINDS = {"function": RemoteFunction, "iterator": RemoteObject, "object": RemoteObject}


def as_iterator(answer: Any) -> Iterator[Any]:
    """Return the answer to a request for an iterator as an iterator."""
    return iter(answer) if not issubclass(type(answer), Handle) else answer


def _read_special(remote: Handle, name: str) -> Any:
    """Read a special attribute that is named explicitly (Python itself looks on the class); `isinstance` does so."""
    if not remote._peer.guarded or (name == "__class__" and sys._getframe(2).f_globals.get("__name__") == _BROWSER):
        return object.__getattribute__(remote, name)
    if name in _PROBED:
        raise AttributeError(name)
    return remote._peer.refuse("isinstance" if name == "__class__" else name)


def _make_forward(what: str) -> Callable[..., Any]:
    return lambda self, *args: self._do(what, *args)


def make_claim(what: str) -> Callable[..., Any]:
    """Return a method that asks the candidate's object for an answer, where such answers are allowed."""
    return lambda self, *args: self._peer.claim(what, self._number, *args)


def _make_arithmetic(what: str) -> Callable[..., Any]:
    def compute(self: RemoteObject, *args: Any) -> Any:
        if all(issubclass(type(value), Handle) for value in args):  # two objects of the code, no expected value
            return self._do(what, *args)
        return self._peer.claim(what, self._number, *args)

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
    """A returned object. An attribute is data, and keeps the value of its first read until the code runs again."""

    def _attribute(self, name: str) -> Any:
        return self._peer.look(self._number, name)


class ReturnedFunction(Returned):
    """A returned object that can be called."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._peer.ask("call", self._number, args, kwargs)


class ReturnedIterator(Returned):
    """A returned iterator; once it reports its end, it has ended."""

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
    """A returned object that holds data."""

    def __iter__(self) -> Iterator[Any]:
        return as_iterator(self._peer.claim("iterate", self._number))


for _name in _COMMON_CLAIMS:
    setattr(Returned, _name, make_claim(_name))
for _name in {**SELF_METHODS, **COMPARISONS, **ARITHMETIC_METHODS}:
    setattr(ReturnedObject, _name, make_claim(_name))

RETURNED_KINDS = {"function": ReturnedFunction, "iterator": ReturnedIterator, "object": ReturnedObject}


def is_data(value: Any) -> bool:
    """Return whether an attribute is something that the object holds, and nothing that runs its code."""
    return not (issubclass(type(value), (ReturnedFunction, ReturnedIterator)) or is_coroutine(value))
