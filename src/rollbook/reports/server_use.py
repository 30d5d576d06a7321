"""How a run used its servers: the prompt tokens that they had cached, and the tail in which they had little to do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from rollbook.book import Book
from rollbook.reports.journal_columns import NOT_REPORTED
from rollbook.reports.run_columns import RunColumns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollbook.book import FailedLineHeader
    from rollbook.core import JSON


class CacheUse(msgspec.Struct, frozen=True):
    """The prompt tokens of the scored rollouts whose server tells what it had cached, and how many those were."""

    prompt_tokens: int
    cached_tokens: int

    @property
    def share(self) -> float:
        """The share of the prompt tokens that were cached."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def json(self) -> dict[str, JSON]:
        """Return the counts and the share."""
        return {"share": self.share, **msgspec.to_builtins(self)}


def measure_cache_use(scored: RunColumns) -> CacheUse | None:
    """Return how much of the prompts was cached; None if no server tells."""
    told = scored.cached != NOT_REPORTED
    if not told.any():
        return None
    return CacheUse(int(scored.columns.prompt_tokens[told].sum()), int(scored.cached[told].sum()))


class TailRollout(msgspec.Struct, frozen=True):
    """One of the rollouts that ended last."""

    task: str
    sample: int
    seconds: float
    tokens: int
    failure: str = ""
    """The kind of its failure; empty if it was scored."""


class Tail(msgspec.Struct, frozen=True):
    """The end of the last round: the `seconds` in which its last 5% of `rollouts` ended, of `round_s` in all."""

    seconds: float
    round_s: float
    rollouts: int
    last: list[TailRollout]


DONE_SHARE = 0.95
MIN_ROLLOUTS = 20
"""Of fewer rollouts, 5% is none."""
MAX_LAST = 3
MIN_SHOWN_S = 1.0


def measure_tail(book: Book, scored: RunColumns, failures: Sequence[FailedLineHeader] = ()) -> Tail | None:
    """Return the tail of a run's last round, scored and failed rollouts; None if that has only a few."""
    rounds = book.rounds()
    began = rounds[-1].started if len(rounds) > 1 else -math.inf
    failures = [line for line in failures if line.timing.start]  # one that was lost with its workers has no time
    starts = np.concatenate([scored.starts, [line.timing.start for line in failures]])
    seconds = np.concatenate([scored.columns.seconds, [line.timing.seconds for line in failures]])
    own = np.flatnonzero(starts >= began)
    if len(own) < MIN_ROLLOUTS:
        return None
    ends = starts[own] + seconds[own]
    order = np.argsort(ends, kind="stable")
    done = math.ceil(DONE_SHARE * len(own)) - 1
    end = float(ends[order[-1]])
    last = [_describe_rollout(book, scored, failures, int(own[at])) for at in order[::-1][:MAX_LAST]]
    since = float(starts[own].min())
    return Tail(round(end - float(ends[order[done]]), 3), round(end - since, 3), len(own) - 1 - done, last)


def _describe_rollout(book: Book, scored: RunColumns, failures: Sequence[FailedLineHeader], at: int) -> TailRollout:
    """Describe a scored rollout, or behind the scored ones a failed one."""
    columns = scored.columns
    if at >= len(columns):
        line = failures[at - len(columns)]
        return TailRollout(line.task, line.sample, round(line.timing.seconds, 3), 0, line.failure.kind)
    task = book.tasks.read(int(columns.task[at])).id
    return TailRollout(
        task, int(scored.samples[at]), round(float(columns.seconds[at]), 3), int(columns.completion_tokens[at])
    )


def describe_tail(tail: Mapping[str, JSON]) -> str:
    """Return the tail in one line, from its JSON; empty if it was short.

    >>> last = [{"task": "t7", "sample": 2, "seconds": 61.0, "tokens": 8192, "failure": ""}]
    >>> describe_tail({"seconds": 40.2, "round_s": 160.0, "rollouts": 5, "last": last})
    'tail: the last 5 rollouts took 40 s of 160 s; t7#2 (61 s, 8192 tokens) ended last'
    """
    if tail["seconds"] < MIN_SHOWN_S:
        return ""
    last = ", ".join(map(_show_rollout, tail["last"]))
    took = f"the last {tail['rollouts']} rollouts took {tail['seconds']:.0f} s of {tail['round_s']:.0f} s"
    return f"tail: {took}; {last} ended last"


def _show_rollout(rollout: Mapping[str, JSON]) -> str:
    how = rollout["failure"] or f"{rollout['tokens']} tokens"
    return f"{rollout['task']}#{rollout['sample']} ({rollout['seconds']:.0f} s, {how})"
