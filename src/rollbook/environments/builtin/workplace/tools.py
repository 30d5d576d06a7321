"""The tools of the workplace: staff directory, calendar, mail, tickets, customers."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Literal, TypeAlias

from rollbook.core import JSON
from rollbook.environments.builtin.workplace.office import ME, TIME_FORMAT, Office, OfficeRecord
from rollbook.environments.environment import Environment
from rollbook.environments.tools import tool


class DirectoryTools(Environment):
    """Find people; nothing is changed."""

    @tool
    def find_people(self, state: Office, name: str = "", team: str = "", leads_only: bool = False) -> JSON:
        """List people who work here, with their mail addresses and teams.

        Args:
            name: A part of the name; leave it out for everyone.
            team: Sales, Support, Engineering, Finance or Office.
            leads_only: Only those who lead a team.
        """
        return [
            person
            for person in state.tables["people"].values()
            if name.lower() in person["name"].lower()
            and team.lower() in ("", person["team"].lower())
            and (person["lead"] or not leads_only)
        ]


MAX_MINUTES = 480
WORKING_HOURS = (9, 17)
"""The hours between which free time is searched."""


def parse_time(text: str) -> datetime:
    """Parse a start time; a ValueError says how to write one."""
    try:
        return datetime.strptime(text.strip(), TIME_FORMAT)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write it like 2026-03-02 14:30") from None


def parse_date(text: str) -> date:
    """Parse a date; a ValueError says how to write one."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no date; write it like 2026-03-02") from None


def check_minutes(minutes: int) -> int:
    """Return the length of a meeting; raise a ValueError if it is out of range."""
    if not 1 <= minutes <= MAX_MINUTES:
        raise ValueError(f"{minutes} minutes: a meeting takes 1 to {MAX_MINUTES}")
    return minutes


def find_free_start(office: Office, attendees: list[str], wanted: date, minutes: int) -> str | None:
    """Return the first start on the half hour at which none of them is busy; None if there is none that day."""
    start = datetime(wanted.year, wanted.month, wanted.day, WORKING_HOURS[0])
    last = start.replace(hour=WORKING_HOURS[1]) - timedelta(minutes=minutes)
    while start <= last:
        if not any(_overlaps(event, attendees, start, minutes) for event in office.tables["events"].values()):
            return start.strftime(TIME_FORMAT)
        start += timedelta(minutes=30)
    return None


def _overlaps(event: OfficeRecord, attendees: list[str], start: datetime, minutes: int) -> bool:
    event_start = parse_time(event["start"])
    event_end = event_start + timedelta(minutes=event["minutes"])
    apart = event_start >= start + timedelta(minutes=minutes) or event_end <= start
    return not apart and bool(set(attendees) & set(event["attendees"]))


class CalendarTools(Environment):
    """List, create, move and cancel events."""

    @tool
    def list_events(self, state: Office, on: str = "", attendee: str = "") -> JSON:
        """List events, all or those of a day or a person.

        Args:
            on: A date like 2026-03-02.
            attendee: The mail address of someone who is invited.
        """
        wanted = str(parse_date(on)) if on else ""
        who = state.check_staff_address(attendee) if attendee else ""
        found = [
            {"id": name, **event}
            for name, event in state.tables["events"].items()
            if event["start"].startswith(wanted) and (not who or who in event["attendees"])
        ]
        return sorted(found, key=lambda event: (event["start"], event["id"]))

    @tool
    def search_events(self, state: Office, title: str) -> JSON:
        """Find events by a part of their title."""
        events = state.tables["events"].items()
        return [{"id": name, **event} for name, event in events if title.lower() in event["title"].lower()]

    @tool
    def find_free_time(self, state: Office, attendees: list[str], on: str, minutes: int = 30) -> str:
        """The first time on a day, between 09:00 and 17:00 on the half hour, at which all of them are free.

        Args:
            attendees: Mail addresses.
            on: A date like 2026-03-02.
            minutes: How long they need.
        """
        who = [state.check_staff_address(email) for email in attendees]
        return (
            find_free_start(state, who, parse_date(on), check_minutes(minutes)) or "They have no such time on that day."
        )

    @tool
    def create_event(
        self, state: Office, title: str, start: str, minutes: int, attendees: list[str], room: str = ""
    ) -> str:
        """Put a new event into the calendar.

        Args:
            title: What it is called.
            start: Like 2026-03-02 14:30.
            minutes: How long it takes.
            attendees: Mail addresses of those who are invited.
            room: Alder, Birch, Cedar or Maple; leave it out for none.
        """
        who = sorted({state.check_staff_address(email) for email in attendees})
        when = parse_time(start).strftime(TIME_FORMAT)
        record = {"title": title, "start": when, "minutes": check_minutes(minutes), "attendees": who, "room": room}
        return f"Created {state.add('events', record)}."

    @tool
    def move_event(self, state: Office, event_id: str, start: str) -> str:
        """Move an event to another time.

        Args:
            event_id: Like E-101.
            start: Like 2026-03-02 14:30.
        """
        state.get("events", event_id)["start"] = parse_time(start).strftime(TIME_FORMAT)
        return f"Moved {event_id}."

    @tool
    def cancel_event(self, state: Office, event_id: str) -> str:
        """Take an event out of the calendar. Nobody is told."""
        return f"Cancelled {state.remove('events', event_id)['title']}."

    @tool
    def add_attendee(self, state: Office, event_id: str, email: str) -> str:
        """Invite one more person to an event."""
        event, who = state.get("events", event_id), state.check_staff_address(email)
        if who in event["attendees"]:
            raise ValueError(f"{email} is invited to {event_id} already")
        event["attendees"] = sorted([*event["attendees"], who])
        return f"Invited {email}."

    @tool
    def remove_attendee(self, state: Office, event_id: str, email: str) -> str:
        """Take a person off an event."""
        event, who = state.get("events", event_id), state.check_staff_address(email)
        if who not in event["attendees"]:
            raise ValueError(f"{email} is not invited to {event_id}")
        event["attendees"] = [other for other in event["attendees"] if other != who]
        return f"Took {email} off {event_id}."


