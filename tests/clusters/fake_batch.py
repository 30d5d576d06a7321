"""A small batch system for tests, unlike Slurm: its commands (`python fake_batch.py put ...`) and its Scheduler.

All state is in the folder $BUNCH_HOME. A bunch ("b1") has copies ("b1.0"); each is queued, going, ok, broken or killed.
`put` starts a keeper process for its bunch, which waits for other bunches, runs the copies at the same time and starts
those again for which `again` was asked. While there is a file named `closed`, nothing starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rollbook.clusters import BatchJob, ClusterProfile, CurrentTask, JobTask, Scheduler
from rollbook.errors import SchedulerError, SubmitLimitReached, UsageError

LIMIT = 16
STATES = {"queued": "PENDING", "going": "RUNNING", "ok": "COMPLETED", "broken": "FAILED", "killed": "CANCELLED"}


class Bunch(Scheduler):
    """The fake batch system, by its own commands."""

    name = "bunch"
    title = "Bunch"
    default_max_array = 3

    def check_time(self, text: str) -> None:
        """Times are numbers of minutes."""
        if not text.isdigit():
            raise UsageError(f"time: {text!r}: Bunch counts minutes")

    def check_profile(self, profile: ClusterProfile) -> None:
        """There are no options."""
        if profile.options:
            raise UsageError(f"options: {profile.options[0]}: Bunch has none")

    def check_run_path(self, run: Path) -> None:
        """Every name will do."""

    def read_max_array_size(self) -> int:
        """The configured size of a bunch."""
        return int(ask("size"))

    def make_directives(self, job: BatchJob) -> list[str]:
        """Where the output goes, and what to avoid."""
        return [f"#BUNCH out {job.run}/logs", *(f"#BUNCH avoid {node}" for node in job.bad_nodes)]

    def log_name(self, job: str, task: int | None) -> str:
        """A single job is a bunch of one copy."""
        return f"bunch.{job}.{task or 0}.txt"

    def submit(
        self, script: Path, *, count: int = 0, after_success: Sequence[str] = (), after_end: Sequence[str] = ()
    ) -> str:
        """Put a bunch."""
        waits = [f"ok:{name}" for name in after_success] + [f"over:{name}" for name in after_end]
        return ask("put", str(script), str(count or 1), *waits).strip()

    def is_job_id(self, text: str) -> bool:
        """b7, b7.0."""
        return text[:1] == "b" and text[1:].replace(".", "").isdigit()

    def read_queue(self, ids: Sequence[str]) -> list[JobTask]:
        """What `show` says, in the common terms."""
        rows = json.loads(ask("show", *ids))
        single = {row["bunch"] for row in rows if not row["several"]}
        return [
            JobTask(row["bunch"], None if row["bunch"] in single else row["copy"], STATES[row["state"]], row["why"])
            for row in rows
        ]

    def cancel(self, ids: Sequence[str]) -> None:
        """Drop bunches."""
        ask("drop", *ids)

    def requeue(self, task: CurrentTask) -> None:
        """Ask for another start of this copy."""
        ask("again", task.name)

    def exclude_nodes(self, job: str, profile: ClusterProfile, bad_nodes: Sequence[str]) -> None:
        """There is one node."""

    def read_current_task(self, environ: Mapping[str, str]) -> CurrentTask:
        """What the keeper exports."""
        name = environ.get("BUNCH_COPY", "")
        return CurrentTask(name, name.partition(".")[0], "here", int(environ.get("BUNCH_STARTS", "1")) - 1)


def ask(*words: str) -> str:
    """Run a command of the batch system."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, timeout=60)
    if done.returncode == 3:
        raise SubmitLimitReached("bunch: submit limit")
    if done.returncode:
        raise SchedulerError(f"bunch: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


HOME = Path(os.environ.get("BUNCH_HOME", "."))


@contextmanager
def open_state() -> Iterator[dict[str, Any]]:
    """All bunches by name, locked; changes are written."""
    with open(HOME / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = HOME / "state.json"
        state = json.loads(path.read_text()) if path.exists() else {}
        before = json.dumps(state)
        yield state
        if json.dumps(state) != before:
            path.write_text(json.dumps(state))


def put(script: str, count: str, *waits: str) -> None:
    """Add a bunch and start its keeper."""
    with open_state() as state:
        queued = sum(copy["state"] in ("queued", "going") for bunch in state.values() for copy in bunch["copies"])
        if queued + int(count) > LIMIT:
            sys.exit(3)
        name = f"b{len(state) + 1}"
        copies = [{"state": "queued", "pid": 0, "starts": 0, "again": False} for _ in range(int(count))]
        state[name] = {"script": script, "waits": waits, "copies": copies}
    with open(HOME / "keepers.txt", "ab") as log:
        subprocess.Popen(
            [sys.executable, __file__, "keep", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    print(name)


def show(*names: str) -> None:
    """The copies of bunches, or single copies."""
    rows = []
    with open_state() as state:
        for bunch, known in state.items():
            for number, copy in enumerate(known["copies"]):
                if bunch in names or f"{bunch}.{number}" in names:
                    several = known["script"].endswith(("workers.sh", "servers.sh"))
                    why = "closed" if copy["state"] == "queued" else ""
                    rows.append(
                        {"bunch": bunch, "copy": number, "state": copy["state"], "why": why, "several": several}
                    )
    print(json.dumps(rows))


def drop(*names: str) -> None:
    """End bunches."""
    with open_state() as state:
        for name in names:
            for copy in state[name]["copies"]:
                if copy["state"] in ("queued", "going"):
                    copy["state"] = "killed"
                    _signal(copy, signal.SIGKILL)


def again(name: str) -> None:
    """Start a copy again when it ends."""
    bunch, _, number = name.partition(".")
    with open_state() as state:
        state[bunch]["copies"][int(number)]["again"] = True


def warn(name: str) -> None:
    """Tell a copy that its time is nearly up."""
    bunch, _, number = name.partition(".")
    with open_state() as state:
        _signal(state[bunch]["copies"][int(number)], signal.SIGUSR1)


def keep(name: str) -> None:
    """Run a bunch: start its copies when they may, see how they end."""
    running: dict[int, subprocess.Popen[bytes]] = {}
    while True:
        with open_state() as state:
            copies = state[name]["copies"]
            for number, copy in enumerate(copies):
                if number in running and running[number].poll() is not None:
                    _end(copy, running.pop(number).returncode)
                if copy["state"] == "queued" and _may_start(state, state[name]["waits"]):
                    running[number] = _start(name, number, state[name]["script"], copy)
            if not running and all(copy["state"] not in ("queued", "going") for copy in copies):
                return
        time.sleep(0.1)


def _may_start(state: dict[str, Any], waits: Sequence[str]) -> bool:
    if (HOME / "closed").exists():
        return False
    for rule, _, name in (wait.partition(":") for wait in waits):
        ends = ("ok",) if rule == "ok" else ("ok", "broken", "killed")
        if any(copy["state"] not in ends for copy in state[name]["copies"]):
            return False
    return True


def _start(name: str, number: int, script: str, copy: dict[str, Any]) -> subprocess.Popen[bytes]:
    words = (line.split(" ", 2) for line in Path(script).read_text().splitlines() if line.startswith("#BUNCH "))
    folder = next(Path(value) for _, key, value in words if key == "out")
    copy["starts"] += 1
    environ = {**os.environ, "BUNCH_COPY": f"{name}.{number}", "BUNCH_STARTS": str(copy["starts"])}
    with open(folder / f"bunch.{name}.{number}.txt", "ab") as log:
        process = subprocess.Popen(
            ["bash", script], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    copy.update(state="going", pid=process.pid)
    return process


def _end(copy: dict[str, Any], code: int) -> None:
    if copy["state"] == "killed":
        return
    copy["state"] = "queued" if copy["again"] else "ok" if code == 0 else "broken"
    copy["again"] = False


def _signal(copy: dict[str, Any], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        if copy["pid"]:
            os.killpg(copy["pid"], number) if number is signal.SIGKILL else os.kill(copy["pid"], number)


if __name__ == "__main__":
    commands = {"put": put, "show": show, "drop": drop, "again": again, "warn": warn, "keep": keep}
    if sys.argv[1] == "size":
        print(os.environ.get("BUNCH_SIZE", "8"))
    else:
        commands[sys.argv[1]](*sys.argv[2:])
