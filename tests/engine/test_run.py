"""`run` from Python: plan, work, report, in a plain call and awaited."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollbook import Shortfall, plan, run, run_async
from rollbook.book import Book, make_presence, read_presences, read_status, rollouts, write_heartbeat
from rollbook.book.claim_order import read_lengths
from rollbook.core import ModelSpec, Sampling, Settings, StartOptions, derive_seed
from rollbook.engine.book_worker import BookJobSource
from rollbook.engine.progress import Progress, SilentDisplay
from rollbook.engine.request import Request, update_settings
from rollbook.engine.runs import (
    RunResult,
    extend,
    open_run_model,
    plan_request,
    probe_run,
    resume,
    run_request,
    work,
)
from rollbook.errors import BookError, Stopped, UsageError
from rollbook.models import resolve_model
from support.commands import Served
from support.judge import JudgeServer
from support.sums import SUMS, write_script, write_sums

POISON = SUMS.replace(
    "        return roll", "        if task.id == 'sum-3':\n            raise KeyError('x')\n        return roll"
)


def do(folder: Path, **more: object) -> RunResult:
    result = run(write_sums(folder), write_script(folder), out=folder / "run", **more)  # type: ignore[arg-type]
    assert isinstance(result, RunResult)
    return result


def test_a_plain_call_runs_to_the_end(tmp_path: Path) -> None:
    report = do(tmp_path, samples=4).report
    assert (report.requested, report.scored, report.failed, report.pending) == (40, 40, {}, 0)
    metrics = report.environments["Sums"]
    assert metrics.pass_at[1] == metrics.pass_at[4] == 0.8
    assert read_status(tmp_path / "run").state == "finished"


def test_it_can_be_awaited(tmp_path: Path) -> None:
    async def go() -> RunResult:
        return await run_async(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run")

    assert asyncio.run(go()).report.scored == 10


def test_it_blocks_in_a_running_loop_too(tmp_path: Path) -> None:
    async def go() -> RunResult:
        return run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run")

    assert asyncio.run(go()).report.scored == 10


INTERRUPTED = """
import asyncio, os, pathlib, signal, sys, threading, time
import rollbook

def interrupt():
    journals = pathlib.Path(sys.argv[3], "journals")
    while not any(path.stat().st_size for path in journals.glob("*.jsonl")):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

async def main():
    threading.Thread(target=interrupt, daemon=True).start()
    rollbook.run(sys.argv[1], sys.argv[2], out=sys.argv[3], concurrency=1)

async def notebook():  # a kernel's loop lets the signal interrupt the cell
    signal.signal(signal.SIGINT, signal.default_int_handler)
    await main()

