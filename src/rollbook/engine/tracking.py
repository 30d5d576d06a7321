"""Trackers: what a run sends to W&B, MLflow, TensorBoard or a tracker of your own, and where trackers run.

A tracker is told through hooks, like any function of the user. One that is named (`--log wandb`) runs in a process of
its own, because the packages of trackers start processes and threads, and run code at the end of a process: whatever
they do, it is not done to the run. A tracker that is an object of the calling program runs in a thread of that program.
"""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from rollbook.book import Book, name_state
from rollbook.core import JSON, JSON_ERRORS, Rollout, Settings, decode, derive_seed, encode, looks_secret
from rollbook.engine.hooks import Hooks, HookThread, Observer, Say, check_hook
from rollbook.engine.progress import Progress
from rollbook.errors import ChildFailed, UsageError
from rollbook.models import list_secrets
from rollbook.processes import Child, module_argv
from rollbook.reports import ProfileRows, Report, Run, RunData

ENTRY_POINT_GROUP = "rollbook.trackers"
BUILT_IN = {
    "mlflow": "rollbook.trackers.mlflow:MlflowTracker",
    "tensorboard": "rollbook.trackers.tensorboard:TensorboardTracker",
    "wandb": "rollbook.trackers.wandb:WandbTracker",
}
"""Known without any installed metadata, so that a bare source tree works too."""
MAX_SAMPLES = 32
MAX_SAMPLE_CHARS = 4000
MAX_TASK_ROWS = 10_000
TRACKER_END_S = 60.0
"""For how long the end of a run waits for the process of a tracker: it may have something to upload."""
MAX_LOG_BYTES = 4_000_000
"""If the log of a tracker is longer than this, only its end is kept."""
LOG_TAIL_BYTES = 100_000
CUT_LINE = b"[earlier lines were removed]\n"
QUIET_WAIT_S = 3.0
"""After this long the wait is announced."""
FINEST_STEP = 1 / 1000
"""Metrics are sent once a second at first, and less often as a run gets longer: after this part of its time."""


class TrackedRun(msgspec.Struct, frozen=True):
    """A run as a tracker sees it at the start. `tracker_id` is what `open` returned at an earlier start, if any."""

    name: str
    path: Path
    settings: dict[str, JSON]
    tracker_id: str = ""


class TrackedTable(msgspec.Struct, frozen=True):
    """A table of plain values."""

    columns: list[str]
    rows: list[list[JSON]]


class TrackedResult(msgspec.Struct, frozen=True):
    """The end of a run's work: finished, shortfall or interrupted; the report's numbers, by task too, and samples."""

    state: str
    metrics: dict[str, float]
    tasks: TrackedTable
    samples: TrackedTable


