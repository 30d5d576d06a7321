"""The runs of a folder, one row each: from their state files and what was reported, without reading journals."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from rollbook.book.status import Status, read_status
from rollbook.core.json import JSON, decode
from rollbook.core.manifest import Manifest
from rollbook.core.plan import Plan
from rollbook.errors import RollbookError
from rollbook.view.folder import readable
from rollbook.view.opened import Shelf

QUICKLY_READ = 8 << 20
"""A run whose journals are no larger is counted for the list if its last report is out of date."""

WATCHED = ("run.json", "done", "workers", "leases", "rounds", "journals", "plan.json", "metrics.json")


class Runs:
    """Rows of runs, taken anew only where files have changed."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[tuple[tuple[int, int], ...], dict[str, JSON]]] = {}

    def rows(self) -> list[dict[str, JSON]]:
        """Every run, the newest first."""
        with self._lock:
            rows = [self._row(name) for name in self._shelf.folder.names()]
        return sorted(rows, key=lambda row: -row.get("created", 0))

    def _row(self, name: str) -> dict[str, JSON]:
        if (shown := readable(name)) != name:
            return {"run": shown, "error": "the name of this folder is not UTF-8: rename it to open the run"}
        try:
            path = self._shelf.folder.root / ("" if self._shelf.folder.single else name)
            stamp = tuple(_changed(path / each) for each in WATCHED)
            held = self._rows.get(name)
            if held is None or held[0] != stamp or self._may_say_more(name, held[1]):
                held = self._rows[name] = stamp, self._read(name, path)
            return held[1]
        except (RollbookError, OSError, msgspec.DecodeError) as error:
            return {"run": name, "error": readable(str(error))}

    def _may_say_more(self, name: str, row: dict[str, JSON]) -> bool:
        """Of a run that goes on there is ever more to say, and of a big one as soon as somebody has opened it."""
        return row.get("state") == "running" or (row.get("pass@1", 0) is None and bool(self._shelf.held(name)))

    def _read(self, name: str, path: Path) -> dict[str, JSON]:
        self._shelf.folder.check_links(path)
        status = read_status(path)
        manifest = msgspec.json.decode((path / "run.json").read_bytes(), type=Manifest)
        passed = self._passed(name, path, status)
        plan = msgspec.json.decode((path / "plan.json").read_bytes(), type=Plan)
        return {**described(name, manifest, plan), **state_row(status), **passed}

    def _passed(self, name: str, path: Path, status: Status) -> dict[str, JSON]:
        """pass@1 and its interval, from the last report if that is of as many rollouts."""
        reported = _reported(path)
        if reported.get("scored") == status.scored:
            return _pass(reported)
        size = sum(each.stat().st_size for each in (path / "journals").glob("*.jsonl"))
        if size <= QUICKLY_READ or self._shelf.held(name):
            report = self._shelf.look(name).numbers["report"]
            return {**_pass(report), **_counted(report)}
        return {"pass@1": None, "interval": None}


def described(name: str, manifest: Manifest, plan: Plan) -> dict[str, JSON]:
    """What a run is."""
    return {
        "run": name,
        "id": manifest.run,
        "created": manifest.created,
        "environments": list(manifest.environments),
        "model": manifest.model.name,
        "scripted": manifest.model.kind == "scripted",
        "samples": plan.samples,
    }


def state_row(status: Status) -> dict[str, JSON]:
    """How far a run is: requested = scored + failed + pending."""
    return {
        "state": status.state,
        "round": status.round,
        "requested": status.requested,
        "scored": status.scored,
        "failed": sum(status.failed.values()),
        "pending": status.pending,
        "workers": len(status.workers),
    }


def _pass(report: dict[str, JSON]) -> dict[str, JSON]:
    overall = report.get("overall")
    overall = overall if isinstance(overall, dict) else {}
    return {"pass@1": overall.get("pass@1"), "interval": overall.get("pass@1_interval")}


def _counted(report: dict[str, JSON]) -> dict[str, JSON]:
    """How far a run is by its journals: they know what a worker that was killed had no time to tell."""
    scored, failed = report["scored"], sum(report["failed"].values())
    return {"scored": scored, "failed": failed, "pending": report["requested"] - scored - failed}


def _reported(path: Path) -> dict[str, JSON]:
    try:
        held = decode((path / "metrics.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return held if isinstance(held, dict) else {}


def _changed(path: Path) -> tuple[int, int]:
    """Another value for what was written since, and for another file of the same name."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0, 0
    return stat.st_ino, stat.st_ctime_ns
