"""Files that end where they should not: torn ends are dropped and asked again, anything else is refused by name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rollbook.book import Book, rollouts
from rollbook.errors import BookError
from support.alive import eventually
from support.book_assertions import assert_complete, scored_keys, seeds_of
from support.commands import Commands, Process, Served

KEYS = 80


def journal(run: Path) -> Path:
    """The only journal there is."""
    (found,) = (p for p in (run / "journals").glob("*.jsonl") if "failures" not in p.name)
    return found


def killed(rollbook: Commands, endpoint: Served, env: str, run: Path, least: int = 20) -> None:
    """A run that was killed with so many rollouts durable, none of their chunks sealed."""
    worker = rollbook.start("run", f"{env}?tasks={KEYS}", "-m", endpoint.url, "-c", 4, "-o", run)
    assert eventually(lambda: any(run.glob("journals/*.1.jsonl")) and len(scored_keys(run)) >= least, 20)
    worker.kill()
    for seal in (run / "done").iterdir():
        seal.unlink()


def finish(rollbook: Commands, run: Path) -> Process:
    return rollbook.run("resume", run, "--no-probe")  # so that every call is one of a rollout


@pytest.fixture
def endpoint(serve: Callable[..., Served]) -> Served:
    return serve("--delay-s", "0.05", "--vllm")


@pytest.fixture
def run(tmp_path: Path, rollbook: Commands, endpoint: Served, sums: str) -> Path:
    killed(rollbook, endpoint, sums, tmp_path / "run")
    endpoint.switch("ok", delay_s=0.0)
    return tmp_path / "run"


def tear_the_last_line(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def fill_the_end_with_nuls(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)
    os.truncate(path, path.stat().st_size + 5000)


def put_nuls_behind_the_last_line(path: Path) -> None:
    os.truncate(path, path.stat().st_size + 4096)


def cut_in_the_middle(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize(
    "damage",
    [tear_the_last_line, fill_the_end_with_nuls, put_nuls_behind_the_last_line, cut_in_the_middle, cut_to_nothing],
)
def test_an_unsealed_journal_with_a_torn_end_is_resumed_from_its_last_whole_line(
    damage: Callable[[Path], None], rollbook: Commands, endpoint: Served, run: Path
) -> None:
    whole = set(scored_keys(run))
    damage(journal(run))
    kept = set(scored_keys(run))
    assert kept == whole if damage is put_nuls_behind_the_last_line else kept < whole
    before = endpoint.seeds
    done = finish(rollbook, run)
    assert done.code == 0, done.stderr
    assert_complete(run)
    after = endpoint.seeds
    assert not [s for s in seeds_of(kept) if after[s] > before[s]], "what was whole was asked again"
    assert all(after[s] == before[s] + 1 for s in seeds_of(whole - kept)), "what was torn was not asked again"
    assert all(r.turns[0].ids for r in rollouts(Book(run), tokens=True))


def cut_line(line: bytes) -> bytes:
    return line[: len(line) // 2]


def put_a_nul(line: bytes) -> bytes:
    return line[:50] + b"\0" + line[51:]


def change_the_score(line: bytes) -> bytes:
    return line.replace(b'"reward":', b'"reward":7')


def change_the_task(line: bytes) -> bytes:
    return line.replace(b'"task":"', b'"task":"x')


def break_the_text(line: bytes) -> bytes:
    return line[:50] + b"\xff" + line[51:]


@pytest.mark.parametrize("damage", [cut_line, put_a_nul, change_the_score, change_the_task, break_the_text])
def test_a_damaged_line_is_named_and_its_rollout_is_run_again_and_what_follows_counts(
    damage: Callable[[bytes], bytes], rollbook: Commands, endpoint: Served, run: Path
) -> None:
    path = journal(run)
    whole = set(scored_keys(run))
    lines = path.read_bytes().split(b"\n")
    lines[2] = damage(lines[2])
    path.write_bytes(b"\n".join(lines))
    (lost,) = whole - set(scored_keys(run))
    before = endpoint.seeds
    report = rollbook.run("report", run)
    assert f"1 damaged journal lines do not count, resume runs what they lost: {path}:3:" in report.stdout
    verified = rollbook.run("verify", run)
    assert (verified.code, verified.stdout.splitlines()[0].startswith(f"{path}:3: ")) == (3, True)
    done = finish(rollbook, run)
    assert done.code == 0, done.stderr
    assert_complete(run)
    after = endpoint.seeds
    asked_again = {seed for seed in seeds_of(whole) if after[seed] > before[seed]}
    assert asked_again == seeds_of({lost})
    after_all = rollbook.run("report", run, "--json").json
    assert (after_all["damaged"], after_all["dropped"]) == ([verified.stdout.splitlines()[0]], 0)


def finished(rollbook: Commands, endpoint: Served, env: str, run: Path) -> None:
    done = rollbook.run("run", f"{env}?tasks={KEYS}", "-m", endpoint.url, "-o", run)
    assert done.code == 0, done.stderr


def zero_the_middle(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(400))


@pytest.mark.parametrize("damage", [tear_the_last_line, cut_in_the_middle, zero_the_middle])
def test_a_damaged_sealed_journal_is_refused_with_a_way_out_that_works(
    damage: Callable[[Path], None], rollbook: Commands, endpoint: Served, sums: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    finished(rollbook, endpoint, sums, run)
    damage(journal(run))
    for words in (("report", run), ("resume", run)):
        done = rollbook.run(*words)
        assert done.code == 2
        assert str(journal(run)) in done.complaint
    (way_out,) = re.findall(r"`(rm .*?)`", done.complaint)
    subprocess.run(["bash", "-c", way_out], check=True)
    again = finish(rollbook, run)
    assert again.code == 0, again.stderr
    assert_complete(run)
    assert rollbook.run("report", run).code == 0


def test_a_sealed_journal_that_is_gone_is_refused(
    rollbook: Commands, endpoint: Served, sums: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    finished(rollbook, endpoint, sums, run)
    gone = journal(run)
    gone.unlink()
    for words in (("report", run), ("resume", run)):
        done = rollbook.run(*words)
        assert done.code == 2
        assert str(gone) in done.complaint


def test_a_seal_that_is_torn_is_refused_by_name_and_can_be_deleted(
    rollbook: Commands, endpoint: Served, sums: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    finished(rollbook, endpoint, sums, run)
    seal = run / "done" / "00000.json"
    os.truncate(seal, 20)
    for words in (("status", run), ("report", run), ("resume", run)):
        done = rollbook.run(*words)
        assert done.code == 2
        assert str(seal) in done.complaint
    seal.unlink()
    calls = endpoint.calls
    assert finish(rollbook, run).code == 0
    assert endpoint.calls == calls, "everything was still there: nothing had to be asked again"
    assert_complete(run)


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (cut_in_the_middle, "rounds/0001.json"),
        *((cut_in_the_middle, name) for name in ("tasks.jsonl", "plan.json", "leases/00000.1")),
        *((Path.unlink, name) for name in ("tasks.jsonl", "plan.json", "leases/00000.1")),
    ],
)
def test_a_file_of_the_plan_that_is_damaged_is_refused_by_name(
    damage: Callable[[Path], None], name: str, rollbook: Commands, run: Path
) -> None:
    (run / "leases" / "00000.2").write_bytes((run / "leases" / "00000.1").read_bytes())
    damage(run / name)
    done = rollbook.run("resume", run)
    assert done.code == 2, done.stderr
    assert str(run / name) in done.complaint


def test_files_of_others_in_the_folder_disturb_nobody(rollbook: Commands, run: Path) -> None:
    for name in (
        "done/notes.json",
        "done/00000 (1).json",
        "leases/Thumbs.db",
        "rounds/notes.json",
        "workers/readme.txt",
    ):
        (run / name).write_text("not ours")
    assert rollbook.run("status", run).code == 0
    assert finish(rollbook, run).code == 0
    assert_complete(run)


def test_tokens_that_are_cut_are_refused_and_cost_the_scores_nothing(
    rollbook: Commands, endpoint: Served, sums: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    finished(rollbook, endpoint, sums, run)
    sidecar = journal(run).with_suffix(".tokens")
    os.truncate(sidecar, sidecar.stat().st_size // 2)
    with pytest.raises(BookError, match=re.escape(str(sidecar))):
        list(rollouts(Book(run), tokens=True))
    assert rollbook.run("report", run, "--json").json["scored"] == KEYS
    assert len(list(rollouts(Book(run)))) == KEYS


def test_heartbeats_and_seats_torn_by_a_power_cut_hold_nobody_up(rollbook: Commands, run: Path) -> None:
    for path in (run / "workers").iterdir():
        os.truncate(path, path.stat().st_size // 2)
        with open(path, "ab") as file:
            file.write(bytes(100))
    done = rollbook.run("status", run, "--json")
    assert (done.code, done.json["requested"]) == (0, KEYS)


def test_what_a_kill_left_beside_the_files_is_ignored(rollbook: Commands, run: Path) -> None:
    for folder in ("done", "leases", "workers", "rounds", "journals"):
        (run / folder / ".00000.json.0badf00d").write_bytes(b'{"half')
    shutil.copy(journal(run), journal(run).with_name(f".{journal(run).name}"))
    assert finish(rollbook, run).code == 0
    assert_complete(run)
