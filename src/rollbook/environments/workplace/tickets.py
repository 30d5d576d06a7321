"""The help desk's tickets."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rollbook.core.json import JSON
from rollbook.environments.environment import Environment, tool
from rollbook.environments.workplace.world import World

Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]
Status: TypeAlias = Literal["open", "waiting", "closed"]


class Tickets(Environment):
    """Looking, opening, handing on, commenting."""

    @tool
    def search_tickets(
        self, state: World, text: str = "", customer_id: str = "", assignee: str = "", status: str = ""
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
    def get_ticket(self, state: World, ticket_id: str) -> JSON:
        """A whole ticket, with its comments."""
        return {"id": ticket_id, **state.get("tickets", ticket_id)}

    @tool
    def create_ticket(
        self, state: World, customer_id: str, title: str, priority: Priority = "normal", assignee: str = ""
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
            "assignee": state.staff(assignee) if assignee else "",
            "comments": [],
        }
        return f"Created {state.add('tickets', record)}."

    @tool
    def assign_ticket(self, state: World, ticket_id: str, assignee: str) -> str:
        """Give a ticket to someone, by mail address."""
        state.get("tickets", ticket_id)["assignee"] = state.staff(assignee)
        return f"Assigned {ticket_id} to {assignee}."

    @tool
    def set_priority(self, state: World, ticket_id: str, priority: Priority) -> str:
        """Change how soon a ticket shall be done."""
        state.get("tickets", ticket_id)["priority"] = priority
        return f"{ticket_id} is {priority}."

    @tool
    def set_status(self, state: World, ticket_id: str, status: Status) -> str:
        """Open a ticket, let it wait, or close it."""
        state.get("tickets", ticket_id)["status"] = status
        return f"{ticket_id} is {status}."

    @tool
    def comment_ticket(self, state: World, ticket_id: str, text: str) -> str:
        """Write a comment under a ticket."""
        ticket = state.get("tickets", ticket_id)
        ticket["comments"] = [*ticket["comments"], text]
        return f"Commented on {ticket_id}."
