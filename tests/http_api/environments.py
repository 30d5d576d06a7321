"""Environments that score whatever row they are sent: what fails in these tests is a server."""

from __future__ import annotations

from collections.abc import Iterator

from rollbook import Environment, Rollout, Task, tool


class Desk(Environment):
    """Tools and a state."""

    def tasks(self) -> Iterator[Task]:
        """Yield one task."""
        yield Task(id="sum", prompt="What is 1 + 1?", answer="2")

    def open(self, task: Task) -> dict[str, int]:
        """Return a new state."""
        return {"total": 0}

    @tool
    def add(self, state: dict[str, int], a: int, b: int = 0) -> int:
        """Add two numbers to the total."""
        state["total"] += a + b
        return state["total"]

    @tool
    def echo(self, text: str) -> str:
        """Say it again."""
        return text

    def outcome(self, state: dict[str, int]) -> dict[str, int]:
        """Return the total."""
        return state

    def verify(self, task: Task, rollout: Rollout) -> bool:
        """Compare the text with the expected answer."""
        return rollout.text == task.answer


class Guess(Environment):
    """Replies until the number is guessed."""

    def tasks(self) -> Iterator[Task]:
        """Yield one task."""
        yield Task(id="number", prompt="Guess a number.", answer="7")

    def open(self, task: Task) -> dict[str, int]:
        """Return a new state."""
        return {"guesses": 0}

    def reply(self, task: Task, rollout: Rollout, state: dict[str, int]) -> str | None:
        """Ask again after a wrong guess."""
        state["guesses"] += 1
        return None if rollout.text == "7" else f"again ({state['guesses']})"

    def verify(self, task: Task, rollout: Rollout) -> bool:
        """Reward the right number."""
        return rollout.text == "7"