asyncio.run(notebook())
"""


def test_an_interrupt_in_a_running_loop_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    script = write_script(tmp_path, delay_s=0.5)
    words = [write_sums(tmp_path), script, str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, *words], capture_output=True, text=True, timeout=60)
    assert "KeyboardInterrupt" in done.stderr
    status = read_status(tmp_path / "run")
    assert (status.state, status.workers) == ("interrupted", [])


def test_parameters_of_sampling_are_taken_directly_and_out_may_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"top_k": 5, "seed": None}
    result = run(write_sums(tmp_path), write_script(tmp_path), temperature=0.5, max_tokens=7, sampling=given)
    assert result.path.parent == Path("runs")
    assert Book(result.path).manifest.sampling == Sampling(0.5, 1.0, 7, {"top_k": 5, "seed": None})


def test_every_rollout_has_the_seed_of_its_key(tmp_path: Path) -> None:
    do(tmp_path, samples=2, seed=7)
    found = {r.key: r.seed for r in rollouts(Book(tmp_path / "run"))}
    assert found == {(f"sum-{i}", s): derive_seed(7, f"sum-{i}", s) for i in range(10) for s in range(2)}


def test_a_shortfall_is_raised_with_everything_one_needs(tmp_path: Path) -> None:
    with pytest.raises(Shortfall) as caught:
        run(write_sums(tmp_path, POISON), write_script(tmp_path), out=tmp_path / "run", samples=2)
    error = caught.value
    assert (error.requested, error.scored, error.failed, error.pending) == (20, 18, {"verifier_error": 2}, 0)
    assert [key[:2] for key in error.missing] == [("sum-3", 0), ("sum-3", 1)]
    assert "KeyError" in str(error)
    assert "rollbook reverify" in str(error)


def test_a_shortfall_may_be_allowed(tmp_path: Path) -> None:
    result = run(
        write_sums(tmp_path, POISON), write_script(tmp_path), out=tmp_path / "run", samples=2, allow_shortfall=True
    )
    assert isinstance(result, RunResult)
    assert result.report.failed == {"verifier_error": 2}


def test_fail_fast_stops_at_the_first_failure(tmp_path: Path) -> None:
    script = write_script(tmp_path, count=10, delay_s=0.05)
    with pytest.raises(Shortfall, match="--fail-fast") as caught:
        run(write_sums(tmp_path, POISON), script, out=tmp_path / "run", samples=8, concurrency=4, fail_fast=True)
    assert caught.value.scored < 72
    assert caught.value.pending > 0


def test_max_failures_stops_when_something_is_systematically_wrong(tmp_path: Path) -> None:
    broken = SUMS.replace("        return roll", "        return float('nan')\n        return roll")
    script = write_script(tmp_path, count=10, delay_s=0.05)
    with pytest.raises(Shortfall, match="--max-failures 10%") as caught:
        run(write_sums(tmp_path, broken), script, out=tmp_path / "run", samples=16, concurrency=4, max_failures="10%")
    assert set(caught.value.failed) == {"invalid_reward"}
    assert caught.value.failed["invalid_reward"] < 100


def test_resume_finishes_what_is_missing_and_extend_adds_samples(tmp_path: Path) -> None:
    spec, script = write_sums(tmp_path), write_script(tmp_path)
    path = plan_request(Request(env=spec, model=[script], out=str(tmp_path / "run"), samples=2))
    assert read_status(path).pending == 20
    assert resume(path, {}, None, SilentDisplay()).report.scored == 20
    before = {r.key: r.seed for r in rollouts(Book(path))}
    assert extend(path, 4, {}, SilentDisplay()).report.scored == 40
    after = {r.key: r.seed for r in rollouts(Book(path))}
    assert {key: after[key] for key in before} == before
    assert len(after) == 40


def test_extend_refuses_to_add_nothing(tmp_path: Path) -> None:
    do(tmp_path, samples=2)
    with pytest.raises(UsageError, match="has 2 samples of every task already"):
        extend(tmp_path / "run", 2, {}, SilentDisplay())


def test_an_extend_that_is_refused_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    do(tmp_path, samples=2)
    (source,) = (tmp_path / "run" / "source").glob("*.py")
    source.write_text(source.read_text() + "# edited")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="was edited since the run began"):
        extend(tmp_path / "run", 4, {}, SilentDisplay())
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_resume_of_a_finished_run_removes_what_a_worker_left_that_was_killed_at_its_end(tmp_path: Path) -> None:
    path = do(tmp_path).path
    killed = make_presence(1, path)
    killed.born = "1"  # its pid is another process now
    write_heartbeat(path, killed)
    (path / "leases" / f".{killed.id}.1a2b3c4d").write_text("{}")
    assert resume(path, {}, None, SilentDisplay()).report.scored == 10
    assert not list((path / "leases").glob(".*"))


def test_resume_retries_infra_failures_and_leaves_data_failures(tmp_path: Path) -> None:
    with pytest.raises(Shortfall):
        run(write_sums(tmp_path, POISON), write_script(tmp_path), out=tmp_path / "run")
    for retry, attempts in (None, 1), (["verifier_error"], 2):
        with pytest.raises(Shortfall):
            resume(tmp_path / "run", {}, retry, SilentDisplay())
        lines = [p.read_text() for p in (tmp_path / "run" / "journals").glob("*.failures.jsonl")]
        assert sum(text.count("\n") for text in lines) == attempts


def test_a_planned_book_is_filled_by_whoever_works(tmp_path: Path) -> None:
    path = plan_request(Request(env=write_sums(tmp_path), model=[write_script(tmp_path)], out=str(tmp_path / "run")))
    assert work(path, {"concurrency": 2}, SilentDisplay()).report.scored == 10


def test_one_rollout_can_be_repeated(tmp_path: Path) -> None:
    path = plan_request(
        Request(
            env=write_sums(tmp_path),
            model=[write_script(tmp_path)],
            out=str(tmp_path / "one"),
            tasks=["sum-4"],
            sample=3,
        )
    )
    work(path, {}, SilentDisplay())
    (only,) = rollouts(Book(path))
    assert (only.key, only.seed) == (("sum-4", 3), derive_seed(0, "sum-4", 3))


def test_a_later_edit_is_noticed_and_the_snapshot_is_used(tmp_path: Path) -> None:
    spec, script = write_sums(tmp_path), write_script(tmp_path, right=4)
    path = plan_request(Request(env=spec, model=[script], out=str(tmp_path / "run")))
    write_sums(tmp_path, SUMS.replace("return roll", "return 0.0 and roll"))
    notes: list[str] = []

    class Notes(SilentDisplay):
        def note(self, line: str) -> None:
            notes.append(line)

    assert resume(path, {}, None, Notes()).report.environments["Sums"].mean == 1.0
    assert any("sums_env.py was edited since" in note for note in notes)


def test_another_model_is_another_run(tmp_path: Path) -> None:
    do(tmp_path)
    with pytest.raises(UsageError, match="planned with the model scripted"):
        resume(tmp_path / "run", {"urls": ["http://127.0.0.1:9/v1"]}, None, SilentDisplay())


def test_an_edited_script_is_another_model(tmp_path: Path) -> None:
    do(tmp_path)
    write_script(tmp_path, right=0)
    with pytest.raises(UsageError, match="its file was edited since"):
        resume(tmp_path / "run", {}, None, SilentDisplay())


def test_unknown_settings_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no setting is called concurency.*concurrency"):
        run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", concurency=3)


def test_the_manifest_pins_what_produced_the_numbers_and_holds_no_url(tmp_path: Path) -> None:
    do(tmp_path)
    text = (tmp_path / "run" / "run.json").read_text()
    manifest = Book(tmp_path / "run").manifest
    spec = manifest.environments["Sums"]
    assert (spec.snapshot, len(spec.digest), manifest.model.kind) == ("source", 64, "scripted")
    assert {"rollbook", "python", "aiohttp"} <= set(manifest.versions)
    assert "://" not in text
    assert (tmp_path / "run" / "source" / "sums_env.py").read_text() == SUMS


def test_two_workers_as_processes_fill_one_book(tmp_path: Path) -> None:
    script = write_script(tmp_path, delay_s=0.02)
    result = run(write_sums(tmp_path), script, out=tmp_path / "run", samples=20, workers=2, concurrency=4)
    assert isinstance(result, RunResult)
    assert result.report.scored == 200
    assert len(list((tmp_path / "run" / "workers").glob("*.json"))) == 2


def test_settings_are_frozen_per_round(tmp_path: Path) -> None:
    do(tmp_path, concurrency=3)
    (round_,) = Book(tmp_path / "run").rounds()
    assert round_.settings == msgspec.structs.replace(
        Settings(), concurrency=3, urls=[write_script(tmp_path)], retry=["infra"]
    )


def test_an_edited_snapshot_is_refused(tmp_path: Path) -> None:
    path = plan_request(Request(env=write_sums(tmp_path), model=[write_script(tmp_path)], out=str(tmp_path / "run")))
    source = path / "source" / "sums_env.py"
    source.write_text(source.read_text().replace("return roll", "return 1.0 or roll"))
    for again in (lambda: resume(path, {}, None, SilentDisplay()), lambda: work(path, {}, SilentDisplay())):
        with pytest.raises(UsageError, match="source was edited"):
            again()


@pytest.mark.parametrize(
    ("name", "old", "new"), [("run.json", '"seed": 0', '"seed": 7'), ("tasks.jsonl", "sum-3", "sum-x")]
)
def test_an_edited_meaning_is_refused(tmp_path: Path, name: str, old: str, new: str) -> None:
    path = plan_request(Request(env=write_sums(tmp_path), model=[write_script(tmp_path)], out=str(tmp_path / "run")))
    (path / name).write_text((path / name).read_text().replace(old, new))
    with pytest.raises(BookError, match=f"{name} was edited since"):
        resume(path, {}, None, SilentDisplay())


@pytest.mark.parametrize("samples", [2.5, "3", 10**12])
def test_samples_must_be_a_sensible_whole_number(tmp_path: Path, samples: object) -> None:
    with pytest.raises(UsageError, match="whole number"):
        run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", samples=samples)  # type: ignore[arg-type]


def test_a_setting_of_the_wrong_kind_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="outage_s"):
        run(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", outage_s="x")
    assert not (tmp_path / "run").exists()


def test_fail_fast_holds_for_a_crew_too(tmp_path: Path) -> None:
    script = write_script(tmp_path, delay_s=0.1)
    with pytest.raises(Shortfall, match="--fail-fast") as caught:
        run(
            write_sums(tmp_path, POISON),
            script,
            out=tmp_path / "run",
            samples=60,
            concurrency=2,
            workers=2,
            fail_fast=True,
        )
    assert caught.value.pending > 0


def test_one_sample_of_a_task_can_be_extended_without_a_hole(tmp_path: Path) -> None:
    env, script, out = write_sums(tmp_path), write_script(tmp_path), str(tmp_path / "one")
    path = plan_request(Request(env=env, model=[script], out=out, tasks=["sum-4"], sample=2))
    work(path, {}, SilentDisplay())
    assert extend(path, 4, {}, SilentDisplay()).report.scored == 4
    assert sorted(r.sample for r in rollouts(Book(path))) == [0, 1, 2, 3]


DEAF = SUMS.replace("    def verify", "    async def verify").replace(
    "        return roll",
    """        while task.id == 'sum-3':
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                pass
        return roll""",
)


def test_an_async_verifier_that_refuses_to_be_cancelled_fails_alone_and_the_program_ends(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom rollbook import Shortfall, run\nfrom rollbook.core.manifest import Limits\n"
        "try:\n    run(sys.argv[1], sys.argv[2], out=sys.argv[3], limits=Limits(verify_s=0.5))\n"
        "except Shortfall as error:\n    print(error.scored, error.failed)\n"
    )
    words = [write_sums(tmp_path, "import asyncio\n" + DEAF), write_script(tmp_path), str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60)
    assert done.stdout == "9 {'verifier_timeout': 1}\n", done.stderr


def test_runs_that_start_at_once_without_a_folder_do_not_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env, script = write_sums(tmp_path), write_script(tmp_path)

    async def go() -> list[RunResult]:
        return await asyncio.gather(*(run_async(env, script, limit=1) for _ in range(3)))

    assert len({result.path for result in asyncio.run(go())}) == 3


def test_a_refused_call_leaves_no_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    for more in ({"log": ["nothing"]}, {"samples": 0}, {"model_name": "x", "judge": "scripted:none"}):
        with pytest.raises(UsageError):
            run(write_sums(tmp_path), "scripted:missing.jsonl", **more)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        plan("nothing")
    assert list(work.iterdir()) == []


UNLOADABLE = "import os\nif os.environ.get('PLANNER') != str(os.getpid()):\n    raise KeyError('elsewhere')\n" + SUMS


def test_a_start_that_fails_before_any_rollout_can_be_tried_again_with_the_same_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER", str(os.getpid()))
    env, script, out = write_sums(tmp_path, UNLOADABLE), write_script(tmp_path), tmp_path / "run"
    with pytest.raises(UsageError, match=r"did not load: .*elsewhere"):
        run(env, script, out=out)
    assert not out.exists()
    write_sums(tmp_path)
    assert run(env, script, out=out).report.scored == 10


class Shown(SilentDisplay):
    """A display that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def start(self, total: int, pending: int | None = None) -> None:
        self.shown.append((total, pending))

    def update(self, progress: Progress) -> None:
        self.shown.append(progress)


