"""The numbers of a run, from its files in one streaming pass; averages are over scored rollouts only.

Also how often later turns did not continue the tokens of earlier ones (from the record headers of the sidecars), and
the Shortfall for a report that is not all scored, with what to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from math import isfinite
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec
import numpy as np

from rollbook.book import (
    Book,
    CountedLines,
    FailedLineHeader,
    FinalFailures,
    SpentTokens,
    TaskGroups,
    WorkerMonitor,
    read_presences,
    read_turns,
    sidecar_path,
    write_atomically,
)
from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    Manifest,
    RoleUse,
    TokenRef,
    TurnLine,
    choose_hint,
    encode_pretty,
    parse_price,
)
from rollbook.errors import BookError, Shortfall, TokenError, UsageError
from rollbook.reports.calibration import measure_calibration
from rollbook.reports.run_columns import RunColumns, open_shards
from rollbook.reports.server_use import CacheUse, Tail, measure_cache_use, measure_tail
from rollbook.stats import PASS_THRESHOLD, Columns, Ints, Metrics, RaterAgreement, compute_metrics
from rollbook.tokens import HEADER_BYTES, merge, read_header


class Continuity(msgspec.Struct, frozen=True):
    """Scored rollouts of several turns with token ids: their later turns, and those that began a new sequence."""

    rollouts: int
    broken: int
    turns: int
    forks: int
    reasons: dict[str, int]

    @property
    def break_rate(self) -> float:
        """The share of later turns that did not continue."""
        return self.forks / self.turns

    def json(self) -> dict[str, JSON]:
        """Return the counts and the break rate."""
        return {"break_rate": self.break_rate, **msgspec.to_builtins(self)}


class _TurnsLine(msgspec.Struct, frozen=True, gc=False):
    task: str
    sample: int
    attempt: int
    turns: list[TurnLine]


def measure_continuity(
    books: Sequence[Book], outranked: Set[tuple[Path, int]] = frozenset(), groups: TaskGroups | None = None
) -> dict[str, Continuity]:
    """Measure by environment, or by `groups`; one without a rollout of two turns with ids is left out.

    `outranked` are the lines (journal, end) that count in one directory but not among several.
    """
    groups = groups or TaskGroups(books[0])
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for row, path, line in _scored_lines(books, outranked):
        refs = [turn.tokens for turn in line.turns if turn.tokens is not None]
        if len(refs) < 2:
            continue
        group, forks = groups.name_of(row), _count_forks(path, refs)
        counts.setdefault(group, Counter()).update(rollouts=1, broken=forks > 0, turns=len(refs) - 1, forks=forks)
        if forks:
            reasons.setdefault(group, Counter()).update(_fork_reasons(path, line.turns))
    return {
        group: Continuity(reasons=dict(reasons.get(group, Counter()).most_common()), **count)
        for group, count in sorted(counts.items())
    }


def _scored_lines(books: Sequence[Book], outranked: Set[tuple[Path, int]]) -> Iterator[tuple[int, Path, _TurnsLine]]:
    for book in books:
        for row, path, end, line in CountedLines(book, _TurnsLine).iterate_with_offsets():
            if (path, end) not in outranked:
                yield row, path, line


def _count_forks(journal: Path, refs: Sequence[TokenRef]) -> int:
    """Return how many turns do not share all earlier tokens; the record headers suffice, nothing is decompressed."""
    forks, previous = 0, 0
    with open_sidecar(journal) as file:
        for number, ref in enumerate(refs):
            shared, rest, sampled = _read_head(file, ref.at)
            forks += number > 0 and shared < previous
            previous = shared + rest + sampled
    return forks


def _read_head(sidecar: BinaryIO, at: int) -> tuple[int, int, int]:
    sidecar.seek(at)
    try:
        return read_header(sidecar.read(HEADER_BYTES))
    except TokenError as error:
        raise BookError(f"{sidecar.name}, byte {at}: {error}; restore it from a copy of the run") from None


def open_sidecar(journal: Path) -> BinaryIO:
    """Open the token sidecar of a journal."""
    path = sidecar_path(journal)
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise BookError(f"{path} is missing: restore it from a copy of the run") from None


def _fork_reasons(journal: Path, turns: list[TurnLine]) -> list[str]:
    recorded = [turn for turn in turns if turn.tokens is not None]
    return [sequence.fork.reason for sequence in merge(read_turns(journal, recorded)) if sequence.fork]


MAX_MISSING_LISTED = 1000
MAX_DAMAGED_SHOWN = 3
FailureReader: TypeAlias = Callable[[Book], Iterable[FailedLineHeader]]
"""Returns the final failures of a book that no later round has reopened."""


class Report(msgspec.Struct, frozen=True):
    """A run's numbers: requested = scored + failed + pending, for every environment and over all.

    `environments` has an entry for each group of tasks: an environment, or a part of one by its `report_by`. `overall`
    is all of them together. `merged` names the other directories of the run that were read,
    and `disagreeing` counts the rollouts for which they have another reward or answer; `kept_from` is the run whose
    verifier gave some of the scores, where this run's own gave only the others. `continuity` tells for environments
    with several turns how often those did not continue the tokens.
    """

    run: str
    path: str
    model: str
    scripted: bool
    live: bool
    requested: int
    scored: int
    failed: dict[str, int]
    pending: int
    dropped: int
    overall: Metrics
    environments: dict[str, Metrics]
    missing: list[tuple[str, int, str]]
    merged: list[str] = []
    disagreeing: int = 0
    kept_from: str = ""
    continuity: dict[str, Continuity] = {}
    cost: float | None = None
    """What all attempts cost at the price of the last start, failed and repeated ones too; None without a price."""
    warnings: list[str] = []
    """What makes the scores doubtful."""
    cache: CacheUse | None = None
    """How much of the prompts the servers had cached; None if they do not tell."""
    tail: Tail | None = None
    """How long the last 5% of the last round took; None if that was only a few rollouts."""
    roles: dict[str, RoleUse] = {}
    """The calls of each role in all attempts; `cost` and the tokens of the metrics are those of the policy alone."""
    calibration: dict[str, RaterAgreement] = {}
    """How far the judge of a calibration run agrees with people, by environment."""
    damaged: list[str] = []
    """Journal lines that are not as they were written, by file and line: they do not count."""

    def __repr__(self) -> str:
        return f"Report({self.path!r}): {self.describe()}"

    def _repr_html_(self) -> str:
        from rollbook.reports.run_tables import make_html_table

        lines = [f"{self.path}: {self.model}", self._describe_counts()]
        rows = [list(_make_table_row(metrics).values()) for metrics in self.environments.values()]
        return make_html_table(lines, list(_make_table_row(self.overall)), rows)

    def describe(self) -> str:
        """Return two lines: the model and the environments, then the counts and the metrics over all."""
        return f"{self.model} on {', '.join(self.environments)}\n{self._describe_counts()}"

    def _describe_counts(self) -> str:
        mean = "-" if self.overall.mean is None else f"{self.overall.mean:.3f}"
        passed = "-" if 1 not in self.overall.pass_at else f"{self.overall.pass_at[1]:.3f}"
        failed = sum(self.failed.values())
        counts = f"{self.scored} of {self.requested} scored, {failed} failed, {self.pending} pending"
        return f"{counts}; mean reward {mean}, pass@1 {passed}"

    @property
    def disagreement(self) -> str:
        """A warning that the directories of a run differ, and which line counts; empty if they agree."""
        if not self.disagreeing:
            return ""
        words = (
            f"directories have different rewards or answers for {self.disagreeing} rollouts that several of them hold"
        )
        return f"{words}; of each the lowest epoch counts, then the lowest attempt, then the first journal by name"

    def json(self) -> dict[str, JSON]:
        """Return the report under the usual names, such as `pass@4`."""
        plain: dict[str, JSON] = msgspec.to_builtins(self, str_keys=True)
        named = {name: one.json() for name, one in self.environments.items()}
        continuity = {name: one.json() for name, one in self.continuity.items()}
        cache = self.cache.json() if self.cache else None
        numbers = {"overall": self.overall.json(), "environments": named, "continuity": continuity, "cache": cache}
        return plain | numbers


def _make_table_row(metrics: Metrics) -> dict[str, object]:
    numbers = {"mean": metrics.mean} | {f"pass@{k}": value for k, value in metrics.pass_at.items()}
    named = {name: "-" if value is None else f"{value:.3f}" for name, value in numbers.items()}
    scored = f"{metrics.scored}/{metrics.requested}"
    return {"environment": metrics.env, "tasks": metrics.tasks, "scored": scored} | named


MAX_K = 100_000


def check_measures(at: Sequence[int] | None, threshold: float) -> tuple[list[int] | None, float]:
    """Check for which K pass@K is reported, and the reward from which a rollout passes.

    >>> check_measures([8, 1, 2, 2], 0.5)
    ([1, 2, 8], 0.5)
    """
    if not isfinite(threshold):
        raise UsageError(f"--threshold {threshold}: not a finite number")
    if at is None:
        return None, threshold
    if not at or not all(type(k) is int and 0 < k <= MAX_K for k in at):
        raise UsageError(f"--at {','.join(map(str, at))}: write whole numbers from 1, as in --at 1,2,4,8")
    return sorted(set(at)), threshold


class RunData:
    """The data of a run: what was requested, the scored rollouts as columns, and why the others are missing."""

    def __init__(self, runs: Sequence[str | Path]) -> None:
        try:
            self._read(runs)
        except BookError:  # a task or plan may have been written while we read; a second read decides
            self._read(runs)

    def _read(self, runs: Sequence[str | Path]) -> None:
        books = open_shards(runs)
        for book in books:
            book.check_tasks()
        self._read_books(books, RunColumns, FinalFailures)

    @classmethod
    def from_open_book(
        cls, book: Book, read_columns: Callable[[Sequence[Book]], RunColumns], read_failures: FailureReader
    ) -> RunData:
        """Return the data of a book that is kept open, with readers that reuse what was read before."""
        made = cls.__new__(cls)
        made._read_books([book], read_columns, read_failures)
        return made

    def _read_books(
        self, books: list[Book], read_columns: Callable[[Sequence[Book]], RunColumns], read_failures: FailureReader
    ) -> None:
        self.books, self.book, self._read_failures = books, books[0], read_failures
        self.live = any(map(has_live_worker, self.books))
        self.scored = read_columns(self.books)
        self.task_groups = TaskGroups(self.book)
        self.names = self.task_groups.names
        self.envs: Ints = np.array(self.task_groups.numbers, np.int64)
        self.requested = requested_by_task(self.book)
        self.failed: list[Counter[str]] = [Counter() for _ in self.names]
        self.failed_by_task: Counter[int] = Counter()
        self.missing: list[tuple[str, int, str]] = []
        self.failures: list[FailedLineHeader] = []
        self.damaged = list(map(str, self.scored.damaged))
        if len(self.scored.columns) < self.requested.sum():
            self._explain_missing()

    def _explain_missing(self) -> None:
        why = self._failures_by_key()
        for row, sample in self.scored.missing_keys():
            if not why and len(self.missing) >= MAX_MISSING_LISTED:
                return
            task = self.book.tasks.read(row).id
            line = why.get((task, sample))
            if line:
                self.failed[int(self.envs[row])][line.failure.kind] += 1
                self.failed_by_task[row] += 1
                self.failures.append(line)
            if len(self.missing) < MAX_MISSING_LISTED:
                reason = f"{line.failure.kind}: {line.failure.message}" if line else "pending"
                self.missing.append((task, sample, reason))

    def _failures_by_key(self) -> dict[tuple[str, int], FailedLineHeader]:
        """Return why rollouts failed; where directories differ, the choice does not depend on their order."""
        why: dict[tuple[str, int], FailedLineHeader] = {}
        for book in self.books:
            lines = self._read_failures(book)
            for key, line in {(line.task, line.sample): line for line in lines}.items():
                why[key] = min(line, why.get(key, line), key=lambda each: (each.failure.kind, each.failure.message))
            if isinstance(lines, FinalFailures):
                self.damaged += map(str, lines.damaged)
        return why

    def columns(self, env: int) -> Columns:
        """Return the scored rollouts of one environment, or of one group of its tasks."""
        if len(self.names) == 1:
            return self.scored.columns
        return self.scored.columns.where(self.envs[self.scored.columns.task] == env)

    def metrics(self, env: int | None, ks: Sequence[int] | None, threshold: float) -> Metrics:
        """Compute the numbers of one environment; of all together with None."""
        requested = self.requested if env is None else self.requested[self.envs == env]
        return compute_metrics(
            "all" if env is None else self.names[env],
            self.scored.columns if env is None else self.columns(env),
            self.scored.parts.texts,
            requested=int(requested.sum()),
            failed=sum(self.failed, Counter[str]()) if env is None else self.failed[env],
            ks=ks,
            tasks=len(requested),
            threshold=threshold,
            groups=self.groups if env is None else None,
        )

    @property
    def groups(self) -> Ints | None:
        """The number of every task's environment or group, where there are several."""
        return self.envs if len(self.names) > 1 else None


