"""Values as plain data: what may cross between two sandboxes. Runs inside them: only the standard library.

A value is packed as JSON. What JSON cannot express is tagged: `["t", [1, 2]]` is a tuple. Subclasses cross as the data
they hold, so that no `__eq__` crosses with them, and numpy's numbers as Python's; Python's own types of data and errors
cross by name; every other object stays, and a handle to it crosses.

The containers among a call's arguments may be changed or returned by the code that is called. Both ends number them in
the order in which they occur, so that the answer can name them: a change is made to the caller's own container, and an
argument that the other end returns is the caller's own object again.
"""

import builtins
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from operator import is_not
from typing import Any, NamedTuple

MAX_DEPTH = 150
LARGE = 1 << 63
NONE_KNOWN: Mapping[int, int] = {}
MUTABLE = (list, dict, set, deque, bytearray)
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
MAPPINGS = (Counter, OrderedDict, defaultdict)
_EMPTY: dict[Any, Any] = {}
_KEYS, _VALUES, _PAIRS = type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items())

_MAKERS: dict[str, Callable[[Any], Any]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "z": frozenset,
    "q": deque,
    "K": lambda items: dict.fromkeys(items).keys(),
    "V": lambda items: dict(enumerate(items)).values(),
    "I": lambda items: dict(items).items(),
    "b": bytes.fromhex,
    "a": bytearray.fromhex,
    "i": lambda text: int(text, 16),
    "f": float,
    "c": lambda pair: complex(*map(float, pair)),
    "r": lambda bounds: range(*bounds),
    "S": lambda parts: slice(*refuse_functions([*parts])),
    "C": lambda name: _CLASSES[name],
}
_CONTAINER_TAGS = frozenset("ltszqKVIS")

_DATA = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, type(None))
ERRORS = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
}
_CLASSES: dict[str, type] = {**{kind.__name__: kind for kind in _DATA}, **ERRORS}
_CLASS_NAMES = {kind: name for name, kind in _CLASSES.items()}


_ADDITIONS = ("add", "append", "appendleft", "extend", "extendleft", "insert", "update")
_PARTS = ("start", "stop", "step", "real", "imag", "numerator", "denominator")
READ_ATTRIBUTES = frozenset(name for kind in (*_DATA, deque) for name in dir(kind)) - {*_ADDITIONS, *_PARTS}
"""Attributes by which tests look at plain data. They do not add to what a function has returned, nor take a number or a
range apart: tests that do so mean an object. But they may judge by `remove`, which raises for what is not there."""


class NotPlain(Exception):
    """A value nested too deep, or data that was not made by `pack`."""


def pack(
    value: Any,
    keep: Callable[[Any], Any],
    depth: int = 0,
    known: Mapping[int, int] = NONE_KNOWN,
    stays: Callable[[type], bool] | None = None,
) -> Any:
    """Return a value as JSON; `keep` packs an object that cannot cross, or one of a class that `stays` although it
    holds data. An object whose id is `known` crosses as that number."""
    kind = type(value)
    if value is None or kind is bool or kind is str or (kind is int and -LARGE < value < LARGE):
        return value
    if depth > MAX_DEPTH:
        raise NotPlain(f"nested more than {MAX_DEPTH} deep")
    if known and id(value) in known:
        return ["yours", known[id(value)]]
    for base, pack_kind in _PACKERS:
        if issubclass(kind, base):
            if stays and stays(kind):
                return keep(value)
            return pack_kind(value, lambda inner: pack(inner, keep, depth + 1, known, stays))
    number = _to_python_number(value)
    return _pack_class(value) or _pack_lazy(value) or keep(value) if number is None else pack(number, keep, depth + 1)


def refuse_functions(items: list[Any]) -> list[Any]:
    """Refuse functions among named items: a function there would be a method in all but name."""
    if any(map(callable, items)):
        raise NotPlain("a function where data belongs")
    return items


def _pack_class(value: Any) -> Any:
    """Pack one of Python's own classes."""
    return ["C", _CLASS_NAMES[value]] if type(value) is type and value in _CLASS_NAMES else None


def _to_python_number(value: Any) -> Any:
    """Return a number of numpy's as Python's own; None for anything else."""
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    if not generic or not issubclass(type(value), generic):
        return None
    plain = generic.item(value)
    return plain if type(plain) in (bool, int, float, complex) else None


def _pack_lazy(value: Any) -> Any:
    """Pack a value of a module that is loaded already."""
    for tag, lazy_type in _LAZY_TYPES.items():
        base = getattr(sys.modules.get(lazy_type.module), lazy_type.name, None)
        if base and issubclass(type(value), base):
            return [tag, lazy_type.pack(base, value)]
    return None


