"""Source text of a class that no other process can import: from a notebook cell, a prompt, a script or a function.

The text is a module of its own: the class, and all that it names of the place where it was defined. Functions and
classes come along as source text, modules and their members as imports, plain values as literals. The script or
notebook itself is never run again. What has no such form (an open file, a client) is refused by name.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import re
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from types import CodeType, FunctionType, ModuleType
from typing import TypeAlias

from rollbook.errors import UsageError

MAX_LITERAL_CHARS = 1_000_000
FUTURE_ANNOTATIONS = 0x1000000
"""The flag of code that was compiled under `from __future__ import annotations`."""


Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def capture_source(cls: type) -> str:
    """Return the text of a module that defines a class as it is now; UsageError names what cannot be written."""
    capture = _Capture(cls)
    capture.add_definition(cls.__name__, cls)
    return capture.text()


class _Capture:
    """Collects the definitions that a class needs, each behind those that it needs itself."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._imports: list[str] = []
        self._definitions: list[str] = []
        self._added: dict[str, object] = {}
        self._postponed = False

    def text(self) -> str:
        """Return the module."""
        future = ["from __future__ import annotations"] if self._postponed else []
        return "\n\n".join(["\n".join([*future, *sorted(self._imports)]), *self._definitions]) + "\n"

    def add_definition(self, name: str, value: type | FunctionType) -> None:
        """Add a function or class with all that it names."""
        self._added[name] = value
        text, names = _find_source(value, self._cls), _find_names(value)
        self._postponed |= any(code.co_flags & FUTURE_ANNOTATIONS for code in _list_code(value))
        for used in sorted(_free_names(text)):
            if used in names and not _belongs_to_module(used, names[used]):
                self._add(used, names[used])
        self._definitions.append(text if value.__name__ == name else f"{text}\n\n{name} = {value.__name__}")

    def _add(self, name: str, value: object) -> None:
        if name in self._added:
            return
        if line := _write_import(name, value):
            self._added[name] = value
            self._imports.append(line)
        elif isinstance(inner := inspect.unwrap(value) if callable(value) else value, type | FunctionType):
            self.add_definition(name, inner)
        else:
            self._added[name] = value
            self._definitions.append(f"{name} = {self._write_literal(name, value)}")

    def _write_literal(self, name: str, value: object) -> str:
        """Return the text of a plain value."""
        if isinstance(value, re.Pattern):
            return f"__import__('re').compile({value.pattern!r}, {value.flags})"
        if isinstance(value, PurePath):
            return f"__import__('pathlib').Path({str(value)!r})"
        text = repr(value)
        if len(text) > MAX_LITERAL_CHARS:
            raise self._refuse(name, f"a value of {len(text):,} characters")
        try:
            same = ast.literal_eval(text) == value
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            same = False
        if not same:
            raise self._refuse(name, f"an object of type {type(value).__name__}")
        return text

    def _refuse(self, name: str, what: str) -> UsageError:
        return UsageError(
            f"{self._cls.__name__} uses {name}, {what}, which cannot be carried to environment processes as source "
            f"text: put the class into a file of its own, and run file.py:{self._cls.__name__}"
        )


def _belongs_to_module(name: str, value: object) -> bool:
    """Whether every module has a name of its own, or IPython puts it into notebooks in place of a builtin."""
    from_shell = name in vars(builtins) and str(getattr(value, "__module__", "")).startswith("IPython")
    return from_shell or (name.startswith("__") and name.endswith("__"))


def _write_import(name: str, value: object) -> str:
    """Return the statement that imports a value; empty if it cannot be imported."""
    if isinstance(value, ModuleType):
        return _write_module_import(name, value.__name__)
    module, own_name = getattr(value, "__module__", None), getattr(value, "__qualname__", name)
    if not isinstance(module, str) or module == "__main__":
        return ""
    for place in (module.partition(".")[0], module):  # a package's public name rather than the module behind it
        if getattr(sys.modules.get(place), own_name, None) is value:
            return f"from {place} import {own_name}" + (f" as {name}" if own_name != name else "")
    return ""


def _write_module_import(name: str, module: str) -> str:
    if module == "__main__":
        return ""
    return f"import {module}" if module == name else f"import {module} as {name}"


def _find_source(value: type | FunctionType, cls: type) -> str:
    """Return the text of a definition with its decorators."""
    for file, line in _list_places(value):
        lines = linecache.getlines(file)
        if node := _find_node("".join(lines), value, line):
            return textwrap.dedent("".join(lines[_first_line(node) - 1 : node.end_lineno])).rstrip()
    raise UsageError(
        f"{cls.__name__}: the source text of {value.__name__} is not kept by this prompt: put the class into a file, "
        f"and run file.py:{cls.__name__}"
    )


def _list_places(value: type | FunctionType) -> Iterator[tuple[str, int | None]]:
    """Yield files that may hold a definition, with a line of it where that is known.

    A class without a function of its own (an enumeration, a data class) does not say its file: it is in that of its
    module, or in the last notebook cell that defines its name.
    """
    yield from ((code.co_filename, code.co_firstlineno) for code in _list_code(value))
    if own := getattr(sys.modules[value.__module__], "__file__", None):
        yield own, None
    else:
        yield from ((file, None) for file in reversed(linecache.cache))


def _list_code(value: type | FunctionType) -> Iterator[CodeType]:
    """Yield the code of a function, or of the functions that a class defines itself."""
    members = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for member in members:
        inner = getattr(member, "__func__", getattr(member, "fget", member))
        while hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        if isinstance(inner, FunctionType) and (inner is value or inner.__module__ == value.__module__):
            yield inner.__code__


def _find_node(text: str, value: type | FunctionType, line: int | None) -> Definition | None:
    """Return the last definition of that name, around a line where one is given."""
    kinds = (ast.ClassDef,) if isinstance(value, type) else (ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name == value.__name__]
    except SyntaxError:
        return None
    around = [node for node in nodes if line is None or _first_line(node) <= line <= (node.end_lineno or 0)]
    return max(around, key=_first_line, default=None)


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _find_names(value: type | FunctionType) -> Mapping[str, object]:
    """Return what names mean where a definition stands: globals, and the variables of functions around it."""
    functions = [value] if isinstance(value, FunctionType) else _list_functions(value)
    names: dict[str, object] = {} if functions else dict(vars(sys.modules[value.__module__]))
    for function in functions:
        names |= function.__globals__
    if isinstance(value, type):  # a function's own classes are in no scope that outlives the function
        names = {base.__name__: base for base in value.__bases__} | names
    for function in functions:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__":
                names[name] = cell.cell_contents
    return names


def _list_functions(value: type) -> list[FunctionType]:
    members = vars(value).values()
    return [each for each in members if isinstance(each, FunctionType) and each.__module__ == value.__module__]


def _free_names(text: str) -> set[str]:
    """Return the names that a definition takes from outside of it."""
    tables, names = [symtable.symtable(text, "<definition>", "exec")], set[str]()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        at_top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or (at_top and not symbol.is_assigned())):
                names.add(symbol.get_name())
    return names
