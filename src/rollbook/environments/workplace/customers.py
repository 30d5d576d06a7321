"""The customers."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rollbook.core.json import JSON
from rollbook.environments.environment import Environment, tool
from rollbook.environments.workplace.world import World

Plan: TypeAlias = Literal["basic", "team", "enterprise"]


class Customers(Environment):
    """Looking them up, and keeping what is known of them."""

    @tool
    def search_customers(self, state: World, text: str = "", city: str = "", owner: str = "", plan: str = "") -> JSON:
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
    def get_customer(self, state: World, customer_id: str) -> JSON:
        """A whole customer, with the notes."""
        return {"id": customer_id, **state.get("customers", customer_id)}

    @tool
    def change_plan(self, state: World, customer_id: str, plan: Plan) -> str:
        """Put a customer on another plan."""
        state.get("customers", customer_id)["plan"] = plan
        return f"{customer_id} is on {plan}."

    @tool
    def set_owner(self, state: World, customer_id: str, owner: str) -> str:
        """Give a customer another account owner, by mail address."""
        state.get("customers", customer_id)["owner"] = state.staff(owner)
        return f"{owner} owns {customer_id}."

    @tool
    def add_note(self, state: World, customer_id: str, text: str) -> str:
        """Add a note to a customer."""
        customer = state.get("customers", customer_id)
        customer["notes"] = [*customer["notes"], text]
        return f"Noted at {customer_id}."