def has_live_worker(book: Book) -> bool:
    """Return whether a worker is working on the book now."""
    watch = WorkerMonitor(book.path)
    return any(not watch.is_gone(name, presence) for name, presence in read_presences(book.path).items())


def requested_by_task(book: Book) -> Ints:
    """Return how many rollouts of every task were requested."""
    requested = np.zeros(len(book.tasks), np.int64)
    for part in book.plan.parts:
        requested[part.tasks[0] : part.tasks[1]] += part.samples[1] - part.samples[0]
    return requested


def make_report(
    run: str | Path, *, write: bool = True, ks: Sequence[int] | None = None, threshold: float = PASS_THRESHOLD
) -> Report:
    """Compute the report of a run; `write` stores it as metrics.json."""
    made = build_report(RunData([run]), ks, threshold)
    if write:
        write_report(made)
    return made


def build_report(
    run: RunData, ks: Sequence[int] | None = None, threshold: float = PASS_THRESHOLD, *, forks: bool = True
) -> Report:
    """Compute the report from data that was read. `forks` reads the journals of conversations again."""
    each = {name: run.metrics(env, ks, threshold) for env, name in enumerate(run.names)}
    overall = run.metrics(None, ks, threshold) if len(each) != 1 else next(iter(each.values()))
    manifest = run.book.manifest
    spent = read_spending(run.books)
    return Report(
        run=manifest.run,
        path=str(run.book.path),
        model=manifest.model.name,
        scripted=manifest.model.kind == "scripted",
        live=run.live,
        requested=overall.requested,
        scored=overall.scored,
        failed=overall.failed,
        pending=overall.pending,
        dropped=run.scored.dropped,
        overall=overall,
        environments=each,
        missing=run.missing,
        merged=[str(book.path) for book in run.books[1:]],
        disagreeing=run.scored.disagreeing,
        kept_from=manifest.parent if manifest.mixed else "",
        continuity=(
            measure_continuity(run.books, run.scored.outranked, run.task_groups)
            if forks and overall.turns > overall.scored
            else {}
        ),
        damaged=run.damaged,
        cost=spent.cost,
        roles=spent.roles,
        calibration=measure_calibration(run.books),
        cache=measure_cache_use(run.scored),
        tail=measure_tail(run.book, run.scored, run.failures) if len(run.books) == 1 else None,
        warnings=[*list_length_warnings(manifest, each), *spent.list_warnings()],
    )