class Tracker(Protocol):
    """Where a run is logged. A class without arguments, registered as an entry point of `rollbook.trackers`.

    It may have an attribute `package`: the package that it needs, which is also the name of the extra that installs it.
    """

    def open(self, run: TrackedRun) -> str:
        """Begin, or continue the run of this id where there is one; return the id to keep for a later start."""

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers; `step` is how many rollouts are scored or failed."""

    def close(self, result: TrackedResult) -> None:
        """Log the result and end; return once everything is stored or sent."""


LogTarget: TypeAlias = str | Tracker
"""What `log` takes: the name of a tracker, or one."""


def tracker_names() -> list[str]:
    """Return the names of all trackers, sorted."""
    return sorted(_known_targets())


def _known_targets() -> dict[str, EntryPoint]:
    built_in = {name: EntryPoint(name, target, ENTRY_POINT_GROUP) for name, target in BUILT_IN.items()}
    return {**{entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}, **built_in}


def find_tracker(name: str) -> Callable[[], Tracker]:
    """Return what makes the tracker of this name; UsageError if there is none or what it needs is not installed."""
    target = _known_targets().get(name)
    if target is None:
        raise UsageError(f"--log {name}: no such tracker; there are {', '.join(tracker_names())}")
    try:
        made: Callable[[], Tracker] = target.load()
    except (Exception, SystemExit) as error:
        raise UsageError(f"--log {name}: cannot be imported: {type(error).__name__}: {error}") from error
    package = getattr(made, "package", "")
    if package and find_spec(package) is None:
        raise UsageError(f"--log {name}: {package} is not installed: pip install 'rollbook[{package}]'")
    return made


def make_observers(log: Sequence[LogTarget], run: Path, say: Say) -> list[Observer]:
    """Return the observers that log a run; refuse, before it starts, a tracker that is unknown or not installed."""
    if isinstance(log, str):
        raise UsageError(f"log={log!r}: give a list, as in log=[{log!r}]")
    if double := {name for name in log if isinstance(name, str) and log.count(name) > 1}:
        raise UsageError(f"--log {min(double)}: given twice")
    names = _name_targets(log)
    return [_make_observer(name, target, run, say) for name, target in zip(names, log, strict=True)]


def _name_targets(log: Sequence[LogTarget]) -> list[str]:
    """Return a name for each tracker: that of its class, with a number from the second one of a name on."""
    names: list[str] = []
    for target in log:
        stem = target if isinstance(target, str) else type(target).__name__
        numbered = (f"{stem}-{number}" for number in range(2, len(log) + 2))
        names.append(stem if stem not in names else next(name for name in numbered if name not in names))
    return names


def _make_observer(name: str, target: LogTarget, run: Path, say: Say) -> Observer:
    if isinstance(target, str):
        find_tracker(target)
        return TrackerProcess(target, run, say)
    if not all(callable(getattr(target, method, None)) for method in ("open", "log_metrics", "close")):
        raise UsageError(f"log: {name} is neither the name of a tracker nor one: it has no open, log_metrics and close")
    for method in ("open", "log_metrics", "close"):
        check_hook(f"log: {name}.{method}", getattr(target, method))
    return HookThread(run, TrackerHooks(name, target, run).hooks, say)


class TrackerHooks:
    """The hooks that tell a tracker of a run."""

    def __init__(self, name: str, tracker: Tracker, run: Path) -> None:
        self._name, self._tracker, self._run = name, tracker, run
        self._is_open = self._is_broken = False
        self._samples: list[tuple[int, str, list[JSON]]] = []
        self._logged: dict[str, float] = {}
        self._latest: Progress | None = None
        self._next_log = 0.0
        self.hooks = Hooks(self._add_sample, self._log_progress, self._close, name)

    def _open(self) -> bool:
        """Open the tracker once; return whether it is open."""
        if not self._is_open and not self._is_broken:
            self._is_broken = True
            book = Book(self._run)
            path = self._run / "trackers" / f"{self._name}.json"
            run = TrackedRun(book.path.name, book.path, describe_settings(book), _read_tracker_id(path))
            _write_tracker_id(path, self._tracker.open(run))
            self._is_open, self._is_broken = True, False
        return self._is_open

    def _add_sample(self, rollout: Rollout) -> None:
        """Keep the rollouts whose keys hash lowest: a fair choice, and the same at every start."""
        order = -derive_seed(0, rollout.task.id, rollout.sample)
        if len(self._samples) == MAX_SAMPLES and order <= self._samples[0][0]:
            return
        sample = (order, f"{rollout.task.id}#{rollout.sample}#{rollout.attempt}", _make_sample_row(rollout))
        (heapq.heappush if len(self._samples) < MAX_SAMPLES else heapq.heappushpop)(self._samples, sample)

    def _log_progress(self, progress: Progress) -> None:
        if not self._open():
            return
        self._latest = progress
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + max(1.0, progress.seconds * FINEST_STEP)
            self._log_latest()

    def _log_latest(self) -> None:
        """Log the latest numbers, unless they were logged already."""
        if self._latest is None:
            return
        metrics = describe_progress(self._latest)
        if metrics != self._logged:
            self._logged = metrics
            self._tracker.log_metrics(metrics, self._latest.done)

    def _close(self, run: Run) -> None:
        if not self._open():
            return
        self._log_latest()  # the last numbers, whenever the ones before were logged
        report = run.report
        state = name_state(report.requested, report.scored, report.pending, alive=False)
        rows = [row for _, _, row in sorted(self._samples, key=lambda each: each[1])]
        result = TrackedResult(
            state, describe_report(report), _make_task_table(self._run), TrackedTable(SAMPLE_COLUMNS, rows)
        )
        self._tracker.close(result)


def _read_tracker_id(path: Path) -> str:
    try:
        return str(decode(path.read_bytes())["id"])
    except (FileNotFoundError, KeyError, TypeError, *JSON_ERRORS):
        return ""


def _write_tracker_id(path: Path, tracker_id: str) -> None:
    if tracker_id != _read_tracker_id(path):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode({"id": tracker_id}))


SAMPLE_COLUMNS = [
    *("task", "sample", "environment", "outcome", "reward", "prompt", "answer"),
    *("turns", "completion_tokens", "seconds"),
]


def _make_sample_row(rollout: Rollout) -> list[JSON]:
    outcome = rollout.failure.kind if rollout.failure else "scored"
    prompt = rollout.task.messages[-1].text if rollout.task.messages else ""
    return [
        *(rollout.task.id, rollout.sample, rollout.task.env, outcome, rollout.score.reward if rollout.score else None),
        *(prompt[:MAX_SAMPLE_CHARS], rollout.text[:MAX_SAMPLE_CHARS]),
        *(len(rollout.turns), rollout.usage.completion_tokens, round(rollout.timing.seconds, 3)),
    ]


def _make_task_table(run: Path) -> TrackedTable:
    """Return the numbers of the first tasks, one row a task."""
    profile = ProfileRows(RunData([run]), prefix="report_")  # a prefix, because tasks may have fields of these names
    rows: list[list[JSON]] = []
    for row in profile:
        if len(rows) == MAX_TASK_ROWS:
            break
        rows.append([row["id"], *(row.get(name) for name in profile.names)])
    return TrackedTable(["task", *(name.removeprefix("report_") for name in profile.names)], rows)


def describe_progress(progress: Progress) -> dict[str, float]:
    """Return progress as numbers by name."""
    found: dict[str, float | None] = {
        "scored": progress.scored,
        "failed": sum(progress.failed.values()),
        "pending": progress.pending,
        "mean_reward": progress.mean_reward,
        "rollouts_per_s": progress.rate,
        "cost": progress.cost,
        "tokens_per_s": progress.tokens_per_s,
        **{f"failed/{kind}": count for kind, count in progress.failed.items()},
    }
    if progress.tokens is not None:
        found |= {f"tokens/{name}": count for name, count in msgspec.structs.asdict(progress.tokens).items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def describe_report(report: Report) -> dict[str, float]:
    """Return the report's numbers by name: those of the run, and of each environment where there are several."""
    found: dict[str, float | None] = {"final/cost": report.cost}
    several = report.environments if len(report.environments) > 1 else {}
    for prefix, metrics in {"final": report.overall, **{f"final/{env}": each for env, each in several.items()}}.items():
        found |= {
            f"{prefix}/requested": metrics.requested,
            f"{prefix}/scored": metrics.scored,
            f"{prefix}/failed": sum(metrics.failed.values()),
            f"{prefix}/pending": metrics.pending,
            f"{prefix}/mean_reward": metrics.mean,
            f"{prefix}/mean_reward_error": metrics.mean_error,
            f"{prefix}/truncated": metrics.truncated,
            f"{prefix}/prompt_tokens": metrics.prompt_tokens,
            f"{prefix}/completion_tokens": metrics.completion_tokens,
            **{f"{prefix}/failed/{kind}": count for kind, count in metrics.failed.items()},
            **{f"{prefix}/parts/{part}": value for part, value in metrics.parts.items()},
            **{f"{prefix}/pass_at_{k}": value for k, value in metrics.pass_at.items()},
            **{f"{prefix}/pass_hat_{k}": value for k, value in metrics.pass_hat.items()},
            **{f"{prefix}/maj_at_{k}": value for k, value in metrics.maj_at.items()},
            **{f"{prefix}/best_at_{k}": value for k, value in metrics.best_at.items()},
        }
    return {name: float(value) for name, value in found.items() if value is not None}