class LazyType(NamedTuple):
    """A type whose module is loaded only when needed: every guest pays for what its zygote has loaded."""

    module: str
    name: str
    pack: Callable[[Any, Any], Any]
    make: Callable[[Any, Any], Any]


def _iso(base: Any, value: Any) -> Any:
    return base.isoformat(value)


def _from_iso(base: Any, text: Any) -> Any:
    return base.fromisoformat(text)


_LAZY_TYPES = {
    "D": LazyType("decimal", "Decimal", lambda base, value: base.__str__(value), lambda base, text: base(text)),
    "F": LazyType(
        "fractions",
        "Fraction",
        lambda _, value: [hex(value.numerator), hex(value.denominator)],
        lambda base, pair: base(int(pair[0], 16), int(pair[1], 16)),
    ),
    "T": LazyType("datetime", "datetime", _iso, _from_iso),
    "Y": LazyType("datetime", "date", _iso, _from_iso),
    "H": LazyType("datetime", "time", _iso, _from_iso),
    "E": LazyType(
        "datetime",
        "timedelta",
        lambda _, value: [value.days, value.seconds, value.microseconds],
        lambda base, parts: base(*parts),
    ),
}


def _float(value: float, _: Any) -> Any:
    plain = float.__pos__(value)
    return plain if plain - plain == 0 else ["f", float.__repr__(plain)]


def _integer(value: int, _: Any) -> Any:
    plain = int.__index__(value)
    return plain if -LARGE < plain < LARGE else ["i", hex(plain)]


def _items(tag: str, base: type) -> Callable[[Any, Any], Any]:
    walk: Callable[[Any], Any] = base.__iter__  # type: ignore[attr-defined]
    return lambda value, inner: [tag, [inner(item) for item in walk(value)]]


def _tuple(value: Any, inner: Any) -> Any:
    items = [inner(item) for item in tuple.__iter__(value)]
    fields = getattr(type(value), "_fields", None)
    named = type(value) is not tuple and type(fields) is tuple and len(fields) == len(items)
    if not named or any(map(callable, tuple.__iter__(value))):
        return ["t", items]
    return ["n", [[type(value).__name__, fields], items]]


def _deque(value: Any, inner: Any) -> Any:
    items = [inner(item) for item in deque.__iter__(value)]
    return ["q", items] if value.maxlen is None else ["Q", [value.maxlen, items]]


def _dict(value: Any, inner: Any) -> Any:
    pairs = [[inner(key), inner(item)] for key, item in dict.items(value)]
    kind = None if type(value) is dict else _describe_mapping(value)
    return ["m", [kind, [part for pair in pairs for part in pair]]] if kind else ["d", pairs]


def _describe_mapping(value: Any) -> list[str] | None:
    """Return which kind of dict it is; a defaultdict with a factory that is not a Python class is a dict."""
    kind = next((kind for kind in MAPPINGS if issubclass(type(value), kind)), None)
    if kind is not defaultdict:
        return kind and [kind.__name__, ""]
    factory = value.default_factory
    return [kind.__name__, _CLASS_NAMES[factory]] if type(factory) is type and factory in _CLASS_NAMES else None


def _make_mapping(name: str, factory: str, items: dict[Any, Any]) -> Any:
    kinds: dict[str, Any] = {kind.__name__: kind for kind in MAPPINGS}
    return kinds[name](_CLASSES[factory], items) if factory else kinds[name](items)


@lru_cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    """Return the same class for the same fields, with no method but Python's own."""
    return namedtuple(name, fields, rename=True)


_SHAPED_MAKERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "n": lambda about, items: _named_tuple(about[0], tuple(about[1]))(*refuse_functions(items)),
    "Q": lambda most, items: deque(items, most),
    "m": lambda about, items: _make_mapping(about[0], about[1], dict(zip(items[::2], items[1::2], strict=True))),
}
"""Containers that are packed with more than their items."""


_PACKERS: list[tuple[type, Callable[[Any, Any], Any]]] = [
    (int, _integer),
    (float, _float),
    (str, lambda value, _: str.__str__(value)),
    (list, _items("l", list)),
    (tuple, _tuple),
    (dict, _dict),
    (set, _items("s", set)),
    (frozenset, _items("z", frozenset)),
    (deque, _deque),
    (slice, lambda value, inner: ["S", [inner(value.start), inner(value.stop), inner(value.step)]]),
    (_KEYS, _items("K", _KEYS)),
    (_VALUES, _items("V", _VALUES)),
    (_PAIRS, _items("I", _PAIRS)),
    (bytes, lambda value, _: ["b", bytes.hex(value)]),
    (bytearray, lambda value, _: ["a", bytearray.hex(value)]),
    (complex, lambda value, _: ["c", [repr(complex.__pos__(value).real), repr(complex.__pos__(value).imag)]]),
    (range, lambda value, _: ["r", [value.start, value.stop, value.step]]),
]


