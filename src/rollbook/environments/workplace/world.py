"""One office in memory: tables of records, made from a seed, the same for the same seed."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias

from rollbook.environments.workplace import names

Record: TypeAlias = dict[str, Any]
Tables: TypeAlias = dict[str, dict[str, Record]]

PREFIX = {"people": "P", "events": "E", "mails": "M", "tickets": "T", "customers": "C"}
FIRST_DAY = date(2026, 1, 5)
TIME = "%Y-%m-%d %H:%M"


class World:
    """The state of one rollout. `first` is what it was in the beginning, and stays so."""

    def __init__(self, tables: Tables, today: date) -> None:
        self.tables, self.today = tables, today
        self.first = copy.deepcopy(tables)
        self._numbers = {table: 100 + len(records) for table, records in tables.items()}

    @property
    def now(self) -> str:
        """The hour at which everything happens."""
        return f"{self.today} 08:00"

    def get(self, table: str, name: str) -> Record:
        """One record; a ValueError for the model if there is none."""
        if name not in self.tables[table]:
            raise ValueError(f"there is no {name!r} among the {table}; their ids look like {PREFIX[table]}-101")
        return self.tables[table][name]

    def add(self, table: str, record: Record) -> str:
        """Add a record, and give it the next id."""
        self._numbers[table] += 1
        name = f"{PREFIX[table]}-{self._numbers[table]}"
        self.tables[table][name] = record
        return name

    def remove(self, table: str, name: str) -> Record:
        """Take a record away."""
        self.get(table, name)
        return self.tables[table].pop(name)

    def find(self, table: str, **wanted: object) -> Iterator[tuple[str, Record]]:
        """The records whose fields are these, with their ids."""
        for name, record in self.tables[table].items():
            if all(record[field] == value for field, value in wanted.items()):
                yield name, record

    def address(self, email: str) -> str:
        """An address that someone has, staff or customer; a ValueError for the model otherwise."""
        known = {p["email"] for p in self.tables["people"].values()}
        known |= {c["contact_email"] for c in self.tables["customers"].values()}
        found = email.strip().lower()
        if found not in known:
            raise ValueError(f"nobody has the address {email!r}; find_people and search_customers know the addresses")
        return found

    def staff(self, email: str) -> str:
        """An address of someone who works here."""
        found = self.address(email)
        if not found.endswith(f"@{names.DOMAIN}"):
            raise ValueError(f"{email} does not work here; find_people lists those who do")
        return found


def make_world(seed: str) -> World:
    """A whole office from a seed."""
    rng = random.Random(f"workplace {seed}")
    today = FIRST_DAY + timedelta(weeks=rng.randrange(40))
    people = _people(rng)
    customers = _customers(rng, people)
    tables = {
        "people": people,
        "customers": customers,
        "tickets": _tickets(rng, people, customers),
        "mails": _mails(rng, customers, today),
        "events": _events(rng, people, today),
    }
    return World({table: _named(PREFIX[table], records) for table, records in tables.items()}, today)


def _named(prefix: str, records: list[Record]) -> dict[str, Record]:
    return {f"{prefix}-{number}": record for number, record in enumerate(records, 101)}


def _person(name: str, team: str, lead: bool) -> Record:
    email = f"{name.lower().replace(' ', '.')}@{names.DOMAIN}"
    return {"name": name, "email": email, "team": team, "lead": lead}


def _people(rng: random.Random) -> list[Record]:
    """Four teams of four, the first of each its lead, and the one whom all this is done for."""
    firsts, lasts = rng.sample(names.FIRST, 16), rng.sample(names.LAST, 16)
    called = [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    staff = [_person(name, names.TEAMS[at // 4], at % 4 == 0) for at, name in enumerate(called)]
    return [*staff, _person(names.MY_NAME, "Office", True)]


def _customers(rng: random.Random, people: list[Record]) -> list[Record]:
    """Twelve companies; their owners are of Sales, their contacts have names that nobody here has."""
    taken = {person["name"].split()[0] for person in people}
    free = [first for first in names.FIRST if first not in taken]
    made = []
    for company in rng.sample(names.COMPANIES, 12):
        contact = f"{rng.choice(free)} {rng.choice(names.LAST)}"
        email = f"{contact.split()[0].lower()}@{company.lower().replace(' ', '-')}.example"
        made.append(
            {
                "name": company,
                "city": rng.choice(names.CITIES),
                "plan": rng.choice(names.PLANS),
                "owner": rng.choice(people[:4])["email"],
                "contact": contact,
                "contact_email": email,
                "notes": [],
            }
        )
    return made


def _tickets(rng: random.Random, people: list[Record], customers: list[Record]) -> list[Record]:
    """Twenty-four, each about something else; a quarter has no assignee."""
    workers = [person["email"] for person in people if person["team"] in ("Support", "Engineering")]
    return [
        {
            "title": title,
            "customer": f"C-{101 + rng.randrange(len(customers))}",
            "status": rng.choice(("open", "open", "waiting", "closed")),
            "priority": rng.choice(names.PRIORITIES[:3]),
            "assignee": rng.choice(workers) if rng.random() < 0.75 else "",
            "comments": [],
        }
        for title in rng.sample(names.ISSUES, 24)
    ]


def _mails(rng: random.Random, customers: list[Record], today: date) -> list[Record]:
    """Sixteen in the inbox, each with another subject, from customers."""
    subjects = rng.sample(names.SUBJECTS, 16)
    return [
        {
            "folder": "inbox",
            "sender": rng.choice(customers)["contact_email"],
            "to": [names.ME],
            "subject": subject,
            "body": rng.choice(names.BODIES),
            "date": f"{today - timedelta(days=1 + at)} {rng.randrange(8, 18):02d}:{rng.choice(('05', '20', '45'))}",
            "labels": [],
            "answers": "",
        }
        for at, subject in enumerate(subjects)
    ]


def _events(rng: random.Random, people: list[Record], today: date) -> list[Record]:
    """Fourteen in the next two weeks, on the half hour, between nine and five."""
    emails = [person["email"] for person in people]
    made = []
    for title in rng.sample(names.MEETINGS, 14):
        day = today + timedelta(days=rng.choice((1, 2, 3, 4, 7, 8, 9, 10, 11)))
        start = datetime(day.year, day.month, day.day, rng.randrange(9, 16), rng.choice((0, 30)))
        who = rng.sample(emails, rng.randrange(2, 5))
        made.append(
            {
                "title": title,
                "start": start.strftime(TIME),
                "minutes": rng.choice((30, 60)),
                "attendees": sorted(who),
                "room": rng.choice(names.ROOMS),
            }
        )
    return made