class Spending(msgspec.Struct, frozen=True):
    """What all attempts cost, None without a price; `uncounted` scored rollouts report no counts of tokens.

    `uncounted_roles` rollouts have no counts of a role that has a price.
    """

    cost: float | None = None
    uncounted: int = 0
    roles: dict[str, RoleUse] = {}
    uncounted_roles: int = 0

    def list_warnings(self) -> list[str]:
        """Return a warning if a cost leaves out rollouts."""
        found = [(self.uncounted, "no token counts, so that the cost is too low")]
        found.append((self.uncounted_roles, "no token counts of roles, so that the cost of these is too low"))
        return [f"warning: {_name_reporters(count)} {what}" for count, what in found if count]


def _name_reporters(count: int) -> str:
    return "1 rollout reports" if count == 1 else f"{count} rollouts report"


def read_spending(books: Sequence[Book]) -> Spending:
    """Return what the attempts in these directories cost at the price of the last start."""
    price, manifest = books[0].last_settings().price, books[0].manifest
    if price is None and not manifest.roles and manifest.judge is None:
        return Spending()
    spent = [SpentTokens(book.path) for book in books]
    tokens = [each.refresh() for each in spent]
    roles: dict[str, RoleUse] = {}
    for role, use in (each for one in spent for each in one.roles.items()):
        roles[role] = roles.get(role, RoleUse()).add(use)
    uncounted_roles = sum(each.uncounted_roles for each in spent)
    if price is None:
        return Spending(roles=roles, uncounted_roles=uncounted_roles)
    uncounted = sum(each.uncounted for each in spent)
    return Spending(sum(map(parse_price(price).cost, tokens)), uncounted, roles, uncounted_roles)


