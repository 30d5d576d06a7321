"""The kinds of workplace tasks: each inspects an office, records the calls that solve it, and phrases the request.

Every kind asks for at least two changes, one of which cannot be done twice unnoticed (a mail, a comment, a note, an
event, a ticket), and nothing that cannot be found out with the tools. The keys of `TASK_KINDS` are stored in tasks
(`kind`) and therefore fixed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import TypeVar

from rollbook.core import JSON
from rollbook.environments.builtin.workplace.office import ME, PLANS, PRIORITIES, TIME_FORMAT, Office, OfficeRecord
from rollbook.environments.builtin.workplace.tools import find_free_start

T = TypeVar("T")
RecordWithId = tuple[str, OfficeRecord]

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


class UnsuitableOffice(Exception):
    """This office has no records for such a task; another seed is tried."""


class TaskDraft:
    """A task being made: the office, random choices, and the calls that solve the task."""

    def __init__(self, office: Office, rng: random.Random) -> None:
        self.office = office
        self.calls: list[JSON] = []
        self._rng = rng

    def add_call(self, tool: str, /, **arguments: JSON) -> None:
        """Append the next call of the solution."""
        self.calls.append({"name": tool, "arguments": arguments})

    def choose(self, choices: Sequence[T]) -> T:
        """Return a random one of the choices; raise UnsuitableOffice if there are none."""
        if not choices:
            raise UnsuitableOffice
        return self._rng.choice(choices)

    def choose_phrasing(self, *forms: str) -> str:
        """Return one of several wordings of the request."""
        return self.choose(forms)

    def choose_record(self, table: str, **wanted: object) -> RecordWithId:
        """Return a random record with these field values."""
        return self.choose(list(self.office.find(table, **wanted)))

    def find_lead(self, team: str) -> OfficeRecord:
        """Return the lead of a team, and add the call that finds the lead."""
        self.add_call("find_people", team=team, leads_only=True)
        return next(person for _, person in self.office.find("people", team=team, lead=True))

    def choose_person(self, *but: str, team: str = "") -> OfficeRecord:
        """Return a random colleague except these, and add the call that finds the address."""
        people = [p for p in self.office.tables["people"].values() if p["email"] not in (ME, *but)]
        person = self.choose([p for p in people if team in ("", p["team"])])
        self.add_call("find_people", name=person["name"])
        return person

    def name_of(self, email: str) -> str:
        """Return the name of a colleague."""
        return str(next(p["name"] for _, p in self.office.find("people", email=email)))

    def find_customer(self, customer_id: str) -> OfficeRecord:
        """Return a customer, and add the call that finds its id."""
        customer = self.office.get("customers", customer_id)
        self.add_call("search_customers", text=customer["name"])
        return customer

    def choose_time(self) -> datetime:
        """Return a random time on a working day of the next two weeks, on the half hour."""
        day = self.office.today + timedelta(days=self.choose((1, 2, 3, 4, 7, 8, 9, 10, 11)))
        return datetime(day.year, day.month, day.day, self.choose(range(9, 17)), self.choose((0, 30)))


def format_date(day: date) -> str:
    """Return a date in words.

    >>> format_date(date(2026, 3, 2))
    'Monday, 2 March 2026'
    """
    return f"{DAYS[day.weekday()]}, {day.day} {MONTHS[day.month - 1]} {day.year}"


def format_time(moment: datetime) -> str:
    """Return the time of day, like 14:30."""
    return moment.strftime(TIME_FORMAT)[-5:]


COMMENTS = (
    "Please have a look before noon.",
    "The customer has called twice.",
    "See the log of last night.",
    "A workaround is known.",
    "Ask me if anything is unclear.",
)
REPLIES = (
    "Thank you, we are on it.",
    "We will call you back today.",
    "That is settled now.",
    "Thank you for your patience.",
    "We have passed this on.",
)


def unassigned_ticket(draft: TaskDraft) -> str:
    """Ask to assign, prioritize and comment on a ticket that nobody has."""
    name, ticket = draft.choose_record("tickets", status="open", assignee="")
    company = draft.find_customer(ticket["customer"])["name"]
    draft.add_call("search_tickets", customer_id=ticket["customer"], assignee="none")
    team, comment = draft.choose(("Support", "Engineering")), draft.choose(COMMENTS)
    priority = draft.choose([p for p in PRIORITIES[2:] if p != ticket["priority"]])
    draft.add_call("assign_ticket", ticket_id=name, assignee=draft.find_lead(team)["email"])
    draft.add_call("set_priority", ticket_id=name, priority=priority)
    draft.add_call("comment_ticket", ticket_id=name, text=comment)
    return draft.choose_phrasing(
        f'{company} has a ticket called "{ticket["title"]}" that nobody works on. Give it to the lead of {team}, '
        f'make it {priority}, and comment on it: "{comment}"',
        f'Please look after the unassigned ticket "{ticket["title"]}" of {company}. The lead of {team} should have '
        f'it, with the priority {priority} and the comment "{comment}"',
        f'Nobody has taken on "{ticket["title"]}", a ticket of {company}. Set its priority to {priority}, assign it '
        f'to whoever leads {team}, and leave this comment: "{comment}"',
    )


def ticket_from_mail(draft: TaskDraft) -> str:
    """Ask to open a ticket from a mail and to reply."""
    name, mail = draft.choose_record("mails", folder="inbox")
    draft.add_call("search_mail", text=mail["subject"], folder="inbox")
    customer_id, customer = next(draft.office.find("customers", contact_email=mail["sender"]))
    draft.add_call("search_customers", text=mail["sender"])
    priority, reply = draft.choose(PRIORITIES), draft.choose(REPLIES)
    draft.add_call("create_ticket", customer_id=customer_id, title=mail["subject"], priority=priority)
    draft.add_call("reply_mail", mail_id=name, body=reply)
    return draft.choose_phrasing(
        f'There is a mail "{mail["subject"]}" in my inbox. Open a ticket for the customer it came from, with the '
        f'subject as its title, the priority {priority} and no assignee. Then reply to the mail: "{reply}"',
        f'{customer["contact"]} of {customer["name"]} wrote to me about "{mail["subject"]}". Make that a {priority} '
        f'ticket of theirs, titled like the mail and assigned to nobody, and reply "{reply}"',
        f'Turn the mail "{mail["subject"]}" into a ticket of its sender\'s company ({priority} priority, same title, '
        f'nobody assigned), and answer the mail with "{reply}"',
    )


def moved_event(draft: TaskDraft) -> str:
    """Ask to move an event and to tell all attendees."""
    name, event = draft.choose_record("events")
    draft.add_call("search_events", title=event["title"])
    start = draft.choose_time()
    if start.strftime(TIME_FORMAT) == event["start"] or ME in event["attendees"]:
        raise UnsuitableOffice
    when = f"{format_date(start)} at {format_time(start)}"
    subject, body = f"Moved: {event['title']}", f"It now takes place on {when}."
    draft.add_call("move_event", event_id=name, start=start.strftime(TIME_FORMAT))
    draft.add_call("send_mail", to=event["attendees"], subject=subject, body=body)
    return draft.choose_phrasing(
        f'Move the "{event["title"]}" to {when}. Then send one mail to all its attendees, with the subject '
        f'"{subject}" and the text "{body}"',
        f'The "{event["title"]}" has to be on {when} instead. Change it, and let everyone who is invited know in a '
        f'single mail: subject "{subject}", text "{body}"',
    )


def cancelled_event(draft: TaskDraft) -> str:
    """Ask to cancel an event and to tell all attendees."""
    name, event = draft.choose_record("events")
    if ME in event["attendees"]:
        raise UnsuitableOffice
    draft.add_call("search_events", title=event["title"])
    why = draft.choose(
        ("The room is flooded.", "There is nothing to decide.", "We settle it by mail.", "Too many are ill.")
    )
    subject = f"Cancelled: {event['title']}"
    draft.add_call("cancel_event", event_id=name)
    draft.add_call("send_mail", to=event["attendees"], subject=subject, body=why)
    return draft.choose_phrasing(
        f'Cancel the "{event["title"]}" and tell all its attendees in one mail with the subject "{subject}" and the '
        f'text "{why}"',
        f'The "{event["title"]}" will not take place. Take it out of the calendar and write one mail to those who '
        f'were invited; its subject is "{subject}", its text "{why}"',
    )


def handed_over(draft: TaskDraft) -> str:
    """Ask to assign all open tickets of one colleague to another, and to tell the other how many."""
    _, ticket = draft.choose_record("tickets", status="open")
    before = ticket["assignee"]
    if not before:
        raise UnsuitableOffice
    after = draft.choose_person(before, team=draft.choose(("Support", "Engineering")))
    leaving = draft.name_of(before)
    draft.add_call("find_people", name=leaving)
    draft.add_call("search_tickets", assignee=before, status="open")
    found = [name for name, _ in draft.office.find("tickets", assignee=before, status="open")]
    for name in found:
        draft.add_call("assign_ticket", ticket_id=name, assignee=after["email"])
    body = f"Open tickets taken over: {len(found)}"
    draft.add_call("send_mail", to=[after["email"]], subject="Handover", body=body)
    quoted = '"Open tickets taken over: N"'
    return draft.choose_phrasing(
        f"{leaving} is leaving. Assign all open tickets of {leaving} to {after['name']}, and send {after['name']} a "
        f'mail with the subject "Handover" and the text {quoted}, where N is how many there were.',
        f"From today {after['name']} does what {leaving} did: hand over every open ticket, but no waiting or closed "
        f'one. Then mail {after["name"]}, subject "Handover", text {quoted}, with the number for N.',
    )


def other_plan(draft: TaskDraft) -> str:
    """Ask to change a customer's plan, to note the old one and to tell the contact."""
    name, customer = draft.choose_record("customers")
    draft.find_customer(name)
    plan = draft.choose([p for p in PLANS if p != customer["plan"]])
    note, subject = f"Was on {customer['plan']} before.", f"Your new plan: {plan}"
    body = draft.choose(("Thank you for your trust.", "It holds from today.", "Your next invoice will show it."))
    draft.add_call("change_plan", customer_id=name, plan=plan)
    draft.add_call("add_note", customer_id=name, text=note)
    draft.add_call("send_mail", to=[customer["contact_email"]], subject=subject, body=body)
    return draft.choose_phrasing(
        f'{customer["name"]} goes to the {plan} plan. Change it, note at the customer "Was on OLD before." (with '
        f'their plan until now for OLD), and mail their contact: subject "{subject}", text "{body}"',
        f'Put {customer["name"]} on {plan}, and keep a note "Was on OLD before.", OLD being the plan they have '
        f'today. Their contact person gets a mail with the subject "{subject}" and the text "{body}"',
    )


