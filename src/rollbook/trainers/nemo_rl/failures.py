"""Why rows did not come back: the infrastructure's fault, which may be tried again, or the data's. They pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rollbook.core.failure import Side
from rollbook.errors import RollbookError

SHOWN = 16
"""How many rows a message names; the exception has them all."""


class RowsMissing(RollbookError):
    """Fewer rollouts came back than were requested. `rows` are their indices, `reasons` what is known of each."""

    side = "data"

    def __init__(self, requested: int, rows: Sequence[int], reasons: Mapping[int, str]) -> None:
        self.requested, self.rows, self.reasons = requested, list(rows), dict(reasons)
        super().__init__(requested, list(rows), dict(reasons))

    def __str__(self) -> str:
        named = ", ".join(map(str, self.rows[:SHOWN])) + (", ..." if len(self.rows) > SHOWN else "")
        why = next((self.reasons[row] for row in self.rows if row in self.reasons), "no reason is known")
        came = self.requested - len(self.rows)
        return f"{came} of {self.requested} rollouts came back; missing rows: {named}; {self.side}: {why}"


class DataFailure(RowsMissing):
    """At least one of them would fail again."""


class InfraFailure(RowsMissing):
    """All of them failed by what has nothing to do with the rows: asking for them again may help."""

    side = "infra"


class Reason(NamedTuple):
    """Why a row did not come back."""

    side: Side
    why: str


def missing(requested: int, lost: Mapping[int, Reason]) -> RowsMissing:
    """The exception for rows that did not come back."""
    kind = DataFailure if any(reason.side == "data" for reason in lost.values()) else InfraFailure
    return kind(requested, sorted(lost), {row: reason.why for row, reason in lost.items()})
