"""The laws of the design, one by one, each in a situation where something is broken."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.alive import eventually
from support.book_assertions import all_keys, assert_adds_up, assert_complete, scored_keys, seeds_of
from support.commands import Commands, Process, Served
from support.sums import write_script

PICKY = """
from pathlib import Path
from rollbook import Environment, Task

class Picky(Environment):
    def tasks(self):
        for i in range(60):
            yield Task(id=f"t{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task, rollout):
        if task.id in ("t3", "t33"):
            raise ValueError("cannot say")
        return float("nan") if task.id == "t5" else 1.0
"""


def picky(folder: Path) -> Path:
    (folder / "picky.py").write_text(PICKY)
    return folder / "picky.py"


def words_of(process: Process) -> dict[str, object]:
    """The counts that the last line of a shortfall says."""
    line = process.complaint
    found = re.search(r"(\d+) of (\d+) rollouts were scored", line)
    assert found, line
    failed = {kind: int(n) for n, kind in re.findall(r"(\d+) failed: (\w+)", line)}
    pending = re.search(r"(\d+) pending", line)
    counts = {"scored": int(found[1]), "requested": int(found[2]), "failed": failed}
    return {**counts, "pending": int(pending[1]) if pending else 0}


def test_law_1_requested_is_scored_plus_failed_plus_pending_at_every_moment_and_everywhere(
    rollbook: Commands, serve: Callable[..., Served], tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.1"), tmp_path / "run"

    def look(*codes: int) -> dict[str, object]:
        status = rollbook.run("status", run, "--json")
        report = rollbook.run("report", run, "--json")
        assert report.code in codes, report.stderr
        for counts in (status.json, report.json, json.loads((run / "metrics.json").read_text())):
            assert_adds_up(counts, 120)
        if report.code == 3:
            assert_adds_up(words_of(report), 120)
            assert len(report.json["missing"]) == 120 - report.json["scored"]
        return report.json

    plan = ("plan", picky(tmp_path), "-m", endpoint.url, "--model-name", "mock", "-k", 2, "-o", run)
    assert rollbook.run(*plan).code == 0
    assert look(3)["pending"] == 120
    worker = rollbook.start("work", run, "-c", 4)
    assert eventually(lambda: endpoint.calls > 30, 20), worker.stderr
    assert 0 < look(3)["scored"] < 120
    worker.kill()
    assert 0 < look(3)["scored"] < 120
    endpoint.switch("ok", delay_s=0.0)
    done = rollbook.run("resume", run)
    assert done.code == 3, done.stderr
    assert_adds_up(words_of(done), 120)
    last = look(3)
    assert (last["scored"], last["pending"]) == (114, 0)
    assert last["failed"] == {"verifier_error": 4, "invalid_reward": 2}
    assert {(t, s) for t, s, _ in last["missing"]} == {(t, s) for t in ("t3", "t5", "t33") for s in (0, 1)}


def test_law_2_a_failure_is_in_no_mean_and_what_the_policy_did_badly_is_a_score(
    rollbook: Commands, serve: Callable[..., Served], tmp_path: Path
) -> None:
    endpoint = serve()
    done = rollbook.run("run", picky(tmp_path), "-m", endpoint.url, "-k", 2, "-o", tmp_path / "run", "--json")
    assert done.code == 3, done.stderr
    metrics = done.json["environments"]["Picky"]
    assert (metrics["mean"], metrics["pass@1"], metrics["pass@2"]) == (1.0, 1.0, 1.0)
    assert (metrics["scored"], metrics["requested"]) == (114, 120)
    for mode in ("context", "null_content"):
        endpoint.switch(mode)
        words = ("-m", endpoint.url, "--max-tokens", 16, "--task", "t1", "-o", tmp_path / mode, "--json")
        done = rollbook.run("run", picky(tmp_path), *words)
        assert (done.code, done.json["scored"], done.json["failed"]) == (0, 1, {}), done.stderr


def test_law_3_what_is_written_stays_written_when_a_killed_run_of_several_workers_is_extended(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.1"), tmp_path / "run"
    boss = rollbook.start("run", f"{sums}?tasks=80", "-m", endpoint.url, "-k", 2, "--workers", 2, "-c", 4, "-o", run)
    assert eventually(lambda: endpoint.calls > 60, 20), boss.stderr
    boss.kill()
    assert rollbook.nothing_left()
    kept, before = set(scored_keys(run)), endpoint.seeds
    assert kept
    endpoint.switch("ok", delay_s=0.0)
    done = rollbook.run("extend", run, "-k", 3)
    assert done.code == 0, done.stderr
    assert len(all_keys(run)) == 240
    assert_complete(run)
    after = endpoint.seeds
    assert all(after[seed] == before[seed] for seed in seeds_of(kept))


STATEFUL = """
import sys, time
from pathlib import Path
from rollbook import Environment, Task

where = {where!r}
if where == "import" and Path(sys.argv[0]).name == "environment_process.py":
    time.sleep(3600)

class Hangs(Environment):
    def tasks(self):
        for i in range(3):
            yield Task(id=f"t{{i}}", prompt=f"What is {{i}} + {{i}}?")

    def verify(self, task, rollout):
        self.maybe("verify", task)
        return 1.0

    def maybe(self, name, task):
        if where == name and task.id == "t1":
            time.sleep(3600)

    def open(self, task):
        self.maybe("open", task)
        return task

    def outcome(self, state):
        self.maybe("outcome", state)

    def close(self, state):
        self.maybe("close", state)
"""

HURRIED = """
import sys
import rollbook
from rollbook.core import Limits
from rollbook.environments import pool

assert pool.START_S > 2.0
pool.START_S = 2.0
try:
    limits = Limits(verify_s=0.5, tool_s=0.5)
    rollbook.run(*sys.argv[1:3], out=sys.argv[3], limits=limits, call_s=0.5, connect_s=1.0, probe=False)
except rollbook.Shortfall as short:
    print(*sorted(short.failed))
except rollbook.RollbookError as error:
    print(type(error).__name__, error)
else:
    print("scored")
"""


@pytest.mark.parametrize(
    ("where", "outcome"),
    [
        ("verify", "verifier_timeout"),
        ("open", "environment_error"),
        ("outcome", "environment_error"),
        ("close", "scored"),
        ("import", "UsageError"),
        ("model", "model_timeout"),
    ],
)
def test_law_6_every_wait_has_a_deadline(
    where: str, outcome: str, rollbook: Commands, serve: Callable[..., Served], tmp_path: Path
) -> None:
    endpoint = serve()
    if where == "model":
        endpoint.switch("hang", models="ok")
    (tmp_path / "hangs.py").write_text(STATEFUL.format(where=where))
    (tmp_path / "hurried.py").write_text(HURRIED)
    done = rollbook.python("hurried.py", "hangs.py", endpoint.url, "run").wait(40)
    assert done.stdout.startswith(outcome), done.stdout + done.stderr
    if where not in ("import", "model"):
        assert len(scored_keys(tmp_path / "run")) == (3 if where == "close" else 2), "it took others with it"
    assert rollbook.nothing_left(), rollbook.left()


def test_law_6_a_rollout_and_a_reply_that_never_end_have_one_too(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve()
    endpoint.switch("hang", models="ok")
    words = ("-m", endpoint.url, "--timeout", 1, "--no-probe", "-o", tmp_path / "run")
    done = rollbook.run("run", f"{sums}?tasks=4", *words, within_s=20)
    assert done.code == 3, done.stderr
    assert "4 failed: rollout_timeout" in done.complaint


@pytest.fixture
def halfway(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> tuple[Process, Path, Served]:
    """A live worker with a part of its run durable and much to do."""
    endpoint, run = serve("--delay-s", "0.1"), tmp_path / "run"
    worker = rollbook.start("run", f"{sums}?tasks=200", "-m", endpoint.url, "-k", 2, "-c", 4, "-o", run)
    assert eventually(lambda: endpoint.calls > 20, 20), worker.stderr
    return worker, run, endpoint


def test_law_7_a_copy_of_the_folder_is_the_run_wherever_it_lies(
    rollbook: Commands, halfway: tuple[Process, Path, Served], tmp_path: Path
) -> None:
    worker, run, endpoint = halfway
    worker.kill()
    (tmp_path / "far").mkdir()
    copy = tmp_path / "far" / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(run)
    for cache in ("metrics.json", "index", "logs"):
        shutil.rmtree(copy / cache, ignore_errors=True)
        (copy / cache).unlink(missing_ok=True)
    (tmp_path / "sums_env.py").unlink()
    kept, before = set(scored_keys(copy)), endpoint.seeds
    endpoint.switch("ok", delay_s=0.0)
    done = rollbook.run("resume", copy, within_s=30)
    assert done.code == 0, done.stderr
    assert_complete(copy)
    assert all(endpoint.seeds[seed] == before[seed] for seed in seeds_of(kept))
    numbers = (copy / "metrics.json").read_text()
    (copy / "metrics.json").unlink()
    assert rollbook.run("report", copy).code == 0
    assert (copy / "metrics.json").read_text() == numbers


def test_law_7_a_copy_made_while_a_worker_lives_waits_for_nobody(
    rollbook: Commands, halfway: tuple[Process, Path, Served], tmp_path: Path
) -> None:
    worker, run, endpoint = halfway
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    worker.signal(signal.SIGSTOP)
    endpoint.switch("ok", delay_s=0.0)
    done = rollbook.run("resume", copy, within_s=6)
    assert done.code == 0, done.stderr
    assert_complete(copy)


def test_law_7_a_copy_without_its_empty_folders_is_still_the_run(
    rollbook: Commands, halfway: tuple[Process, Path, Served], tmp_path: Path
) -> None:
    worker, run, endpoint = halfway
    worker.kill()
    copy = tmp_path / "copy"
    for path in (p for p in run.rglob("*") if p.is_file() and "done" not in p.parts):
        (copy / path.relative_to(run)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy / path.relative_to(run))
    assert rollbook.run("status", copy).code == 0
    endpoint.switch("ok", delay_s=0.0)
    done = rollbook.run("resume", copy)
    assert done.code == 0, done.stderr
    assert_complete(copy)


MEASURED = """
import resource, sys
import rollbook

rollbook.run(sys.argv[1], sys.argv[2], out=sys.argv[3], samples=int(sys.argv[4]), concurrency=64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_law_8_memory_is_flat_in_the_number_of_rollouts(rollbook: Commands, sums: str, tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(MEASURED)
    model, peak = write_script(tmp_path, count=1000), {}
    for samples in (2, 6):
        words = ("measured.py", f"{sums}?tasks=1000", model, f"run-{samples}", samples)
        done = rollbook.python(*words).wait(60)
        assert done.code == 0, done.stderr
        peak[samples] = int(done.stdout)
    assert peak[6] < 1.15 * peak[2], f"{peak[2]} KiB after 2,000 rollouts, {peak[6]} KiB after 6,000"