def free_time(draft: TaskDraft) -> str:
    """Ask for a meeting at the first time at which two colleagues are free."""
    one = draft.choose_person()
    other = draft.choose_person(one["email"])
    day = draft.choose_time().date()
    who = sorted([one["email"], other["email"]])
    minutes, title = (
        draft.choose((30, 60, 90)),
        draft.choose(("Catch-up", "One to one", "Short briefing", "Final check")),
    )
    start = find_free_start(draft.office, who, day, minutes)
    if start is None:
        raise UnsuitableOffice
    draft.add_call("find_free_time", attendees=who, on=str(day), minutes=minutes)
    draft.add_call("create_event", title=title, start=start, minutes=minutes, attendees=who)
    body = "You find it in your calendar."
    draft.add_call("send_mail", to=who, subject=title, body=body)
    both = f"{one['name']} and {other['name']}"
    return draft.choose_phrasing(
        f"Find the first time on {format_date(day)} at which {both} are both free for {minutes} minutes, and put an "
        f'event "{title}" there for the two of them, without a room. Then send them one mail: subject "{title}", '
        f'text "{body}"',
        f"{both} should meet on {format_date(day)} for {minutes} minutes, as early as both can. Create the event, "
        f'called "{title}", with just these two and no room, and tell both in a single mail (subject "{title}", '
        f'text "{body}").',
    )


