"""Builds a carried class again from its source text and compares it with the live one.

A class body and the defaults of functions are evaluated once, where the user wrote them. Environment processes evaluate
them again, with the values of today. What then differs from the live class would change scores.
"""

from __future__ import annotations

import dis
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum, EnumMeta
from itertools import zip_longest
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple, TypeAlias

MODULE = "rollbook_rebuilt"
"""The name of the module that the text becomes in this process; it is removed afterwards."""
SCALARS = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, set, frozenset)
_IGNORED = frozenset(
    {
        *("__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__firstlineno__"),
        *("__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
        *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__", "__type_params__"),
    }
)
"""Attributes of a class that describe its place, or that Python derives from others."""
_OPERATORS = ("BINARY", "COMPARE", "CONTAINS", "IS_OP", "UNARY")
_CALL_PREPARATION = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"})
_NULL = re.compile(r"NULL(\|self)? \+ | \+ NULL(\|self)?")
_MISSING = object()


class ChangedValue(NamedTuple):
    """An attribute with another value in the live class; `path` is an expression that names it."""

    path: str
    live: object
    exists: bool
    """Whether the live class has the attribute at all."""


ChangedValues: TypeAlias = Iterator[ChangedValue]


def build_module(text: str, file: str) -> dict[str, object]:
    """Return the names that a text defines; what it raises is left to the caller."""
    module = ModuleType(MODULE)
    module.__file__ = file
    sys.modules[MODULE] = module  # data classes look up their module by name
    try:
        exec(compile(text, f"<{MODULE}>", "exec", dont_inherit=True), vars(module))
    finally:
        del sys.modules[MODULE]
    return vars(module)


def compare_names(live: Mapping[str, object], rebuilt: Mapping[str, object]) -> ChangedValues:
    """Yield what differs between live values and those of the same names in a rebuilt module."""
    comparison = _Comparison()
    for name, value in live.items():
        yield from comparison.compare(value, rebuilt.get(name, _MISSING), name)


def compare_attributes(live: object, rebuilt: object) -> ChangedValues:
    """Yield the attributes of an instance that differ from those of another one; internal ones are left out."""
    own, other = ({name: each for name, each in vars(one).items() if name[:2] != "__"} for one in (live, rebuilt))
    yield from _Comparison().compare_mappings(own, other, "self")


class _Comparison:
    """Compares values by their parts. What has no parts that can be read (a lock) equals another of its type."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[object, object]] = {}  # holds both, so that no id is used again

    def compare(self, live: object, rebuilt: object, path: str) -> ChangedValues:
        key = id(live), id(rebuilt)
        if live is rebuilt or key in self._seen:
            return
        self._seen[key] = live, rebuilt
        if isinstance(live, type) and isinstance(rebuilt, type):
            yield from self._compare_classes(live, rebuilt, path)
        elif isinstance(live, FunctionType) and isinstance(rebuilt, FunctionType):
            yield from self._compare_functions(live, rebuilt, path)
        elif rebuilt is _MISSING or not _matches(type(live), type(rebuilt)) or not self._has_equal_parts(live, rebuilt):
            yield ChangedValue(path, live, True)

    def compare_mappings(self, live: Mapping[str, object], rebuilt: Mapping[str, object], path: str) -> ChangedValues:
        """Yield the differences of two sets of attributes."""
        for name in dict.fromkeys([*live, *rebuilt]):
            if name not in live:
                yield ChangedValue(f"{path}.{name}", None, False)
            else:
                yield from self.compare(live[name], rebuilt.get(name, _MISSING), f"{path}.{name}")

    def _compare_classes(self, live: type, rebuilt: type, path: str) -> ChangedValues:
        if not _matches(live, rebuilt):
            yield ChangedValue(path, live, True)
            return
        for own, other in zip_longest(live.__bases__, rebuilt.__bases__):
            yield from self.compare(own, other, f"{path}.__bases__")
        yield from self.compare_mappings(_list_attributes(live), _list_attributes(rebuilt), path)

    def _compare_functions(self, live: FunctionType, rebuilt: FunctionType, path: str) -> ChangedValues:
        if not _has_same_code(live.__code__, rebuilt.__code__):
            yield ChangedValue(path, live, True)
            return
        yield from self.compare(live.__defaults__, rebuilt.__defaults__, f"{path}.__defaults__")
        yield from self.compare(live.__kwdefaults__, rebuilt.__kwdefaults__, f"{path}.__kwdefaults__")
        yield from self.compare_mappings(vars(live), vars(rebuilt), path)
        if live.__code__.co_freevars == rebuilt.__code__.co_freevars and any(
            any(self.compare(own, other, path)) for own, other in zip(_cells(live), _cells(rebuilt), strict=True)
        ):
            yield ChangedValue(path, live, True)

    def _has_equal_parts(self, live: object, rebuilt: object) -> bool:
        if isinstance(live, SCALARS):
            return repr(live) == repr(rebuilt) if isinstance(live, float | complex) else live == rebuilt
        own, other = _split(live), _split(rebuilt)
        return len(own) == len(other) and not any(any(self.compare(*pair, "")) for pair in zip(own, other, strict=True))


def _matches(live: type, rebuilt: type) -> bool:
    """Whether a class is another one, or may be what its text became."""
    return live is rebuilt or (rebuilt.__module__ == MODULE and live.__name__ == rebuilt.__name__)


def _list_attributes(cls: type) -> dict[str, object]:
    if isinstance(cls, EnumMeta):
        methods = {name: each for name, each in vars(cls).items() if not name.startswith("_")}
        members: dict[str, Enum] = dict(cls.__members__)
        return methods | {name: member.value for name, member in members.items()}
    return {name: value for name, value in vars(cls).items() if name not in _IGNORED}


def _cells(function: FunctionType) -> list[object]:
    """Return the values that a function takes from the functions around it; None for one that has none yet."""
    values: list[object] = []
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:
            values.append(None)
    return values


def _split(value: object) -> list[object]:
    """Return the parts of a value that decide whether it equals another one of its type."""
    if isinstance(value, Enum):
        return [value.name]
    if type(value) in (list, tuple):
        return list(value)  # type: ignore[call-overload, no-any-return]
    if type(value) is dict:
        return [*value, *value.values()]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, functools._lru_cache_wrapper):
        return [value.__wrapped__, value.cache_parameters()]
    return _reduce(value)


def _reduce(value: object) -> list[object]:
    """Return the parts from which pickle would build a value; none if it cannot be taken apart."""
    try:
        parts = value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001 - the user's class may raise anything here
        return []
    if isinstance(parts, str):
        return [parts]
    return [list(part) if place in (3, 4) and part is not None else part for place, part in enumerate(parts)]


def _has_same_code(live: CodeType, rebuilt: CodeType) -> bool:
    """Whether two functions do the same; variables of a function around the live one are globals of the other."""
    if "@pytest_ar" in live.co_names:  # pytest rewrites assert statements; the text is right nevertheless
        return live.co_name == rebuilt.co_name
    if _describe(live) != _describe(rebuilt) or not _has_same_constants(live.co_consts, rebuilt.co_consts):
        return False
    if live.co_freevars == rebuilt.co_freevars:
        return _list_instructions(live) == _list_instructions(rebuilt)
    return _list_operators(live) == _list_operators(rebuilt)


def _describe(code: CodeType) -> tuple[object, ...]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    kind = code.co_flags & ~0x1000010  # a nested function, one with postponed annotations
    return code.co_name, counts, kind, code.co_varnames, {*code.co_names, *code.co_freevars}


def _has_same_constants(live: tuple[object, ...], rebuilt: tuple[object, ...]) -> bool:
    return len(live) == len(rebuilt) and all(map(_is_same_constant, live, rebuilt))


def _is_same_constant(live: object, rebuilt: object) -> bool:
    if isinstance(live, CodeType) and isinstance(rebuilt, CodeType):
        return _has_same_code(live, rebuilt)
    if isinstance(live, str) and isinstance(rebuilt, str) and "<locals>." in live:  # the full name of a class inside
        return live.split(".")[-1] == rebuilt.split(".")[-1]
    if isinstance(live, frozenset):
        return live == rebuilt
    return type(live) is type(rebuilt) and repr(live) == repr(rebuilt)  # 1 equals True, and 0.0 equals -0.0


def _list_instructions(code: CodeType) -> list[tuple[str, str]]:
    """Return what a function does, step by step, without how the compiler prepares a call.

    A method of a name that the same text imports is called by other instructions than one of any other name. The cell
    of a notebook is compiled statement by statement, the carried text as a whole.
    """
    shown = []
    for each in dis.get_instructions(code):
        if each.opname not in _CALL_PREPARATION:
            jumps = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
            name = "LOAD_ATTR" if each.opname == "LOAD_METHOD" else each.opname
            shown.append((name, "" if jumps else _NULL.sub("", each.argrepr)))
    return shown


def _list_operators(code: CodeType) -> list[tuple[str, str]]:
    return [(each.opname, each.argrepr) for each in dis.get_instructions(code) if each.opname.startswith(_OPERATORS)]