def unpack(data: Any, find: Callable[[str, Any], Any], depth: int = 0) -> Any:
    """Return the value; `find` returns the object that a handle stands for. NotPlain for what `pack` never makes."""
    if not isinstance(data, list):
        if data is None or isinstance(data, bool | int | float | str):
            return data
        raise NotPlain("not a packed value")
    if depth > 2 * MAX_DEPTH or len(data) != 2 or not isinstance(data[0], str):
        raise NotPlain("not a packed value")
    tag, content = data
    try:
        if tag in _CONTAINER_TAGS:
            return _MAKERS[tag](unpack(item, find, depth + 1) for item in content)
        if tag in _SHAPED_MAKERS:
            about, items = content
            return _SHAPED_MAKERS[tag](about, [unpack(item, find, depth + 1) for item in items])
        if tag == "d":
            return {unpack(key, find, depth + 1): unpack(item, find, depth + 1) for key, item in content}
        if lazy_type := _LAZY_TYPES.get(tag):
            return lazy_type.make(getattr(import_module(lazy_type.module), lazy_type.name), content)
        return _MAKERS[tag](content) if tag in _MAKERS else find(tag, content)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise NotPlain(f"not a packed value: {error}") from None


_SCALARS = frozenset({int, str, float, bool, type(None), bytes})


def iterate_containers(values: Iterable[Any], local_ids: Collection[int] = ()) -> Iterator[Any]:
    """Yield every mutable container, from the outside in, except objects in `local_ids`, which do not cross."""
    for value in values:
        kind = type(value)
        if kind in _SCALARS or (local_ids and id(value) in local_ids):
            continue
        if issubclass(kind, MUTABLE):
            yield value
        if issubclass(kind, list | tuple | deque):
            yield from iterate_containers(value, local_ids)
        elif issubclass(kind, dict):
            yield from iterate_containers(dict.values(value), local_ids)


def pack_arguments(arguments: Sequence[Any], pack: Callable[[Any], Any]) -> list[Any]:
    """Pack the arguments of a call; a container that occurs twice among them is also one object at the other end."""
    positions: dict[int, int] = {}
    packed = []
    for position, value in enumerate(arguments):
        first = positions.setdefault(id(value), position)
        packed.append(["same", first] if first < position and issubclass(type(value), MUTABLE) else pack(value))
    return packed


def unpack_arguments(packed: Iterable[Any], unpack: Callable[[Any], Any]) -> list[Any]:
    """Unpack the arguments of a call."""
    arguments: list[Any] = []
    for data in packed:
        is_repeated = type(data) is list and data[:1] == ["same"]
        arguments.append(arguments[data[1]] if is_repeated else unpack(data))
    return arguments


class ReceivedArguments:
    """The containers that came with a call, and their contents at that time."""

    def __init__(self, arguments: Iterable[Any], local_ids: Collection[int] = ()) -> None:
        self._containers = [*iterate_containers(arguments, local_ids)]
        self._before = [_list_contents(value) for value in self._containers]
        self.numbers = {id(value): number for number, value in enumerate(self._containers)}

    def pack_changes(self, pack: Callable[[Any, Mapping[int, int]], Any]) -> list[Any]:
        """Return the number and the packed contents of each container that has changed."""
        return [
            [number, pack(value.copy(), self.numbers)]
            for number, value in enumerate(self._containers)
            if _are_different(self._before[number], _list_contents(value))
        ]


def _list_contents(value: Any) -> list[Any]:
    return [*value, *value.values()] if issubclass(type(value), dict) else [*value]


def _are_different(before: list[Any], now: list[Any]) -> bool:
    return len(before) != len(now) or any(map(is_not, before, now))


def refill(value: Any, data: Any) -> None:
    """Replace the contents of a container by those of another one, to apply a change made at the other end."""
    kind: type = dict if type(data) in MAPPINGS else type(data)
    if kind not in MUTABLE or not issubclass(type(value), kind):
        raise NotPlain("not an answer")
    if isinstance(data, list | bytearray):
        value[:] = data
        return
    value.clear()
    (value.extend if isinstance(data, deque) else value.update)(data)
