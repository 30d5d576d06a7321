"""The tally: rollouts poured in one by one, numbers out, in memory that grows with the tasks alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rollbook.core.json import JSON
from rollbook.stats.estimators import (
    Floats,
    Interval,
    clustered_error,
    default_ks,
    interval,
    mean,
    pass_at_k,
    pass_hat_k,
    sample_std,
    within,
)
from rollbook.stats.latency import Histogram

BATCH = 4096


class Metrics(msgspec.Struct, frozen=True):
    """What a run came to in one environment. Fractions, not percents; None is undefined.

    `mean` and `std` are over scored rollouts, its error clustered by task. `pass_at` and `pass_hat` average over the
    tasks with at least k scored rollouts; `coverage` says how many those are.
    """

    env: str
    tasks: int
    requested: int
    scored: int
    failed: dict[str, int]
    pending: int
    mean: float | None
    mean_error: float | None
    mean_interval: Interval | None
    std: float | None
    pass_at: dict[int, float]
    pass_hat: dict[int, float]
    coverage: dict[int, int]
    pass_interval: Interval | None
    prompt_tokens: int
    completion_tokens: int
    truncated: int
    no_answer: int
    seconds_p50: float | None
    seconds_p95: float | None

    def json(self) -> dict[str, JSON]:
        """The metrics under the names that people know: `pass@1`, `pass^4`, `mean`."""
        plain: dict[str, JSON] = msgspec.to_builtins(self, str_keys=True)
        at, hat = plain.pop("pass_at"), plain.pop("pass_hat")
        plain["pass@1_interval"] = plain.pop("pass_interval")
        return plain | {f"pass@{k}": v for k, v in at.items()} | {f"pass^{k}": v for k, v in hat.items()}


class Tally:
    """Streaming and mergeable: per task the number scored, the sums of rewards and of their squares, and the passes."""

    def __init__(self, env: str = "") -> None:
        self.env = env
        self.scored = self.prompt_tokens = self.completion_tokens = self.truncated = self.no_answer = 0
        self.latency = Histogram()
        self._n, self._sum, self._squares, self._passed = (np.zeros(0) for _ in range(4))
        self._waiting: list[tuple[int, float, bool, float]] = []

    def add(
        self,
        task_row: int,
        reward: float,
        passed: bool,
        *,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        truncated: bool = False,
        answered: bool = True,
        seconds: float = 0.0,
    ) -> None:
        """One scored rollout. `task_row` is any small number that names its task, such as its row in tasks.jsonl."""
        self.scored += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.truncated += truncated
        self.no_answer += not answered
        self._waiting.append((task_row, reward, passed, seconds))
        if len(self._waiting) >= BATCH:
            self._settle()

    def merge(self, other: Tally) -> None:
        """Everything the other counted, too; rows mean the same tasks in both."""
        self._settle()
        other._settle()
        self.scored += other.scored
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.truncated += other.truncated
        self.no_answer += other.no_answer
        self.latency.merge(other.latency)
        self._add(other._n, other._sum, other._squares, other._passed)

    def metrics(
        self,
        requested: int,
        failed: Mapping[str, int] | None = None,
        ks: Sequence[int] | None = None,
        *,
        tasks: int | None = None,
    ) -> Metrics:
        """The numbers so far. `tasks`: how many were asked, where that is more than have a score."""
        self._settle()
        with np.errstate(over="ignore", invalid="ignore"):
            return self._metrics(requested, failed or {}, ks, tasks)

    def _metrics(
        self, requested: int, failed: Mapping[str, int], ks: Sequence[int] | None, tasks: int | None
    ) -> Metrics:
        seen = self._n > 0
        n, passed, totals = self._n[seen], self._passed[seen], self._sum[seen]
        average, error = mean(float(totals.sum()), self.scored), clustered_error(n, totals)
        failures = {kind: count for kind, count in sorted(failed.items()) if count}
        ks = default_ks(n) if ks is None else sorted(set(ks))
        covered = {k: n >= k for k in ks}
        return Metrics(
            env=self.env,
            tasks=len(n) if tasks is None else tasks,
            requested=requested,
            scored=self.scored,
            failed=failures,
            pending=requested - self.scored - sum(failures.values()),
            mean=average,
            mean_error=error,
            mean_interval=interval(average, error),
            std=sample_std(self.scored, float(self._sum.sum()), float(self._squares.sum())),
            pass_at={k: float(np.mean(pass_at_k(n[m], passed[m], k))) for k, m in covered.items() if m.any()},
            pass_hat={k: float(np.mean(pass_hat_k(n[m], passed[m], k))) for k, m in covered.items() if m.any()},
            coverage={k: int(m.sum()) for k, m in covered.items()},
            pass_interval=pass_interval(n, passed),
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            truncated=self.truncated,
            no_answer=self.no_answer,
            seconds_p50=self.latency.quantile(0.5),
            seconds_p95=self.latency.quantile(0.95),
        )

    def _settle(self) -> None:
        """Put what waits into the arrays, a batch at a time: cheaper than touching them for each rollout."""
        if not self._waiting:
            return
        columns = np.array(self._waiting, np.float64)
        self._waiting.clear()
        rows = columns[:, 0].astype(np.int64)
        rewards, passed = columns[:, 1], columns[:, 2]
        with np.errstate(over="ignore"):  # sums that overflow make a number undefined, not wrong
            sums = (np.bincount(rows, weights) for weights in (np.ones(len(rows)), rewards, rewards**2, passed))
            self._add(*(np.asarray(column, np.float64) for column in sums))
        self.latency.add(columns[:, 3])

    def _add(self, n: Floats, total: Floats, squares: Floats, passed: Floats) -> None:
        size = len(n)
        self._reach(size)
        for mine, more in ((self._n, n), (self._sum, total), (self._squares, squares), (self._passed, passed)):
            mine[:size] += more

    def _reach(self, size: int) -> None:
        """Grow by doubling, so that pouring in stays linear."""
        if size <= len(self._n):
            return
        more = max(size, 2 * len(self._n)) - len(self._n)
        columns = (self._n, self._sum, self._squares, self._passed)
        self._n, self._sum, self._squares, self._passed = (np.pad(column, (0, more)) for column in columns)


def pass_interval(n: Floats, passed: Floats) -> Interval | None:
    """The 95% interval of pass@1: tasks are the draws, each with its own share of passes."""
    if not len(n):
        return None
    shares = passed / n
    error = clustered_error(np.ones(len(n)), shares)
    return within(interval(float(np.mean(shares)), error), 0.0, 1.0)