def closed_tickets(draft: TaskDraft) -> str:
    """Ask to close all waiting tickets of a customer."""
    _, waiting = draft.choose_record("tickets", status="waiting")
    customer_id = waiting["customer"]
    company = draft.find_customer(customer_id)["name"]
    draft.add_call("search_tickets", customer_id=customer_id, status="waiting")
    comment = draft.choose(
        ("Closed for want of an answer.", "No answer in three weeks.", "Closed; write again any time.")
    )
    for name, _ in draft.office.find("tickets", customer=customer_id, status="waiting"):
        draft.add_call("set_status", ticket_id=name, status="closed")
        draft.add_call("comment_ticket", ticket_id=name, text=comment)
    draft.add_call("add_note", customer_id=customer_id, text="Waiting tickets closed.")
    return draft.choose_phrasing(
        f'Close every waiting ticket of {company}, each with the comment "{comment}", and add a note to the '
        'customer: "Waiting tickets closed."',
        f"We have waited long enough for {company}. All their tickets with the status waiting are to be closed, each "
        f'with "{comment}" as a comment. Note "Waiting tickets closed." at the customer.',
    )


def city_owner(draft: TaskDraft) -> str:
    """Ask to give all customers of a city to one owner."""
    _, customer = draft.choose_record("customers")
    city, owner = customer["city"], draft.choose_person(team="Sales")
    draft.add_call("search_customers", city=city)
    note = f"{owner['name']} looks after {city}."
    found = list(draft.office.find("customers", city=city))
    if all(record["owner"] == owner["email"] for _, record in found):
        raise UnsuitableOffice
    for name, _ in found:
        draft.add_call("set_owner", customer_id=name, owner=owner["email"])
        draft.add_call("add_note", customer_id=name, text=note)
    return draft.choose_phrasing(
        f'{owner["name"]} becomes the account owner of all our customers in {city}. Set that, and note "{note}" at '
        "each of them.",
        f"Every customer in {city} shall be owned by {owner['name']} from now on. Add to each of these customers the "
        f'note "{note}", whoever owned them before.',
    )


