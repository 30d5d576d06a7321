"""Source text of a class that no other process can import: from a notebook cell, a prompt, a script or a function.

The text is a module of its own: the class, and all that it names of the place where it was defined. Functions and
classes are included as source text, modules and their members as imports, plain values as literals. The script or
notebook itself is never run again. What has no such form (an open file, a client) is refused by name.

The text is then built once in this process and compared with the live class (rebuilt_class.py). Plain values that
differ, such as an attribute that was set later, are added to the text; any other difference is refused.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import linecache
import logging
import math
import os
import re
import symtable
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TypeAlias, TypeVar

from rollbook.core import MIN_SECRET_LENGTH, list_secret_values, looks_secret
from rollbook.environments.rebuilt_class import ChangedValue, build_module, compare_attributes, compare_names
from rollbook.errors import UsageError

MAX_LITERAL_CHARS = 1_000_000
FUTURE_ANNOTATIONS = 0x1000000
"""The flag of code that was compiled under `from __future__ import annotations`."""


LAMBDA_NAME = "_carried_lambda"
"""A lambda has no name of its own: the text gives it one, and then that of the user."""

KEPT_NAME = "_carried_value"
"""Holds what has a name already, while an older definition of the same name is built."""

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def capture_source(cls: type) -> str:
    """Return the text of a module that defines a class as it is now; UsageError names what cannot be written."""
    capture = _Capture(cls)
    capture.add_definition(cls.__name__, cls)
    capture.add_changed_values()
    return capture.text()


def check_instance(given: object, make: Callable[[], object]) -> None:
    """Refuse an instance with an attribute that was set since it was made: other processes make a new one.

    An attribute that differs between two new ones (a time, a random number) is not the user's change.
    """
    name, fresh = type(given).__name__, make()
    if not (changed := [each.path for each in compare_attributes(given, fresh)]):
        return
    random = {each.path for each in compare_attributes(fresh, make())}
    for path in changed:
        if path not in random:
            raise UsageError(
                f"{name}: {path} differs from that of a new {name}(...), which environment processes make: set it in "
                "__init__ from an argument, or put the class into a file, and set it there"
            )


class _Capture:
    """Collects the definitions that a class needs, each behind those that it needs itself."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._imports: list[str] = []
        self._definitions: list[str] = []
        self._added: dict[str, object] = {}
        self._open: list[object] = []
        self._postponed = False
        self._secrets = list_secret_values(os.environ)

    def text(self) -> str:
        """Return the module."""
        future = ["from __future__ import annotations"] if self._postponed else []
        return "\n\n".join(["\n".join([*future, *sorted(self._imports)]), *self._definitions]) + "\n"

    def add_definition(self, name: str, value: type | FunctionType, whole: object = None) -> None:
        """Add a function or class with all that it names; `whole` is the value with its decorators."""
        self._added[name] = whole or value
        self._open.append(whole or value)
        text, names = _find_source(value, self._cls), {**_find_names(value)}
        if isinstance(value, type):
            names |= self._find_bases(value, text, names)
        self._postponed |= any(code.co_flags & FUTURE_ANNOTATIONS for code in _list_code(value))
        used = sorted(_free_names(text))
        if "__file__" in used and not getattr(self._cls, "files", ()):
            raise UsageError(
                f"{self._cls.__name__} uses __file__, which is a copy in the run directory where scores are computed: "
                "list the files that it reads in the class attribute `files`, or read them outside of the class"
            )
        for each in used:
            if each in names and not _belongs_to_module(each, names[each]):
                self._add(each, names[each])
        self._added[name] = self._open.pop()  # again: a base class may have had the same name
        own_name = value.__name__ if value.__name__ != "<lambda>" else LAMBDA_NAME
        self._definitions.append(text if own_name == name else self._rename(text, own_name, name))

    def _rename(self, text: str, own_name: str, name: str) -> str:
        """Return a definition under another name; what the text has by its own name stays as it is."""
        renamed = f"{text}\n\n{name} = {own_name}"
        if own_name not in self._added or any(each is self._added[own_name] for each in self._open):
            return renamed
        return f"{KEPT_NAME} = {own_name}\n\n{renamed}\n\n{own_name} = {KEPT_NAME}"

    def add_changed_values(self) -> None:
        """Build the text and add the plain values that differ from the live ones; refuse any other difference."""
        known = set[str]()
        while differences := list(compare_names(self._added, self._build())):
            for difference in differences:
                if difference.path in known or not difference.exists:
                    raise self._refuse_difference(difference)
                known.add(difference.path)
                self._add_changed_value(difference)

    def _add_changed_value(self, difference: ChangedValue) -> None:
        if isinstance(difference.live, type | FunctionType | property | staticmethod | classmethod):
            raise self._refuse_difference(difference)
        self._definitions.append(f"{difference.path} = {self._write_value(difference.path, difference.live)}")

    def _build(self) -> dict[str, object]:
        file = getattr(sys.modules.get(self._cls.__module__), "__file__", None) or "notebook.py"
        try:
            return build_module(self.text(), file)
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UsageError(
                f"{self._cls.__name__} does not load from its source text ({what}): {self._advise()}"
            ) from error

    def _find_bases(self, cls: type, text: str, names: Mapping[str, object]) -> dict[str, object]:
        """Return the base classes by the names that the class statement has for them: `class E(E)` means an older E."""
        node = next(each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ClassDef))
        bases = getattr(cls, "__orig_bases__", cls.__bases__)
        if len(bases) != len(node.bases):
            return {}
        pairs = zip(node.bases, bases, strict=True)
        found: dict[str, object] = {}
        found |= {each.id: base for each, base in pairs if isinstance(each, ast.Name) and isinstance(base, type)}
        for name, base in found.items():
            now = names.get(name, base)
            if now is not base and not (isinstance(now, type) and issubclass(now, cls)):
                raise self._refuse(name, f"a base of {cls.__name__} whose name has another value now")
        return found

    def _add(self, name: str, value: object) -> None:
        if self._is_known(name, value):
            return
        if line := _write_import(name, value):
            self._added[name] = value
            self._imports.append(line)
        elif isinstance(inner := inspect.unwrap(value) if callable(value) else value, type | FunctionType):
            self.add_definition(name, inner, value)
        else:
            self._added[name] = value
            self._definitions.append(f"{name} = {self._write_value(name, value)}")

    def _is_known(self, name: str, value: object) -> bool:
        """Whether a name has this value in the text, or will have it in the end; two values are refused."""
        known = self._added.get(name, value)
        if name not in self._added or _is_older(value, known):
            return False
        if known is not value and not any(each is value for each in self._open):
            raise self._refuse(name, "a name that has two values in what it uses")
        return True

    def _write_value(self, name: str, value: object) -> str:
        """Return the expression of a plain value; `name` says where it is, for the message that refuses it."""
        try:
            text = self._write_part(name, value)
        except RecursionError:
            raise self._refuse(name, "a value that contains itself") from None
        if len(text) > MAX_LITERAL_CHARS:
            raise self._refuse(name, f"a value of {len(text):,} characters")
        return text

    def _write_part(self, name: str, value: object) -> str:
        if isinstance(value, str | bytes):
            self._refuse_secret(name, value if isinstance(value, str) else value.decode("latin-1"))
        if type(value) in (list, tuple, set, frozenset, dict):
            return self._write_container(name, value)
        if type(value) is float and not math.isfinite(value):
            return f"float({str(value)!r})"
        if type(value) in (type(None), type(...), bool, int, float, complex, str, bytes, range):
            return repr(value)
        return self._write_object(name, value)

    def _write_container(self, name: str, value: object) -> str:
        if isinstance(value, dict):
            items = [
                (self._write_part(name, key), self._write_part(f"{name}[{key!r}]", each)) for key, each in value.items()
            ]
            return "{" + ", ".join(f"{key}: {each}" for key, each in items) + "}"
        assert isinstance(value, list | tuple | set | frozenset)
        parts = [self._write_part(f"{name}[{place}]", each) for place, each in enumerate(value)]
        inner = ", ".join(parts)
        if isinstance(value, list):
            return f"[{inner}]"
        if isinstance(value, tuple):
            return f"({inner},)" if parts else "()"
        return f"{type(value).__name__}([{inner}])"

    def _write_object(self, name: str, value: object) -> str:
        if isinstance(value, re.Pattern):
            return f"__import__('re').compile({value.pattern!r}, {value.flags})"
        if isinstance(value, PurePath):
            return (
                f"__import__('pathlib').{'Path' if isinstance(value, Path) else type(value).__name__}({str(value)!r})"
            )
        if type(value) is logging.Logger:
            return f"__import__('logging').getLogger({value.name!r})"
        if type(value) is logging.RootLogger:
            return "__import__('logging').getLogger()"
        if type(value) is TypeVar and not value.__bound__ and not value.__constraints__:
            kinds = f"covariant={value.__covariant__}, contravariant={value.__contravariant__}"
            return f"__import__('typing').TypeVar({value.__name__!r}, {kinds})"
        if isinstance(value, Enum):
            return f"{self._write_reference(type(value))}({self._write_part(name, value.value)})"
        if type(value) is functools.partial:
            return self._write_partial(name, value)
        if isinstance(value, type | FunctionType | BuiltinFunctionType):
            return self._write_reference(value)
        raise self._refuse(name, f"an object of type {type(value).__name__}")

    def _write_partial(self, name: str, value: functools.partial[object]) -> str:
        parts = [self._write_part(f"{name}.func", value.func)]
        parts += [self._write_part(f"{name}.args[{place}]", each) for place, each in enumerate(value.args)]
        parts += [f"{key}={self._write_part(f'{name}.{key}', each)}" for key, each in value.keywords.items()]
        return f"__import__('functools').partial({', '.join(parts)})"

    def _write_reference(self, value: type | FunctionType | BuiltinFunctionType) -> str:
        """Return a name for a function or class inside of another value."""
        name = value.__name__ if value.__name__.isidentifier() else LAMBDA_NAME
        if vars(builtins).get(name) is not value or name in self._added:
            self._add(name, value)
        return name

    def _refuse_secret(self, name: str, text: str) -> None:
        """Refuse a value that must not be written to disk; the message does not repeat it."""
        last = re.split(r"[.\[\]'\"]+", name.rstrip("]'\""))[-1]
        by_name = len(text) >= MIN_SECRET_LENGTH and any(map(looks_secret, (last, name.split("[")[0])))
        if by_name or any(secret in text for secret in self._secrets):
            why = "looks like a secret" if by_name else "contains the value of a key variable"
            raise UsageError(
                f"{self._cls.__name__} uses {name}, which {why} and would be written into the run directory: read it "
                "inside a method, from an environment variable"
            )

    def _refuse(self, name: str, what: str) -> UsageError:
        return UsageError(
            f"{self._cls.__name__} uses {name}, {what}, which cannot be carried to environment processes as source "
            f"text: {self._advise()}"
        )

    def _refuse_difference(self, difference: ChangedValue) -> UsageError:
        how = "changed after it was defined, or depends on a name that has another value now"
        return UsageError(
            f"{self._cls.__name__}: {difference.path} {how}, so environment processes would not score as this class "
            f"does: {self._advise()}"
        )

    def _advise(self) -> str:
        return f"put the class into a file of its own, and run file.py:{self._cls.__name__}"


