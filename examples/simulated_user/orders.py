"""A help desk for orders: a simulated user asks, the model follows a policy with tools, the final orders decide."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from rollbook import Message, Rollout, Score, Task, UserSimulator, tool

POLICY = """You are the help desk of a shop. You may look up, cancel and readdress orders with the tools.
- Ask for the number of the order before you look anything up.
- An order can be cancelled or readdressed only while its status is "open". Never promise anything else.
- Before you change an order, say what you will do and wait until the user agrees.
- If a request is against these rules, refuse it politely and change nothing."""

ORDERS: dict[str, dict[str, str]] = {
    "A17": {"item": "lamp", "status": "open", "address": "1 Elm Road"},
    "B20": {"item": "chair", "status": "shipped", "address": "9 Oak Lane"},
}
TASKS: list[dict[str, Any]] = [
    {
        "id": "cancel",
        "opening": "Hi, I changed my mind about something I ordered.",
        "goal": "Cancel the order of the lamp, number A17. Agree when the assistant asks you to confirm.",
        "expected": {"A17": {"status": "cancelled"}},
    },
    {
        "id": "too_late",
        "opening": "I have to stop an order, quickly!",
        "goal": "Have order B20 cancelled, although it has been shipped. Insist once, then give up.",
        "persona": "The person is in a hurry and annoyed.",
        "expected": {},
    },
]


class HelpDesk(UserSimulator):
    """Requests about two orders; some of them are against the policy."""

    max_user_turns = 8

    def tasks(self) -> Iterator[Task]:
        """Yield the requests. The model gets the policy and the first message of the user."""
        for row in TASKS:
            messages = [Message("system", POLICY), Message("user", row["opening"])]
            yield Task(row["id"], messages=messages, **{key: row[key] for key in row if key not in ("id", "opening")})

    async def open(self, task: Task) -> dict[str, dict[str, str]]:
        """Return the orders of this rollout."""
        return deepcopy(ORDERS)

    @tool
    async def find_order(self, state: dict[str, dict[str, str]], number: str) -> str:
        """Look up an order.

        Args:
            number: The number of the order, such as A17.
        """
        return str(_find(state, number))

    @tool
    async def cancel_order(self, state: dict[str, dict[str, str]], number: str) -> str:
        """Cancel an order.

        Args:
            number: The number of the order.
        """
        _find(state, number)["status"] = "cancelled"
        return f"{number} is cancelled."

    @tool
    async def change_address(self, state: dict[str, dict[str, str]], number: str, address: str) -> str:
        """Send an order to another address.

        Args:
            number: The number of the order.
            address: The new address.
        """
        _find(state, number)["address"] = address
        return f"{number} goes to {address}."

    async def outcome(self, state: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        """Return the orders as they were left."""
        return state

    async def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if exactly the expected changes were made, whatever was said on the way."""
        expected = {number: {**order, **task.fields["expected"].get(number, {})} for number, order in ORDERS.items()}
        left: Any = rollout.outcome
        right = sum(left[number] == order for number, order in expected.items()) / len(expected)
        return Score(float(right == 1.0), parts={"orders": right})


def _find(state: dict[str, dict[str, str]], number: str) -> dict[str, str]:
    if number not in state:
        raise ValueError(f"there is no order {number}")
    return state[number]
