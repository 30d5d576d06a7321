from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import pytest

from rollbook.sandbox.inner.plain_data import (
    NONE_KNOWN,
    NotPlain,
    ReceivedArguments,
    iterate_containers,
    pack,
    pack_arguments,
    refill,
    unpack,
    unpack_arguments,
)


def refuse(value: Any) -> Any:
    raise AssertionError(f"{value!r} was to be kept")


def pack_value(value: Any, known: Mapping[int, int] = NONE_KNOWN) -> Any:
    return pack(value, refuse, 0, known)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ([1], [2, 3]),
        ([[1], 2], [[3, 4], [5]]),
        ([1, 2], []),
        ({1: [2], 3: 4}, {1: [5], 6: {}}),
        ({1: 2}, {3: 4}),
        ({1}, {2}),
        (deque([1]), deque([5])),
        (bytearray(b"a"), bytearray(b"bc")),
    ],
)
def test_a_container_takes_on_what_another_holds(value: Any, data: Any) -> None:
    refill(value, data)
    assert value == data


@pytest.mark.parametrize("data", [(1,), {1: 2}, 5, None])
def test_but_only_of_its_kind(data: Any) -> None:
    with pytest.raises(NotPlain):
        refill([1], data)


def test_containers_are_counted_from_without_to_within() -> None:
    row, names = [1], {"a": {2}}
    found = [*iterate_containers(["x", (row, 5), names, Counter("a"), deque([row])])]
    assert found == [row, names, {2}, Counter("a"), deque([row]), row]


def test_only_what_holds_something_else_has_changed() -> None:
    table: list[Any] = [[1, 2], [3]]
    arrived = ReceivedArguments([table])
    assert arrived.pack_changes(pack_value) == []
    table.reverse()
    table[0].append(table[1])
    assert arrived.pack_changes(pack_value) == [
        [0, ["l", [["yours", 2], ["yours", 1]]]],
        [2, ["l", [3, ["yours", 1]]]],
    ]


def test_containers_that_stay_are_not_counted() -> None:
    own, row = {"a": [1]}, [2]
    assert [*iterate_containers([own, [row]], {id(own)})] == [[row], row]


def test_a_container_that_is_given_twice_is_one() -> None:
    row = [1]
    sent = pack_arguments([row, "a", "a", row, [1]], pack_value)
    assert sent == [["l", [1]], "a", "a", ["same", 0], ["l", [1]]]
    first, _, _, again, other = unpack_arguments(sent, lambda data: unpack(data, lambda *_: refuse(data)))
    assert (first is again, first is other) == (True, False)