def _is_older(value: object, known: object) -> bool:
    """Whether a class is a base of the class that has its name now."""
    return isinstance(value, type) and isinstance(known, type) and value in known.__mro__[1:]


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
    """Return the text of a definition with its decorators.

    An indented one keeps its indentation, below an `if`: removing it would change the texts of several lines inside.
    """
    read = ""
    for file, line in _list_places(value):
        lines = linecache.getlines(file)
        read = read or (file if lines else "")
        if node := _find_node("".join(lines), value, line):
            if isinstance(node, ast.Lambda):
                return f"{LAMBDA_NAME} = ({ast.get_source_segment(''.join(lines), node)})"
            text = "".join(lines[_first_line(node) - 1 : node.end_lineno]).rstrip()
            return f"if True:\n{text}" if node.col_offset else text
    what = "lambda" if value.__name__ == "<lambda>" else value.__name__
    if not read:
        why = f"Python does not keep the source text of {what} (from -c, standard input, a plain prompt or exec)"
    elif what == "lambda":
        why = f"{read} has not exactly one lambda on the line of the one that it uses"
    else:
        why = f"{read} has no definition of {what} (it was renamed, made by a call, or changed since)"
    raise UsageError(f"{cls.__name__}: {why}: put the class into a file, and run file.py:{cls.__name__}")


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


def _find_node(text: str, value: type | FunctionType, line: int | None) -> Definition | ast.Lambda | None:
    """Return the last definition of that name, around a line where one is given; of a lambda, the only one there."""
    if value.__name__ == "<lambda>":
        return _find_lambda(text, line)
    kinds = (ast.ClassDef,) if isinstance(value, type) else (ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name == value.__name__]
    except SyntaxError:
        return None
    around = [node for node in nodes if line is None or _first_line(node) <= line <= (node.end_lineno or 0)]
    return max(around, key=_first_line, default=None)


def _find_lambda(text: str, line: int | None) -> ast.Lambda | None:
    try:
        found = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Lambda) and each.lineno == line]
    except SyntaxError:
        return None
    return found[0] if len(found) == 1 else None


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _find_names(value: type | FunctionType) -> Mapping[str, object]:
    """Return what names mean in the scope of a definition: globals, and the variables of functions around it."""
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