def make_request(folder: Path) -> Request:
    return Request(env=write_sums(folder), model=[write_script(folder)], out=str(folder / "run"), samples=2)


def test_a_display_is_shown_how_a_run_begins_and_ends(tmp_path: Path) -> None:
    display = Shown()
    run_request(make_request(tmp_path), display)
    first, *_, last = display.shown
    assert first == (20, 20)
    assert (last.requested, last.scored, last.pending, last.failed, last.in_flight) == (20, 20, 0, {}, 0)


def test_a_display_is_shown_the_last_numbers_however_the_work_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise BookError("the disk is gone")

    monkeypatch.setattr(BookJobSource, "run_worker", fail)
    display = Shown()
    with pytest.raises(BookError, match="the disk is gone"):
        run_request(make_request(tmp_path), display)
    first, last = display.shown
    assert first == (20, 20)
    assert (last.requested, last.scored, last.in_flight) == (20, 0, 0)


TOKENS = {"prompt_ids": [1, 2], "ids": [3, 4], "logprobs": [-0.5, -0.25]}


class Noting(Shown):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def test_a_run_ends_at_its_cost_and_a_later_round_asks_nothing_until_more_is_allowed(tmp_path: Path) -> None:
    script = write_script(tmp_path, **TOKENS)
    more = {"price": "in=1000000,out=1000000", "max_cost": 10.0, "concurrency": 1}  # a rollout costs 4
    with pytest.raises(Shortfall, match=r"stopped by --max-cost 10 at a cost of 12\.00: resume with a higher one"):
        run(write_sums(tmp_path), script, out=tmp_path / "run", **more)  # type: ignore[arg-type]
    path, display = tmp_path / "run", Noting()
    assert read_status(path).scored == 3
    with pytest.raises(Shortfall, match="stopped by --max-cost 10"):
        resume(path, {}, None, display)
    assert read_status(path).scored == 3
    assert display.shown[-1].cost == 12.0
    result = resume(path, {"max_cost": 100.0}, None, display)
    assert (result.report.scored, display.shown[-1].cost) == (10, 40.0)