def read_cost(books: Sequence[Book]) -> float | None:
    """Return what all attempts in these directories cost; None if the last start had no price."""
    return read_spending(books).cost


MAX_CUT_SHARE = 0.1


def list_length_warnings(manifest: Manifest, metrics: Mapping[str, Metrics]) -> list[str]:
    """Return a warning for every environment in which many answers reached the limit of their tokens."""
    return [
        f"warning: {one.cut / one.scored:.0%} of the rollouts{'' if len(metrics) == 1 else f' of {name}'} were cut by "
        f"--max-tokens {_find_max_tokens(manifest, name)}, which may lower scores; start a new run with a higher limit"
        for name, one in metrics.items()
        if one.cut > MAX_CUT_SHARE * one.scored
    ]


def _find_max_tokens(manifest: Manifest, env: str) -> int:
    terms = manifest.environments[env].terms
    return (terms.sampling if terms else manifest.sampling).max_tokens


def write_report(report: Report) -> Path:
    """Write a report into its run; one of several directories does not replace that of one directory."""
    path = Path(report.path) / ("metrics.merged.json" if report.merged else "metrics.json")
    write_atomically(path, encode_pretty(report.json()))
    return path


def make_shortfall(report: Report, cause: str = "") -> Shortfall:
    """Return the exception for a report with missing rollouts."""
    worst = max(report.failed, key=lambda kind: report.failed[kind], default="")
    kind, logs = FAILURE_KINDS.get(worst), Path(report.path) / "logs"
    cause = cause or _first_failure_message(report, worst)
    return Shortfall(
        requested=report.requested,
        scored=report.scored,
        failed=report.failed,
        missing=report.missing,
        cause=cause,
        setting=choose_hint(worst, cause),
        log=str(logs) if logs.exists() else "",
        exit_code=kind.exit_code if kind else Shortfall.exit_code,
    )


def _first_failure_message(report: Report, worst: str) -> str:
    """Return the message of the first failure of the most frequent kind."""
    return next((f"probable cause: {why}" for _, _, why in report.missing if worst and why.startswith(worst)), "")


def describe_damage(damaged: Sequence[str], path: str) -> str:
    """Return the note for damaged journal lines: how many, the first ones, and what to do."""
    first = "; ".join(damaged[:MAX_DAMAGED_SHOWN])
    return (
        f"{len(damaged)} damaged journal lines do not count, resume runs what they lost: {first}"
        f" (all damage: rollbook verify {path})"
    )
