"""Free time: no meeting of the attendees overlaps it, and it is the earliest."""

from __future__ import annotations

from datetime import date, datetime, timedelta

import pytest

from rollbook.environments.builtin.workplace.office import Office
from rollbook.environments.builtin.workplace.tools import find_free_start, parse_time

DAY = date(2026, 3, 2)


def office(*events: tuple[str, int, list[str]]) -> Office:
    records = {
        f"E-{number}": {"title": "", "start": f"2026-03-02 {start}", "minutes": minutes, "attendees": who, "room": ""}
        for number, (start, minutes, who) in enumerate(events)
    }
    return Office({"events": records}, DAY)


@pytest.mark.parametrize(
    ("events", "minutes", "free"),
    [
        ([], 30, "09:00"),
        ([("09:00", 30, ["a"])], 30, "09:30"),
        ([("09:30", 30, ["a"])], 30, "09:00"),
        ([("09:30", 30, ["a"])], 60, "10:00"),
        ([("09:00", 60, ["c"])], 60, "09:00"),
        ([("09:00", 60, ["a"]), ("10:00", 60, ["b"])], 30, "11:00"),
        ([("09:15", 5, ["b"])], 30, "09:30"),
        ([("09:00", 480, ["a"])], 30, None),
        ([], 480, "09:00"),
    ],
)
def test_the_first_free_time_is_found(events, minutes, free):
    found = find_free_start(office(*events), ["a", "b"], DAY, minutes)
    assert found == (free and f"2026-03-02 {free}")
    if found:
        assert parse_time(found) + timedelta(minutes=minutes) <= datetime(2026, 3, 2, 17)
