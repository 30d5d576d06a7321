"""Rows that a trainer gave and that did not come back: which ones, why, and whose fault it is.

verl, TRL and NeMo RL raise the same exception, which names the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from rollbook.core import FailureSide, Rollout
from rollbook.errors import Shortfall

MAX_ROWS_SHOWN = 16
"""How many rows a message names; the exception has them all."""

RowName: TypeAlias = int | str
"""A row's place in its batch; in verl's V1 the uid of its prompt."""


class MissingReason(NamedTuple):
    """Why a row did not come back. `kind` is that of its failure; empty if no rollout of it ended."""

    side: FailureSide
    why: str
    kind: str = ""


class RowsMissing(Shortfall):
    """Fewer rows came back than were requested. `rows` are the missing ones, `reasons` what is known of each."""

    def __init__(self, requested: int, missing: Mapping[RowName, MissingReason]) -> None:
        kinds = Counter(reason.kind for reason in missing.values() if reason.kind)
        super().__init__(requested=requested, scored=requested - len(missing), failed=kinds)
        self.rows, self.reasons = list(missing), {row: reason.why for row, reason in missing.items()}
        self.side = find_side(missing.values())
        self.args = (requested, dict(missing))  # it is pickled by its arguments

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.rows[:MAX_ROWS_SHOWN])) + (", ..." if len(self.rows) > MAX_ROWS_SHOWN else "")
        reason = next(iter(self.reasons.values()), "no reason is known")
        return f"{self.scored} of {self.requested} rows came back; missing rows: {shown}; {self.side}: {reason}"


def find_side(reasons: Iterable[MissingReason]) -> FailureSide:
    """Return `infra` if requesting all rows again may help, `data` if at least one of them would fail again."""
    return "data" if any(reason.side == "data" for reason in reasons) else "infra"


def find_missing(outcomes: Sequence[Rollout | MissingReason]) -> dict[RowName, MissingReason]:
    """Return the rows without a score, by their place."""
    reasons = {row: get_reason(outcome) for row, outcome in enumerate(outcomes)}
    return {row: reason for row, reason in reasons.items() if reason}


def get_reason(outcome: Rollout | MissingReason) -> MissingReason | None:
    """Return why a row has no score; None if it has one."""
    if isinstance(outcome, MissingReason):
        return outcome
    failure, (task, sample) = outcome.failure, outcome.key
    if failure is None:
        return None
    return MissingReason(failure.side, f"{failure.kind}: {failure.message} (rollout {task}#{sample})", failure.kind)
