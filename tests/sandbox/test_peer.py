"""Both ends of an examination, tests and candidate, in two threads of this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.inner.handles import RemoteObject, kind_of
from rollbook.sandbox.inner.peer import OneProcess, Peer, PeerGone, RemoteError
from rollbook.sandbox.inner.plain_data import NotPlain


class Account:
    def __init__(self, owner: str) -> None:
        self.owner, self.balance = owner, 0

    def pay(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1

    def __len__(self) -> int:
        return self.balance

    def __iter__(self) -> Iterator[str]:
        return iter(self.owner)


class Odd(Exception):
    pass


def odd() -> None:
    raise Odd("how odd", 3)


def divide(a: float, b: float) -> float:
    return a / b


def count(limit: int) -> Iterator[int]:
    yield from range(limit)


def fill(items: list[int], more: dict[str, int]) -> None:
    items.sort()
    more["n"] = len(items)


def apply(function: Any, *values: Any) -> Any:
    return function(*values)


def pick(thing: Any, name: str) -> Any:
    return getattr(thing, name)


def stop() -> None:
    raise StopIteration


def pop(items: list[int]) -> int:
    return items.pop()


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def transpose(table: list[list[int]]) -> None:
    table[:] = [list(row) for row in zip(*table, strict=True)]


def apply_here(name: str, value: Any) -> Any:
    return sorted(value) if name == "sorted" else value[0].sort()


ECHO_ = lambda *values, **named: (values, named)  # noqa: E731
CANDIDATE = [Account, odd, divide, count, fill, apply, pick, ECHO_, stop, pop, later, transpose, apply_here]
ACCOUNT, ODD, DIVIDE, COUNT, FILL, APPLY, PICK, ECHO, STOP, POP, LATER, TRANSPOSE, APPLY_HERE = range(13)


@contextmanager
def start_peers(weak: bool = False, copies: bool = False, data: bool = False) -> Iterator[Peer]:
    ours, theirs = socket.socketpair()
    candidate = Peer(Channel(theirs.detach()))
    for each in CANDIDATE:
        candidate.expose(each)
    thread = Thread(target=candidate.serve)
    thread.start()
    channel = Channel(ours.detach(), timeout_s=10)
    try:
        yield Peer(channel, guarded=True, weak=weak, copies=copies, data=data)
    finally:
        channel.close()
        thread.join(10)
        assert not thread.is_alive()


def call(peer: Peer, number: int, *args: Any, **kwargs: Any) -> Any:
    return peer.ask("call", number, args, kwargs)


def test_values_cross_with_their_types() -> None:
    with start_peers() as peer:
        assert call(peer, ECHO, 1, "a", (2.5, {3}), x=None) == ((1, "a", (2.5, {3})), {"x": None})
        assert call(peer, DIVIDE, 7, 2) == 3.5


@pytest.mark.parametrize("weak", [False, True])
def test_what_a_function_that_returns_nothing_does_to_its_arguments_is_done_to_the_callers(weak: bool) -> None:
    with start_peers(weak) as peer:
        items, more = [3, 1, 2], {"old": 0}
        assert call(peer, FILL, items, more=more) is None
        assert (items, more) == ([1, 2, 3], {"old": 0, "n": 3})
        first, second = table = [[1, 2], [3, 4]]
        call(peer, TRANSPOSE, table)
        assert (table, first, second) == ([[1, 3], [2, 4]], [1, 2], [3, 4])
        assert not peer.weakened


def test_what_one_that_returns_a_value_does_beside_is_seen_and_noted() -> None:
    items = [3, 1, 2]
    with start_peers(copies=True) as peer:
        assert call(peer, POP, items) == 2
        assert (items, peer.has_side_effects) == ([3, 1, 2], False)
    with start_peers() as peer:
        assert call(peer, POP, items) == 2
        assert (items, peer.has_side_effects) == ([3, 1], True)


def test_what_lies_within_an_argument_is_changed_and_given_back_as_the_callers_own() -> None:
    with start_peers() as peer:
        first, second = table = [[2], [1]]
        assert call(peer, APPLY_HERE, "sorted", table)[0] is second
        assert peer.has_side_effects
        assert call(peer, APPLY_HERE, "sort", (table,)) is None
        assert (table[0] is second, table[1] is first) == (True, True)
    with start_peers(copies=True) as peer:
        assert call(peer, APPLY_HERE, "sorted", table) == table
        assert call(peer, APPLY_HERE, "sorted", table)[0] is not table[0]


def test_what_the_tests_do_to_arguments_of_the_candidate_is_done_too() -> None:
    def grow(items: list[int]) -> None:
        items.append(len(items))

    def twice(function: Any) -> list[int]:
        items: list[int] = []
        function(items)
        function(items)
        return items

    ours, theirs = socket.socketpair()
    candidate = Peer(Channel(theirs.detach()))
    candidate.expose(twice)
    thread = Thread(target=candidate.serve)
    thread.start()
    channel = Channel(ours.detach(), timeout_s=10)
    assert call(Peer(channel, guarded=True), 0, grow) == [0, 1]
    channel.close()
    thread.join(10)


def test_a_coroutine_is_awaited_where_it_is() -> None:
    async def both(peer: Peer) -> list[Any]:
        return [await call(peer, LATER, 1), *await asyncio.gather(call(peer, LATER, [2]), call(peer, LATER, None))]

    with start_peers() as peer:
        assert asyncio.run(call(peer, LATER, 3)) == 3
        assert asyncio.run(both(peer)) == [1, [2], None]


def test_that_the_other_end_was_gone_stays_so_whatever_the_tests_catch() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    peer = Peer(Channel(ours.detach(), timeout_s=10), guarded=True)
    with contextlib.suppress(BaseException):
        peer.ask("call", 0, (), {})
    assert isinstance(peer.find_objection(None), PeerGone)


def test_an_end_of_iteration_out_of_a_call_does_not_end_a_loop_of_the_tests() -> None:
    with start_peers() as peer, pytest.raises(RemoteError):
        all(map(lambda x: call(peer, STOP) == x, [1, 2, 3]))  # noqa: C417 - as tests are written


def test_exceptions_arrive_as_what_they_are() -> None:
    with start_peers() as peer:
        with pytest.raises(ZeroDivisionError, match="division by zero"):
            call(peer, DIVIDE, 1, 0)
        with pytest.raises(RemoteError) as caught:
            call(peer, ODD)
        assert (type(caught.value).__name__, caught.value.args) == ("Odd", ("how odd", 3))


def test_objects_stay_and_handles_do_what_they_do() -> None:
    with start_peers() as peer:
        account = call(peer, ACCOUNT, "Ann")
        assert type(account) is RemoteObject
        assert (account.owner, account.pay(5), account.pay(amount=2), len(account), list(account)) == (
            "Ann", 5, 7, 7, ["A", "n", "n"],
        )  # fmt: skip
        assert list(call(peer, COUNT, 3)) == [0, 1, 2]
        assert call(peer, PICK, account, "balance") == 7, "a handle goes home as the object it is"


def test_no_verdict_rests_on_the_candidates_own_equality() -> None:
    with start_peers() as peer:
        account = call(peer, ACCOUNT, "Ann")
        for judge in (lambda: account == 5, lambda: account != 5, lambda: account < 5, lambda: account == 5):
            with pytest.raises(OneProcess):
                judge()
        with pytest.raises(OneProcess):
            isinstance(5, account)


def test_where_it_may_it_is_noted() -> None:
    with start_peers(weak=True) as peer:
        account = call(peer, ACCOUNT, "Ann")
        assert not peer.weakened
        assert account == 5
        assert peer.weakened


def test_a_function_of_the_tests_can_be_called_but_not_looked_into() -> None:
    with start_peers() as peer:
        secret = 42
        assert call(peer, APPLY, lambda x: x + secret, 1) == 43
        for name in ("__closure__", "__globals__", "__code__"):
            with pytest.raises(AttributeError):
                call(peer, PICK, lambda x: x + secret, name)


def test_an_object_of_the_tests_shows_its_public_side() -> None:
    class Given:
        __module__ = "__main__"  # as in the tests' own module
        shown = 1
        _hidden = 2

    with start_peers() as peer:
        assert call(peer, PICK, Given(), "shown") == 1
        with pytest.raises(AttributeError):
            call(peer, PICK, Given(), "_hidden")


def test_calls_back_and_forth_have_an_end() -> None:
    with start_peers() as peer:

        def again() -> Any:
            return call(peer, APPLY, again)

        with pytest.raises(RecursionError):
            again()


def test_an_end_that_is_gone_or_talks_nonsense_is_gone() -> None:
    for words in (b"", b"\5\0\0\0nope!", b"\2\0\0\0[]", b"\xff\xff\xff\xff"):
        ours, theirs = socket.socketpair()
        theirs.sendall(words)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerGone):
            Peer(Channel(ours.detach(), timeout_s=10)).ask("call", 0, (), {})
        theirs.close()


@pytest.mark.parametrize(
    "request_", [{"do": "call", "to": 99, "args": [], "named": {}}, {"do": "eval", "to": 0, "args": [], "named": {}}]
)
def test_a_request_for_what_was_not_handed_over_is_an_error_of_the_asker(request_: Any) -> None:
    ours, theirs = socket.socketpair()
    asker, other = Channel(ours.detach(), timeout_s=10), Peer(Channel(theirs.detach()), guarded=True)
    other.expose(len)
    asker.send(request_)
    thread = Thread(target=other.serve)
    thread.start()
    assert "raised" in asker.receive()[0]
    asker.close()
    thread.join(10)
    assert not thread.is_alive()


def test_where_data_is_expected_an_object_holds_data_and_no_more() -> None:
    with start_peers(data=True) as peer:
        account = call(peer, ACCOUNT, "Ann")
        assert (account.owner, account.balance) == ("Ann", 0)
        for judge in (lambda: account.pay, lambda: len(account), lambda: list(account), lambda: bool(account)):
            with pytest.raises(OneProcess, match="own class"):
                judge()
        assert call(peer, PICK, account, "balance") == 0, "a handle goes home as the object it is"


def test_where_its_word_will_do_it_is_asked_and_noted() -> None:
    with start_peers(weak=True, data=True) as peer:
        account = call(peer, ACCOUNT, "Ann")
        assert (account.owner, peer.weakened) == ("Ann", False)
        assert (account.pay(3), len(account), list(account), peer.weakened) == (3, 3, ["A", "n", "n"], True)


def test_what_was_looked_at_stays_until_the_code_is_at_work_again() -> None:
    with start_peers(data=True) as peer:
        account = call(peer, ACCOUNT, "Ann")
        for _ in range(2):
            with pytest.raises(AttributeError):
                _ = account.nowhere
        before = peer._attributes
        assert account.owner == account.owner == "Ann"
        assert len(before) == 2
        call(peer, DIVIDE, 1, 1)
        assert not peer._attributes


def test_each_kind_does_what_it_can_do() -> None:
    with start_peers(data=True) as peer:
        numbers = call(peer, COUNT, 2)
        assert [next(numbers), *numbers, *numbers] == [0, 1]
        for wrong in (lambda: len(numbers), lambda: float(numbers), lambda: numbers + 1, lambda: numbers()):
            with pytest.raises(TypeError):
                wrong()
        function = call(peer, PICK, call(peer, ECHO, 1), "count")
        for wrong in (lambda: float(function), lambda: len(function), lambda: next(function), lambda: function < 3):
            with pytest.raises(TypeError):
                wrong()


@pytest.mark.parametrize(
    ("thing", "kind"), [(len, "function"), (int, "function"), (iter([]), "iterator"), (3, "object")]
)
def test_a_kind_is_what_can_be_done_with_it(thing: Any, kind: str) -> None:
    assert kind_of(thing) == kind


def test_a_kind_that_nobody_knows_is_no_value() -> None:
    for kind in ("judge", ["function"], None):
        ours, theirs = socket.socketpair()
        other = Channel(theirs.detach())
        other.send({"value": ["handle", [0, kind]]})
        with pytest.raises(NotPlain):
            Peer(Channel(ours.detach(), timeout_s=10), guarded=True).ask("call", 0, (), {})
        other.close()
