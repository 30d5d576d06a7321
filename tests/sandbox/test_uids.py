"""Users for guests: no two the same, and none that is anybody."""

from __future__ import annotations

from rollbook.sandbox.uids import FEW_FIRST, Uids, uid_range


def test_no_two_guests_share_a_user() -> None:
    uids = Uids()
    drawn = [uids.next() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert min(drawn) >= FEW_FIRST


def test_the_range_goes_round() -> None:
    uids = Uids()
    first, past = uid_range()
    uids._next = past - 1
    assert [uids.next(), uids.next()] == [past - 1, first]