class Interrupting(Noting):
    """Interrupts the work once something is scored."""

    def update(self, progress: Progress) -> None:
        super().update(progress)
        if progress.scored and not self.notes:
            self.notes.append("interrupted")
            os.kill(os.getpid(), signal.SIGTERM)


def test_an_interrupted_run_says_how_much_is_left_and_how_to_go_on(tmp_path: Path) -> None:
    script = write_script(tmp_path, delay_s=0.1)
    path = plan_request(Request(env=write_sums(tmp_path), model=[script], out=str(tmp_path / "run")))
    display = Interrupting()
    with pytest.raises(Stopped) as caught:
        work(path, {"concurrency": 1}, display)
    status = read_status(path)
    assert 0 < status.scored < 10
    assert str(caught.value) == f"interrupted with {10 - status.scored} rollouts to go: rollbook resume {path}"
    assert display.notes == ["interrupted", "draining: 1 in flight; once more stops at once"]
    assert work(path, {}, SilentDisplay()).report.scored == 10


def test_who_joins_a_run_is_told_of_edits_and_takes_no_order(tmp_path: Path) -> None:
    path = plan_request(make_request(tmp_path))
    (tmp_path / "sums_env.py").write_text(SUMS + "# edited")
    display = Noting()
    assert work(path, {}, display).report.scored == 20
    assert len(display.notes) == 1
    assert "was edited since; this run continues with its own copy" in display.notes[0]
    with pytest.raises(UsageError, match="--order other: a worker follows its round; give it to run"):
        work(path, {"order": "other"}, display)