def forwarded_mail(draft: TaskDraft) -> str:
    """Ask to forward a mail to a team lead, then to label and archive it."""
    name, mail = draft.choose_record("mails", folder="inbox")
    draft.add_call("search_mail", text=mail["subject"], folder="inbox")
    team = draft.choose(("Sales", "Support", "Engineering", "Finance"))
    lead = draft.find_lead(team)["email"]
    draft.add_call("forward_mail", mail_id=name, to=[lead])
    draft.add_call("label_mail", mail_id=name, label=team.lower())
    draft.add_call("archive_mail", mail_id=name)
    return draft.choose_phrasing(
        f'Forward the mail "{mail["subject"]}" to the lead of {team}, label it "{team.lower()}" and archive it.',
        f'The mail "{mail["subject"]}" is nothing for me. Whoever leads {team} should get it as it is; then put the '
        f'label "{team.lower()}" on it and move it to the archive.',
        f'Please pass "{mail["subject"]}" from my inbox on to the head of {team}. Afterwards archive it, with '
        f'"{team.lower()}" as its label.',
    )


def asked_for_meeting(draft: TaskDraft) -> str:
    """Ask for a call with a customer's account owner, and to reply to the customer's mail."""
    name, mail = draft.choose_record("mails", folder="inbox")
    draft.add_call("search_mail", text=mail["subject"], folder="inbox")
    _, customer = next(draft.office.find("customers", contact_email=mail["sender"]))
    draft.add_call("search_customers", text=mail["sender"])
    start, title = draft.choose_time(), f"Call with {customer['name']}"
    body = f"We look forward to our call on {format_date(start)} at {format_time(start)}."
    attendees = sorted([customer["owner"], ME])
    draft.add_call("create_event", title=title, start=start.strftime(TIME_FORMAT), minutes=30, attendees=attendees)
    draft.add_call("reply_mail", mail_id=name, body=body)
    return draft.choose_phrasing(
        f'The sender of the mail "{mail["subject"]}" would like to talk to us. Create an event "{title}" on '
        f"{format_date(start)} at {format_time(start)} for 30 minutes, no room, with the account owner of that "
        f'customer and me. Then reply to the mail: "{body}"',
        f"I want to speak with {customer['contact']} of {customer['name']} on {format_date(start)} at "
        f"{format_time(start)}, together with their account owner. Put half an hour into our two calendars, "
        f'without a room, as "{title}", '
        f'and answer the mail "{mail["subject"]}" with "{body}"',
    )