MANIFEST_FIELDS = (
    *("run", "samples", "seed", "sampling", "limits", "tool_format"),
    *("model", "judge", "roles", "agent", "versions"),
)
ENVIRONMENT_FIELDS = ("spec", "args", "digest", "terms")
OPERATED_FIELDS = ("concurrency", "workers", "price", "max_cost", "max_failures")


def describe_settings(book: Book) -> dict[str, JSON]:
    """Return what a run means and how it is operated, without addresses of endpoints and without secrets."""
    settings = book.last_settings()
    manifest: dict[str, JSON] = msgspec.to_builtins(book.manifest)
    operated: dict[str, JSON] = msgspec.to_builtins(settings)
    described: dict[str, JSON] = {name: manifest.get(name) for name in MANIFEST_FIELDS}
    described |= {name: operated.get(name) for name in OPERATED_FIELDS}
    described["tasks"], described["requested"] = len(book.tasks), book.plan.requested
    described["environments"] = {
        name: {field: value for field, value in msgspec.to_builtins(spec).items() if field in ENVIRONMENT_FIELDS}
        for name, spec in book.manifest.environments.items()
    }
    hidden = hide_secrets(described, _list_secret_values(settings))
    assert isinstance(hidden, dict)
    return hidden


def _list_secret_values(settings: Settings) -> list[str]:
    """Return the values of all variables that hold keys of this run; very short ones are placeholders."""
    return [value for name in list_secrets(settings) if len(value := os.environ.get(name, "").strip()) > 7]


_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*@")
_NAMED_VALUE = re.compile(r"((?:^|[?&;\s])([^=&;?\s]+)=)[^&;\s]*")
HIDDEN = "..."


