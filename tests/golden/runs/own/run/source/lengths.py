"""How long answers are, of one rollout and of a whole run."""

from rollbook.book.book import Book
from rollbook.book.rollouts import rollouts
from rollbook.core.turn import Turn
from rollbook.environments.environment import Environment


class Measured(Environment):
    """An environment whose runs can be measured."""

    @staticmethod
    def lengths(run: str) -> dict[str, int]:
        return {f"{found.key}": len(found.text) for found in rollouts(Book(run))}


def sampled_tokens(turns: list[Turn]) -> int:
    return sum(turn.completion_tokens or 0 for turn in turns)
