"""Values as plain data: what may cross between two sandboxes. Runs inside them: the standard library and nothing else.

A value is packed as JSON. What JSON has no form for is tagged: `["t", [1, 2]]` is a tuple. Subclasses cross as the data
they hold, so that nobody's `__eq__` crosses with them; every other object stays, and a handle to it crosses.
"""

from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

DEEPEST = 150
LARGE = 1 << 63

_MAKERS: dict[str, Callable[[Any], Any]] = {
    "l": list,
    "t": tuple,
    "s": set,
    "z": frozenset,
    "q": deque,
    "b": bytes.fromhex,
    "a": bytearray.fromhex,
    "i": lambda text: int(text, 16),
    "f": float,
    "c": lambda pair: complex(*map(float, pair)),
    "r": lambda bounds: range(*bounds),
    "D": Decimal,
    "F": lambda pair: Fraction(int(pair[0], 16), int(pair[1], 16)),
}


class NotPlain(Exception):
    """A value too deep, or data that nobody packed."""


def pack(value: Any, keep: Callable[[Any], Any], deep: int = 0) -> Any:
    """A value as JSON; `keep` packs an object that cannot cross."""
    if value is None or value is True or value is False:
        return value
    if deep > DEEPEST:
        raise NotPlain(f"nested more than {DEEPEST} deep")
    kind = type(value)
    for base, packed in _PACKERS:
        if issubclass(kind, base):
            return packed(value, lambda inner: pack(inner, keep, deep + 1))
    return keep(value)


def _float(value: float, _: Any) -> Any:
    plain = float.__pos__(value)
    return plain if plain - plain == 0 else ["f", float.__repr__(plain)]


def _integer(value: int, _: Any) -> Any:
    plain = int.__index__(value)
    return plain if -LARGE < plain < LARGE else ["i", hex(plain)]


def _items(tag: str, base: type) -> Callable[[Any, Any], Any]:
    walk: Callable[[Any], Any] = base.__iter__  # type: ignore[attr-defined]
    return lambda value, inner: [tag, [inner(item) for item in walk(value)]]


def _pairs(value: Any, inner: Any) -> Any:
    return ["d", [[inner(key), inner(item)] for key, item in dict.items(value)]]


_PACKERS: list[tuple[type, Callable[[Any, Any], Any]]] = [
    (int, _integer),
    (float, _float),
    (str, lambda value, _: str.__str__(value)),
    (list, _items("l", list)),
    (tuple, _items("t", tuple)),
    (dict, _pairs),
    (set, _items("s", set)),
    (frozenset, _items("z", frozenset)),
    (deque, _items("q", deque)),
    (bytes, lambda value, _: ["b", bytes.hex(value)]),
    (bytearray, lambda value, _: ["a", bytearray.hex(value)]),
    (complex, lambda value, _: ["c", [repr(complex.__pos__(value).real), repr(complex.__pos__(value).imag)]]),
    (range, lambda value, _: ["r", [value.start, value.stop, value.step]]),
    (Decimal, lambda value, _: ["D", Decimal.__str__(value)]),
    (Fraction, lambda value, _: ["F", [hex(value.numerator), hex(value.denominator)]]),
]


def unpack(data: Any, find: Callable[[str, Any], Any], deep: int = 0) -> Any:
    """The value; `find` gives what stands for a handle. NotPlain for what `pack` never makes."""
    if not isinstance(data, list):
        if data is None or isinstance(data, bool | int | float | str):
            return data
        raise NotPlain("not a packed value")
    if deep > 2 * DEEPEST or len(data) != 2 or not isinstance(data[0], str):
        raise NotPlain("not a packed value")
    tag, held = data
    try:
        if tag in "ltszq":
            return _MAKERS[tag](unpack(item, find, deep + 1) for item in held)
        if tag == "d":
            return {unpack(key, find, deep + 1): unpack(item, find, deep + 1) for key, item in held}
        return _MAKERS[tag](held) if tag in _MAKERS else find(tag, held)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise NotPlain(f"not a packed value: {error}") from None


def refill(value: Any, data: Any) -> None:
    """Make a container hold what another one holds: how a change made elsewhere comes home."""
    if isinstance(value, list | bytearray):
        value[:] = data
    else:
        value.clear()
        if isinstance(value, deque):
            value.extend(data)
        else:
            value.update(data)


MUTABLE = (list, dict, set, deque, bytearray)