def _send_mail(office: Office, to: list[str], subject: str, body: str, answers: str = "") -> str:
    if not to:
        raise ValueError("a mail needs at least one address in `to`")
    record = {
        "folder": "sent",
        "sender": ME,
        "to": sorted({office.check_address(email) for email in to}),
        "subject": subject,
        "body": body,
        "date": office.now,
        "labels": [],
        "answers": answers,
    }
    return f"Sent {office.add('mails', record)}."


MAIL_SUMMARY = ("folder", "sender", "to", "subject", "date", "labels")


class MailTools(Environment):
    """Read, send, label, archive and delete mails."""

    @tool
    def search_mail(self, state: Office, text: str = "", sender: str = "", folder: str = "") -> JSON:
        """List mails, the newest first, without their bodies.

        Args:
            text: A part of the subject or body.
            sender: A part of the sender's address.
            folder: inbox, sent or archive; leave it out for all.
        """
        found = [
            {"id": name, **{field: mail[field] for field in MAIL_SUMMARY}}
            for name, mail in state.tables["mails"].items()
            if text.lower() in f"{mail['subject']}\n{mail['body']}".lower()
            and sender.lower() in mail["sender"]
            and folder.lower() in ("", mail["folder"])
        ]
        return sorted(found, key=lambda mail: (mail["date"], mail["id"]), reverse=True)

    @tool
    def read_mail(self, state: Office, mail_id: str) -> JSON:
        """A whole mail. Reading changes nothing."""
        return {"id": mail_id, **state.get("mails", mail_id)}

    @tool
    def send_mail(self, state: Office, to: list[str], subject: str, body: str) -> str:
        """Send one mail.

        Args:
            to: Mail addresses; all of them get the same mail.
            subject: Its subject.
            body: Its text.
        """
        return _send_mail(state, to, subject, body)

    @tool
    def reply_mail(self, state: Office, mail_id: str, body: str) -> str:
        """Answer a mail to its sender; the subject follows from it."""
        mail = state.get("mails", mail_id)
        return _send_mail(state, [mail["sender"]], f"Re: {mail['subject']}", body, mail_id)

    @tool
    def forward_mail(self, state: Office, mail_id: str, to: list[str]) -> str:
        """Pass a mail on as it is."""
        mail = state.get("mails", mail_id)
        return _send_mail(state, to, f"Fwd: {mail['subject']}", mail["body"], mail_id)

    @tool
    def archive_mail(self, state: Office, mail_id: str) -> str:
        """Move a mail from the inbox to the archive."""
        mail = state.get("mails", mail_id)
        if mail["folder"] != "inbox":
            raise ValueError(f"{mail_id} is not in the inbox but in {mail['folder']}")
        mail["folder"] = "archive"
        return f"Archived {mail_id}."

    @tool
    def label_mail(self, state: Office, mail_id: str, label: str) -> str:
        """Put a label on a mail."""
        mail = state.get("mails", mail_id)
        mail["labels"] = sorted({*mail["labels"], label})
        return f"Labelled {mail_id}."

    @tool
    def delete_mail(self, state: Office, mail_id: str) -> str:
        """Delete a mail for good; one that was sent stays."""
        if state.get("mails", mail_id)["folder"] == "sent":
            raise ValueError(f"{mail_id} was sent, and what is sent cannot be deleted")
        state.remove("mails", mail_id)
        return f"Deleted {mail_id}."


