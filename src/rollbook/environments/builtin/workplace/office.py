"""An office in memory: tables of records generated from a seed, and the names used in them."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from typing import Any, TypeAlias


def _split_list(text: str) -> list[str]:
    return [word.strip() for word in text.split(";")]


DOMAIN = "brightwater.example"
ME = f"nora.lindqvist@{DOMAIN}"
MY_NAME = "Nora Lindqvist"
TEAMS = ("Sales", "Support", "Engineering", "Finance")

FIRST_NAMES = _split_list(
    "Amara;Bjorn;Chiara;Dmitri;Elif;Farah;Gideon;Hana;Ivo;Jamal;Keiko;Lars;Mireille;Nikhil;Oksana;Pablo;"
    "Quentin;Rosa;Sanna;Tomas;Ulrike;Viktor;Wanjiru;Xenia;Yusuf;Zofia"
)
LAST_NAMES = _split_list(
    "Abara;Berg;Conti;Duarte;Ekberg;Fischer;Grant;Holm;Ibarra;Jansen;Kowal;Larsen;Moreau;Novak;Okafor;Petrov;"
    "Quist;Rossi;Sato;Tran;Urban;Varga;Weiss;Yilmaz;Zeman;Adler"
)
COMPANIES = _split_list(
    "Ardent Foods;Bluebell Hotels;Cobalt Shipping;Dunmore Textiles;Eastgate Clinics;Fernhill Farms;Granite Works;"
    "Harbour Books;Ironbridge Tools;Juniper Travel;Kestrel Optics;Lantern Media;Meadow Dairy;Nimbus Energy;"
    "Orchard Schools;Pinnacle Sports;Quarry Stone;Ridgeway Motors;Silverlake Spas;Tidewater Marine"
)
CITIES = ("Lisbon", "Oslo", "Porto", "Turin", "Ghent", "Leeds")
PLANS = ("basic", "team", "enterprise")
PRIORITIES = ("low", "normal", "high", "urgent")
ISSUES = _split_list(
    "Login page stays blank;Invoice shows the wrong address;Export stops halfway;Password mail never arrives;"
    "Report totals are off by one;Search finds nothing;Upload of large files fails;Dark mode is unreadable;"
    "Calendar shows the wrong time zone;Duplicate entries after import;Notifications come twice;App crashes on start;"
    "Permissions are lost after an update;Charts do not load;Phone number is rejected;Backup takes a whole day;"
    "Language switches by itself;Printing cuts the last page;Archive cannot be opened;Cannot invite new users;"
    "Sync is stuck at ninety percent;Two accounts were merged;Receipt is missing;Filter forgets its settings;"
    "Map shows the wrong branch;Trial ended too early;Price list is outdated;Webhook is called late"
)
SUBJECTS = _split_list(
    "Question about our contract;Visit next month;Wish for a demo;Missing delivery note;New contact person;"
    "Renewal of our licence;Feedback on the training;Change of address;Offer for more seats;Thank you;"
    "Problem with the last invoice;Request for a call;Planned maintenance;Photos of the event;Access for a colleague;"
    "Complaint about waiting times;Plans for the summer;Security questionnaire;Terms of payment;Interview request"
)
MEETINGS = _split_list(
    "Budget review;Quarterly planning;Design walk-through;Hiring round;Pricing workshop;Security drill;Roadmap talk;"
    "Customer council;Release checklist;Team lunch;Data clean-up;Office move;Partner call;Training day;Incident review;"
    "Brand refresh;Travel policy;Supplier audit"
)
ROOMS = ("Alder", "Birch", "Cedar", "Maple")
BODIES = (
    "Could you have a look at this?",
    "We would be glad to hear from you this week.",
    "Please tell us how to go on.",
    "This has been on our minds for a while.",
)


OfficeRecord: TypeAlias = dict[str, Any]
OfficeTables: TypeAlias = dict[str, dict[str, OfficeRecord]]

ID_PREFIX = {"people": "P", "events": "E", "mails": "M", "tickets": "T", "customers": "C"}
FIRST_DAY = date(2026, 1, 5)
TIME_FORMAT = "%Y-%m-%d %H:%M"


class Office:
    """The state of one rollout. `initial_tables` is a copy of the tables at the start and never changes."""

    def __init__(self, tables: OfficeTables, today: date) -> None:
        self.tables, self.today = tables, today
        self.initial_tables = copy.deepcopy(tables)
        self._numbers = {table: 100 + len(records) for table, records in tables.items()}

    @property
    def now(self) -> str:
        """The current time, the same during the whole rollout."""
        return f"{self.today} 08:00"

    def get(self, table: str, name: str) -> OfficeRecord:
        """Return one record; raise a ValueError for the model if there is none."""
        if name not in self.tables[table]:
            raise ValueError(f"there is no {name!r} among the {table}; their ids look like {ID_PREFIX[table]}-101")
        return self.tables[table][name]

    def add(self, table: str, record: OfficeRecord) -> str:
        """Add a record under the next id, and return the id."""
        self._numbers[table] += 1
        name = f"{ID_PREFIX[table]}-{self._numbers[table]}"
        self.tables[table][name] = record
        return name

    def remove(self, table: str, name: str) -> OfficeRecord:
        """Remove and return a record."""
        self.get(table, name)
        return self.tables[table].pop(name)

    def find(self, table: str, **wanted: object) -> Iterator[tuple[str, OfficeRecord]]:
        """Yield the records with these field values, with their ids."""
        for name, record in self.tables[table].items():
            if all(record[field] == value for field, value in wanted.items()):
                yield name, record

    def check_address(self, email: str) -> str:
        """Return a known address, of staff or a customer, in lower case; raise a ValueError for the model otherwise."""
        known = {p["email"] for p in self.tables["people"].values()}
        known |= {c["contact_email"] for c in self.tables["customers"].values()}
        address = email.strip().lower()
        if address not in known:
            raise ValueError(f"nobody has the address {email!r}; find_people and search_customers know the addresses")
        return address

    def check_staff_address(self, email: str) -> str:
        """Return the address of someone who works here; raise a ValueError for the model otherwise."""
        address = self.check_address(email)
        if not address.endswith(f"@{DOMAIN}"):
            raise ValueError(f"{email} does not work here; find_people lists those who do")
        return address


def make_office(seed: str) -> Office:
    """Generate an office; the same seed gives the same office."""
    rng = random.Random(f"workplace {seed}")
    today = FIRST_DAY + timedelta(weeks=rng.randrange(40))
    people = _make_people(rng)
    customers = _make_customers(rng, people)
    tables = {
        "people": people,
        "customers": customers,
        "tickets": _make_tickets(rng, people, customers),
        "mails": _make_mails(rng, customers, today),
        "events": _make_events(rng, people, today),
    }
    with_ids = {
        table: {f"{ID_PREFIX[table]}-{number}": record for number, record in enumerate(records, 101)}
        for table, records in tables.items()
    }
    return Office(with_ids, today)


def _make_person(name: str, team: str, lead: bool) -> OfficeRecord:
    email = f"{name.lower().replace(' ', '.')}@{DOMAIN}"
    return {"name": name, "email": email, "team": team, "lead": lead}


def _make_people(rng: random.Random) -> list[OfficeRecord]:
    """Make four teams of four, the first of each its lead, and the manager who asks for the work."""
    firsts, lasts = rng.sample(FIRST_NAMES, 16), rng.sample(LAST_NAMES, 16)
    names = [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    staff = [_make_person(name, TEAMS[at // 4], at % 4 == 0) for at, name in enumerate(names)]
    return [*staff, _make_person(MY_NAME, "Office", True)]


def _make_customers(rng: random.Random, people: list[OfficeRecord]) -> list[OfficeRecord]:
    """Make twelve companies; their owners are in Sales, their contacts have first names that nobody here has."""
    taken = {person["name"].split()[0] for person in people}
    free = [first for first in FIRST_NAMES if first not in taken]
    customers = []
    for company in rng.sample(COMPANIES, 12):
        contact = f"{rng.choice(free)} {rng.choice(LAST_NAMES)}"
        email = f"{contact.split()[0].lower()}@{company.lower().replace(' ', '-')}.example"
        customers.append(
            {
                "name": company,
                "city": rng.choice(CITIES),
                "plan": rng.choice(PLANS),
                "owner": rng.choice(people[:4])["email"],
                "contact": contact,
                "contact_email": email,
                "notes": [],
            }
        )
    return customers


def _make_tickets(rng: random.Random, people: list[OfficeRecord], customers: list[OfficeRecord]) -> list[OfficeRecord]:
    """Make 24 tickets, each about a different issue; a quarter has no assignee."""
    workers = [person["email"] for person in people if person["team"] in ("Support", "Engineering")]
    return [
        {
            "title": title,
            "customer": f"C-{101 + rng.randrange(len(customers))}",
            "status": rng.choice(("open", "open", "waiting", "closed")),
            "priority": rng.choice(PRIORITIES[:3]),
            "assignee": rng.choice(workers) if rng.random() < 0.75 else "",
            "comments": [],
        }
        for title in rng.sample(ISSUES, 24)
    ]


def _make_mails(rng: random.Random, customers: list[OfficeRecord], today: date) -> list[OfficeRecord]:
    """Make 16 mails from customers in the inbox, each with a different subject."""
    subjects = rng.sample(SUBJECTS, 16)
    return [
        {
            "folder": "inbox",
            "sender": rng.choice(customers)["contact_email"],
            "to": [ME],
            "subject": subject,
            "body": rng.choice(BODIES),
            "date": f"{today - timedelta(days=1 + at)} {rng.randrange(8, 18):02d}:{rng.choice(('05', '20', '45'))}",
            "labels": [],
            "answers": "",
        }
        for at, subject in enumerate(subjects)
    ]


def _make_events(rng: random.Random, people: list[OfficeRecord], today: date) -> list[OfficeRecord]:
    """Make 14 events in the next two weeks, on the half hour, between nine and five."""
    emails = [person["email"] for person in people]
    events = []
    for title in rng.sample(MEETINGS, 14):
        day = today + timedelta(days=rng.choice((1, 2, 3, 4, 7, 8, 9, 10, 11)))
        start = datetime(day.year, day.month, day.day, rng.randrange(9, 16), rng.choice((0, 30)))
        who = rng.sample(emails, rng.randrange(2, 5))
        events.append(
            {
                "title": title,
                "start": start.strftime(TIME_FORMAT),
                "minutes": rng.choice((30, 60)),
                "attendees": sorted(who),
                "room": rng.choice(ROOMS),
            }
        )
    return events
