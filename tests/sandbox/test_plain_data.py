from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.sandbox.inner.plain_data import CONTAINERS, MAX_DEPTH, NotPlain, pack, unpack

keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
moments = st.dates() | st.datetimes(timezones=st.none() | st.just(UTC)) | st.times() | st.timedeltas()
leaves = keys | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False) | moments
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(deque)
        | st.sets(keys)
        | st.frozensets(keys)
        | st.dictionaries(keys, inner)
    ),
    max_leaves=20,
)


def refuse(value: Any) -> Any:
    raise AssertionError(f"{value!r} was to be kept")


def pack_and_unpack(value: Any) -> Any:
    return unpack(json.loads(json.dumps(pack(value, refuse))), lambda tag, held: refuse(held))


def same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, list | tuple | deque):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return same([*one.items()], [*two.items()])
    return bool(one == two)


@given(values)
def test_plain_data_arrives_as_it_was_with_its_types(value: Any) -> None:
    assert same(pack_and_unpack(value), value)


@pytest.mark.parametrize(
    "value",
    [1 << 9000, -(2**63), 2**63, float("inf"), -0.0, range(3, 9, 2), bytearray(b"x")],
    ids=lambda v: type(v).__name__,
)
def test_what_json_cannot_hold_arrives_too(value: Any) -> None:
    assert same(pack_and_unpack(value), value)
    assert str(pack_and_unpack(-0.0)) == "-0.0"
    assert pack_and_unpack(float("nan")) != pack_and_unpack(float("nan"))


class Yes(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 7

    __int__ = __index__


class Texts(str):
    def __str__(self) -> str:
        return "lies"


class Items(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter("lies")


class Pair(tuple):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter("lies")


class Tally(Counter[str]):
    def __eq__(self, other: object) -> bool:
        return True


class Moment(datetime):
    def isoformat(self, sep: str = "T", timespec: str = "auto") -> str:
        return "2000-01-01"


EAST = timezone(timedelta(hours=5, minutes=30))
Point = namedtuple("Point", "x y")


class Named(Point):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = Point.__hash__


Colour = IntEnum("Colour", "RED GREEN")


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Yes(5), 5),
        (Texts("true"), "true"),
        (Items([1, 2]), [1, 2]),
        (Pair([1, 2]), (1, 2)),
        (Moment(2024, 2, 29, 1, tzinfo=EAST), datetime(2024, 2, 29, 1, tzinfo=EAST)),
        (date(2024, 2, 29), date(2024, 2, 29)),
        (Colour.GREEN, 2),
        (Tally("aab"), Counter("aab")),
        (defaultdict(lambda: 1, a=1), {"a": 1}),
    ],
)
def test_a_subclass_crosses_as_the_data_it_holds(value: Any, data: Any) -> None:
    assert same(pack_and_unpack(value), data)


@pytest.mark.parametrize(
    "value",
    [
        Counter("aab"),
        OrderedDict(b=1, a=[2]),
        defaultdict(list, a=[1]),
        deque([1, 2], 2),
        slice(1, None, -1),
        {"a": (Counter([(1, 2)]), slice(0, 1))},
    ],
)
def test_pythons_own_containers_are_themselves_again(value: Any) -> None:
    assert same(pack_and_unpack(value), value)


def test_what_they_do_beside_is_what_pythons_own_do() -> None:
    assert pack_and_unpack(defaultdict(int))["nothing yet"] == 0
    assert pack_and_unpack(deque([1], 2)).maxlen == 2
    assert pack_and_unpack(Counter("aab")).most_common(1) == [("a", 2)]


def test_a_named_tuple_has_its_fields_and_no_method_of_the_codes() -> None:
    there = pack_and_unpack(Named(1, [2]))
    assert (there, there.x, there.y, there._fields) == ((1, [2]), 1, [2], ("x", "y"))
    assert type(there) is type(pack_and_unpack(Named(3, 4)))
    assert type(there).__eq__ is tuple.__eq__


def test_every_other_object_is_kept() -> None:
    kept: list[object] = []
    thing = object()
    packed = pack([thing, len], lambda value: ["handle", kept.append(value)])
    assert kept == [thing, len]
    assert unpack(packed, lambda tag, held: tag) == ["handle", "handle"]


@pytest.mark.parametrize("kind", [int, bool, list, frozenset, type(None), ValueError, OSError, KeyboardInterrupt])
def test_pythons_own_classes_cross_by_name(kind: type) -> None:
    assert pack_and_unpack([kind])[0] is kind


def test_other_classes_stay() -> None:
    for kind in (Yes, object, type, zip):
        assert pack(kind, lambda value: ["kept", value.__name__]) == ["kept", kind.__name__]


def test_the_views_of_a_dict_cross_as_such() -> None:
    for held in ({1: [2], 3: 4}, OrderedDict(a=1)):
        assert pack_and_unpack(held.keys()) == held.keys()
        assert [*pack_and_unpack(held.values())] == [*held.values()]
        assert [*pack_and_unpack(held.items())] == [*held.items()]


def test_an_object_of_a_class_that_stays_is_kept_though_it_holds_data() -> None:
    held = [Items([1]), Yes(5), [2]]
    packed = pack(held, lambda value: ["kept", 0], stays=lambda kind: kind is Items and issubclass(kind, CONTAINERS))
    assert packed == ["l", [["kept", 0], 5, ["l", [2]]]]


def test_what_is_too_deep_or_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotPlain, match=f"more than {MAX_DEPTH} deep"):
        pack(endless, refuse)


@pytest.mark.parametrize(
    "data",
    [
        {},
        ["l"],
        ["l", 1],
        ["l", [{}]],
        [1, 2],
        ["d", [1]],
        ["s", [["l", []]]],
        ["f", "x"],
        ["F", ["1", "0"]],
        ["b", "x"],
        ["T", "never"],
        ["Y", 5],
        ["E", [1, "x"]],
        ["E", 5],
        ["C", "object"],
        ["C", []],
        ["K", [["l", []]]],
        ["S", []],
        ["S", [["C", "int"]]],
        ["n", [["a b", ["x"]], [1]]],
        ["n", [["P", ["x"]], []]],
        ["n", [["P", ["startswith"]], [["C", "bool"]]]],
        ["Q", ["x", []]],
        ["m", [["Counter", ""], [1]]],
        ["m", [["object", ""], []]],
        ["m", [["defaultdict", "object"], []]],
        ["m", [["defaultdict", ""], []]],
    ],
)
def test_what_nobody_packed_is_refused(data: Any) -> None:
    with pytest.raises(NotPlain):
        unpack(data, lambda tag, held: refuse(held))
