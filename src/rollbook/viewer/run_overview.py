"""The pages of runs: the list of all runs, one run with its numbers and charts, two runs compared.

A row of the list comes from a run's state files and its last report, without reading journals. A comparison shows the
paired numbers, and the tasks, those that flipped first.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np

from rollbook import reports
from rollbook.book import Book, RunStatus, read_status
from rollbook.core import JSON, JSON_ERRORS, Manifest, Plan, decode
from rollbook.errors import RollbookError
from rollbook.stats import PASS_THRESHOLD, Floats
from rollbook.viewer.run_cache import RunCache
from rollbook.viewer.snapshot import SampleMark, Snapshot, replace_surrogates

MAX_COUNTED_BYTES = 8 << 20
"""A run with smaller journals is counted for the list if its last report is out of date."""

WATCHED_FILES = ("run.json", "done", "workers", "leases", "rounds", "journals", "plan.json", "metrics.json")


class RunList:
    """The rows of the list of runs; only changed runs are read again."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[tuple[tuple[int, int], ...], dict[str, JSON]]] = {}

    def rows(self) -> list[dict[str, JSON]]:
        """Return every run, the newest first."""
        with self._lock:
            rows = [self._row(name) for name in self._cache.folder.names()]
        return sorted(rows, key=lambda row: -row.get("created", 0))

    def _row(self, name: str) -> dict[str, JSON]:
        if (shown := replace_surrogates(name)) != name:
            return {"run": shown, "error": "the name of this folder is not UTF-8: rename it to open the run"}
        try:
            path = self._cache.folder.root / ("" if self._cache.folder.single else name)
            stamp = tuple(_read_file_stamp(path / each) for each in WATCHED_FILES)
            held = self._rows.get(name)
            if held is None or held[0] != stamp or self._is_outdated(name, held[1]):
                held = self._rows[name] = stamp, self._read(name, path)
            return held[1]
        except (RollbookError, OSError, *JSON_ERRORS) as error:
            return {"run": name, "error": replace_surrogates(str(error))}

    def _is_outdated(self, name: str, row: dict[str, JSON]) -> bool:
        """Return whether a row must be read again: a running one, or a big one that was opened since."""
        return row.get("state") == "running" or (row.get("pass@1", 0) is None and bool(self._cache.find_open(name)))

    def _read(self, name: str, path: Path) -> dict[str, JSON]:
        self._cache.folder.check_links(path)
        status = read_status(path)
        manifest = msgspec.json.decode((path / "run.json").read_bytes(), type=Manifest)
        passed = self._read_pass_rate(name, path, status)
        plan = msgspec.json.decode((path / "plan.json").read_bytes(), type=Plan)
        return {**describe_run(name, manifest, plan), **make_state_row(status), **passed}

    def _read_pass_rate(self, name: str, path: Path, status: RunStatus) -> dict[str, JSON]:
        """Return pass@1 and its interval, from the last report if that covers as many rollouts."""
        reported = _read_metrics(path)
        if reported.get("scored") == status.scored:
            return _select_pass_rate(reported)
        size = sum(each.stat().st_size for each in (path / "journals").glob("*.jsonl"))
        if size <= MAX_COUNTED_BYTES or self._cache.find_open(name):
            report = self._cache.take_snapshot(name).numbers["report"]
            return {**_select_pass_rate(report), **_count_rollouts(report)}
        return {"pass@1": None, "interval": None, "cost": None}