def escalate_ticket(draft: TaskDraft) -> str:
    """Ask to make a ticket urgent, to assign it to the lead of Support and to tell the account owner."""
    name, ticket = draft.choose_record("tickets", status="open")
    draft.add_call("search_tickets", text=ticket["title"])
    customer = draft.find_customer(ticket["customer"])
    lead = draft.find_lead("Support")["email"]
    if lead == ticket["assignee"]:
        raise UnsuitableOffice
    subject = f"Escalated: {ticket['title']}"
    body = draft.choose(("Please call the customer today.", "Please be ready for questions.", "I keep you informed."))
    draft.add_call("set_priority", ticket_id=name, priority="urgent")
    draft.add_call("assign_ticket", ticket_id=name, assignee=lead)
    draft.add_call("send_mail", to=[customer["owner"]], subject=subject, body=body)
    return draft.choose_phrasing(
        f'Escalate the ticket "{ticket["title"]}": it is urgent now, and the lead of Support does it. Send the '
        f'account owner of the customer a mail with the subject "{subject}" and the text "{body}"',
        f'{customer["name"]} is angry about "{ticket["title"]}". Make that ticket urgent, assign it to the head of '
        f'Support, and mail the account owner of {customer["name"]}: subject "{subject}", text "{body}"',
    )


def swapped_attendee(draft: TaskDraft) -> str:
    """Ask to replace an attendee of an event by another colleague and to tell both."""
    name, event = draft.choose_record("events")
    draft.add_call("search_events", title=event["title"])
    out = draft.choose([email for email in event["attendees"] if email != ME])
    into = draft.choose_person(*event["attendees"])
    leaving = draft.name_of(out)
    draft.add_call("find_people", name=leaving)
    draft.add_call("add_attendee", event_id=name, email=into["email"])
    draft.add_call("remove_attendee", event_id=name, email=out)
    subject, body = f"Change for {event['title']}", f"{into['name']} goes instead of {leaving}."
    draft.add_call("send_mail", to=sorted([out, into["email"]]), subject=subject, body=body)
    return draft.choose_phrasing(
        f'{into["name"]} goes to the "{event["title"]}" instead of {leaving}. Change the invitations, and tell both '
        f'in one mail with the subject "{subject}" and the text "{body}"',
        f'{leaving} cannot come to the "{event["title"]}". Invite {into["name"]}, take {leaving} off the event, and '
        f'send the two of them a single mail, subject "{subject}", text "{body}"',
    )


def labelled_mails(draft: TaskDraft) -> str:
    """Ask to label all mails of a customer in the inbox."""
    _, mail = draft.choose_record("mails", folder="inbox")
    sender = mail["sender"]
    customer_id, customer = next(draft.office.find("customers", contact_email=sender))
    draft.find_customer(customer_id)
    draft.add_call("search_mail", sender=sender, folder="inbox")
    label = draft.choose(("key account", "to discuss", "follow up", "next week"))
    for name, _ in draft.office.find("mails", sender=sender, folder="inbox"):
        draft.add_call("label_mail", mail_id=name, label=label)
    note = draft.choose(("Mails looked through.", "Mails sorted.", "See the labelled mails."))
    draft.add_call("add_note", customer_id=customer_id, text=note)
    return draft.choose_phrasing(
        f'Put the label "{label}" on every mail in my inbox that is from {customer["name"]}, and add the note '
        f'"{note}" to the customer.',
        f"Whatever {customer['contact']} of {customer['name']} has sent me and is still in the inbox gets the label "
        f'"{label}". Then note at that customer: "{note}"',
    )


