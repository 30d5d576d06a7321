"""What Slurm does to jobs: it preempts them, ends their time, loses their nodes; people cancel them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from cluster import Cluster
from clustered import Serve, Submit

from support.alive import eventually
from support.book_assertions import all_keys, assert_complete, scored_keys, seeds_of
from support.commands import Commands


def model(endpoint: object) -> list[object]:
    return ["-m", endpoint.url, "--model-name", "mock"]  # type: ignore[attr-defined]


def test_a_preempted_worker_drains_goes_back_to_the_queue_and_joins_again(
    submit: Submit, serve: Serve, sums: str, cluster: Cluster
) -> None:
    endpoint = serve("--delay-s", "0.5", "--mode", "slow")
    sent = submit(f"{sums}?tasks=40", "-k", 2, *model(endpoint), "--workers", 2, "-c", 2)
    sent.wait_scored(6)
    urgent = ["--partition=urgent", "--exclusive", "--output=/dev/null", "--nodelist=cpu1,cpu2", "--nodes=2"]
    other = cluster.ask("sbatch", "--parsable", *urgent, "--wrap", "sleep 1").strip()
    array = sent.ids["workers"]
    assert eventually(lambda: cluster.jobs(other).get(other) in ("RUNNING", "COMPLETED"), 30), sent.logs()
    assert f"requeued as {array}_0, 1 of at most 20 times" in sent.logs()
    endpoint.switch("ok", delay_s=0.0)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert set(endpoint.seeds.values()) == {1}, "a drained worker finishes what it asked"
    assert f"job {array}_1 on cpu1, started again 1 times" in sent.logs()


def test_the_end_of_the_time_is_heeded_before_it_comes(
    submit: Submit, serve: Serve, sums: str, cluster: Cluster
) -> None:
    endpoint = serve("--delay-s", "1", "--mode", "slow")
    sent = submit(f"{sums}?tasks=200", *model(endpoint), "-c", 1, profile_keys={"time": 2})
    array = sent.ids["workers"]
    assert eventually(lambda: f"requeued as {array}_0" in sent.logs(), 130), (cluster.jobs(), sent.logs())
    endpoint.switch("ok", delay_s=0.0)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert set(endpoint.seeds.values()) == {1}


def test_a_worker_that_hangs_is_stopped_before_the_end_and_goes_back(
    submit: Submit, serve: Serve, sums: str, cluster: Cluster
) -> None:
    """An answer that never comes cannot hold up a drain: with a grace of 60 s it is dropped after 15."""
    endpoint = serve()
    endpoint.switch("hang", models="ok")
    sent = submit(f"{sums}?tasks=4", *model(endpoint), "--call-timeout", 300)
    array = sent.ids["workers"]
    assert eventually(lambda: endpoint.calls > 0, 30)
    cluster.ask("scancel", "--signal=USR1", "--batch", f"{array}_0")
    assert eventually(lambda: f"requeued as {array}_0" in sent.logs(), 60), (cluster.jobs(), sent.logs())
    endpoint.switch("ok", delay_s=0.0)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)


def test_two_attempts_that_bring_nothing_are_the_last(
    submit: Submit, serve: Serve, sums: str, cluster: Cluster
) -> None:
    endpoint = serve()
    endpoint.switch("hang", models="ok")
    sent = submit(f"{sums}?tasks=4", *model(endpoint), "--call-timeout", 300)
    array = sent.ids["workers"]
    for attempt, outcome in enumerate(("requeued as", "two attempts in a row wrote nothing")):
        assert eventually(lambda n=attempt: cluster.hasten() or endpoint.calls > 4 * n, 60), sent.logs()
        cluster.ask("scancel", "--signal=USR1", "--batch", f"{array}_0")
        assert eventually(lambda word=outcome: word in sent.logs(), 60), sent.logs()
    assert sent.over() == "FAILED"
    lines = (sent.run / "jobs" / "attempts" / f"{array}_0.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["wrote"] for line in lines] == [False, False]


def test_a_node_that_dies_costs_only_what_was_in_flight(
    submit: Submit, serve: Serve, sums: str, cluster: Cluster
) -> None:
    endpoint = serve("--delay-s", "0.2", "--mode", "slow")
    spread = {"options": "['--ntasks-per-node=1', '--cpus-per-task=16']"}
    sent = submit(f"{sums}?tasks=60", "-k", 2, *model(endpoint), "--workers", 2, "-c", 4, profile_keys=spread)
    sent.wait_scored(10)
    durable = set(scored_keys(sent.run))
    cluster.kill_node("cpu1")
    cluster.revive_node("cpu1")
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert all(endpoint.seeds[seed] == 1 for seed in seeds_of(durable)), "what was on the disk was asked again"
    assert max(endpoint.seeds.values()) <= 2


def test_what_is_cancelled_stays_out_of_the_queue_and_is_resumed_with_other_settings(
    submit: Submit, serve: Serve, sums: str, cluster: Cluster, rollbook: Commands, profile: Callable[..., Path]
) -> None:
    endpoint = serve("--delay-s", "0.5", "--mode", "slow")
    sent = submit(f"{sums}?tasks=200", *model(endpoint), "--workers", 2, "-c", 2)
    sent.wait_scored(4)
    assert "2 workers of" in rollbook.run("resume", sent.run, "-c", 8).complaint
    assert "which is enough" in rollbook.run("resume", sent.run).stderr
    assert rollbook.run("cancel", sent.run).stdout == "cancelled 3 jobs\n"
    array = sent.ids["workers"]
    assert eventually(lambda: set(cluster.jobs(array).values()) == {"CANCELLED"}, 30), (cluster.jobs(), sent.logs())
    scored = sent.scored
    assert "requeued as" not in sent.logs()
    endpoint.switch("ok", delay_s=0.0)
    again = rollbook.run("resume", sent.run, "-c", 8, "--workers", 3, "--cluster", profile(partition="urgent"))
    assert again.code == 0, again.stderr
    assert "(array of 3)" in again.stdout
    sent.ids = dict(line.split()[:2] for line in again.stdout.splitlines()[1:])
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert scored < 200
    assert json.loads((sent.run / "rounds" / "0002.json").read_text())["settings"]["concurrency"] == 8
    assert "#SBATCH --partition=urgent" in (sent.run / "jobs" / "0002" / "workers.sh").read_text()


def test_a_plain_scancel_is_not_undone(submit: Submit, serve: Serve, sums: str, cluster: Cluster) -> None:
    endpoint = serve("--delay-s", "0.2", "--mode", "slow")
    sent = submit(f"{sums}?tasks=200", *model(endpoint), "-c", 2)
    sent.wait_scored(2)
    array = sent.ids["workers"]
    cluster.ask("scancel", array)
    assert eventually(lambda: cluster.jobs(array) == {f"{array}_0": "CANCELLED"}, 30), (cluster.jobs(), sent.logs())
    assert "not requeued: Slurm is ending it" in sent.logs()
    assert sent.over() == "FAILED"


def test_sixty_four_workers_killed_at_random_fill_the_same_book_as_one(
    submit: Submit, serve: Serve, sums: str, cluster: Cluster, rollbook: Commands
) -> None:
    """Workers come and go for as long as there is work: half of those that are seen are killed, at any moment."""
    endpoint, chance = serve("--delay-s", "0.02", "--mode", "slow"), random.Random(7)
    words = [f"{sums}?tasks=500", "-k", 4, *model(endpoint), "--seed", 3]
    sent = submit(*words, "--workers", 64, "-c", 2, profile_keys={"partition": "urgent"})
    assert len(list_chunks(sent.run)) >= 450
    killed: set[int] = set()
    met: set[int] = set()
    while not all_sealed(sent.run):
        fresh = [pid for pid in workers_of(cluster) if pid not in met]
        met.update(fresh)
        for pid in fresh:
            if len(killed) < 32 and chance.random() < 0.5:
                time.sleep(chance.random() * 0.5)
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        if not cluster_live(cluster, sent.ids["workers"]) and not all_sealed(sent.run):
            rollbook.run("resume", sent.run)
        time.sleep(0.2)
    assert len(killed) >= 16
    assert_complete(sent.run)
    alone = rollbook.run("run", *words, "-c", 32, "-o", sent.run.with_name("alone"), within_s=180)
    assert alone.code == 0, alone.stderr
    assert marks(sent.run) == marks(sent.run.with_name("alone"))
    assert len(marks(sent.run)) == len(all_keys(sent.run)) == 2000


def marks(run: Path) -> dict[tuple[str, int], tuple[int, float]]:
    """What counts of a book, by key: the seed and the reward."""
    from rollbook.book import Book, rollouts

    return {(r.task.id, r.sample): (r.seed, r.score.reward) for r in rollouts(Book(run)) if r.score}


def list_chunks(run: Path) -> list[int]:
    plan = json.loads((run / "plan.json").read_text())
    return [size for part in plan["parts"] for size in part["chunks"]]


def all_sealed(run: Path) -> bool:
    return len(list((run / "done").glob("[0-9]*.json"))) == len(list_chunks(run))


def cluster_live(cluster: Cluster, array: str) -> bool:
    return any(state in ("RUNNING", "PENDING", "COMPLETING") for state in cluster.jobs(array).values())


def workers_of(cluster: Cluster) -> list[int]:
    """The processes of workers, not what they started."""

    def is_worker(pid: int) -> bool:
        try:
            return b"rollbook.clusters.node\0worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    return [pid for pid in cluster.processes() if is_worker(pid)]