class LeaderboardPage:
    """The leaderboard of a folder of several models; computed again only when one of the runs has changed."""

    def __init__(self, cache: RunCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._made: tuple[tuple[tuple[str, int], ...], dict[str, JSON]] | None = None

    def read(self) -> dict[str, JSON]:
        """Return the leaderboard; its paths are those within the folder."""
        folder = self._cache.folder
        with self._lock:
            runs, missing = self._take_snapshots(reports.read_model_names(folder.root))
            state = *((name, each.version) for name, each in runs.items()), *((why, 0) for why in missing.values())
            if self._made is None or self._made[0] != state:
                read = {name: each.reading for name, each in runs.items()}
                self._made = state, reports.rank_models(Path(folder.name), read, missing).json()
            return self._made[1]

    def _take_snapshots(self, names: Sequence[str]) -> tuple[dict[str, Snapshot], dict[str, str]]:
        """Return the runs that can be read, and why the others cannot."""
        runs, missing = {}, {}
        for name in names:
            if not (self._cache.folder.root / name / "run.json").exists():
                missing[name] = "not started"
                continue
            try:
                runs[name] = self._cache.take_snapshot(name)
            except (RollbookError, OSError, *JSON_ERRORS) as error:
                missing[name] = replace_surrogates(str(error))
        return runs, missing


def describe_run(name: str, manifest: Manifest, plan: Plan) -> dict[str, JSON]:
    """Return what a run is."""
    return {
        "run": name,
        "id": manifest.run,
        "created": manifest.created,
        "environments": list(manifest.environments),
        "model": manifest.model.name,
        "scripted": manifest.model.kind == "scripted",
        "samples": plan.samples,
    }


def make_state_row(status: RunStatus) -> dict[str, JSON]:
    """Return the progress of a run: requested = scored + failed + pending."""
    return {
        "state": status.state,
        "round": status.round,
        "requested": status.requested,
        "scored": status.scored,
        "failed": sum(status.failed.values()),
        "pending": status.pending,
        "workers": len(status.workers),
    }


def _select_pass_rate(report: dict[str, JSON]) -> dict[str, JSON]:
    overall = report.get("overall")
    overall = overall if isinstance(overall, dict) else {}
    interval = overall.get("pass@1_interval")
    return {"pass@1": overall.get("pass@1"), "interval": interval, "cost": report.get("cost")}


def _count_rollouts(report: dict[str, JSON]) -> dict[str, JSON]:
    """Return the progress by the journals: they include what a killed worker could not report."""
    scored, failed = report["scored"], sum(report["failed"].values())
    return {"scored": scored, "failed": failed, "pending": report["requested"] - scored - failed}


def _read_metrics(path: Path) -> dict[str, JSON]:
    try:
        held = decode((path / "metrics.json").read_bytes())
    except (OSError, *JSON_ERRORS):
        return {}
    return held if isinstance(held, dict) else {}


def _read_file_stamp(path: Path) -> tuple[int, int]:
    """Return a value that changes with every write, and for another file of the same name."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0, 0
    return stat.st_ino, stat.st_ctime_ns


HISTOGRAM_BINS = 20
MAX_SLOTS = 60
SLOT_WIDTHS_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0)
MAX_REWARD = 1e300
MAX_TIME = 1e11


def make_run_page(name: str, snapshot: Snapshot) -> dict[str, JSON]:
    """Return everything above the table of tasks."""
    return {
        **make_run_summary(name, snapshot.book, snapshot.numbers["report"], snapshot.state),
        "version": snapshot.version,
        "histogram": make_histogram(snapshot.located.columns.reward),
        "timeline": make_timeline(snapshot),
    }


def make_run_summary(name: str, book: Book, report: dict[str, JSON], state: str) -> dict[str, JSON]:
    """Return what a run is and its numbers; `report` is the JSON of a Report."""
    manifest = book.manifest
    report = {**report, "cost": reports.read_cost([book])}  # the cached numbers know nothing of failed attempts
    return {
        **describe_run(name, manifest, book.plan),
        "state": state,
        "live": state == "running",
        "sampling": manifest.sampling,
        "seed": manifest.seed,
        "rounds": len(book.rounds()),
        "report": report,
        "curve": make_pass_curve(report["overall"]),
        "notes": list(list_notes(report, state == "running")),
    }


def list_notes(report: dict[str, JSON], live: bool) -> Iterator[str]:
    """Yield what a reader of the numbers has to know about them."""
    if report.get("token_damage"):
        yield report["token_damage"]
    yield from report.get("warnings", ())
    if report.get("tail") and (tail := reports.describe_tail(report["tail"])):
        yield tail
    if report["damaged"]:
        yield reports.describe_damage(report["damaged"], report["path"])
    if report["scripted"]:
        yield "scripted answers, no model"
    if live:
        yield "the run is in progress: these are the numbers so far"
    if report["dropped"]:
        yield f"{report['dropped']} duplicate rollouts dropped"
    if report["kept_from"]:
        yield f"two verifiers: scores of run {report['kept_from']} are kept"
    if report["merged"]:
        yield f"read together with {', '.join(report['merged'])}"
    several = len(report["environments"]) > 1
    for one in [*report["environments"].values(), *([report["overall"]] if several else [])]:
        yield from (f"{one['env']}: {note}" if several else note for note in _list_coverage_notes(one))
    if report["overall"]["threshold"] != PASS_THRESHOLD:
        yield f"a rollout passes with a reward of at least {report['overall']['threshold']:g}"


def _list_coverage_notes(metrics: dict[str, JSON]) -> Iterator[str]:
    """Yield which numbers @k do not rest on all tasks."""
    tasks, coverage = metrics["tasks"], metrics["coverage"]
    for k, count in coverage.items():
        if count < tasks:
            yield f"@{k} is computed from {count} of {tasks} tasks"
    for k, count in metrics["maj_coverage"].items():
        if count < coverage[k]:
            yield f"maj@{k} is computed from {count} of {tasks} tasks (the others report no answers)"


def make_pass_curve(metrics: dict[str, JSON]) -> list[dict[str, JSON]]:
    """Return pass@k with its band, and maj@k where all its values are shares."""
    ks = sorted(int(name.removeprefix("pass@")) for name in metrics if name.removeprefix("pass@").isdigit())
    votes = {k: metrics[f"maj@{k}"] for k in ks if f"maj@{k}" in metrics}
    has_shares = all(value is not None and 0 <= value <= 1 for value in votes.values())
    points = []
    for k in ks:
        low, high = metrics.get(f"pass@{k}_interval") or (None, None)
        maj = votes.get(k) if has_shares else None
        points.append({"k": k, "pass": metrics[f"pass@{k}"], "low": low, "high": high, "maj": maj})
    return points


def make_histogram(rewards: Floats) -> dict[str, JSON]:
    """Return how many rollouts got which reward."""
    if not len(rewards):
        return {"edges": [0.0, 1.0], "counts": [0]}
    drawn = clip_rewards(rewards)
    counts, edges = np.histogram(drawn, HISTOGRAM_BINS, reward_range(drawn))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def clip_rewards(rewards: Floats) -> Floats:
    """Return rewards as far out as an axis can go: beyond that its width is no longer a number."""
    return np.clip(np.nan_to_num(rewards, nan=0.0), -MAX_REWARD, MAX_REWARD)


def reward_range(rewards: Floats) -> tuple[float, float]:
    """Return the range that an axis of rewards shows: at least 0 to 1."""
    return float(rewards.min(initial=0.0)), float(rewards.max(initial=1.0))


def make_timeline(snapshot: Snapshot) -> dict[str, JSON]:
    """Return the rollouts scored and attempts failed per second, or per minute, in each time slot of the run."""
    scored = _select_plausible(snapshot.located.starts + snapshot.located.columns.seconds)
    failed = _select_plausible(np.array([each.ended for each in snapshot.tries], np.float64))
    every = np.concatenate([scored, failed])
    if not len(every):
        return {"edges": [], "scored": [], "failed": [], "counts": [0, 0], "unit": "second"}
    low, high = float(every.min()), float(every.max())
    width = choose_slot_width(high - low)
    edges = low + width * np.arange(int((high - low) / width) + 2)
    counts = [np.histogram(each, edges)[0] for each in (scored, failed)]
    unit, length = ("second", 1.0) if len(every) >= high - low else ("minute", 60.0)
    rates = [(each * (length / width)).tolist() for each in counts]
    return {
        "edges": edges.tolist(),
        "scored": rates[0],
        "failed": rates[1],
        "counts": [int(each.sum()) for each in counts],
        "unit": unit,
    }


def _select_plausible(times: Floats) -> Floats:
    """Return the plausible times; a run directory may contain others."""
    return times[np.abs(times) < MAX_TIME]


def choose_slot_width(seconds: float) -> float:
    """Return a round slot width with which at most MAX_SLOTS slots are needed.

    >>> choose_slot_width(0.2), choose_slot_width(50), choose_slot_width(4000)
    (1.0, 1.0, 120.0)
    """
    wide = next((size for size in SLOT_WIDTHS_S if seconds / size < MAX_SLOTS), None)
    return wide or SLOT_WIDTHS_S[-1] * math.ceil(seconds / MAX_SLOTS / SLOT_WIDTHS_S[-1])


def make_compare_page(a: Snapshot, b: Snapshot, common: bool, offset: int, limit: int) -> dict[str, JSON]:
    """Return the comparison and one page of its pairs."""
    pairing, notes = reports.check_and_pair(a.book, b.book, common=common)
    made = reports.compare_run_data(a.reading, b.reading, pairing, notes).json()
    summary = made["comparison"]
    flips = dict.fromkeys(summary.pop("gained"), "gained") | dict.fromkeys(summary.pop("lost"), "lost")
    ordered = sorted(pairing.names, key=lambda task: (task not in flips, -abs(_mean_change(a, b, task))))
    return {
        **made,
        "gained": sum(flip == "gained" for flip in flips.values()),
        "lost": sum(flip == "lost" for flip in flips.values()),
        "scale": (min(a.scale[0], b.scale[0]), max(a.scale[1], b.scale[1])),
        "pairs": len(ordered),
        "offset": offset,
        "rows": [_make_pair(a, b, task, flips.get(task)) for task in ordered[offset : offset + limit]],
    }


def _make_pair(a: Snapshot, b: Snapshot, task: str, flip: str | None) -> dict[str, JSON]:
    left, right = a.row(task), b.row(task)
    one: dict[str, JSON] = {"strip": a.strip(left, task), "mean": _read_mean(a, task), "samples": a.samples(left)}
    two: dict[str, JSON] = {"strip": b.strip(right, task), "mean": _read_mean(b, task), "samples": b.samples(right)}
    gained = _mean_change(a, b, task) >= 0
    places = (
        find_differing_samples(one["strip"], two["strip"])
        if gained
        else find_differing_samples(two["strip"], one["strip"])[::-1]
    )
    opened = [side["samples"][at] for side, at in zip((one, two), places, strict=True)]
    return {"id": task, "prompt": a.task(left).prompt[:240], "flip": flip, "a": one, "b": two, "open": opened}


def find_differing_samples(worse: Sequence[SampleMark], better: Sequence[SampleMark]) -> tuple[int, int]:
    """Return the indices of two samples whose rewards differ most; of the first ones where none differ.

    >>> find_differing_samples([1.0, 0.0, None], [1.0, 0.5])
    (1, 0)
    """
    low = [(mark, at) for at, mark in enumerate(worse) if isinstance(mark, float)]
    high = [(mark, at) for at, mark in enumerate(better) if isinstance(mark, float)]
    if not low or not high:
        return 0, 0
    by_mark = itemgetter(0)
    for one, two in ((min(low, key=by_mark), max(high, key=by_mark)), (max(low, key=by_mark), min(high, key=by_mark))):
        if one[0] != two[0]:
            return one[1], two[1]
    return low[0][1], high[0][1]


def _read_mean(snapshot: Snapshot, task: str) -> float | None:
    mean: float | None = snapshot.table.columns["mean"][snapshot.row(task)]
    return mean


def _mean_change(a: Snapshot, b: Snapshot, task: str) -> float:
    """Return the change of a task's mean; a task without a mean in one of the runs comes last."""
    one, two = _read_mean(a, task), _read_mean(b, task)
    return -1.0 if one is None or two is None else two - one if one != two else 0.0
