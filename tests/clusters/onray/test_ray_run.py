"""`rollbook run --on ray` is like a local run: its numbers, its exit codes, its signals, its book."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from raycluster import RayCluster, workers_of

from rollbook.book import Book, rollouts
from support.alive import eventually
from support.book_assertions import assert_complete
from support.commands import Commands, Served

Serve = Callable[..., Served]


def marks(run: Path) -> dict[tuple[str, int], tuple[int, float]]:
    """What counts of a book, by key: the seed and the reward."""
    return {(r.task.id, r.sample): (r.seed, r.score.reward) for r in rollouts(Book(run)) if r.score}


def scored(run: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (run / "journals").glob("*.[0-9].jsonl"))


def test_one_word_is_changed(commands: Commands, serve: Serve, sums: str, tmp_path: Path) -> None:
    endpoint = serve()
    words = ["run", f"{sums}?tasks=20", "-k", 2, "-m", endpoint.url, "--workers", 2, "--json"]
    here = commands.run(*words, "--on", "local", "-o", "here")
    there = commands.run(*words, "--on", "ray", "-o", "there")
    assert (here.code, there.code) == (0, 0), there.stderr
    assert there.json["scored"] == 40, "numbers alone are on standard output"
    assert marks(tmp_path / "there") == marks(tmp_path / "here")
    assert_complete(tmp_path / "there")
    shown = commands.run("logs", "there", "--worker", 1)
    assert "nothing is left to do" in shown.stdout
    assert not workers_of(tmp_path / "there")


def test_a_shortfall_is_one_as_everywhere(commands: Commands, serve: Serve, sums: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        Path(sums.rpartition(":")[0]).read_text().replace("return rollout", "assert task.id; return rollout")
    )
    path.write_text(path.read_text().replace("assert task.id;", "assert task.id != 'sum-0';"))
    done = commands.run("run", f"{path}:Sums?tasks=4", "-m", serve().url, "--on", "ray", "-o", "run", "--json")
    assert done.code == 3
    assert (done.json["scored"], done.json["failed"]) == (3, {"verifier_error": 1})


def test_interrupted_it_drains_and_is_resumed_where_it_was(
    commands: Commands, serve: Serve, sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.3", "--mode", "slow"), tmp_path / "run"
    going = commands.start(
        "run", f"{sums}?tasks=200", "-m", endpoint.url, "--workers", 2, "-c", 2, "--on", "ray", "-o", "run"
    )
    assert eventually(lambda: run.exists() and scored(run) >= 4, 60), going.stderr
    going.signal(signal.SIGINT)
    assert going.wait().code == 75, going.stderr
    assert "interrupted: rollbook resume" in going.complaint
    assert 0 < len(marks(run)) < 200
    endpoint.switch("ok", delay_s=0.0)
    done = commands.run("resume", "run", "--json")
    assert (done.code, done.json["scored"]) == (0, 200), done.stderr
    assert set(endpoint.seeds.values()) == {1}, "what was drained was finished, and nothing asked twice"


def test_workers_do_not_outlive_whoever_started_them(
    commands: Commands, serve: Serve, sums: str, tmp_path: Path
) -> None:
    endpoint, run = serve("--delay-s", "0.5", "--mode", "slow"), tmp_path / "run"
    words = ["run", f"{sums}?tasks=200", "-m", endpoint.url, "--workers", 2, "-c", 1, "--on", "ray", "-o", "run"]
    going = commands.start(*words)
    assert eventually(lambda: len(workers_of(run)) == 2, 60), going.stderr
    going.kill()
    assert eventually(lambda: not workers_of(run), 30)


def test_whoever_is_killed_the_book_is_that_of_one_worker(
    cluster: RayCluster, commands: Commands, serve: Serve, sums: str, tmp_path: Path
) -> None:
    """Actors are killed at random, then a whole node; of two dozen workers only a few find room at any time."""
    endpoint, chance, run = serve("--delay-s", "0.3", "--mode", "slow"), random.Random(7), tmp_path / "run"
    words = [f"{sums}?tasks=375", "-k", 4, "-m", endpoint.url, "--seed", 3]
    extra = cluster.add(num_cpus=2)
    going = commands.start("run", *words, "--workers", 24, "-c", 2, "--on", "ray", "-o", "run")
    killed: set[int] = set()
    while len(killed) < 8:
        assert going.code is None, going.stderr
        for worker, actor in workers_of(run).items():
            if worker not in killed and chance.random() < 0.3 and len(killed) < 8:
                os.kill(actor, signal.SIGKILL)
                killed.add(worker)
        time.sleep(0.5)
    assert eventually(lambda: len(workers_of(run)) >= 4, 60), going.stderr
    cluster.kill(extra)
    endpoint.switch("ok", delay_s=0.0)
    done = going.wait(90)
    assert done.code == 0, done.stderr
    assert "was lost" in done.stderr
    assert len(Book(run).chunks) >= 200
    assert_complete(run)
    alone = commands.run("run", *words, "-c", 32, "-o", "alone")
    assert alone.code == 0, alone.stderr
    assert marks(run) == marks(tmp_path / "alone")
    assert len(marks(run)) == 1500


def test_a_project_goes_along(commands: Commands, serve: Serve, sums: str, tmp_path: Path) -> None:
    project = tmp_path / "my project"
    project.mkdir()
    (project / "helping.py").write_text("def right(text, answer):\n    return text.strip().endswith(answer)\n")
    env = Path(sums.rpartition(":")[0])
    lazily = "from helping import right; return right(rollout.text, task.answer)"
    env.write_text(env.read_text().replace("return rollout.text.strip().endswith(task.answer)", lazily))
    done = commands.run(
        "run", f"{sums}?tasks=4", "-m", serve().url, "--pack", project, "--on", "ray", "-o", "run", "--json"
    )
    assert (done.code, done.json["scored"]) == (0, 4), done.stderr
    assert (tmp_path / "run" / "jobs" / "pack" / "my project" / "helping.py").exists()


def test_a_run_directory_that_a_node_does_not_see_is_one_line(
    commands: Commands, serve: Serve, sums: str, tmp_path: Path
) -> None:
    """Under this name every process finds a folder of its own."""
    done = commands.run(
        "run", f"{sums}?tasks=4", "-m", serve().url, "--workers", 2, "--on", "ray", "-o", "/proc/self/cwd/run"
    )
    assert done.code == 2
    assert "/proc/self/cwd/run cannot be seen from the node" in done.complaint
    assert (tmp_path / "run" / "run.json").exists()
    assert marks(tmp_path / "run") == {}


def test_what_no_node_could_hold_is_refused(commands: Commands, serve: Serve, sums: str, tmp_path: Path) -> None:
    done = commands.run("run", f"{sums}?tasks=4", "-m", serve().url, "--gpus", 8, "--on", "ray", "-o", "run")
    assert "has 1 CPUs and 8 GPUs" in done.complaint
    assert not (tmp_path / "run").exists()


def test_an_address_where_nobody_answers_is_refused(commands: Commands, serve: Serve, sums: str) -> None:
    words = ["run", f"{sums}?tasks=4", "-m", serve().url, "--on", "ray", "-o", "run"]
    done = commands.run(*words, "--address", "127.0.0.1:1")
    assert done.code == 2
    assert "--address 127.0.0.1:1: no Ray cluster answers there" in done.complaint
