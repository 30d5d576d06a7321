"""The calendar: meetings of staff, on the half hour or not."""

from __future__ import annotations

from datetime import date, datetime, timedelta

from rollbook.core.json import JSON
from rollbook.environments.environment import Environment, tool
from rollbook.environments.workplace.world import TIME, Record, World

LONGEST = 480
DAY = (9, 17)
"""The hours in which meetings may be looked for."""


def moment(text: str) -> datetime:
    """A start as the tools take it; a ValueError says how to write one."""
    try:
        return datetime.strptime(text.strip(), TIME)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write it like 2026-03-02 14:30") from None


def day(text: str) -> date:
    """A date as the tools take it."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no date; write it like 2026-03-02") from None


def length(minutes: int) -> int:
    """How long a meeting may be."""
    if not 1 <= minutes <= LONGEST:
        raise ValueError(f"{minutes} minutes: a meeting takes 1 to {LONGEST}")
    return minutes


def first_free(world: World, attendees: list[str], wanted: date, minutes: int) -> str | None:
    """The first start on a half hour at which none of them is busy."""
    start = datetime(wanted.year, wanted.month, wanted.day, DAY[0])
    last = start.replace(hour=DAY[1]) - timedelta(minutes=minutes)
    while start <= last:
        if not any(_overlaps(event, attendees, start, minutes) for event in world.tables["events"].values()):
            return start.strftime(TIME)
        start += timedelta(minutes=30)
    return None


def _overlaps(event: Record, attendees: list[str], start: datetime, minutes: int) -> bool:
    began = moment(event["start"])
    apart = began >= start + timedelta(minutes=minutes) or began + timedelta(minutes=event["minutes"]) <= start
    return not apart and bool(set(attendees) & set(event["attendees"]))


def _listed(name: str, event: Record) -> Record:
    return {"id": name, **event}


class Calendar(Environment):
    """Looking, making, moving, cancelling."""

    @tool
    def list_events(self, state: World, on: str = "", attendee: str = "") -> JSON:
        """List events, all or those of a day or a person.

        Args:
            on: A date like 2026-03-02.
            attendee: The mail address of someone who is invited.
        """
        wanted = str(day(on)) if on else ""
        who = state.staff(attendee) if attendee else ""
        found = [
            _listed(name, event)
            for name, event in state.tables["events"].items()
            if event["start"].startswith(wanted) and (not who or who in event["attendees"])
        ]
        return sorted(found, key=lambda event: (event["start"], event["id"]))

    @tool
    def search_events(self, state: World, title: str) -> JSON:
        """Find events by a part of their title."""
        events = state.tables["events"].items()
        return [_listed(name, event) for name, event in events if title.lower() in event["title"].lower()]

    @tool
    def find_free_time(self, state: World, attendees: list[str], on: str, minutes: int = 30) -> str:
        """The first time on a day, between 09:00 and 17:00 on the half hour, at which all of them are free.

        Args:
            attendees: Mail addresses.
            on: A date like 2026-03-02.
            minutes: How long they need.
        """
        who = [state.staff(email) for email in attendees]
        return first_free(state, who, day(on), length(minutes)) or "They have no such time on that day."

    @tool
    def create_event(
        self, state: World, title: str, start: str, minutes: int, attendees: list[str], room: str = ""
    ) -> str:
        """Put a new event into the calendar.

        Args:
            title: What it is called.
            start: Like 2026-03-02 14:30.
            minutes: How long it takes.
            attendees: Mail addresses of those who are invited.
            room: Alder, Birch, Cedar or Maple; leave it out for none.
        """
        who = sorted({state.staff(email) for email in attendees})
        when = moment(start).strftime(TIME)
        record = {"title": title, "start": when, "minutes": length(minutes), "attendees": who, "room": room}
        return f"Created {state.add('events', record)}."

    @tool
    def move_event(self, state: World, event_id: str, start: str) -> str:
        """Move an event to another time.

        Args:
            event_id: Like E-101.
            start: Like 2026-03-02 14:30.
        """
        state.get("events", event_id)["start"] = moment(start).strftime(TIME)
        return f"Moved {event_id}."

    @tool
    def cancel_event(self, state: World, event_id: str) -> str:
        """Take an event out of the calendar. Nobody is told."""
        return f"Cancelled {state.remove('events', event_id)['title']}."

    @tool
    def add_attendee(self, state: World, event_id: str, email: str) -> str:
        """Invite one more person to an event."""
        event, who = state.get("events", event_id), state.staff(email)
        if who in event["attendees"]:
            raise ValueError(f"{email} is invited to {event_id} already")
        event["attendees"] = sorted([*event["attendees"], who])
        return f"Invited {email}."

    @tool
    def remove_attendee(self, state: World, event_id: str, email: str) -> str:
        """Take a person off an event."""
        event, who = state.get("events", event_id), state.staff(email)
        if who not in event["attendees"]:
            raise ValueError(f"{email} is not invited to {event_id}")
        event["attendees"] = [other for other in event["attendees"] if other != who]
        return f"Took {email} off {event_id}."