TicketPriority: TypeAlias = Literal["low", "normal", "high", "urgent"]
TicketStatus: TypeAlias = Literal["open", "waiting", "closed"]


class TicketTools(Environment):
    """Find, open, assign and change tickets."""

    @tool
    def search_tickets(
        self, state: Office, text: str = "", customer_id: str = "", assignee: str = "", status: str = ""
    ) -> JSON:
        """List tickets, without their comments.

        Args:
            text: A part of the title.
            customer_id: Like C-101.
            assignee: A mail address, or none for tickets that nobody has.
            status: open, waiting or closed; leave it out for all.
        """
        who = "" if assignee.lower() == "none" else assignee.strip().lower()
        return [
            {"id": name, **{field: value for field, value in ticket.items() if field != "comments"}}
            for name, ticket in state.tables["tickets"].items()
            if text.lower() in ticket["title"].lower()
            and customer_id in ("", ticket["customer"])
            and (not assignee or who == ticket["assignee"])
            and status.lower() in ("", ticket["status"])
        ]

    @tool
    def get_ticket(self, state: Office, ticket_id: str) -> JSON:
        """A whole ticket, with its comments."""
        return {"id": ticket_id, **state.get("tickets", ticket_id)}

    @tool
    def create_ticket(
        self, state: Office, customer_id: str, title: str, priority: TicketPriority = "normal", assignee: str = ""
    ) -> str:
        """Open a new ticket for a customer.

        Args:
            customer_id: Like C-101.
            title: What it is about.
            priority: How soon.
            assignee: The mail address of who shall do it; leave it out for nobody yet.
        """
        state.get("customers", customer_id)
        record = {
            "title": title,
            "customer": customer_id,
            "status": "open",
            "priority": priority,
            "assignee": state.check_staff_address(assignee) if assignee else "",
            "comments": [],
        }
        return f"Created {state.add('tickets', record)}."

    @tool
    def assign_ticket(self, state: Office, ticket_id: str, assignee: str) -> str:
        """Give a ticket to someone, by mail address."""
        state.get("tickets", ticket_id)["assignee"] = state.check_staff_address(assignee)
        return f"Assigned {ticket_id} to {assignee}."

    @tool
    def set_priority(self, state: Office, ticket_id: str, priority: TicketPriority) -> str:
        """Change how soon a ticket shall be done."""
        state.get("tickets", ticket_id)["priority"] = priority
        return f"{ticket_id} is {priority}."

    @tool
    def set_status(self, state: Office, ticket_id: str, status: TicketStatus) -> str:
        """Open a ticket, let it wait, or close it."""
        state.get("tickets", ticket_id)["status"] = status
        return f"{ticket_id} is {status}."

    @tool
    def comment_ticket(self, state: Office, ticket_id: str, text: str) -> str:
        """Write a comment under a ticket."""
        ticket = state.get("tickets", ticket_id)
        ticket["comments"] = [*ticket["comments"], text]
        return f"Commented on {ticket_id}."


CustomerPlan: TypeAlias = Literal["basic", "team", "enterprise"]


class CustomerTools(Environment):
    """Look up customers, and change their plan, owner and notes."""

    @tool
    def search_customers(self, state: Office, text: str = "", city: str = "", owner: str = "", plan: str = "") -> JSON:
        """List customers.

        Args:
            text: A part of the company's name, of its contact's name or of the contact's address.
            city: Where they are.
            owner: The mail address of the account owner.
            plan: basic, team or enterprise.
        """
        return [
            {"id": name, **{field: value for field, value in customer.items() if field != "notes"}}
            for name, customer in state.tables["customers"].items()
            if text.lower() in f"{customer['name']}\n{customer['contact']}\n{customer['contact_email']}".lower()
            and city.lower() in ("", customer["city"].lower())
            and owner.lower() in ("", customer["owner"])
            and plan.lower() in ("", customer["plan"])
        ]

    @tool
    def get_customer(self, state: Office, customer_id: str) -> JSON:
        """A whole customer, with the notes."""
        return {"id": customer_id, **state.get("customers", customer_id)}

    @tool
    def change_plan(self, state: Office, customer_id: str, plan: CustomerPlan) -> str:
        """Put a customer on another plan."""
        state.get("customers", customer_id)["plan"] = plan
        return f"{customer_id} is on {plan}."

    @tool
    def set_owner(self, state: Office, customer_id: str, owner: str) -> str:
        """Give a customer another account owner, by mail address."""
        state.get("customers", customer_id)["owner"] = state.check_staff_address(owner)
        return f"{owner} owns {customer_id}."

    @tool
    def add_note(self, state: Office, customer_id: str, text: str) -> str:
        """Add a note to a customer."""
        customer = state.get("customers", customer_id)
        customer["notes"] = [*customer["notes"], text]
        return f"Noted at {customer_id}."