def hide_secrets(value: JSON, known: Sequence[str] = ()) -> JSON:
    """Return a value without passwords in URLs, without known secrets, and without what is named like a secret.

    >>> hide_secrets({"spec": "http://me:pw@host/x?token=abc&n=1", "api_key": "abc", "words": ["--token", "abc"]})
    {'spec': 'http://host/x?token=...&n=1', 'api_key': '...', 'words': ['--token', '...']}
    """
    if isinstance(value, dict):
        return {
            name: HIDDEN if isinstance(each, str) and each and looks_secret(name) else hide_secrets(each, known)
            for name, each in value.items()
        }
    if isinstance(value, list):
        return [
            HIDDEN
            if isinstance(before, str) and before.startswith("-") and looks_secret(before)
            else hide_secrets(each, known)
            for before, each in zip([None, *value], value, strict=False)
        ]
    return _hide_in_text(value, known) if isinstance(value, str) else value


def _hide_in_text(text: str, known: Sequence[str]) -> str:
    for secret in known:
        text = text.replace(secret, HIDDEN)
    text = _USER_OF_URL.sub("", text)
    return _NAMED_VALUE.sub(lambda found: f"{found[1]}{HIDDEN}" if looks_secret(found[2]) else found[0], text)


class TrackerProcess:
    """A tracker in a process of its own (`python -m rollbook.trackers`), which reads the run from its files.

    It is told of the end of the work on one pipe, and has its messages read from another. Its output is in
    logs/tracker-NAME.log of the run. If this process dies, the pipe closes, and the tracker ends by itself.
    """

    def __init__(self, name: str, run: Path, say: Say) -> None:
        self._name, self._run, self._say = name, run, say
        self._child: Child | None = None
        self._words = b""
        self._ended_at = 0.0
        self._reported = False

    def start(self) -> None:
        """Start the process."""
        work, self._work = os.pipe()
        self._messages, messages = os.pipe()
        os.set_blocking(self._messages, False)
        argv = module_argv("rollbook.trackers", self._name, str(self._run), str(work), str(messages))
        try:
            self._child = Child(argv, pass_fds=[work, messages], log=self._log)
        except (ChildFailed, OSError) as error:
            self._report(f"{self._name} could not be started, the run goes on: {error}")
        finally:
            os.close(work)
            os.close(messages)

    def update(self, progress: Progress) -> None:
        """Report what the process says, and its end if that is too early."""
        self._relay()
        self._bound_log()
        if self._child and self._child.returncode is not None:
            self._report_end(self._child)

    def _bound_log(self) -> None:
        """Keep the end of a log that has grown too long; the process appends to it."""
        with suppress(OSError):  # it is gone, or the disk is full
            if self._log.stat().st_size > MAX_LOG_BYTES:
                with open(self._log, "r+b") as file:
                    file.seek(-LOG_TAIL_BYTES, os.SEEK_END)
                    tail = file.read(LOG_TAIL_BYTES)
                    file.truncate(0)
                    file.seek(0)
                    file.write(CUT_LINE + tail)

    def _relay(self) -> None:
        """Report complete lines that the process has written."""
        with suppress(BlockingIOError, OSError):
            while data := os.read(self._messages, 4096):
                self._words += data
        *lines, self._words = self._words.split(b"\n")
        for line in lines:
            self._reported = True
            self._say(line.decode(errors="replace"))

    def end(self) -> None:
        """Tell the process that the work has ended."""
        self._ended_at = time.monotonic()
        with suppress(OSError):  # it is gone already
            os.write(self._work, b"end\n")
        os.close(self._work)

    def wait(self) -> None:
        """Wait for the process, within a bound; then kill it."""
        if self._child is None:
            return
        try:
            self._wait_until(self._ended_at + QUIET_WAIT_S)
            if self._child.returncode is None:
                self._say(f"waiting for {self._name}, {TRACKER_END_S:g} s at most")
            self._wait_until(self._ended_at + TRACKER_END_S)
        finally:
            late = self._child.returncode is None
            self._child.kill_now()
            self._relay()
            self._bound_log()
            os.close(self._messages)
        if late:
            self._report(
                f"{self._name} did not end within {TRACKER_END_S:g} s of the run and was killed; {self._where}"
            )
        elif self._child.returncode:
            self._report_end(self._child)

    def _wait_until(self, deadline: float) -> None:
        while self._child and self._child.returncode is None and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def _log(self) -> Path:
        return self._run / "logs" / f"tracker-{self._name}.log"

    @property
    def _where(self) -> str:
        return f"see {self._log}"

    def _report_end(self, child: Child) -> None:
        code = child.returncode or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._report(f"{self._name}: its process {how}, the run continues without it; {self._where}")

    def _report(self, line: str) -> None:
        if not self._reported:
            self._reported = True
            self._say(line)