def test_a_result_is_shown_as_a_path_text_and_html(tmp_path: Path) -> None:
    result = do(tmp_path)
    assert os.fspath(result) == str(tmp_path / "run")
    assert repr(result) == f"RunResult('{tmp_path / 'run'}'): {result.report.describe()}"
    assert result._repr_html_() == result.report._repr_html_()


def test_a_pool_opens_its_own_models(tmp_path: Path) -> None:
    write_script(tmp_path)

    async def go(spec: ModelSpec, workers: int, alone: bool | None = None) -> bool:
        settings = Settings(workers=workers, urls=[f"scripted:{tmp_path / 'script.jsonl'}"])
        async with open_run_model(spec, settings, SilentDisplay(), alone) as model:
            return model is not None

    spec = resolve_model([f"scripted:{tmp_path / 'script.jsonl'}"])[0]
    for workers, alone, opened in ((1, None, True), (2, None, False), (2, True, True), (1, False, False)):
        assert asyncio.run(go(spec, workers, alone)) is opened
    nameless = msgspec.structs.replace(spec, name="")
    assert asyncio.run(go(nameless, 2)) is True  # it has to learn its name


def test_a_round_is_probed_before_it_is_opened(tmp_path: Path) -> None:
    result = do(tmp_path)
    book, settings = Book(result.path), Settings(urls=Book(result.path).last_settings().urls, concurrency=3)
    assert probe_run(book, settings, StartOptions(), lambda _: None) == settings  # a script is not asked