def day_off(draft: TaskDraft) -> str:
    """Ask to cancel all my events of a day and to tell the others who were invited."""
    mine = [event for _, event in draft.office.find("events") if ME in event["attendees"]]
    day = datetime.strptime(draft.choose(mine)["start"], TIME_FORMAT).date()
    draft.add_call("list_events", on=str(day), attendee=ME)
    events = [e for e in draft.office.find("events") if ME in e[1]["attendees"] and e[1]["start"].startswith(str(day))]
    others = sorted({email for _, event in events for email in event["attendees"]} - {ME})
    for name, _ in events:
        draft.add_call("cancel_event", event_id=name)
    subject, body = "Not that day", f"I am away on {format_date(day)}."
    draft.add_call("send_mail", to=others, subject=subject, body=body)
    return draft.choose_phrasing(
        f"I am away on {format_date(day)}. Cancel every event on that day that I am invited to, and send one mail to "
        f'all the others who were invited to any of them (not to me): subject "{subject}", text "{body}"',
        f"Clear my {format_date(day)}: whatever I am invited to on that day is cancelled. Everyone else who was "
        f'invited to one of these events gets one and the same mail, with the subject "{subject}" and the text '
        f'"{body}"',
    )


def ticket_and_meeting(draft: TaskDraft) -> str:
    """Ask for a ticket for a team lead, and a meeting about it."""
    team = draft.choose(("Support", "Engineering"))
    lead = draft.find_lead(team)
    name, customer = draft.choose_record("customers")
    draft.find_customer(name)
    title = draft.choose(
        ("Prepare the renewal", "Collect open questions", "Write the migration plan", "Test the new export")
    )
    start = draft.choose_time()
    draft.add_call("create_ticket", customer_id=name, title=title, priority="normal", assignee=lead["email"])
    event = f"{title}: {customer['name']}"
    attendees = sorted([lead["email"], customer["owner"]])
    draft.add_call(
        "create_event", title=event, start=start.strftime(TIME_FORMAT), minutes=60, attendees=attendees, room="Cedar"
    )
    return draft.choose_phrasing(
        f'Open a ticket "{title}" for {customer["name"]}, with normal priority, for the lead of {team}. Then put an '
        f'event "{event}" into the calendar: {format_date(start)}, {format_time(start)}, one hour, room Cedar, with '
        "that lead and the account owner of the customer.",
        f'The head of {team} shall do "{title}" for {customer["name"]}: make it a ticket with normal priority. Also '
        f"book Cedar on {format_date(start)} at {format_time(start)} for 60 minutes, for the head of {team} and the "
        f'customer\'s account owner, as "{event}"',
    )


TASK_KINDS: dict[str, Callable[[TaskDraft], str]] = {
    "unassigned_ticket": unassigned_ticket,
    "ticket_from_mail": ticket_from_mail,
    "moved_event": moved_event,
    "cancelled_event": cancelled_event,
    "handed_over": handed_over,
    "other_plan": other_plan,
    "free_time": free_time,
    "closed_tickets": closed_tickets,
    "city_owner": city_owner,
    "forwarded_mail": forwarded_mail,
    "asked_for_meeting": asked_for_meeting,
    "escalated": escalate_ticket,
    "swapped_attendee": swapped_attendee,
    "labelled_mails": labelled_mails,
    "day_off": day_off,
    "ticket_and_meeting": ticket_and_meeting,
}
"""The kinds in the order in which tasks take turns, by the name that is stored with a task."""
