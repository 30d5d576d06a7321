"""The kinds of tasks: each looks around in a world, notes the calls that do it, and says it in plain English.

Every kind asks for at least two changes, one of which cannot be done twice unnoticed (a mail, a comment, a note, an
event, a ticket), and nothing that cannot be found out with the tools.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from rollbook.environments.workplace.calendar import first_free
from rollbook.environments.workplace.draft import Draft, Unsuited, clock, long_date
from rollbook.environments.workplace.names import ME, PLANS, PRIORITIES
from rollbook.environments.workplace.world import TIME

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


def unassigned_ticket(draft: Draft) -> str:
    """Somebody has to do it."""
    name, ticket = draft.some("tickets", status="open", assignee="")
    company = draft.company(ticket["customer"])["name"]
    draft.use("search_tickets", customer_id=ticket["customer"], assignee="none")
    team, comment = draft.one(("Support", "Engineering")), draft.one(COMMENTS)
    priority = draft.one([p for p in PRIORITIES[2:] if p != ticket["priority"]])
    draft.use("assign_ticket", ticket_id=name, assignee=draft.lead(team)["email"])
    draft.use("set_priority", ticket_id=name, priority=priority)
    draft.use("comment_ticket", ticket_id=name, text=comment)
    return draft.say(
        f'{company} has a ticket called "{ticket["title"]}" that nobody works on. Give it to the lead of {team}, '
        f'make it {priority}, and comment on it: "{comment}"',
        f'Please look after the unassigned ticket "{ticket["title"]}" of {company}. The lead of {team} should have '
        f'it, with the priority {priority} and the comment "{comment}"',
        f'Nobody has taken on "{ticket["title"]}", a ticket of {company}. Set its priority to {priority}, assign it '
        f'to whoever leads {team}, and leave this comment: "{comment}"',
    )


def ticket_from_mail(draft: Draft) -> str:
    """A mail that should be a ticket."""
    name, mail = draft.some("mails", folder="inbox")
    draft.use("search_mail", text=mail["subject"], folder="inbox")
    customer_id, customer = next(draft.world.find("customers", contact_email=mail["sender"]))
    draft.use("search_customers", text=mail["sender"])
    priority, reply = draft.one(PRIORITIES), draft.one(REPLIES)
    draft.use("create_ticket", customer_id=customer_id, title=mail["subject"], priority=priority)
    draft.use("reply_mail", mail_id=name, body=reply)
    return draft.say(
        f'There is a mail "{mail["subject"]}" in my inbox. Open a ticket for the customer it came from, with the '
        f'subject as its title, the priority {priority} and no assignee. Then reply to the mail: "{reply}"',
        f'{customer["contact"]} of {customer["name"]} wrote to me about "{mail["subject"]}". Make that a {priority} '
        f'ticket of theirs, titled like the mail and assigned to nobody, and reply "{reply}"',
        f'Turn the mail "{mail["subject"]}" into a ticket of its sender\'s company ({priority} priority, same title, '
        f'nobody assigned), and answer the mail with "{reply}"',
    )


def moved_event(draft: Draft) -> str:
    """Another time, and everyone knows."""
    name, event = draft.some("events")
    draft.use("search_events", title=event["title"])
    start = draft.free_moment()
    if start.strftime(TIME) == event["start"] or ME in event["attendees"]:
        raise Unsuited
    when = f"{long_date(start)} at {clock(start)}"
    subject, body = f"Moved: {event['title']}", f"It now takes place on {when}."
    draft.use("move_event", event_id=name, start=start.strftime(TIME))
    draft.use("send_mail", to=event["attendees"], subject=subject, body=body)
    return draft.say(
        f'Move the "{event["title"]}" to {when}. Then send one mail to all its attendees, with the subject '
        f'"{subject}" and the text "{body}"',
        f'The "{event["title"]}" has to be on {when} instead. Change it, and let everyone who is invited know in a '
        f'single mail: subject "{subject}", text "{body}"',
    )


def cancelled_event(draft: Draft) -> str:
    """It does not take place, and everyone knows."""
    name, event = draft.some("events")
    if ME in event["attendees"]:
        raise Unsuited
    draft.use("search_events", title=event["title"])
    why = draft.one(
        ("The room is flooded.", "There is nothing to decide.", "We settle it by mail.", "Too many are ill.")
    )
    subject = f"Cancelled: {event['title']}"
    draft.use("cancel_event", event_id=name)
    draft.use("send_mail", to=event["attendees"], subject=subject, body=why)
    return draft.say(
        f'Cancel the "{event["title"]}" and tell all its attendees in one mail with the subject "{subject}" and the '
        f'text "{why}"',
        f'The "{event["title"]}" will not take place. Take it out of the calendar and write one mail to those who '
        f'were invited; its subject is "{subject}", its text "{why}"',
    )


def handed_over(draft: Draft) -> str:
    """All open tickets of one for another."""
    _, ticket = draft.some("tickets", status="open")
    before = ticket["assignee"]
    if not before:
        raise Unsuited
    after = draft.person(before, team=draft.one(("Support", "Engineering")))
    leaving = draft.named(before)
    draft.use("find_people", name=leaving)
    draft.use("search_tickets", assignee=before, status="open")
    found = [name for name, _ in draft.world.find("tickets", assignee=before, status="open")]
    for name in found:
        draft.use("assign_ticket", ticket_id=name, assignee=after["email"])
    body = f"Open tickets taken over: {len(found)}"
    draft.use("send_mail", to=[after["email"]], subject="Handover", body=body)
    told = '"Open tickets taken over: N"'
    return draft.say(
        f"{leaving} is leaving. Assign all open tickets of {leaving} to {after['name']}, and send {after['name']} a "
        f'mail with the subject "Handover" and the text {told}, where N is how many there were.',
        f"From today {after['name']} does what {leaving} did: hand over every open ticket, but no waiting or closed "
        f'one. Then mail {after["name"]}, subject "Handover", text {told}, with the number for N.',
    )


def other_plan(draft: Draft) -> str:
    """A customer who buys more, or less."""
    name, customer = draft.some("customers")
    draft.company(name)
    plan = draft.one([p for p in PLANS if p != customer["plan"]])
    note, subject = f"Was on {customer['plan']} before.", f"Your new plan: {plan}"
    body = draft.one(("Thank you for your trust.", "It holds from today.", "Your next invoice will show it."))
    draft.use("change_plan", customer_id=name, plan=plan)
    draft.use("add_note", customer_id=name, text=note)
    draft.use("send_mail", to=[customer["contact_email"]], subject=subject, body=body)
    return draft.say(
        f'{customer["name"]} goes to the {plan} plan. Change it, note at the customer "Was on OLD before." (with '
        f'their plan until now for OLD), and mail their contact: subject "{subject}", text "{body}"',
        f'Put {customer["name"]} on {plan}, and keep a note "Was on OLD before.", OLD being the plan they have '
        f'today. Their contact person gets a mail with the subject "{subject}" and the text "{body}"',
    )


def free_time(draft: Draft) -> str:
    """A meeting when both can."""
    one = draft.person()
    other = draft.person(one["email"])
    day = draft.free_moment().date()
    who = sorted([one["email"], other["email"]])
    minutes, title = draft.one((30, 60, 90)), draft.one(("Catch-up", "One to one", "Short briefing", "Final check"))
    start = first_free(draft.world, who, day, minutes)
    if start is None:
        raise Unsuited
    draft.use("find_free_time", attendees=who, on=str(day), minutes=minutes)
    draft.use("create_event", title=title, start=start, minutes=minutes, attendees=who)
    body = "You find it in your calendar."
    draft.use("send_mail", to=who, subject=title, body=body)
    both = f"{one['name']} and {other['name']}"
    return draft.say(
        f"Find the first time on {long_date(day)} at which {both} are both free for {minutes} minutes, and put an "
        f'event "{title}" there for the two of them, without a room. Then send them one mail: subject "{title}", '
        f'text "{body}"',
        f"{both} should meet on {long_date(day)} for {minutes} minutes, as early as both can. Create the event, "
        f'called "{title}", with just these two and no room, and tell both in a single mail (subject "{title}", '
        f'text "{body}").',
    )


def closed_tickets(draft: Draft) -> str:
    """Customers who do not answer."""
    _, waiting = draft.some("tickets", status="waiting")
    customer_id = waiting["customer"]
    company = draft.company(customer_id)["name"]
    draft.use("search_tickets", customer_id=customer_id, status="waiting")
    comment = draft.one(("Closed for want of an answer.", "No answer in three weeks.", "Closed; write again any time."))
    for name, _ in draft.world.find("tickets", customer=customer_id, status="waiting"):
        draft.use("set_status", ticket_id=name, status="closed")
        draft.use("comment_ticket", ticket_id=name, text=comment)
    draft.use("add_note", customer_id=customer_id, text="Waiting tickets closed.")
    return draft.say(
        f'Close every waiting ticket of {company}, each with the comment "{comment}", and add a note to the '
        'customer: "Waiting tickets closed."',
        f"We have waited long enough for {company}. All their tickets with the status waiting are to be closed, each "
        f'with "{comment}" as a comment. Note "Waiting tickets closed." at the customer.',
    )


def city_owner(draft: Draft) -> str:
    """All customers of a city for one owner."""
    _, customer = draft.some("customers")
    city, owner = customer["city"], draft.person(team="Sales")
    draft.use("search_customers", city=city)
    note = f"{owner['name']} looks after {city}."
    found = list(draft.world.find("customers", city=city))
    if all(record["owner"] == owner["email"] for _, record in found):
        raise Unsuited
    for name, _ in found:
        draft.use("set_owner", customer_id=name, owner=owner["email"])
        draft.use("add_note", customer_id=name, text=note)
    return draft.say(
        f'{owner["name"]} becomes the account owner of all our customers in {city}. Set that, and note "{note}" at '
        "each of them.",
        f"Every customer in {city} shall be owned by {owner['name']} from now on. Add to each of these customers the "
        f'note "{note}", whoever owned them before.',
    )


def forwarded_mail(draft: Draft) -> str:
    """Not for me."""
    name, mail = draft.some("mails", folder="inbox")
    draft.use("search_mail", text=mail["subject"], folder="inbox")
    team = draft.one(("Sales", "Support", "Engineering", "Finance"))
    lead = draft.lead(team)["email"]
    draft.use("forward_mail", mail_id=name, to=[lead])
    draft.use("label_mail", mail_id=name, label=team.lower())
    draft.use("archive_mail", mail_id=name)
    return draft.say(
        f'Forward the mail "{mail["subject"]}" to the lead of {team}, label it "{team.lower()}" and archive it.',
        f'The mail "{mail["subject"]}" is nothing for me. Whoever leads {team} should get it as it is; then put the '
        f'label "{team.lower()}" on it and move it to the archive.',
        f'Please pass "{mail["subject"]}" from my inbox on to the head of {team}. Afterwards archive it, with '
        f'"{team.lower()}" as its label.',
    )


def asked_for_meeting(draft: Draft) -> str:
    """A customer who wants to talk to the owner and me."""
    name, mail = draft.some("mails", folder="inbox")
    draft.use("search_mail", text=mail["subject"], folder="inbox")
    _, customer = next(draft.world.find("customers", contact_email=mail["sender"]))
    draft.use("search_customers", text=mail["sender"])
    start, title = draft.free_moment(), f"Call with {customer['name']}"
    body = f"We look forward to our call on {long_date(start)} at {clock(start)}."
    attendees = sorted([customer["owner"], ME])
    draft.use("create_event", title=title, start=start.strftime(TIME), minutes=30, attendees=attendees)
    draft.use("reply_mail", mail_id=name, body=body)
    return draft.say(
        f'The sender of the mail "{mail["subject"]}" would like to talk to us. Create an event "{title}" on '
        f"{long_date(start)} at {clock(start)} for 30 minutes, no room, with the account owner of that customer and "
        f'me. Then reply to the mail: "{body}"',
        f"I want to speak with {customer['contact']} of {customer['name']} on {long_date(start)} at {clock(start)}, "
        f'together with their account owner. Put half an hour into our two calendars, without a room, as "{title}", '
        f'and answer the mail "{mail["subject"]}" with "{body}"',
    )


def escalated(draft: Draft) -> str:
    """It burns."""
    name, ticket = draft.some("tickets", status="open")
    draft.use("search_tickets", text=ticket["title"])
    customer = draft.company(ticket["customer"])
    lead = draft.lead("Support")["email"]
    if lead == ticket["assignee"]:
        raise Unsuited
    subject = f"Escalated: {ticket['title']}"
    body = draft.one(("Please call the customer today.", "Please be ready for questions.", "I keep you informed."))
    draft.use("set_priority", ticket_id=name, priority="urgent")
    draft.use("assign_ticket", ticket_id=name, assignee=lead)
    draft.use("send_mail", to=[customer["owner"]], subject=subject, body=body)
    return draft.say(
        f'Escalate the ticket "{ticket["title"]}": it is urgent now, and the lead of Support does it. Send the '
        f'account owner of the customer a mail with the subject "{subject}" and the text "{body}"',
        f'{customer["name"]} is angry about "{ticket["title"]}". Make that ticket urgent, assign it to the head of '
        f'Support, and mail the account owner of {customer["name"]}: subject "{subject}", text "{body}"',
    )


def swapped_attendee(draft: Draft) -> str:
    """One goes instead of the other."""
    name, event = draft.some("events")
    draft.use("search_events", title=event["title"])
    out = draft.one([email for email in event["attendees"] if email != ME])
    into = draft.person(*event["attendees"])
    leaving = draft.named(out)
    draft.use("find_people", name=leaving)
    draft.use("add_attendee", event_id=name, email=into["email"])
    draft.use("remove_attendee", event_id=name, email=out)
    subject, body = f"Change for {event['title']}", f"{into['name']} goes instead of {leaving}."
    draft.use("send_mail", to=sorted([out, into["email"]]), subject=subject, body=body)
    return draft.say(
        f'{into["name"]} goes to the "{event["title"]}" instead of {leaving}. Change the invitations, and tell both '
        f'in one mail with the subject "{subject}" and the text "{body}"',
        f'{leaving} cannot come to the "{event["title"]}". Invite {into["name"]}, take {leaving} off the event, and '
        f'send the two of them a single mail, subject "{subject}", text "{body}"',
    )


def labelled_mails(draft: Draft) -> str:
    """All that a customer wrote."""
    _, mail = draft.some("mails", folder="inbox")
    sender = mail["sender"]
    customer_id, customer = next(draft.world.find("customers", contact_email=sender))
    draft.company(customer_id)
    draft.use("search_mail", sender=sender, folder="inbox")
    label = draft.one(("key account", "to discuss", "follow up", "next week"))
    for name, _ in draft.world.find("mails", sender=sender, folder="inbox"):
        draft.use("label_mail", mail_id=name, label=label)
    note = draft.one(("Mails looked through.", "Mails sorted.", "See the labelled mails."))
    draft.use("add_note", customer_id=customer_id, text=note)
    return draft.say(
        f'Put the label "{label}" on every mail in my inbox that is from {customer["name"]}, and add the note '
        f'"{note}" to the customer.',
        f"Whatever {customer['contact']} of {customer['name']} has sent me and is still in the inbox gets the label "
        f'"{label}". Then note at that customer: "{note}"',
    )


def day_off(draft: Draft) -> str:
    """Nothing on that day, and those who were invited know."""
    mine = [event for _, event in draft.world.find("events") if ME in event["attendees"]]
    day = datetime.strptime(draft.one(mine)["start"], TIME).date()
    draft.use("list_events", on=str(day), attendee=ME)
    events = [e for e in draft.world.find("events") if ME in e[1]["attendees"] and e[1]["start"].startswith(str(day))]
    others = sorted({email for _, event in events for email in event["attendees"]} - {ME})
    for name, _ in events:
        draft.use("cancel_event", event_id=name)
    subject, body = "Not that day", f"I am away on {long_date(day)}."
    draft.use("send_mail", to=others, subject=subject, body=body)
    return draft.say(
        f"I am away on {long_date(day)}. Cancel every event on that day that I am invited to, and send one mail to "
        f'all the others who were invited to any of them (not to me): subject "{subject}", text "{body}"',
        f"Clear my {long_date(day)}: whatever I am invited to on that day is cancelled. Everyone else who was "
        f'invited to one of these events gets one and the same mail, with the subject "{subject}" and the text '
        f'"{body}"',
    )


def ticket_and_meeting(draft: Draft) -> str:
    """The lead of a team, and a ticket for what was talked about."""
    team = draft.one(("Support", "Engineering"))
    lead = draft.lead(team)
    name, customer = draft.some("customers")
    draft.company(name)
    title = draft.one(
        ("Prepare the renewal", "Collect open questions", "Write the migration plan", "Test the new export")
    )
    start = draft.free_moment()
    draft.use("create_ticket", customer_id=name, title=title, priority="normal", assignee=lead["email"])
    event = f"{title}: {customer['name']}"
    attendees = sorted([lead["email"], customer["owner"]])
    draft.use("create_event", title=event, start=start.strftime(TIME), minutes=60, attendees=attendees, room="Cedar")
    return draft.say(
        f'Open a ticket "{title}" for {customer["name"]}, with normal priority, for the lead of {team}. Then put an '
        f'event "{event}" into the calendar: {long_date(start)}, {clock(start)}, one hour, room Cedar, with that '
        "lead and the account owner of the customer.",
        f'The head of {team} shall do "{title}" for {customer["name"]}: make it a ticket with normal priority. Also '
        f"book Cedar on {long_date(start)} at {clock(start)} for 60 minutes, for the head of {team} and the "
        f'customer\'s account owner, as "{event}"',
    )


JOBS: tuple[Callable[[Draft], str], ...] = (
    unassigned_ticket,
    ticket_from_mail,
    moved_event,
    cancelled_event,
    handed_over,
    other_plan,
    free_time,
    closed_tickets,
    city_owner,
    forwarded_mail,
    asked_for_meeting,
    escalated,
    swapped_attendee,
    labelled_mails,
    day_off,
    ticket_and_meeting,
)