def test_roles_that_a_limit_on_costs_does_not_count_are_named_at_the_start(tmp_path: Path) -> None:
    judged = SUMS + "\n    async def appeal(self, task, rollout, score, judge):\n        return score\n"
    display = Noting()
    with JudgeServer() as judge:
        request = Request(
            env=write_sums(tmp_path, judged),
            model=[write_script(tmp_path)],
            judge=[judge.url],
            out=str(tmp_path / "run"),
            settings=update_settings(Settings(), {"price": "in=1,out=1", "max_cost": 1.0}),
        )
        run_request(request, display)
    assert display.notes == [
        "--max-cost counts no calls of the role judge: it has no price; give --role judge.price=in=1,out=4"
    ]


def test_a_folder_that_is_not_empty_is_refused_before_the_environment_and_the_model_are_looked_at(
    tmp_path: Path,
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"run is not empty: choose another --out, or delete it$"):
        run("no_such_environment", "no-such-model", out=tmp_path / "run")


def test_workers_are_processes_although_this_one_has_opened_the_model_to_learn_its_name(
    tmp_path: Path, serve: Callable[..., Served]
) -> None:
    result = run(write_sums(tmp_path), serve().url, out=tmp_path / "run", workers=2, probe=False)
    assert result.report.scored == 10
    assert os.getpid() not in {presence.pid for presence in read_presences(result.path).values()}


def test_a_run_that_is_ordered_by_another_tells_its_workers_the_lengths_of_the_tasks(tmp_path: Path) -> None:
    env, script = write_sums(tmp_path), write_script(tmp_path)
    run(env, script, out=tmp_path / "first", samples=1)
    run(env, script, out=tmp_path / "second", samples=1, order=f"profile:{tmp_path / 'first'}")
    lengths = read_lengths(tmp_path / "second", 1)
    assert lengths is not None
    assert [length is not None for length in lengths.lengths] == [True] * 10
    assert read_lengths(tmp_path / "first", 1) is None
