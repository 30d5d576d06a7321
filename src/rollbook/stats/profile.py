"""A profile: one row a task, with what its rollouts came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from rollbook.core.json import JSON
from rollbook.stats.columns import SILENT, Bools, Columns, Ints
from rollbook.stats.estimators import Floats, default_ks, finite
from rollbook.stats.tasks import PASS, Tasks


class Profile:
    """The numbers of every task by its row in tasks.jsonl; `groups` are the environments of the rows, if several."""

    def __init__(
        self,
        columns: Columns,
        answers: Sequence[str],
        ks: Sequence[int] | None = None,
        threshold: float = PASS,
        groups: Ints | None = None,
    ) -> None:
        self._tasks = held = Tasks(columns, threshold, groups)
        self._answers = answers
        self.ks = default_ks(held.n) if ks is None else sorted(set(ks))
        self._at: dict[str, tuple[Bools, Floats]] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is null
            votes = held.maj_at(self.ks)
            self._add("pass@{}", {k: held.pass_at(k) for k in self.ks})
            self._add("pass^{}", {k: held.pass_hat(k) for k in self.ks if k > 1})
            self._add("maj@{}", {k: vote.values for k, vote in votes.items()}, held.polled)
            errors = {k: np.sqrt(vote.variances) for k, vote in votes.items() if vote.drawn.any()}
            self._add("maj@{}_drawing_error", errors, held.polled)
            self._add("best@{}", {} if held.binary else {k: held.best_at(k) for k in self.ks})

    def _add(self, name: str, values: Mapping[int, Floats], held: Callable[[int], Bools] | None = None) -> None:
        has = held or self._tasks.covered
        self._at |= {name.format(k): (has(k), each) for k, each in values.items()}

    @property
    def names(self) -> list[str]:
        """The columns that a profile adds to a row."""
        fixed = ["n", "failed", "mean", "std", "min", "max"]
        return [*fixed, *self._at, "majority", "majority_share", *MEANS]

    def rows(self, failed: Mapping[int, int], wanted: Sequence[int]) -> Iterator[tuple[int, dict[str, JSON]]]:
        """(row, numbers) of the wanted rows; one without a score has nulls."""
        names, columns = self.names, self._columns()
        found = dict(zip(self._tasks.rows.tolist(), zip(*(columns[name] for name in names), strict=True), strict=True))
        unscored = (0, *(None for _ in names[1:]))
        for row in wanted:
            numbers = dict(zip(names, found.get(row, unscored), strict=True))
            numbers["failed"] = failed.get(row, 0)
            yield row, numbers

    def _columns(self) -> dict[str, list[JSON]]:
        """Every column as a list of plain values."""
        held = self._tasks
        chosen, share = held.favourites
        fixed = {
            "n": held.n.tolist(),
            "failed": [0] * len(held),
            "mean": _plain(held.means),
            "std": [None if n < 2 else std for n, std in zip(held.n.tolist(), _plain(held.stds), strict=True)],
            "min": held.low.tolist(),
            "max": held.high.tolist(),
        }
        at = {name: _spread(covered, values) for name, (covered, values) in self._at.items()}
        answers = [None if number == SILENT else self._answers[number] for number in chosen.tolist()]
        shares = _spread(chosen != SILENT, share[chosen != SILENT])
        means = {name: _plain(held.sum(column) / held.n) for name, column in MEANS.items()}
        return fixed | at | {"majority": answers, "majority_share": shares} | means


MEANS = {
    "prompt_tokens": "prompt_tokens",
    "completion_tokens": "completion_tokens",
    "turns": "turns",
    "truncated": "truncated",
    "seconds": "seconds",
}
"""What a row has as a mean over the task's scored rollouts."""


def _plain(values: Floats) -> list[float | None]:
    """Numbers as plain values, what overflowed as None."""
    found: list[float | None] = values.tolist()
    return found if np.isfinite(values).all() else [None if value is None else finite(value) for value in found]


def _spread(covered: Bools, values: Floats) -> list[float | None]:
    """The values of the covered tasks in their places, None elsewhere."""
    given = iter(_plain(values))
    return list(given) if covered.all() else [next(given) if held else None for held in covered.tolist()]
