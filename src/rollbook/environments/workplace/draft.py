"""A task in the making: a world to look around in, and the calls that would do what is asked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import TypeVar

from rollbook.core.json import JSON
from rollbook.environments.workplace import names
from rollbook.environments.workplace.world import TIME, Record, World

T = TypeVar("T")
Named = tuple[str, Record]

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


class Unsuited(Exception):
    """This world has nothing that such a task could be about; another one will."""


class Draft:
    """What a job looks around with, chooses by, and notes its calls in."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.calls: list[JSON] = []
        self._rng = rng

    def use(self, tool: str, /, **arguments: JSON) -> None:
        """The next call of a path that leads there."""
        self.calls.append({"name": tool, "arguments": arguments})

    def one(self, choices: Sequence[T]) -> T:
        """One of them."""
        if not choices:
            raise Unsuited
        return self._rng.choice(choices)

    def say(self, *forms: str) -> str:
        """What is asked, in one of several ways."""
        return self.one(forms)

    def some(self, table: str, **wanted: object) -> Named:
        """A record with these fields."""
        return self.one(list(self.world.find(table, **wanted)))

    def lead(self, team: str) -> Record:
        """Who leads a team; the call that finds it out is noted."""
        self.use("find_people", team=team, leads_only=True)
        return next(person for _, person in self.world.find("people", team=team, lead=True))

    def person(self, *but: str, team: str = "") -> Record:
        """Someone of the staff, not me and none of those; the call that finds the address is noted."""
        people = [p for p in self.world.tables["people"].values() if p["email"] not in (names.ME, *but)]
        person = self.one([p for p in people if team in ("", p["team"])])
        self.use("find_people", name=person["name"])
        return person

    def named(self, email: str) -> str:
        """The name of someone of the staff."""
        return str(next(p["name"] for _, p in self.world.find("people", email=email)))

    def company(self, customer_id: str) -> Record:
        """A customer; the call that finds its id is noted."""
        customer = self.world.get("customers", customer_id)
        self.use("search_customers", text=customer["name"])
        return customer

    def free_moment(self) -> datetime:
        """A time in the next days, on the half hour."""
        day = self.world.today + timedelta(days=self.one((1, 2, 3, 4, 7, 8, 9, 10, 11)))
        return datetime(day.year, day.month, day.day, self.one(range(9, 17)), self.one((0, 30)))


def long_date(day: date) -> str:
    """A date as people write it.

    >>> long_date(date(2026, 3, 2))
    'Monday, 2 March 2026'
    """
    return f"{DAYS[day.weekday()]}, {day.day} {MONTHS[day.month - 1]} {day.year}"


def clock(moment: datetime) -> str:
    """A time of the day."""
    return moment.strftime(TIME)[-5:]
