"""A shop: the model fills an order by calling tools, and the verifier looks at the order that it leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rollbook import Environment, Rollout, Score, Task, tool

PRICES = {"tea": 2, "bread": 3, "soup": 6}


class Shop(Environment):
    """Orders in a small shop."""

    def tasks(self) -> Iterator[Task]:
        """Yield two orders."""
        yield Task(id="breakfast", prompt="Order two teas and one bread, then pay.", wanted={"tea": 2, "bread": 1})
        yield Task(id="lunch", prompt="Order a soup, then pay.", wanted={"soup": 1})

    def open(self, task: Task) -> dict[str, Any]:
        """Return the state of one rollout: an empty order."""
        return {"items": {}, "paid": False}

    @tool
    def add(self, state: dict[str, Any], item: str, count: int = 1) -> str:
        """Add an item to the order.

        Args:
            item: tea, bread or soup.
            count: How many.
        """
        if item not in PRICES:
            raise ValueError(f"we sell {', '.join(PRICES)}, not {item}")
        state["items"][item] = state["items"].get(item, 0) + count
        return f"The order has {state['items']}."

    @tool
    def pay(self, state: dict[str, Any]) -> str:
        """Pay for the order."""
        state["paid"] = True
        return f"Paid {sum(PRICES[item] * count for item, count in state['items'].items())}."

    def outcome(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return what the verifier needs of the state."""
        return state

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if the right order is paid; the parts say which half is right."""
        order: Any = rollout.outcome
        right = float(order["items"] == task.fields["wanted"])
        return Score(right * order["paid"], parts={"order": right, "paid": float(order["paid"])})
