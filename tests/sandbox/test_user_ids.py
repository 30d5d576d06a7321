"""User ids of guests: all different, and none of a real user."""

from __future__ import annotations

from rollbook.sandbox.launcher import FEW_FIRST_UID, UserIds, uid_range


def test_no_two_guests_share_a_user() -> None:
    uids = UserIds()
    drawn = [uids.next() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert min(drawn) >= FEW_FIRST_UID


def test_the_range_goes_round() -> None:
    uids = UserIds()
    first, past = uid_range()
    uids._next = past - 1
    assert [uids.next(), uids.next()] == [past - 1, first]
