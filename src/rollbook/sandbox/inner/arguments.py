"""The containers among a call's arguments, which the one called may change or give back.

Both ends number them in the order in which they come, so that the answer can name them: a change is made to the very
container that the caller holds, and what the other end gives back of its arguments is the caller's own again.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import is_not
from typing import Any

from .plain import MAPPINGS, MUTABLE, NotPlain

_SCALARS = frozenset({int, str, float, bool, type(None), bytes})


def containers(values: Iterable[Any], stay: Collection[int] = ()) -> Iterator[Any]:
    """Every container that can be changed, from without to within; but those whose ids `stay` do not cross."""
    for value in values:
        kind = type(value)
        if kind in _SCALARS or (stay and id(value) in stay):
            continue
        if issubclass(kind, MUTABLE):
            yield value
        if issubclass(kind, list | tuple | deque):
            yield from containers(value, stay)
        elif issubclass(kind, dict):
            yield from containers(dict.values(value), stay)


def pack_given(given: Sequence[Any], pack: Callable[[Any], Any]) -> list[Any]:
    """The arguments of a call; a container that stands among them twice is one there too."""
    places: dict[int, int] = {}
    packed = []
    for place, value in enumerate(given):
        first = places.setdefault(id(value), place)
        packed.append(["same", first] if first < place and issubclass(type(value), MUTABLE) else pack(value))
    return packed


def unpack_given(packed: Iterable[Any], unpack: Callable[[Any], Any]) -> list[Any]:
    """The arguments again."""
    given: list[Any] = []
    for data in packed:
        again = type(data) is list and data[:1] == ["same"]
        given.append(given[data[1]] if again else unpack(data))
    return given


class Arrived:
    """The containers that came with a call, as they were."""

    def __init__(self, given: Iterable[Any], stay: Collection[int] = ()) -> None:
        self._held = [*containers(given, stay)]
        self._before = [_contents(value) for value in self._held]
        self.numbers = {id(value): number for number, value in enumerate(self._held)}

    def changed(self, pack: Callable[[Any, Mapping[int, int]], Any]) -> list[Any]:
        """The number and the packed contents of each that holds something else now."""
        return [
            [number, pack(value.copy(), self.numbers)]
            for number, value in enumerate(self._held)
            if _differ(self._before[number], _contents(value))
        ]


def _contents(value: Any) -> list[Any]:
    return [*value, *value.values()] if issubclass(type(value), dict) else [*value]


def _differ(before: list[Any], now: list[Any]) -> bool:
    return len(before) != len(now) or any(map(is_not, before, now))


def refill(value: Any, data: Any) -> None:
    """Make a container hold what another one holds: how a change made elsewhere comes home."""
    kind: type = dict if type(data) in MAPPINGS else type(data)
    if kind not in MUTABLE or not issubclass(type(value), kind):
        raise NotPlain("not an answer")
    if isinstance(data, list | bytearray):
        value[:] = data
        return
    value.clear()
    (value.extend if isinstance(data, deque) else value.update)(data)
